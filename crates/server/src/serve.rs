//! `taper serve`: the model over HTTP.

use crate::{
    access::Access,
    cli::ServeArgs,
    interrupt::signalled,
    memory::human,
    model::{ModelSource, Requests, RunningModel, describe},
};
use anyhow::{Context, Result};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use taper_base::Engine;
use taper_chat::{ReasoningFormat, ToolFormat};
use taper_openai_server::{AppState, ServerConfig};
use tokio::net::TcpListener;

/// Sequences computed together if nobody says otherwise.
const SEQUENCES: u32 = 256;

pub(crate) fn serve(args: &ServeArgs) -> Result<()> {
    let source = ModelSource::find(args.model.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // A taken port should be known before a long load.
        let address = SocketAddr::new(args.host, args.port);
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("cannot listen on {address}; choose another --port, or stop what uses it")
        })?;
        let access = Access::new(args, listener.local_addr()?.ip().is_loopback())?;
        let loading = {
            let (source, engine) = (source.clone(), args.engine.clone());
            let requests = Requests { together: SEQUENCES, waiting: args.max_waiting };
            tokio::task::spawn_blocking(move || RunningModel::start(&source, &engine, requests))
        };
        let model = tokio::select! {
            model = loading => model??,
            () = signalled() => return Ok(()),
        };
        let config = config(args, access, &model);
        announce(&source, &model, &config, listener.local_addr()?);
        let engine: Arc<dyn Engine> = Arc::clone(&model.engine) as Arc<dyn Engine>;
        let state = AppState::new(engine, model.tokenizer, model.template, config);
        let drain = Duration::from_secs(args.drain_timeout);
        let shutdown = async {
            signalled().await;
            eprintln!("\nfinishing what runs; again to stop at once");
            tokio::spawn(async {
                signalled().await;
                force_exit();
            });
        };
        taper_openai_server::serve(listener, state, shutdown, drain).await?;
        model.engine.stop();
        Ok(())
    })
}

/// The second Ctrl-C: the user does not want to wait for anything.
#[expect(clippy::disallowed_methods, reason = "nothing is left to save")]
fn force_exit() {
    std::process::exit(130);
}

fn config(args: &ServeArgs, access: Access, model: &RunningModel) -> ServerConfig {
    let source = model.template.as_ref().map_or("", |t| t.source());
    let names = &args.served_model_name;
    ServerConfig {
        served_model_names: if names.is_empty() { vec![model.name.clone()] } else { names.clone() },
        api_keys: access.keys,
        allowed_origins: access.origins,
        allowed_hosts: access.hosts,
        max_body_bytes: args.max_body_mib << 20,
        allow_unknown_fields: args.allow_unknown_fields,
        enable_auto_tool_choice: args.enable_auto_tool_choice,
        tool_format: args.tool_call_parser.unwrap_or_else(|| ToolFormat::detect(source)),
        reasoning_format: args.reasoning_parser.unwrap_or_else(|| ReasoningFormat::detect(source)),
        default_sampling: model.sampling.clone(),
        ..ServerConfig::default()
    }
}

fn announce(
    source: &ModelSource,
    model: &RunningModel,
    config: &ServerConfig,
    address: SocketAddr,
) {
    let info = model.engine.info();
    let (name, at) = (config.model_name(), format!("http://{address}"));
    println!(
        "{name}: {}, {} {:.0} M parameters, {}",
        describe(source),
        model.family,
        model.parameters as f64 / 1e6,
        human(info.weight_bytes),
    );
    println!(
        "context {} tokens, KV cache {} for {} tokens ({}), tools {}, reasoning {}",
        info.max_model_len,
        info.kv_cache_dtype,
        info.kv_capacity_tokens,
        human(info.kv_capacity_bytes),
        config.tool_format,
        config.reasoning_format,
    );
    println!("serving on {at}, API under {at}/v1. Try:\n");
    println!(
        "  curl {at}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{{\"model\": \"{name}\", \"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'\n"
    );
    println!(
        "  python -c 'from openai import OpenAI; c = OpenAI(base_url=\"{at}/v1\", api_key=\"-\"); print(c.chat.completions.create(model=\"{name}\", messages=[{{\"role\": \"user\", \"content\": \"What is 12 + 30?\"}}]).choices[0].message.content)'\n"
    );
    println!("  curl {at}/metrics\n\nCtrl-C stops.");
}
