//! Keys that open the API.

use crate::config::ConfigError;
use std::{fmt, hint::black_box};

/// Keys that open the API. They are never printed.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// These keys. Without any, nobody needs a key.
    ///
    /// # Errors
    /// A key is empty, or has a blank or another character that a header does not carry. An empty
    /// key is nearly always a variable that was not set, and must not open the server.
    pub fn new<S: Into<String>>(keys: impl IntoIterator<Item = S>) -> Result<Self, ConfigError> {
        let keys: Vec<String> = keys.into_iter().map(Into::into).collect();
        for (i, key) in keys.iter().enumerate() {
            if key.trim().is_empty() {
                return Err(ConfigError::EmptyApiKey { number: i + 1 });
            }
            if !key.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(ConfigError::ApiKeyCharacters { number: i + 1 });
            }
        }
        Ok(Self(keys))
    }

    /// Whether there are no keys, so that nobody needs one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares with every key, each in a time that depends on the length of `key` alone, so that
    /// responses cannot be timed to guess a key byte by byte.
    #[must_use]
    pub fn accept(&self, key: &str) -> bool {
        self.0.iter().fold(false, |found, own| found | same(own.as_bytes(), key.as_bytes()))
    }
}

fn same(own: &[u8], given: &[u8]) -> bool {
    let mut difference = u8::from(own.len() != given.len());
    for (i, byte) in given.iter().enumerate() {
        // An index that wraps keeps the work the same whatever the key's own length.
        let other = own.get(i % own.len().max(1)).copied().unwrap_or(0);
        difference = black_box(difference | (byte ^ other));
    }
    black_box(difference) == 0
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_match_whole_and_do_not_print() {
        let keys = ApiKeys::new(["secret", "other"]).unwrap();
        assert!(keys.accept("secret") && keys.accept("other"));
        for wrong in ["", "s", "secre", "secret ", "secretsecret", "Secret"] {
            assert!(!keys.accept(wrong), "{wrong:?}");
        }
        assert_eq!(format!("{keys:?}"), "2 keys");
        assert!(ApiKeys::new([""; 0]).unwrap().is_empty());
    }

    #[test]
    fn no_key_is_dropped_in_silence() {
        for blank in ["", " ", "\t", "\n"] {
            let error = ApiKeys::new(["good", blank]).unwrap_err();
            assert!(matches!(error, ConfigError::EmptyApiKey { number: 2 }), "{blank:?}");
        }
        for odd in ["two words", " led", "käse", "line\n"] {
            let error = ApiKeys::new([odd]).unwrap_err();
            assert!(matches!(error, ConfigError::ApiKeyCharacters { number: 1 }), "{odd:?}");
            assert!(!error.to_string().contains(odd), "keys are not printed");
        }
    }
}
