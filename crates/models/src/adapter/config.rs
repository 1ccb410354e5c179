//! Fields of adapter_config.json.

use super::AdapterError;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use taper_weights::read_json;

/// adapter_config.json, field by field.
#[derive(Debug)]
pub(super) struct Config {
    path: PathBuf,
    fields: Map<String, Value>,
}

impl Config {
    /// That of an adapter's directory.
    pub(super) fn read(dir: &Path) -> Result<Self, AdapterError> {
        let path = dir.join("adapter_config.json");
        Ok(Self { fields: read_json(&path)?, path })
    }

    /// A part that is an object itself.
    pub(super) fn part(&self, field: &'static str) -> Result<Self, AdapterError> {
        match self.fields.get(field) {
            Some(Value::Object(fields)) => {
                Ok(Self { path: self.path.clone(), fields: fields.clone() })
            }
            _ => Err(self.wrong(field, "must be an object")),
        }
    }

    /// A field that says something.
    pub(super) fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !says_nothing(value))
    }

    /// A field, or null.
    pub(super) fn value(&self, field: &str) -> &Value {
        self.fields.get(field).unwrap_or(&Value::Null)
    }

    pub(super) fn wrong(&self, field: &'static str, reason: impl Into<String>) -> AdapterError {
        AdapterError::Config { path: self.path.clone(), field, reason: reason.into() }
    }

    pub(super) fn refuse(&self, field: &str, value: &Value) -> AdapterError {
        let (field, value) = (field.to_owned(), value.to_string());
        AdapterError::Unsupported { path: self.path.clone(), field, value }
    }

    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.get(field).and_then(Value::as_str)
    }

    pub(super) fn flag(&self, field: &'static str) -> Result<bool, AdapterError> {
        match self.value(field) {
            Value::Null => Ok(false),
            Value::Bool(set) => Ok(*set),
            _ => Err(self.wrong(field, "must be true or false")),
        }
    }

    /// A positive whole number.
    pub(super) fn count(&self, field: &'static str) -> Result<usize, AdapterError> {
        count(self.value(field)).ok_or_else(|| self.wrong(field, "must be a positive whole number"))
    }

    /// A finite number.
    pub(super) fn number(&self, field: &'static str) -> Result<f64, AdapterError> {
        number(self.value(field)).ok_or_else(|| self.wrong(field, "must be a number"))
    }

    /// Patterns of modules' names, each with a value.
    pub(super) fn patterns<T>(
        &self,
        field: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<(Pattern, T)>, AdapterError> {
        let entries = match self.value(field) {
            Value::Null => return Ok(Vec::new()),
            Value::Object(entries) => entries,
            _ => return Err(self.wrong(field, "must be an object")),
        };
        let entry = |(key, value): (&String, &Value)| {
            let wrong = |reason: String| self.wrong(field, format!("{key:?}: {reason}"));
            let pattern = Pattern::new(&format!(r"^(?:.*\.)?(?:{key})$")).map_err(wrong)?;
            let value = read(value).ok_or_else(|| wrong("must be a number".into()))?;
            Ok((pattern, value))
        };
        entries.iter().map(entry).collect()
    }

    /// Names of fields that say something and are none of `known`.
    pub(super) fn others(&self, known: &[&str]) -> Option<(&String, &Value)> {
        let mut says = self.fields.iter().filter(|(_, value)| !says_nothing(value));
        says.find(|(field, _)| !known.contains(&field.as_str()))
    }
}

/// What a field says that has its default.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.values().all(says_nothing),
        Value::String(text) => text.is_empty(),
        Value::Number(_) | Value::Bool(true) => false,
    }
}

pub(super) fn count(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0)
}

pub(super) fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|n| n.is_finite())
}

/// A regular expression as Python writes it.
#[derive(Debug)]
pub(super) struct Pattern(fancy_regex::Regex);

impl Pattern {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        fancy_regex::Regex::new(text).map(Self).map_err(|error| error.to_string())
    }

    /// Whether it matches; one that takes too long does not.
    pub(super) fn matches(&self, name: &str) -> bool {
        self.0.is_match(name).unwrap_or(false)
    }
}
