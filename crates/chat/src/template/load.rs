//! Where a model's directory keeps its chat template.

use super::Sources;
use crate::ChatError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::Path;

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ChatError> {
    std::fs::read(path).map_err(|source| ChatError::Read { path: path.to_owned(), source })
}

/// A file's JSON; none when there is no such file.
fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, ChatError> {
    if !path.exists() {
        return Ok(None);
    }
    serde_json::from_slice(&read(path)?)
        .map(Some)
        .map_err(|source| ChatError::Json { path: path.to_owned(), source })
}

pub(super) fn find(dir: &Path) -> Result<Sources, ChatError> {
    let config_path = dir.join("tokenizer_config.json");
    let mut config: Map<String, Value> = read_json(&config_path)?.unwrap_or_default();
    let map: Map<String, Value> =
        read_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
    let special_tokens = map.iter().chain(&config).filter_map(special_token).collect();

    let jinja = dir.join("chat_template.jinja");
    if jinja.exists() {
        let bytes = read(&jinja)?;
        let main = String::from_utf8(bytes).map_err(|error| ChatError::Read {
            path: jinja.clone(),
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
        })?;
        let tool_use = dir.join("additional_chat_templates").join("tool_use.jinja");
        let tool_use = if tool_use.exists() {
            Some(String::from_utf8_lossy(&read(&tool_use)?).into_owned())
        } else {
            None
        };
        return Ok(Sources { file: jinja, main, tool_use, special_tokens });
    }
    let json_path = dir.join("chat_template.json");
    let json: Option<Map<String, Value>> = read_json(&json_path)?;
    let json = json.and_then(|mut json| json.remove("chat_template"));
    let (file, value) = match (json, config.remove("chat_template")) {
        (Some(value), _) => (json_path, value),
        (None, Some(value)) => (config_path, value),
        (None, None) => return Err(ChatError::NoTemplate { dir: dir.to_owned() }),
    };
    let named = |name: &str| {
        let entry = value.as_array()?.iter().find(|entry| entry["name"] == name)?;
        entry["template"].as_str().map(str::to_owned)
    };
    let main = value.as_str().map(str::to_owned).or_else(|| named("default"));
    let tool_use = named("tool_use");
    let Some(main) = main else {
        return Err(ChatError::TemplateShape { path: file });
    };
    Ok(Sources { file, main, tool_use, special_tokens })
}

/// `"eos_token": "</s>"` or `"eos_token": {"content": "</s>", ..}`.
fn special_token((name, value): (&String, &Value)) -> Option<(String, Value)> {
    if !name.ends_with("_token") {
        return None;
    }
    let text = value.as_str().or_else(|| value["content"].as_str())?;
    Some((name.clone(), text.into()))
}
