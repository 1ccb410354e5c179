//! `taper stop`: a running server unloads a model.

use crate::{
    client::{Client, Served, ServerArgs},
    output::Out,
};
use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The model, as `taper ps` names it.
    model: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Why a model cannot be unloaded.
#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error("the server at {url} has no model {name}; {loaded}")]
    Unknown { name: String, url: String, loaded: String },
    #[error("the server at {url} has {name} alone, and unloads it when it ends")]
    Only { name: String, url: String },
}

pub(crate) fn run(args: &StopArgs) -> Result<()> {
    let client = Client::of(&args.server)?;
    let served = client.models()?;
    let (name, url) = (args.model.clone(), args.server.url.clone());
    let Some(model) = served.iter().find(|model| model.is(&name)) else {
        bail!(StopError::Unknown { name, url, loaded: loaded(&served) })
    };
    if !model.can_go() {
        bail!(StopError::Only { name, url });
    }
    if !model.is_loaded() {
        writeln!(Out, "{name} is not loaded")?;
        return Ok(());
    }
    client.post("/models/unload", &json!({ "model": name }))?;
    writeln!(Out, "{name} is unloaded")?;
    Ok(())
}

fn loaded(served: &[Served]) -> String {
    let names: Vec<_> =
        served.iter().filter(|model| model.is_loaded()).map(|model| model.id.as_str()).collect();
    if names.is_empty() {
        return "none is loaded".to_owned();
    }
    format!("it has loaded {}", names.join(", "))
}
