//! `taper serve`: the model over HTTP.

use crate::{
    access::Access,
    cli::{EngineArgs, ServeArgs},
    interrupt::{Busy, Interrupts},
    listen::{listen, raise_file_limit},
    lora_args::LoraArgs,
    model::{self, Requests},
    output::{Out, note},
    reload::Reload,
    rescue, serve_many,
    serving_args::{ServingArgs, limit},
    sizes::human,
};
use anyhow::{Context, Result, bail, ensure};
use axum::Router;
use std::{io, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};
use taper::{Builder, Embedder, ModelSource, Reranker, Scheduling, Speech, SpeechLimits, Taper};
use taper_base::Engine;
use taper_chat::ReasoningFormat;
use taper_openai_server::{AppState, Model, ServerConfig, Tls, Vision};
use tokio::net::TcpListener;

/// Sequences computed together if nobody says otherwise.
const SEQUENCES: u32 = 256;

pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let interrupts = Interrupts::listen()?;
    let dir = args.models.models_dir.as_deref();
    let source = dir.is_none().then(|| model::find(args.model.name())).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let (open, busy) = (open(args).await?, interrupts.busy());
        match (source, dir) {
            (Some(source), _) => serve_one(args, &source, open, busy).await,
            (None, Some(dir)) => serve_many::serve(args, dir, open, busy).await,
            (None, None) => bail!("there is no model to serve"),
        }
    });
    // A load or a template that takes long must not hold up the end of the process.
    runtime.shutdown_background();
    served
}

/// The sockets, who may call them, and what encrypts them.
pub(crate) struct Open {
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) access: Access,
    pub(crate) tls: Option<Tls>,
}

impl Open {
    /// Where a client on this machine finds the server.
    pub(crate) fn address(&self, host: &str) -> Result<String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        Ok(format!("{scheme}://{}", address(host, &self.listeners)?))
    }
}

/// Opens the sockets: a taken port should be known before a long load.
async fn open(args: &ServeArgs) -> Result<Open> {
    raise_file_limit();
    let listeners = listen(&args.host, args.port).await?;
    let addresses = listeners.iter().map(TcpListener::local_addr);
    let local = addresses.collect::<io::Result<Vec<_>>>()?.iter().all(|a| a.ip().is_loopback());
    let (access, tls) = (Access::of(&args.callers, local)?, tls(&args.serving)?);
    // It ends with the runtime.
    tokio::spawn(Reload::new(&args.callers, access.keys.clone(), tls.clone()).run());
    Ok(Open { listeners, access, tls })
}

/// What the flags say of requests.
pub(crate) fn requests(args: &ServeArgs) -> Requests {
    let scheduling = match args.scheduling_policy.as_str() {
        "priority" => Scheduling::Priority,
        _ => Scheduling::Fcfs,
    };
    Requests { together: SEQUENCES, waiting: args.max_waiting, scheduling }
}

/// The first signal ends a load at once, and lets running requests finish.
async fn serve_one(args: &ServeArgs, source: &ModelSource, open: Open, busy: Busy) -> Result<()> {
    let at = open.address(&args.host)?;
    let Open { listeners, access, tls } = open;
    let loading = {
        let (source, engine, lora) = (source.clone(), args.engine.clone(), args.lora.clone());
        let (images, speech) = (args.images.clone(), args.speech.limits());
        let (task, requests) = (task(&args.task, &source)?, requests(args));
        tokio::task::spawn_blocking(move || {
            load(task, &source, &engine, (&lora, speech), |source| {
                let with = |builder: Builder| images.apply(lora.apply(builder));
                model::start(source, &engine, requests, with)
            })
        })
    };
    let model = tokio::select! {
        model = loading => model??,
        stop = busy.stopped() => return Err(stop.into()),
    };
    let drain = Duration::from_secs(args.serving.drain_timeout);
    let shutdown = async move {
        busy.stopped().await;
        note!("\nfinishing what runs; again to stop at once");
    };
    let base = base_config(args, (access, tls), model.name());
    let mut config = config_of(args, base, source, &model);
    let mut engine = None;
    if let Loaded::Text(model) = &model {
        if let Some(why) = model.no_chat() {
            tracing::warn!("no chat can be answered: {why}");
        }
        tokio::task::block_in_place(|| rescue::apply(&args.rescue, &mut config))?;
        let names = &config.served_model_names;
        if let Some(adapter) =
            model.adapters().iter().find(|a| names.iter().any(|n| **n == *a.name))
        {
            bail!("--lora-modules: {:?} is the name of the model itself", adapter.name);
        }
        engine = Some(Arc::clone(&model.engine));
    }
    write!(Out, "{}", model.announcement(source, &config, &at))?;
    let state = AppState::from(model.with(config));
    taper_openai_server::serve(listeners, state, shutdown, drain).await?;
    if let Some(engine) = engine {
        engine.stop();
    }
    Ok(())
}

/// What is served.
pub(crate) enum Loaded {
    Text(Taper),
    Vectors(Box<Embedder>),
    Scores(Box<Reranker>),
    Speech(Speech),
}

