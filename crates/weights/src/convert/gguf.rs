//! What a model directory has beside its weights, from the metadata of a GGUF file.

use super::{
    ConvertError,
    config::write_json,
    staging::{Staging, write_error},
};
use crate::Gguf;
use serde_json::{Map, Value};
use std::fs;

/// Writes the tokenizer and generation_config.json, and completes config.json for mlx-lm.
pub(super) fn companions(
    file: &Gguf,
    config: &mut Map<String, Value>,
    stage: &Staging,
) -> Result<(), ConvertError> {
    let (tokenizer, tokenizer_config) = file.tokenizer_files()?;
    for (name, text) in [("tokenizer.json", tokenizer), ("tokenizer_config.json", tokenizer_config)]
    {
        let path = stage.path(name);
        fs::write(&path, text).map_err(write_error(&path))?;
    }
    match config.get("eos_token_id").cloned() {
        Some(Value::Array(stops)) if stops.is_empty() => {
            config.shift_remove("eos_token_id");
        }
        Some(stops) => {
            let generation = Map::from_iter([("eos_token_id".to_owned(), stops)]);
            write_json(&stage.path("generation_config.json"), &generation)?;
        }
        None => {}
    }
    // The older name of the field, which some models of mlx-lm ask for.
    if let Some(Value::Object(scaling)) = config.get_mut("rope_scaling")
        && let Some(kind) = scaling.get("rope_type").cloned()
    {
        scaling.insert("type".to_owned(), kind);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
