//! Fields that several routes share.

use super::{AnyObject, Anything, from_objects, whole};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::Value;
use std::{collections::BTreeMap, fmt};

from_objects!(
    StreamOptions,
    ResponseFormat,
    NamedSchema,
    StructuredOutputs,
    Prediction,
    PredictionPart
);

/// How tokens are chosen and when to stop. Names as OpenAI and vLLM have them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct SamplingFields {
    /// From 0, which takes the likeliest token, to 2; the model's recommendation when absent.
    #[schemars(range(min = 0, max = 2))]
    pub(crate) temperature: Option<f32>,
    /// Keeps the likeliest tokens of this mass.
    #[schemars(range(min = 0, max = 1))]
    pub(crate) top_p: Option<f32>,
    /// Keeps so many of the likeliest tokens; -1 and 0 keep all.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = -1))]
    pub(crate) top_k: Option<i64>,
    /// Keeps tokens at least this many times as likely as the likeliest.
    #[schemars(range(min = 0, max = 1))]
    pub(crate) min_p: Option<f32>,
    /// Locally typical sampling.
    #[schemars(range(min = 0, max = 1))]
    pub(crate) typical_p: Option<f32>,
    /// Above 1, makes tokens of the prompt and the output less likely.
    #[schemars(range(min = 0, max = 10))]
    pub(crate) repetition_penalty: Option<f32>,
    /// Another name for `repetition_penalty`.
    #[schemars(range(min = 0, max = 10))]
    pub(crate) repeat_penalty: Option<f32>,
    /// Is taken off tokens that stand in the output.
    #[schemars(range(min = -2, max = 2))]
    pub(crate) presence_penalty: Option<f32>,
    /// Is taken off tokens for each time that they stand in the output.
    #[schemars(range(min = -2, max = 2))]
    pub(crate) frequency_penalty: Option<f32>,
    /// Is added to the logits of tokens, by id.
    pub(crate) logit_bias: Option<BTreeMap<String, f32>>,
    /// Equal seeds give equal tokens. -1 is none.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) seed: Option<i64>,
    /// Strings that end the output: up to 16.
    pub(crate) stop: Option<OneOrMany>,
    /// Tokens that end the output.
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    /// No stop token or stop string ends the output before.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) min_tokens: Option<u32>,
    /// Goes on after the model's own end-of-sequence tokens.
    pub(crate) ignore_eos: Option<bool>,
    /// Whether the stop string is part of the output.
    pub(crate) include_stop_str_in_output: Option<bool>,
    /// Whether special tokens are left out of the text; on when absent.
    pub(crate) skip_special_tokens: Option<bool>,
    /// Choices.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = 1, max = 128))]
    pub(crate) n: Option<u32>,
    /// Whether the response is a stream of events.
    pub(crate) stream: Option<bool>,
    /// What a stream reports beside.
    pub(crate) stream_options: Option<StreamOptions>,
    /// What the output must be.
    pub(crate) response_format: Option<ResponseFormat>,
    /// What the output must be, as vLLM has it; `guided_*` are its older names.
    pub(crate) structured_outputs: Option<StructuredOutputs>,
    /// A JSON schema that the output follows.
    pub(crate) guided_json: Option<Value>,
    /// A regular expression that the output matches.
    pub(crate) guided_regex: Option<String>,
    /// Texts of which the output is one.
    pub(crate) guided_choice: Option<Vec<String>>,
    /// A grammar in Lark or EBNF.
    pub(crate) guided_grammar: Option<String>,
    /// What stands between parts of JSON.
    pub(crate) guided_whitespace_pattern: Option<String>,
    /// Bits an element of the KV cache, where the server offers several.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) kv_bits: Option<u32>,
    /// Pages of 64 tokens that each new token attends to beside the first and the recent ones; 0 attends to all.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) kv_recall_pages: Option<u32>,
    /// Prefixes are shared only with requests of the same salt.
    pub(crate) cache_salt: Option<String>,
    /// The only tokens that may be chosen.
    pub(crate) allowed_token_ids: Option<Vec<u32>>,
    /// Words that are not written.
    pub(crate) bad_words: Option<Vec<String>>,
    /// Keeps the last tokens of the prompt; -1 keeps as many as leave room for the output.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = -1))]
    pub(crate) truncate_prompt_tokens: Option<i64>,
    /// Log probabilities of the prompt's tokens, and of this many of the likeliest.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = 0, max = 20))]
    pub(crate) prompt_logprobs: Option<i64>,
    /// Whether the ids of tokens are returned.
    pub(crate) return_token_ids: Option<bool>,
    /// Whether log probabilities name tokens as `token_id:7`.
    pub(crate) return_tokens_as_token_ids: Option<bool>,
    /// Lower numbers come first, on a server that schedules by priority.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) priority: Option<i32>,
    /// Most tokens that are drafted at a time; 0 drafts none. The output is the same.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) max_draft_tokens: Option<u32>,
    /// What the output is likely to contain: such tokens are drafted, and the output is the same.
    pub(crate) prediction: Option<Prediction>,
    /// Without effect for most tokenizers.
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

/// OpenAI's predicted output.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct Prediction {
    /// Only `content`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) content: PredictionContent,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum PredictionContent {
    Text(String),
    Parts(Vec<PredictionPart>),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct PredictionPart {
    /// Only `text`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: String,
}

/// A string or a list of strings.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema)]
#[schemars(rename = "Texts")]
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(n: &u64) -> bool {
    *n == 0
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
    /// Of texts that the server found and put behind the conversation.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) retrieved_tokens: u64,
    /// That stand for images.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) image_tokens: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct CompletionDetails {
    pub(crate) reasoning_tokens: u64,
    /// Drafted tokens that are in the output, whatever drafted them; with a `prediction`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) accepted_prediction_tokens: Option<u64>,
    /// Drafted tokens that are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rejected_prediction_tokens: Option<u64>,
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
