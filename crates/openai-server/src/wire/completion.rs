//! `/v1/completions`.

use super::{ChunkUsage, Usage};
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

/// The route's own fields; the sampling ones are in `SamplingFields`.
#[derive(Debug, Deserialize)]
pub(crate) struct CompletionRequest {
    pub(crate) model: Option<String>,
    pub(crate) prompt: Prompts,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) logprobs: Option<u8>,
    pub(crate) echo: Option<bool>,
    pub(crate) best_of: Option<u32>,
    pub(crate) suffix: Option<String>,
    pub(crate) add_special_tokens: Option<bool>,
}

/// A string, a list of strings, a list of tokens, or a list of lists of tokens.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Prompts(pub(crate) Vec<Prompt>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "expected a string, a list of strings, a list of token ids or a list of \
                        lists of token ids";
        let value = Value::deserialize(deserializer)?;
        let token = |v: &Value| v.as_u64().and_then(|t| u32::try_from(t).ok());
        let tokens = |list: &[Value]| list.iter().map(token).collect::<Option<Vec<_>>>();
        let read = || match &value {
            Value::String(text) => Some(vec![Prompt::Text(text.clone())]),
            Value::Array(list) if list.iter().all(Value::is_number) => {
                Some(vec![Prompt::Tokens(tokens(list)?)])
            }
            Value::Array(list) if list.iter().all(Value::is_string) => {
                list.iter().map(|v| Some(Prompt::Text(v.as_str()?.to_owned()))).collect()
            }
            Value::Array(list) => {
                list.iter().map(|v| Some(Prompt::Tokens(tokens(v.as_array()?)?))).collect()
            }
            _ => None,
        };
        read().map(Self).ok_or_else(|| de::Error::custom(expected))
    }
}

/// The whole answer, and one event of a stream: the legacy API has one shape for both.
#[derive(Debug, Serialize)]
pub(crate) struct CompletionResponse<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<CompletionChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<ChunkUsage>,
    pub(crate) system_fingerprint: &'static str,
}

impl<'a> CompletionResponse<'a> {
    /// The body of a request that does not stream.
    pub(crate) fn with_usage(mut self, usage: Usage) -> Self {
        self.usage = Some(ChunkUsage::Numbers(usage));
        self
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct CompletionChoice {
    pub(crate) text: String,
    pub(crate) index: usize,
    pub(crate) logprobs: Option<LegacyLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct LegacyLogprobs {
    pub(crate) tokens: Vec<String>,
    pub(crate) token_logprobs: Vec<Option<f32>>,
    pub(crate) top_logprobs: Vec<Option<Map<String, Value>>>,
    pub(crate) text_offset: Vec<usize>,
}