impl Loaded {
    fn name(&self) -> &str {
        match self {
            Self::Text(model) => &model.name,
            Self::Vectors(model) => model.name(),
            Self::Scores(model) => model.name(),
            Self::Speech(model) => model.name(),
        }
    }

    /// The model as a server takes it.
    pub(crate) fn with(self, config: ServerConfig) -> Model {
        match self {
            Self::Text(Taper { engine, tokenizer, template, .. }) => {
                Model::new(engine as Arc<dyn Engine>, tokenizer, template, config)
            }
            Self::Vectors(model) => {
                let tokenizer = model.tokenizer().clone();
                Model::of_vectors(Arc::new(*model), tokenizer, config)
            }
            Self::Scores(model) => {
                let tokenizer = model.tokenizer().clone();
                Model::of_scores(Arc::new(*model), tokenizer, config)
            }
            Self::Speech(model) => {
                let tokenizer = model.tokenizer().clone();
                Model::of_transcriber(model.transcriber(), tokenizer, config)
            }
        }
    }

    fn announcement(&self, source: &ModelSource, config: &ServerConfig, at: &str) -> String {
        match self {
            Self::Text(model) => announcement(source, model, config, at),
            Self::Vectors(model) => announcement_of_vectors(source, model, config, at),
            Self::Scores(model) => announcement_of_scores(source, model, config, at),
            Self::Speech(model) => announcement_of_speech(source, model, config, at),
        }
    }
}

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    Generate,
    Embed,
    Score,
    Transcribe,
}

/// What a flag says, or the model's files.
pub(crate) fn task(asked: &str, source: &ModelSource) -> Result<Task> {
    Ok(match asked {
        "generate" => Task::Generate,
        "embed" => Task::Embed,
        "score" => Task::Score,
        "transcribe" => Task::Transcribe,
        _ if Speech::is_for(source)? => Task::Transcribe,
        _ if Reranker::is_for(source)? => Task::Score,
        _ if Embedder::is_for(source)? => Task::Embed,
        _ => Task::Generate,
    })
}

/// Loads a model, for a task; `start` starts one that generates.
pub(crate) fn load(
    task: Task,
    source: &ModelSource,
    engine: &EngineArgs,
    (lora, speech): (&LoraArgs, SpeechLimits),
    start: impl FnOnce(&ModelSource) -> Result<Taper>,
) -> Result<Loaded> {
    if task == Task::Generate {
        return Ok(Loaded::Text(start(source)?));
    }
    ensure!(
        engine.device == "cpu",
        "models for vectors or scores of texts, or for speech, run on the CPU, not with --device"
    );
    ensure!(!lora.enable_lora, "models that generate no text take no adapters");
    if let Some(threads) = engine.threads {
        taper::set_threads(threads.into())?;
    }
    Ok(match task {
        Task::Transcribe => Loaded::Speech(Speech::from_source(source, speech)?),
        Task::Score => Loaded::Scores(Box::new(Reranker::from_source(source)?)),
        _ => Loaded::Vectors(Box::new(Embedder::from_source(source)?)),
    })
}

/// What encrypts connections, if the flags name it.
fn tls(args: &ServingArgs) -> Result<Option<Tls>> {
    let files = args.ssl_certfile.as_ref().zip(args.ssl_keyfile.as_ref());
    let load = |(certificate, key): (&PathBuf, &PathBuf)| {
        Tls::load(certificate, key).context("--ssl-certfile, --ssl-keyfile")
    };
    files.map(load).transpose()
}

/// Where a client on this machine finds the server.
fn address(host: &str, listeners: &[TcpListener]) -> Result<String> {
    let first = listeners.first().context("no address to listen on")?.local_addr()?;
    let is_name = host.parse::<IpAddr>().is_err() && !host.starts_with('[');
    Ok(if is_name { format!("{host}:{}", first.port()) } else { first.to_string() })
}

/// What is alike for every model.
pub(crate) fn base_config(
    args: &ServeArgs,
    (access, tls): (Access, Option<Tls>),
    name: &str,
) -> ServerConfig {
    let names = &args.served_model_name;
    ServerConfig {
        served_model_names: if names.is_empty() { vec![name.to_owned()] } else { names.clone() },
        api_keys: access.keys,
        allowed_origins: access.origins,
        allowed_hosts: access.hosts,
        tls,
        request_timeout: limit(args.serving.request_timeout),
        step_timeout: limit(args.serving.step_timeout),
        max_body_bytes: usize::from(args.max_body_mib) << 20,
        max_audio_bytes: args.speech.bytes(),
        max_waiting_audio: args.max_waiting,
        allow_unknown_fields: args.allow_unknown_fields,
        max_stored_responses: args.max_stored_responses as usize,
        max_stored_bytes: usize::from(args.max_stored_mib) << 20,
        images: args.images.limits(),
        pages: if args.no_ui { Router::new() } else { taper_web::router() },
        ..ServerConfig::default()
    }
}

