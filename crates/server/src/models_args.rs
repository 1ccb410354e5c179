//! Flags for several models in one server.

use crate::sizes;
use clap::{Args, builder::NonEmptyStringValueParser};
use std::path::PathBuf;
use taper_openai_server::KeepAlive;

/// Several models in one server.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelsArgs {
    /// Serve every model below this directory; each is loaded when a request names it.
    ///
    /// Models are directories in Hugging Face or MLX layout, GGUF files, and downloads in the layout of the Hugging
    /// Face cache. A model has the name of its directory or file, and one of the hub org/name. MODEL, if there is one
    /// too, is loaded at the start, stays, and answers requests that name no model. See docs/many-models.md.
    #[arg(long, value_name = "DIR")]
    pub(crate) models_dir: Option<PathBuf>,
    /// Memory for weights and KV caches of all loaded models, such as 20GiB [default: --gpu-memory-utilization of the
    /// free memory].
    #[arg(long, value_name = "BYTES", value_parser = sizes::bytes, requires = "models_dir")]
    pub(crate) models_memory: Option<u64>,
    /// Maximum number of models loaded at a time; the least recently used is unloaded for another.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), requires = "models_dir")]
    pub(crate) max_loaded_models: u16,
    /// Time without a request after which a model is unloaded, such as 90s or 1h; 0 unloads it at once, -1 never.
    ///
    /// Requests of Ollama's API set it by their field `keep_alive`.
    #[arg(
        long,
        default_value = "5m",
        value_name = "TIME",
        allow_hyphen_values = true,
        requires = "models_dir"
    )]
    pub(crate) keep_alive: KeepAlive,
    /// Model to load at the start and to keep loaded; may be repeated.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), requires = "models_dir")]
    pub(crate) pin_model: Vec<String>,
    /// Further name of a model; may be repeated.
    #[arg(long, value_name = "ALIAS=NAME", value_parser = alias, requires = "models_dir")]
    pub(crate) model_alias: Vec<(String, String)>,
    /// Let clients download models into --models-dir and delete models from it.
    #[arg(long, requires = "models_dir")]
    pub(crate) allow_model_updates: bool,
}

fn alias(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((alias, name)) if !alias.is_empty() && !name.is_empty() => {
            Ok((alias.to_owned(), name.to_owned()))
        }
        _ => Err("must be ALIAS=NAME".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::alias;

    #[test]
    fn aliases_are_pairs() {
        assert_eq!(alias("gpt-4o=a/b"), Ok(("gpt-4o".to_owned(), "a/b".to_owned())));
        for wrong in ["", "a", "=b", "a="] {
            assert!(alias(wrong).is_err(), "{wrong}");
        }
    }
}
