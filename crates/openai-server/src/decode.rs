//! From a request body to typed fields, with the path of whatever is wrong with it.
//!
//! A body is read once as JSON and then through several structs (the route's own fields, the
//! sampling fields, the fields that change nothing), which spares each route a copy of the shared
//! ones. A field that none of them takes is an error: nothing is accepted and ignored.

use crate::errors::ApiError;
use axum::{
    body::Bytes,
    extract::rejection::BytesRejection,
    http::{HeaderMap, StatusCode, header},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;

/// A body that is being read.
pub(crate) struct Body {
    value: Value,
    /// Top-level fields that no reader has taken yet; `None` before the first reader.
    unread: Option<BTreeSet<String>>,
    /// Unknown fields inside fields that were taken.
    nested: Vec<String>,
}

impl Body {
    /// Takes what the HTTP layer delivered.
    pub(crate) fn parse(
        headers: &HeaderMap,
        bytes: Result<Bytes, BytesRejection>,
        limit: usize,
    ) -> Result<Self, ApiError> {
        // A page on another origin may send text/plain or a form without asking first; only JSON
        // needs a CORS preflight. No content type at all is what simple scripts send.
        if let Some(kind) = headers.get(header::CONTENT_TYPE) {
            let kind = kind.to_str().unwrap_or_default();
            let essence = kind.split(';').next().unwrap_or_default().trim();
            if !essence.eq_ignore_ascii_case("application/json") {
                return Err(ApiError::UnsupportedMediaType);
            }
        }
        let bytes = bytes.map_err(|e| match e.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::BodyTooLarge { limit },
            _ => ApiError::UnreadableBody,
        })?;
        let value: Value = serde_json::from_slice(&bytes).map_err(ApiError::InvalidJson)?;
        if !value.is_object() {
            return Err(ApiError::NotAnObject);
        }
        Ok(Self { value, unread: None, nested: Vec::new() })
    }

    /// Reads the fields that `T` knows.
    pub(crate) fn read<T: DeserializeOwned>(&mut self) -> Result<T, ApiError> {
        let mut track = serde_path_to_error::Track::new();
        let mut ignored = BTreeSet::new();
        let source = serde_path_to_error::Deserializer::new(&self.value, &mut track);
        let result = serde_ignored::deserialize(source, |path| {
            ignored.insert(path_of(&path));
        });
        let read = result.map_err(|e| located(&track.path(), &e))?;
        // A field that stands at the top is unread while every reader ignores it; one deeper down
        // belongs to the one reader that took its parent.
        let (top, nested): (BTreeSet<String>, BTreeSet<String>) =
            ignored.into_iter().partition(|path| self.value.get(path).is_some());
        self.unread = Some(match self.unread.take() {
            None => top,
            Some(before) => before.intersection(&top).cloned().collect(),
        });
        self.nested.extend(nested);
        Ok(read)
    }

    /// Refuses what nobody has read. `unsupported` are fields of the API, or of vLLM, that would
    /// change the answer and are not honoured yet: `allow_unknown` does not excuse those.
    pub(crate) fn finish(
        &self,
        unsupported: &[(&str, &'static str)],
        allow_unknown: bool,
    ) -> Result<(), ApiError> {
        for name in self.unread.iter().flatten() {
            let known = unsupported.iter().find(|(n, _)| n == name);
            match known {
                Some((_, _)) if self.value.get(name).is_some_and(Value::is_null) => {}
                Some((_, detail)) => {
                    return Err(ApiError::UnsupportedParameter { param: name.clone(), detail });
                }
                None if allow_unknown => {}
                None => return Err(ApiError::UnknownParameter { param: name.clone() }),
            }
        }
        match self.nested.first() {
            Some(path) if !allow_unknown => Err(ApiError::UnknownParameter { param: path.clone() }),
            _ => Ok(()),
        }
    }
}

/// Names what serde found wrong, and where.
fn located(path: &serde_path_to_error::Path, error: &serde_json::Error) -> ApiError {
    let detail = error.to_string();
    let at = path.to_string();
    let at = if at == "." { String::new() } else { at };
    // serde reports a missing field at its parent, by name, in this one form.
    if let Some(name) =
        detail.strip_prefix("missing field `").and_then(|rest| rest.split('`').next())
    {
        let dot = if at.is_empty() { "" } else { "." };
        return ApiError::MissingParameter { param: format!("{at}{dot}{name}") };
    }
    if detail.starts_with("invalid value") || detail.starts_with("unknown variant") {
        return ApiError::InvalidValue { param: at, detail };
    }
    ApiError::InvalidType { param: at, detail }
}

/// `messages[0].content`, as OpenAI writes it.
fn path_of(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", path_of(parent)),
        Path::Map { parent, key } => {
            let parent = path_of(parent);
            if parent.is_empty() { key.clone() } else { format!("{parent}.{key}") }
        }
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => path_of(parent),
    }
}
