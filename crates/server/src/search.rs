//! `taper search`: models of the Hugging Face hub that Taper serves.

use crate::output::{Out, note};
use anyhow::Result;
use clap::Args;
use serde_json::json;
use std::collections::BTreeSet;
use taper_hub::{FoundModel, HubConfig, catalogue, search};

#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// Words of the model's name.
    #[arg(required = true)]
    words: Vec<String>,
    /// Most models to show.
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    limit: u16,
    /// Print a JSON array.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &SearchArgs) -> Result<()> {
    let config = HubConfig::from_env()?;
    let found = search(&args.words.join(" "), &config, args.limit.into(), is_served)?;
    let here: BTreeSet<_> = catalogue(&config.cache)?
        .into_iter()
        .filter(|model| model.complete)
        .map(|model| model.name)
        .collect();
    if args.json {
        let all: Vec<_> =
            found.iter().map(|model| json(model, here.contains(&model.name))).collect();
        writeln!(Out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(());
    }
    if found.is_empty() {
        note!("no model that Taper serves fits these words; use fewer");
        return Ok(());
    }
    writeln!(Out, "{:<56} {:<16} {:>10} {:>10}", "model", "architecture", "elements", "downloads")?;
    for model in found {
        let elements = model.parameters.map_or_else(|| "-".to_owned(), short);
        let notes = [(model.gated, "gated"), (here.contains(&model.name), "downloaded")];
        let notes: String =
            notes.iter().filter(|(is, _)| *is).map(|(_, note)| format!("  {note}")).collect();
        let FoundModel { name, model_type, downloads, .. } = model;
        writeln!(Out, "{name:<56} {model_type:<16} {elements:>10} {downloads:>10}{notes}")?;
    }
    note!("fetch one with: taper download org/name");
    Ok(())
}

/// Whether there is code for an architecture: language models, encoders of texts, and speech.
fn is_served(model_type: &str) -> bool {
    let encoders = taper_models::ENCODERS.iter().copied();
    taper_models::model_types().chain(encoders).chain(["whisper"]).any(|own| own == model_type)
}

fn json(model: &FoundModel, is_here: bool) -> serde_json::Value {
    json!({
        "name": model.name,
        "architecture": model.model_type,
        "elements": model.parameters,
        "downloads": model.downloads,
        "likes": model.likes,
        "gated": model.gated,
        "downloaded": is_here,
    })
}

/// "596.0M", "30.5B".
fn short(number: u64) -> String {
    match number as f64 {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n => format!("{:.1}M", n / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_code_for_is_served() {
        for name in ["qwen3", "llama", "bert", "whisper"] {
            assert!(is_served(name), "{name}");
        }
        assert!(!is_served("stable_diffusion") && !is_served(""));
        assert_eq!((short(596_049_920), short(30_532_122_624)), ("596.0M".into(), "30.5B".into()));
    }
}
