//! `/v1/completions`.

use super::{ChunkUsage, PromptLogprobs, Usage, whole};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};
use std::fmt;

/// The route's own fields; the sampling ones are in `SamplingFields`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CompletionRequest {
    /// A served name, or the name of an adapter; the first served name when absent.
    pub(crate) model: Option<String>,
    /// Texts or lists of tokens.
    pub(crate) prompt: Prompts,
    /// Most tokens of the output: 16 when absent. 0 with `echo` scores the prompt.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) max_tokens: Option<u32>,
    /// Log probabilities, and those of this many of the likeliest tokens, up to 20.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(max = 20))]
    pub(crate) logprobs: Option<u8>,
    /// Whether the prompt is returned before the output.
    pub(crate) echo: Option<bool>,
    /// Choices that are made, of which the `n` likeliest are returned.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = 1, max = 128))]
    pub(crate) best_of: Option<u32>,
    /// What follows the output: the model fills in the middle.
    pub(crate) suffix: Option<String>,
    /// Whether the tokenizer adds its own; on when absent.
    pub(crate) add_special_tokens: Option<bool>,
}

/// A string, a list of strings, a list of tokens, or a list of lists of tokens.
#[derive(Debug, PartialEq, Eq, JsonSchema)]
pub(crate) struct Prompts(#[schemars(with = "PromptShapes")] pub(crate) Vec<Prompt>);

#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "the shapes of [`Prompts`] in the schema")]
enum PromptShapes {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = Prompts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a string, a list of strings, a list of token ids or a list of lists of \
                     token ids",
                )
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Prompts, E> {
                Ok(Prompts(vec![Prompt::Text(v.to_owned())]))
            }
            /// The first element says what the others must be.
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Prompts, A::Error> {
                match seq.next_element()? {
                    None => Ok(Prompts(vec![Prompt::Tokens(Vec::new())])),
                    Some(First::Token(token)) => {
                        let mut tokens = vec![token];
                        while let Some(token) = seq.next_element()? {
                            tokens.push(token);
                        }
                        Ok(Prompts(vec![Prompt::Tokens(tokens)]))
                    }
                    Some(First::Prompt(first @ Prompt::Text(_))) => {
                        let mut prompts = vec![first];
                        while let Some(text) = seq.next_element()? {
                            prompts.push(Prompt::Text(text));
                        }
                        Ok(Prompts(prompts))
                    }
                    Some(First::Prompt(first @ Prompt::Tokens(_))) => {
                        let mut prompts = vec![first];
                        while let Some(tokens) = seq.next_element()? {
                            prompts.push(Prompt::Tokens(tokens));
                        }
                        Ok(Prompts(prompts))
                    }
                }
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// The first element of a list of prompts, or of a prompt that is a list.
enum First {
    Token(u32),
    Prompt(Prompt),
}

impl<'de> Deserialize<'de> for First {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = First;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id or a list of token ids")
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<First, E> {
                let token = u32::try_from(v).map(First::Token);
                token.map_err(|_| E::invalid_value(de::Unexpected::Unsigned(v), &self))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<First, E> {
                Ok(First::Prompt(Prompt::Text(v.to_owned())))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<First, A::Error> {
                let mut tokens = Vec::new();
                while let Some(token) = seq.next_element()? {
                    tokens.push(token);
                }
                Ok(First::Prompt(Prompt::Tokens(tokens)))
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// The whole response, and one event of a stream: the legacy API has one shape for both.
#[derive(Debug, Serialize, JsonSchema)]
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

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct CompletionChoice {
    pub(crate) text: String,
    pub(crate) index: usize,
    pub(crate) logprobs: Option<LegacyLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct LegacyLogprobs {
    pub(crate) tokens: Vec<String>,
    pub(crate) token_logprobs: Vec<Option<f32>>,
    pub(crate) top_logprobs: Vec<Option<Map<String, Value>>>,
    pub(crate) text_offset: Vec<usize>,
}