/// What follows from a model's files.
pub(crate) fn config_of(
    args: &ServeArgs,
    base: ServerConfig,
    from: &ModelSource,
    model: &Loaded,
) -> ServerConfig {
    let Loaded::Text(model) = model else { return base };
    let source = model.template.as_ref().map_or("", |t| t.source());
    ServerConfig {
        enable_auto_tool_choice: args.enable_auto_tool_choice,
        default_chat_template_kwargs: args.default_chat_template_kwargs.clone().unwrap_or_default(),
        tool_format: args.tool_call_parser.format(source, model.family),
        tool_call_recovery: !args.no_tool_call_recovery,
        reasoning_format: args
            .reasoning_parser
            .unwrap_or_else(|| ReasoningFormat::detect(source, model.family)),
        default_sampling: model.sampling.clone(),
        architecture: model.family.to_string(),
        parameters: model.parameters,
        gguf: matches!(from, ModelSource::Gguf { .. }),
        on_gpu: args.engine.device != "cpu",
        vision: model.vision.clone().map(|encoder| Vision {
            encoder,
            decode: taper::decode_image,
            frames: taper::video_frames,
        }),
        max_adapters: args.lora.most(),
        allow_adapter_updates: args.lora.allow_runtime_lora_updating,
        ..base
    }
}

/// [`announcement`] of a model for vectors of texts.
fn announcement_of_vectors(
    source: &ModelSource,
    model: &Embedder,
    config: &ServerConfig,
    at: &str,
) -> String {
    let (name, most, dimensions) = (config.model_name(), model.max_tokens(), model.dimensions());
    format!(
        r#"{name}: {source}
vectors of {dimensions} elements, texts of up to {most} tokens
serving on {at}, API under {at}/v1. Try:

  curl {at}/v1/embeddings -H 'Content-Type: application/json' \
    -d '{{"model": "{name}", "input": "Hello"}}'

Ctrl-C stops.
"#
    )
}

/// [`announcement`] of a reranker.
fn announcement_of_scores(
    source: &ModelSource,
    model: &Reranker,
    config: &ServerConfig,
    at: &str,
) -> String {
    let (name, most) = (config.model_name(), model.max_tokens());
    format!(
        r#"{name}: {source}
scores of a query and a text, of up to {most} tokens together
serving on {at}, API under {at}/v1. Try:

  curl {at}/v1/rerank -H 'Content-Type: application/json' \
    -d '{{"model": "{name}", "query": "What is a panda?", "documents": ["A bear of China.", "A car."]}}'

Ctrl-C stops.
"#
    )
}

/// [`announcement`] of a model for speech.
fn announcement_of_speech(
    source: &ModelSource,
    model: &Speech,
    config: &ServerConfig,
    at: &str,
) -> String {
    let (name, languages) = (config.model_name(), model.languages().count());
    format!(
        r#"{name}: {source}
speech of {languages} languages to text
serving on {at}, API under {at}/v1. Try:

  curl {at}/v1/audio/transcriptions -F model={name} -F file=@speech.mp3

Ctrl-C stops.
"#
    )
}

/// All that is printed before requests come. It is written at once, so that a reader who closes
/// the pipe after some line of it does not end the server.
fn announcement(source: &ModelSource, model: &Taper, config: &ServerConfig, at: &str) -> String {
    let info = model.engine.info();
    let name = config.model_name();
    // What listens everywhere is reached from here by this name.
    let here = at.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:");
    let open = if here == at || !config.api_keys.is_empty() {
        ""
    } else {
        "\nwarning: everyone in the network may use it; --api-key asks for a key\n"
    };
    let what = format!(
        "{name}: {source}, {} {:.0} M parameters, {}",
        model.family,
        model.parameters as f64 / 1e6,
        human(info.weight_bytes),
    );
    let adapters = match model.adapters().as_slice() {
        [] => String::new(),
        adapters => {
            let names: Vec<_> = adapters.iter().map(|a| &*a.name).collect();
            let bytes = adapters.iter().map(|a| a.bytes).sum();
            format!("\nadapters: {} ({})", names.join(", "), human(bytes))
        }
    };
    let settings = format!(
        "context {} tokens, KV cache {} for {} tokens ({}), tools {}, reasoning {}",
        info.max_model_len,
        info.kv_cache_dtype,
        info.kv_capacity_tokens,
        human(info.kv_capacity_bytes),
        config.tool_format,
        config.reasoning_format,
    );
    let images = if config.vision.is_some() { ", images" } else { "" };
    format!(
        r#"{what}
{settings}{images}{adapters}
serving on {at}, API under {at}/v1. Try:
{open}
  curl {here}/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

  python -c 'from openai import OpenAI; c = OpenAI(base_url="{here}/v1", api_key="-"); print(c.chat.completions.create(model="{name}", messages=[{{"role": "user", "content": "What is 12 + 30?"}}]).choices[0].message.content)'

  curl {here}/metrics

Ctrl-C stops.
"#
    )
}
