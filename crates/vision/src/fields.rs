//! Fields of JSON files, with the processors' and towers' defaults.

use crate::VisionError;
use serde_json::Value;

/// An object of a configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a Value);

type Result<T> = std::result::Result<T, VisionError>;

impl<'a> Fields<'a> {
    /// The field, unless it is absent or null.
    pub(crate) fn get(self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// The section of this name, or an empty one.
    pub(crate) fn section(self, name: &str) -> Self {
        Self(self.get(name).unwrap_or(&Value::Null))
    }

    fn wrong<T>(self, name: &str, expected: &'static str) -> Result<T> {
        let value = self.0.get(name).map_or_else(|| "absent".to_owned(), Value::to_string);
        Err(VisionError::Field { field: name.to_owned(), value, expected })
    }

    /// A whole number above 0.
    pub(crate) fn count(self, name: &str) -> Result<usize> {
        let value = self.get(name).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        match value {
            Some(n) if n > 0 && u32::try_from(n).is_ok() => Ok(n),
            _ => self.wrong(name, "a whole number above 0 is needed"),
        }
    }

    /// A whole number above 0, or a default.
    pub(crate) fn count_or(self, name: &str, default: usize) -> Result<usize> {
        if self.get(name).is_some() { self.count(name) } else { Ok(default) }
    }

    /// A size that may be given as one number, or as equal ones for height and width.
    pub(crate) fn side_or(self, name: &str, default: usize) -> Result<usize> {
        let sides: Vec<_> = match self.get(name) {
            None => return Ok(default),
            Some(Value::Array(sides)) => sides.iter().map(Value::as_u64).collect(),
            Some(Value::Object(sides)) => sides.values().map(Value::as_u64).collect(),
            Some(side) => vec![side.as_u64()],
        };
        match sides.first().copied().flatten().and_then(|n| usize::try_from(n).ok()) {
            Some(n) if n > 0 && n < 1 << 16 && sides.iter().all(|s| *s == sides[0]) => Ok(n),
            _ => self.wrong(name, "one size above 0 is needed, or equal ones"),
        }
    }

    pub(crate) fn float_or(self, name: &str, default: f64) -> Result<f64> {
        match self.get(name).map(Value::as_f64) {
            None => Ok(default),
            Some(Some(x)) if x.is_finite() => Ok(x),
            _ => self.wrong(name, "a number is needed"),
        }
    }

    pub(crate) fn flag_or(self, name: &str, default: bool) -> Result<bool> {
        match self.get(name).map(Value::as_bool) {
            None => Ok(default),
            Some(Some(flag)) => Ok(flag),
            _ => self.wrong(name, "true or false is needed"),
        }
    }

    pub(crate) fn text_or(self, name: &str, default: &'a str) -> Result<&'a str> {
        match self.get(name).map(Value::as_str) {
            None => Ok(default),
            Some(Some(text)) => Ok(text),
            _ => self.wrong(name, "a text is needed"),
        }
    }

    /// Whole numbers, such as numbers of layers.
    pub(crate) fn numbers_or(self, name: &str, default: &[usize]) -> Result<Vec<usize>> {
        let Some(value) = self.get(name) else { return Ok(default.to_vec()) };
        let number = |x: &Value| x.as_u64().and_then(|n| usize::try_from(n).ok());
        let all = value.as_array().and_then(|all| all.iter().map(number).collect());
        all.map_or_else(|| self.wrong(name, "a list of whole numbers is needed"), Ok)
    }

    /// A number a channel.
    pub(crate) fn channels_or(self, name: &str, default: [f64; 3]) -> Result<[f64; 3]> {
        let Some(value) = self.get(name) else { return Ok(default) };
        let all: Option<Vec<_>> =
            value.as_array().and_then(|all| all.iter().map(Value::as_f64).collect());
        match all.as_deref() {
            Some(&[r, g, b]) => Ok([r, g, b]),
            _ => self.wrong(name, "three numbers are needed"),
        }
    }

    /// Refuses every value but one that is computed.
    pub(crate) fn require(self, name: &str, allowed: &[&str], default: &str) -> Result<()> {
        let text = self.text_or(name, default)?;
        if allowed.contains(&text) { Ok(()) } else { self.wrong(name, "this is not supported") }
    }

    /// Refuses a field with another value than the one that is computed.
    pub(crate) fn expect(self, name: &str, expected: &Value) -> Result<()> {
        match self.get(name) {
            Some(value) if value != expected => self.wrong(name, "this is not supported"),
            _ => Ok(()),
        }
    }
}
