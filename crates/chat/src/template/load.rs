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

fn read_text(path: &Path) -> Result<String, ChatError> {
    String::from_utf8(read(path)?).map_err(|error| ChatError::Read {
        path: path.to_owned(),
        source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
    })
}

const CONFIG: &str = "tokenizer_config.json";

/// `bos_token` and its like, of two files that complete each other.
fn special_tokens(
    dir: &Path,
    config: &Map<String, Value>,
) -> Result<Map<String, Value>, ChatError> {
    let map: Map<String, Value> =
        read_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
    Ok(map.iter().chain(config).filter_map(special_token).collect())
}

/// A template from a file of its own, with the special tokens of a model's directory.
pub(super) fn file(file: &Path, dir: &Path) -> Result<Sources, ChatError> {
    let config: Map<String, Value> = read_json(&dir.join(CONFIG))?.unwrap_or_default();
    let special_tokens = special_tokens(dir, &config)?;
    Ok(Sources { file: file.to_owned(), main: read_text(file)?, tool_use: None, special_tokens })
}

pub(super) fn find(dir: &Path) -> Result<Sources, ChatError> {
    let config_path = dir.join(CONFIG);
    let mut config: Map<String, Value> = read_json(&config_path)?.unwrap_or_default();
    let special_tokens = special_tokens(dir, &config)?;

    let jinja = dir.join("chat_template.jinja");
    if jinja.exists() {
        let main = read_text(&jinja)?;
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
