//! Fields that several routes share.

use super::{AnyObject, Anything, from_objects, whole};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;
use std::{collections::BTreeMap, fmt};

from_objects!(StreamOptions, ResponseFormat, NamedSchema, StructuredOutputs);

/// How tokens are chosen and when to stop. Names as OpenAI and vLLM have them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct SamplingFields {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    /// vLLM's -1 and 0 both mean all.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) top_k: Option<i64>,
    pub(crate) min_p: Option<f32>,
    pub(crate) typical_p: Option<f32>,
    pub(crate) repetition_penalty: Option<f32>,
    /// llama.cpp's and Ollama's name for it.
    pub(crate) repeat_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    pub(crate) logit_bias: Option<BTreeMap<String, f32>>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) seed: Option<i64>,
    pub(crate) stop: Option<OneOrMany>,
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) min_tokens: Option<u32>,
    pub(crate) ignore_eos: Option<bool>,
    pub(crate) include_stop_str_in_output: Option<bool>,
    pub(crate) skip_special_tokens: Option<bool>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) n: Option<u32>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    pub(crate) response_format: Option<ResponseFormat>,
    /// vLLM's, and those below what it was before.
    pub(crate) structured_outputs: Option<StructuredOutputs>,
    pub(crate) guided_json: Option<Value>,
    pub(crate) guided_regex: Option<String>,
    pub(crate) guided_choice: Option<Vec<String>>,
    pub(crate) guided_grammar: Option<String>,
    pub(crate) guided_whitespace_pattern: Option<String>,
    /// SwiftLM's and mlx-lm's.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) kv_bits: Option<u32>,
    /// vLLM's, from here on.
    pub(crate) cache_salt: Option<String>,
    pub(crate) allowed_token_ids: Option<Vec<u32>>,
    pub(crate) bad_words: Option<Vec<String>>,
    /// -1 keeps as many as leave room for the output.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) truncate_prompt_tokens: Option<i64>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) prompt_logprobs: Option<i64>,
    pub(crate) return_token_ids: Option<bool>,
    pub(crate) return_tokens_as_token_ids: Option<bool>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) priority: Option<i32>,
    pub(crate) spaces_between_special_tokens: Option<bool>,
}

/// Fields that cannot change the output; they are only checked for their type.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "read for the type check alone")]
pub(crate) struct InertFields {
    pub(crate) user: Option<String>,
    pub(crate) metadata: Option<AnyObject>,
    pub(crate) store: Option<bool>,
    pub(crate) service_tier: Option<String>,
    pub(crate) safety_identifier: Option<String>,
    pub(crate) prompt_cache_key: Option<String>,
    pub(crate) prompt_cache_retention: Option<String>,
    /// Anthropic's, through proxies: prefixes are cached unasked.
    pub(crate) cache_control: Option<AnyObject>,
    /// llama.cpp's: prefixes are cached unasked.
    pub(crate) cache_prompt: Option<bool>,
    /// LiteLLM's.
    pub(crate) provider_specific_fields: Option<AnyObject>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
    pub(crate) continuous_usage_stats: Option<bool>,
    /// Padding against traffic analysis; only `false` can be honoured.
    pub(crate) include_obfuscation: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ResponseFormat {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) json_schema: Option<NamedSchema>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct NamedSchema {
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    pub(crate) schema: Option<Value>,
    pub(crate) strict: Option<bool>,
}

/// vLLM's; one of the first five says what the output must be.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct StructuredOutputs {
    /// A schema, or its text.
    pub(crate) json: Option<Value>,
    pub(crate) regex: Option<String>,
    pub(crate) choice: Option<Vec<String>>,
    pub(crate) grammar: Option<String>,
    pub(crate) json_object: Option<bool>,
    pub(crate) whitespace_pattern: Option<String>,
    pub(crate) structural_tag: Option<Anything>,
    pub(crate) disable_additional_properties: Option<bool>,
    /// JSON is written without blanks.
    #[serde(rename = "disable_any_whitespace")]
    _disable_any_whitespace: Option<bool>,
    /// There is one implementation.
    #[serde(rename = "disable_fallback")]
    _disable_fallback: Option<bool>,
}

/// A string or a list of strings.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
pub(crate) struct OneOrMany(#[schemars(with = "OneOrManyTexts")] pub(crate) Vec<String>);

#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "the shapes of [`OneOrMany`] in the schema")]
enum OneOrManyTexts {
    One(String),
    Many(Vec<String>),
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = OneOrMany;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of strings")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![v.to_owned()]))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<OneOrMany, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = seq.next_element()? {
                    all.push(one);
                }
                Ok(OneOrMany(all))
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// Exact token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) total_tokens: u64,
    pub(crate) prompt_tokens_details: PromptDetails,
    pub(crate) completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct PromptDetails {
    pub(crate) cached_tokens: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct CompletionDetails {
    pub(crate) reasoning_tokens: u64,
}

/// vLLM's `prompt_logprobs`: by token id, nothing for the first token.
pub(crate) type PromptLogprobs = Vec<Option<BTreeMap<u32, PromptLogprob>>>;

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct PromptLogprob {
    pub(crate) logprob: f32,
    /// How many tokens are at least as likely.
    pub(crate) rank: Option<u32>,
    pub(crate) decoded_token: String,
}

/// `usage` of a stream chunk: left out, null, or the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum ChunkUsage {
    Null,
    Numbers(Usage),
}
