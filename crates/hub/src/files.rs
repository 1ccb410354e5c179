//! Which files make a model.

use crate::HubError;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Files beside the weights, each taken if it is there.
const SMALL: [&str; 9] = [
    CONFIG,
    "generation_config.json",
    INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
];

/// Whether a download takes this file. `model*.safetensors` only: repositories also hold the same
/// weights as `consolidated.safetensors`, adapters, and subfolders of other formats.
pub(crate) fn is_needed(name: &str) -> bool {
    let weights = name.starts_with("model") && name.ends_with(".safetensors");
    !name.contains(['/', '\\']) && (SMALL.contains(&name) || weights)
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The first file that a model needs and this directory has not.
pub(crate) fn first_missing(dir: &Path) -> Result<Option<String>, HubError> {
    let lacks = |name: &str| !dir.join(name).is_file();
    if lacks(CONFIG) {
        return Ok(Some(CONFIG.to_owned()));
    }
    // A single file counts before an index, which may be left over: the weights are read so, too.
    if !lacks(SINGLE) {
        return Ok(None);
    }
    let index = dir.join(INDEX);
    let text = match fs::read(&index) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Ok(Some(SINGLE.to_owned()));
        }
        Err(e) => return Err(HubError::io(index)(e)),
    };
    let parsed: Index = serde_json::from_slice(&text)
        .map_err(|e| HubError::io(index)(io::Error::new(io::ErrorKind::InvalidData, e)))?;
    let shards: BTreeSet<String> = parsed.weight_map.into_values().collect();
    Ok(shards.into_iter().find(|name| lacks(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_model_needs() {
        let yes = "config.json tokenizer.json model.safetensors model-00001-of-00002.safetensors \
                   model.safetensors.index.json chat_template.jinja";
        let no = "README.md pytorch_model.bin model.gguf consolidated.safetensors rust_model.ot \
                  onnx/model.safetensors ../model.safetensors adapter_model.safetensors \
                  original/consolidated.00.pth model.bin.index.json x\\model.safetensors";
        assert!(yes.split_whitespace().all(is_needed));
        assert_eq!(no.split_whitespace().find(|n| is_needed(n)), None);
    }

    #[test]
    fn a_shard_that_the_index_names_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let missing = || first_missing(dir.path()).unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(missing().unwrap(), "config.json");
        write("config.json", "{}");
        assert_eq!(missing().unwrap(), "model.safetensors");
        write(INDEX, r#"{"weight_map":{"x":"model-1.safetensors","y":"model-2.safetensors"}}"#);
        write("model-1.safetensors", "");
        assert_eq!(missing().unwrap(), "model-2.safetensors");
        write("model-2.safetensors", "");
        assert_eq!(missing(), None);
        write(INDEX, "{");
        assert!(matches!(first_missing(dir.path()), Err(HubError::Io { .. })));
        write(SINGLE, "");
        assert_eq!(missing(), None);
    }
}
