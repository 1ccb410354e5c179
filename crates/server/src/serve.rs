//! `taper serve`: the model over HTTP.

use crate::{
    access::Access,
    cli::ServeArgs,
    interrupt::{Busy, Interrupts},
    listen::listen,
    model::{self, Requests},
    output::{Out, note},
    sizes::human,
};
use anyhow::{Context, Result};
use std::{io, net::IpAddr, sync::Arc, time::Duration};
use taper::{ModelSource, Taper};
use taper_base::Engine;
use taper_chat::ReasoningFormat;
use taper_openai_server::{AppState, ServerConfig};
use tokio::net::TcpListener;

/// Sequences computed together if nobody says otherwise.
const SEQUENCES: u32 = 256;

pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let interrupts = Interrupts::listen()?;
    let source = model::find(args.model.name())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve_until_stopped(args, &source, interrupts.busy()));
    // A load or a template that takes long must not hold up the end of the process.
    runtime.shutdown_background();
    served
}

/// The first signal ends a load at once, and lets running requests finish.
async fn serve_until_stopped(args: &ServeArgs, source: &ModelSource, busy: Busy) -> Result<()> {
    // A taken port should be known before a long load.
    let listeners = listen(&args.host, args.port).await?;
    let addresses = listeners.iter().map(TcpListener::local_addr);
    let local = addresses.collect::<io::Result<Vec<_>>>()?.iter().all(|a| a.ip().is_loopback());
    let access = Access::new(args, local)?;
    let loading = {
        let (source, engine) = (source.clone(), args.engine.clone());
        let requests = Requests { together: SEQUENCES, waiting: args.max_waiting };
        tokio::task::spawn_blocking(move || model::start(&source, &engine, requests))
    };
    let model = tokio::select! {
        model = loading => model??,
        stop = busy.stopped() => return Err(stop.into()),
    };
    if let Some(why) = model.no_chat() {
        tracing::warn!("no chat can be answered: {why}");
    }
    let config = config(args, access, &model);
    let address = address(&args.host, &listeners)?;
    write!(Out, "{}", announcement(source, &model, &config, &address))?;
    let engine: Arc<dyn Engine> = Arc::clone(&model.engine) as Arc<dyn Engine>;
    let state = AppState::new(engine, model.tokenizer, model.template, config);
    let drain = Duration::from_secs(args.drain_timeout);
    let shutdown = async move {
        busy.stopped().await;
        note!("\nfinishing what runs; again to stop at once");
    };
    taper_openai_server::serve(listeners, state, shutdown, drain).await?;
    model.engine.stop();
    Ok(())
}

/// Where a client on this machine finds the server.
fn address(host: &str, listeners: &[TcpListener]) -> Result<String> {
    let first = listeners.first().context("no address to listen on")?.local_addr()?;
    let is_name = host.parse::<IpAddr>().is_err() && !host.starts_with('[');
    Ok(if is_name { format!("{host}:{}", first.port()) } else { first.to_string() })
}

fn config(args: &ServeArgs, access: Access, model: &Taper) -> ServerConfig {
    let source = model.template.as_ref().map_or("", |t| t.source());
    let names = &args.served_model_name;
    ServerConfig {
        served_model_names: if names.is_empty() { vec![model.name.clone()] } else { names.clone() },
        api_keys: access.keys,
        allowed_origins: access.origins,
        allowed_hosts: access.hosts,
        max_body_bytes: usize::from(args.max_body_mib) << 20,
        allow_unknown_fields: args.allow_unknown_fields,
        enable_auto_tool_choice: args.enable_auto_tool_choice,
        tool_format: args.tool_call_parser.format(source),
        reasoning_format: args.reasoning_parser.unwrap_or_else(|| ReasoningFormat::detect(source)),
        default_sampling: model.sampling.clone(),
        ..ServerConfig::default()
    }
}

/// All that is printed before requests come. It is written at once, so that a reader who closes
/// the pipe after some line of it does not end the server.
fn announcement(
    source: &ModelSource,
    model: &Taper,
    config: &ServerConfig,
    address: &str,
) -> String {
    let info = model.engine.info();
    let (name, at) = (config.model_name(), format!("http://{address}"));
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
    let settings = format!(
        "context {} tokens, KV cache {} for {} tokens ({}), tools {}, reasoning {}",
        info.max_model_len,
        info.kv_cache_dtype,
        info.kv_capacity_tokens,
        human(info.kv_capacity_bytes),
        config.tool_format,
        config.reasoning_format,
    );
    format!(
        r#"{what}
{settings}
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
