//! Flags for LoRA adapters.

use clap::Args;
use serde::Deserialize;
use std::path::PathBuf;
use taper::Builder;

/// An adapter and its name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct LoraModule {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// vLLM's models have the name of their base there; here it is the server's.
    #[serde(rename = "base_model_name")]
    _base: Option<String>,
}

/// `name=path`, or vLLM's JSON.
fn module(text: &str) -> Result<LoraModule, String> {
    let module = if text.trim_start().starts_with('{') {
        serde_json::from_str(text).map_err(|error| error.to_string())?
    } else {
        let (name, path) = text.split_once('=').ok_or("must be NAME=PATH")?;
        LoraModule { name: name.to_owned(), path: path.into(), _base: None }
    };
    if module.name.is_empty() || module.path.as_os_str().is_empty() {
        return Err("must have a name and a path".to_owned());
    }
    Ok(module)
}

/// Adapters of a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct LoraArgs {
    /// Serve LoRA adapters, each as a model of its own name.
    #[arg(long)]
    pub(crate) enable_lora: bool,
    /// Adapters to load: directories in PEFT's layout or mlx-lm's.
    ///
    /// A request with "model": "NAME" runs with the adapter. Requests of different adapters share steps, and a
    /// request without one pays nothing. vLLM's JSON, {"name": "NAME", "path": "PATH"}, is taken too.
    #[arg(long, value_name = "NAME=PATH", num_args = 1.., value_parser = module, requires = "enable_lora")]
    pub(crate) lora_modules: Vec<LoraModule>,
    /// Maximum number of adapters loaded at a time; all of them can be in one batch.
    #[arg(long, default_value_t = 64, value_name = "N", requires = "enable_lora")]
    pub(crate) max_loras: usize,
    /// Maximum rank of an adapter.
    #[arg(long, default_value_t = 64, value_name = "RANK", requires = "enable_lora")]
    pub(crate) max_lora_rank: usize,
    /// Let clients load and unload adapters: /v1/load_lora_adapter and /v1/unload_lora_adapter.
    ///
    /// Whoever has an API key can then have the server read any directory that it may read.
    #[arg(long, requires = "enable_lora")]
    pub(crate) allow_runtime_lora_updating: bool,
}

impl LoraArgs {
    /// Adapters that may be loaded at a time.
    pub(crate) fn most(&self) -> usize {
        if self.enable_lora { self.max_loras } else { 0 }
    }

    /// What the flags say.
    pub(crate) fn apply(&self, builder: Builder) -> Builder {
        let builder = builder.max_adapters(self.most()).max_adapter_rank(self.max_lora_rank);
        let modules = self.lora_modules.iter();
        modules.fold(builder, |builder, module| builder.adapter(&module.name, &module.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_pairs_or_json() {
        let module = |text: &str| module(text).map(|m| (m.name, m.path.display().to_string()));
        let pair = Ok(("a".to_owned(), "./x=y".to_owned()));
        assert_eq!(module("a=./x=y"), pair);
        assert_eq!(module(r#"{"name": "a", "path": "./x=y", "base_model_name": "b"}"#), pair);
        for wrong in ["a", "=x", "a=", r#"{"name": "a"}"#, r#"{"name": "", "path": "x"}"#] {
            assert!(module(wrong).is_err(), "{wrong}");
        }
    }
}
