//! `taper show`: what a model is, as Ollama's command of this name says it.

use crate::{
    cli::{Cli, ModelArg},
    inspect::formats,
    library::describe,
    model,
    output::Out,
    sizes::human,
};
use anyhow::{Result, ensure};
use clap::{Args, Parser};
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Print the chat template alone.
    #[arg(long, conflicts_with = "json")]
    template: bool,
    /// Print all of it as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ShowArgs) -> Result<()> {
    let source = model::find(args.model.name())?;
    // What a server makes of the model that has no further flags.
    let serve = Cli::try_parse_from(["taper"])?.serve;
    let about = describe(&source, &serve)?;
    let weights = source.checkpoint()?;
    let (quantization, capabilities) = (formats(&weights), about.capabilities());
    if args.template {
        ensure!(!about.template.is_empty(), "{} has no chat template", source.name());
        writeln!(Out, "{}", about.template)?;
        return Ok(());
    }
    if args.json {
        let all = json!({
            "name": source.name(),
            "source": source.to_string(),
            "architecture": about.architecture,
            "parameters": (about.parameters > 0).then_some(about.parameters),
            "context_length": about.context_length,
            "embedding_length": (about.dimensions > 0).then_some(about.dimensions),
            "quantization": quantization,
            "weight_bytes": about.weight_bytes,
            "capabilities": capabilities,
            "template": about.template,
        });
        writeln!(Out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(());
    }
    let row = |name: &str, value: String| writeln!(Out, "    {name:<20}{value}");
    writeln!(Out, "  {} ({source})", source.name())?;
    row("architecture", about.architecture.clone())?;
    if about.parameters > 0 {
        row("parameters", format!("{:.1} M", about.parameters as f64 / 1e6))?;
    }
    row("context length", about.context_length.to_string())?;
    if about.dimensions > 0 {
        row("embedding length", about.dimensions.to_string())?;
    }
    row("quantization", quantization)?;
    row("weights", human(about.weight_bytes))?;
    let template = if about.template.is_empty() { "none" } else { "see --template" };
    row("chat template", template.to_owned())?;
    writeln!(Out, "\n  Capabilities")?;
    capabilities.into_iter().try_for_each(|name| writeln!(Out, "    {name}"))?;
    Ok(())
}
