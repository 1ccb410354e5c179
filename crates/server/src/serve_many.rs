//! `taper serve --models-dir`: several models over HTTP.

use crate::{
    cli::ServeArgs,
    interrupt::Busy,
    library::ModelsDir,
    model,
    output::{Out, note},
    rescue,
    serve::{Open, base_config, requests},
    sizes::{count, human},
};
use anyhow::{Context, Result, ensure};
use std::{path::Path, sync::Arc, time::Duration};
use taper::available_bytes;
use taper_openai_server::{Library, Limits, Models, ModelsConfig};

/// How long a request waits for a place that other models use.
const PATIENCE: Duration = Duration::from_mins(1);

/// Serves the models of a directory until it is told to stop.
pub(crate) async fn serve(args: &ServeArgs, dir: &Path, open: Open, busy: Busy) -> Result<()> {
    let at = open.address(&args.host)?;
    let Open { listeners, access, tls } = open;
    ensure!(
        !args.lora.enable_lora,
        "--enable-lora does not go with --models-dir: adapters are of one model"
    );
    let named = args.model.name();
    ensure!(
        named.is_some() || args.served_model_name.is_empty(),
        "--served-model-name names MODEL; --model-alias ALIAS=NAME names one of --models-dir"
    );
    let first = match named {
        None => None,
        Some(name) => {
            let source = model::find(Some(name))?;
            Some((source.name(), source))
        }
    };
    let default_model = first.as_ref().map(|(name, _)| name.clone());
    let mut config = base_config(args, (access, tls), "");
    tokio::task::block_in_place(|| rescue::apply(&args.rescue, &mut config))?;
    let limits = limits(args)?;
    let library =
        ModelsDir::new(dir.to_owned(), first, args.clone(), requests(args), config.clone());
    let found = tokio::task::block_in_place(|| library.list());
    let found = found.with_context(|| format!("--models-dir {}", dir.display()))?;
    for name in &args.models.pin_model {
        ensure!(
            found.iter().any(|model| model.name == *name),
            "--pin-model {name}: there is no such model in {}",
            dir.display()
        );
    }
    let names: Vec<_> = found.iter().map(|model| model.name.clone()).collect();
    let settings = ModelsConfig {
        limits,
        keep_alive: args.models.keep_alive,
        patience: PATIENCE,
        default_model,
        allow_updates: args.models.allow_model_updates,
    };
    let models = Models::new(Arc::new(library), config, settings);
    tokio::select! {
        loaded = models.load_pinned() => loaded?,
        stop = busy.stopped() => return Err(stop.into()),
    }
    write!(Out, "{}", announcement(dir, &names, limits, &at))?;
    let shutdown = async move {
        busy.stopped().await;
        note!("\nfinishing what runs; again to stop at once");
    };
    let drain = Duration::from_secs(args.serving.drain_timeout);
    taper_openai_server::serve_models(listeners, models, shutdown, drain).await;
    Ok(())
}

/// What the flags and the machine allow.
fn limits(args: &ServeArgs) -> Result<Limits> {
    let memory_bytes = match args.models.models_memory {
        Some(bytes) => bytes,
        None => {
            let free = match args.engine.gpu()? {
                Some(gpu) => gpu.memory()?.free,
                None => available_bytes()?,
            };
            (free as f64 * args.engine.gpu_memory_utilization) as u64
        }
    };
    Ok(Limits { memory_bytes, max_loaded: args.models.max_loaded_models.into() })
}

/// What is printed before requests come.
fn announcement(dir: &Path, names: &[String], limits: Limits, at: &str) -> String {
    let list = match names {
        [] => "none yet".to_owned(),
        names => names.join(", "),
    };
    let example = names.first().map_or("NAME", String::as_str);
    format!(
        r#"{}: {}: {list}
up to {} at a time, in {}
serving on {at}, API under {at}/v1. Try:

  curl {at}/v1/models

  curl {at}/v1/chat/completions -H 'Content-Type: application/json' \
    -d '{{"model": "{example}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

Ctrl-C stops.
"#,
        dir.display(),
        count(names.len(), "model"),
        count(limits.max_loaded, "model"),
        human(limits.memory_bytes),
    )
}
