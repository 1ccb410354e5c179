//! What the server is told when it starts.

use serde_json::{Map, Value};
use std::{fmt, hint::black_box, time::Duration};
use taper_base::SamplingParams;
use taper_chat::{ReasoningFormat, ToolFormat};

/// Everything but the engine and the tokenizer.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Names that requests may use; the first stands in answers to requests that name none, and in
    /// the metrics.
    pub served_model_names: Vec<String>,
    /// Any of these opens `/v1/*`, `/tokenize` and `/detokenize`; with none, everything is open.
    pub api_keys: ApiKeys,
    /// Origins of web pages that may call; empty turns CORS off, `*` allows any.
    pub cors_origins: Vec<String>,
    /// Longer bodies get 413.
    pub max_body_bytes: usize,
    /// Take fields that the API does not have. Fields that it has and this server does not honour
    /// are refused all the same.
    pub allow_unknown_fields: bool,
    /// Let the model decide to call tools. Off, requests with tools need `tool_choice: "none"`.
    pub enable_auto_tool_choice: bool,
    /// How the model writes tool calls.
    pub tool_format: ToolFormat,
    /// How the model marks its reasoning.
    pub reasoning_format: ReasoningFormat,
    /// What requests leave out; from the model's `generation_config.json`. Its `seed` is unused.
    pub default_sampling: SamplingParams,
    /// Template variables that requests can override.
    pub default_chat_template_kwargs: Map<String, Value>,
    /// A comment goes down a silent stream this often, so that nothing between closes it.
    pub keep_alive: Duration,
    /// Most choices of one request: `n`, times the prompts.
    pub max_choices: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            served_model_names: vec!["taper".to_owned()],
            api_keys: ApiKeys::default(),
            cors_origins: Vec::new(),
            max_body_bytes: 32 << 20,
            allow_unknown_fields: false,
            enable_auto_tool_choice: true,
            tool_format: ToolFormat::None,
            reasoning_format: ReasoningFormat::None,
            default_sampling: SamplingParams::default(),
            default_chat_template_kwargs: Map::new(),
            keep_alive: Duration::from_secs(15),
            max_choices: 128,
        }
    }
}

impl ServerConfig {
    /// The name that stands for the model when a request names none.
    #[must_use]
    pub fn model_name(&self) -> &str {
        self.served_model_names.first().map_or("taper", String::as_str)
    }
}

/// Keys that open the API. They are never printed.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// Nobody needs a key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares with every key, each in a time that depends on the length of `key` alone, so that
    /// answers cannot be timed to guess a key byte by byte.
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

impl<S: Into<String>> FromIterator<S> for ApiKeys {
    fn from_iter<I: IntoIterator<Item = S>>(keys: I) -> Self {
        // An empty key would let everybody in who sends an empty header.
        Self(keys.into_iter().map(Into::into).filter(|k: &String| !k.is_empty()).collect())
    }
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
        let keys: ApiKeys = ["secret", "other"].into_iter().collect();
        assert!(keys.accept("secret") && keys.accept("other"));
        for wrong in ["", "s", "secre", "secret ", "secretsecret", "Secret"] {
            assert!(!keys.accept(wrong), "{wrong:?}");
        }
        assert_eq!(format!("{keys:?}"), "2 keys");
        assert!([""].into_iter().collect::<ApiKeys>().is_empty());
    }
}
