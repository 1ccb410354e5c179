//! How long a model stays loaded: `keep_alive`, as Ollama writes it.

use super::table::Keep;
use crate::errors::ApiError;
use serde_json::Value;
use std::{str::FromStr, time::Duration};

/// How long a model stays loaded after its last request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive(pub(crate) Keep);

impl KeepAlive {
    /// For so long.
    #[must_use]
    pub fn during(time: Duration) -> Self {
        Self(Some(time))
    }

    /// For good.
    pub const FOREVER: Self = Self(None);

    fn of_seconds(seconds: f64) -> Self {
        // Ollama: below zero is for good.
        if seconds < 0.0 {
            return Self::FOREVER;
        }
        // What is too long for a clock is for good too.
        Self(Duration::try_from_secs_f64(seconds).ok())
    }
}

/// It is no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be seconds, or a time such as 5m or 1h30m; below 0 is for good")]
pub struct KeepAliveError;

/// Units of Go's durations, in seconds. `ms` is found before `m`.
const UNITS: [(&str, f64); 6] =
    [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

impl FromStr for KeepAlive {
    type Err = KeepAliveError;

    /// Reads `300`, `5m`, `1h30m` or `-1`.
    fn from_str(text: &str) -> Result<Self, KeepAliveError> {
        let (sign, mut rest) = match text.strip_prefix('-') {
            Some(rest) => (-1.0, rest),
            None => (1.0, text),
        };
        let digits =
            |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let number = |text: &str| text.parse::<f64>().map_err(|_| KeepAliveError);
        if digits(rest) == rest.len() {
            return Ok(Self::of_seconds(sign * number(rest)?));
        }
        let mut seconds = 0.0;
        while !rest.is_empty() {
            let (count, unit) = rest.split_at(digits(rest));
            let own = UNITS.iter().find(|(name, _)| unit.starts_with(name));
            let (name, length) = own.ok_or(KeepAliveError)?;
            seconds += number(count)? * length;
            rest = &unit[name.len()..];
        }
        Ok(Self::of_seconds(sign * seconds))
    }
}

/// The field of a request.
pub(crate) fn parsed(value: Option<&Value>) -> Result<Option<KeepAlive>, ApiError> {
    let keep = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) => text.parse().ok(),
        Some(number) => number.as_f64().map(KeepAlive::of_seconds),
    };
    match keep {
        None => Err(ApiError::value("keep_alive", KeepAliveError.to_string())),
        keep => Ok(keep),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_those_of_ollama() {
        let seconds = |text: &str| text.parse::<KeepAlive>().unwrap().0.map(|t| t.as_secs_f64());
        assert_eq!(
            (seconds("5m"), seconds("1h30m"), seconds("300")),
            (Some(300.0), Some(5400.0), Some(300.0))
        );
        assert_eq!((seconds("0"), seconds("-1"), seconds("-1m")), (Some(0.0), None, None));
        assert_eq!((seconds("250ms"), seconds("1.5s")), (Some(0.25), Some(1.5)));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "x", "5 m", "m", "5x", "1h30", "--1", "1..2s", "5m "] {
            assert_eq!(text.parse::<KeepAlive>(), Err(KeepAliveError), "{text:?}");
        }
        assert_eq!(parsed(Some(&json!(0))).unwrap(), Some(KeepAlive(Some(Duration::ZERO))));
        assert_eq!(parsed(Some(&json!(-1))).unwrap(), Some(KeepAlive::FOREVER));
        assert_eq!(parsed(Some(&json!(1e300))).unwrap(), Some(KeepAlive::FOREVER));
        assert_eq!(parsed(None).unwrap(), None);
        assert!(parsed(Some(&json!([1]))).is_err() && parsed(Some(&json!("x"))).is_err());
    }
}
