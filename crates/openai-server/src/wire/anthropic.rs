//! `/v1/messages` and `/v1/messages/count_tokens`: what comes in.

use super::{AnyObject, Anything, Glance, Unsupported, from_objects, unsupported::field, whole};
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};
use std::fmt;

from_objects!(
    AnthropicMessage,
    Block,
    AnthropicTool,
    AnthropicChoice,
    Thinking,
    OutputConfig,
    OutputFormat,
    ContextManagement,
    ContextEdit
);

/// The fields of both routes.
#[derive(Debug, Deserialize)]
pub(crate) struct Conversation {
    pub(crate) model: Option<String>,
    pub(crate) messages: Vec<AnthropicMessage>,
    pub(crate) system: Option<Blocks>,
    pub(crate) tools: Option<Vec<AnthropicTool>>,
    pub(crate) tool_choice: Option<AnthropicChoice>,
    pub(crate) thinking: Option<Thinking>,
    pub(crate) output_config: Option<OutputConfig>,
    /// What `output_config.format` was before.
    pub(crate) output_format: Option<OutputFormat>,
    pub(crate) context_management: Option<ContextManagement>,
}

/// The fields of `/v1/messages` alone.
#[derive(Debug, Deserialize)]
pub(crate) struct MessagesRequest {
    #[serde(default, deserialize_with = "whole")]
    pub(crate) max_tokens: Option<u32>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) top_k: Option<i64>,
    pub(crate) stop_sequences: Option<Vec<String>>,
    pub(crate) stream: Option<bool>,
}

/// Fields that cannot change the output; they are only checked for their type.
#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "read for the type check alone")]
pub(crate) struct InertMessagesFields {
    pub(crate) metadata: Option<AnyObject>,
    pub(crate) service_tier: Option<String>,
    pub(crate) inference_geo: Option<String>,
    pub(crate) speed: Option<String>,
    pub(crate) cache_control: Option<AnyObject>,
    pub(crate) diagnostics: Option<AnyObject>,
    pub(crate) billing_policy: Option<Anything>,
    /// A header of the official API; some clients send it in the body too.
    pub(crate) betas: Option<Vec<String>>,
    pub(crate) anthropic_beta: Option<Anything>,
    pub(crate) anthropic_version: Option<String>,
}

/// Fields of Anthropic's API that would change the output and are not honoured.
pub(crate) const UNSUPPORTED_MESSAGES: &[Unsupported] = &[
    field(
        "compaction",
        "is not supported: this server does not sum conversations up",
        Glance::Null,
    ),
    field("container", "is not supported: this server runs no code", Glance::Null),
    field("fallback_credit_token", "is not supported", Glance::Null),
    field("fallbacks", "is not supported: there is one model", Glance::Empty),
    field("mcp_servers", "is not supported: the client calls tools", Glance::Empty),
    field("thread", "is not supported: this server keeps no conversations", Glance::Null),
];

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct AnthropicMessage {
    pub(crate) role: String,
    pub(crate) content: Blocks,
    pub(crate) clear_at: Option<String>,
}

/// A text, or a list of blocks.
#[derive(Debug)]
pub(crate) enum Blocks {
    Text(String),
    List(Vec<Block>),
}

impl<'de> Deserialize<'de> for Blocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = Blocks;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of content blocks")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Blocks, E> {
                Ok(Blocks::Text(v.to_owned()))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Blocks, A::Error> {
                let mut blocks = Vec::new();
                while let Some(block) = seq.next_element()? {
                    blocks.push(block);
                }
                Ok(Blocks::List(blocks))
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// One content block; which fields it has depends on `type`.
#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct Block {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<String>,
    pub(crate) thinking: Option<String>,
    pub(crate) signature: Option<String>,
    pub(crate) data: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) input: Option<Map<String, Value>>,
    pub(crate) tool_use_id: Option<String>,
    pub(crate) content: Option<Blocks>,
    pub(crate) is_error: Option<bool>,
    pub(crate) citations: Option<Anything>,
    pub(crate) caller: Option<AnyObject>,
    pub(crate) toolset_name: Option<String>,
    pub(crate) tool_name: Option<String>,
    #[serde(rename = "cache_control")]
    _cache_control: Option<AnyObject>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct AnthropicTool {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) input_schema: Option<Map<String, Value>>,
    pub(crate) strict: Option<bool>,
    pub(crate) defer_loading: Option<bool>,
    pub(crate) allowed_callers: Option<Vec<String>>,
    pub(crate) input_examples: Option<Vec<AnyObject>>,
    /// Arguments are streamed as they are written in any case.
    #[serde(rename = "eager_input_streaming")]
    _eager_input_streaming: Option<bool>,
    #[serde(rename = "cache_control")]
    _cache_control: Option<AnyObject>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct AnthropicChoice {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) name: Option<String>,
    pub(crate) disable_parallel_tool_use: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct Thinking {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) budget_tokens: Option<u32>,
    pub(crate) display: Option<String>,
    /// What to do with thinking of another conversation: none is refused.
    #[serde(rename = "block_binding")]
    _block_binding: Option<AnyObject>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct OutputConfig {
    pub(crate) effort: Option<String>,
    pub(crate) format: Option<OutputFormat>,
    pub(crate) task_budget: Option<Anything>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct OutputFormat {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ContextManagement {
    pub(crate) edits: Option<Vec<ContextEdit>>,
}

/// An edit; its options do not matter.
#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ContextEdit {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(rename = "trigger")]
    _trigger: Option<Anything>,
    #[serde(rename = "keep")]
    _keep: Option<Anything>,
    #[serde(rename = "clear_at_least")]
    _clear_at_least: Option<Anything>,
    #[serde(rename = "clear_tool_inputs")]
    _clear_tool_inputs: Option<Anything>,
    #[serde(rename = "exclude_tools")]
    _exclude_tools: Option<Anything>,
    #[serde(rename = "instructions")]
    _instructions: Option<Anything>,
    #[serde(rename = "pause_after_compaction")]
    _pause_after_compaction: Option<Anything>,
}
