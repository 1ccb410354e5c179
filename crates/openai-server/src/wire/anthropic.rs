//! `/v1/messages` and `/v1/messages/count_tokens`: what comes in.

use super::{
    AnyObject, Anything, BlockSource, Glance, Unsupported, from_objects, unsupported::field, whole,
};
use schemars::JsonSchema;
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
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct Conversation {
    /// A served name, or the name of an adapter; the first served name when absent.
    pub(crate) model: Option<String>,
    /// The conversation. The model goes on with a last message of the assistant.
    pub(crate) messages: Vec<AnthropicMessage>,
    /// What the model is told before the conversation.
    pub(crate) system: Option<Blocks>,
    /// Tools that the model may call.
    pub(crate) tools: Option<Vec<AnthropicTool>>,
    /// Whether the model calls tools, and which.
    pub(crate) tool_choice: Option<AnthropicChoice>,
    /// Whether the model thinks before it answers; it does not when absent.
    pub(crate) thinking: Option<Thinking>,
    /// How much the model thinks, and what the output must be.
    pub(crate) output_config: Option<OutputConfig>,
    /// What `output_config.format` was before.
    pub(crate) output_format: Option<OutputFormat>,
    /// Edits of the conversation; none is ever applied, and the response says so.
    pub(crate) context_management: Option<ContextManagement>,
}

/// The fields of `/v1/messages` alone.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct MessagesRequest {
    /// Most tokens of the response.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(!default, required, range(min = 1))]
    pub(crate) max_tokens: Option<u32>,
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
    /// Strings that end the output: up to 16.
    pub(crate) stop_sequences: Option<Vec<String>>,
    /// Whether the response is a stream of events.
    pub(crate) stream: Option<bool>,
}

/// Fields that cannot change the output; they are only checked for their type.
#[derive(Debug, Deserialize, JsonSchema)]
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

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct AnthropicMessage {
    #[schemars(extend("enum" = ["user", "assistant", "system"]))]
    pub(crate) role: String,
    pub(crate) content: Blocks,
    /// Of system messages: whether the next message of the user ends what it says.
    #[schemars(extend("enum" = ["never", "next_user_message", null]))]
    pub(crate) clear_at: Option<String>,
}

/// A text, or a list of blocks.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
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
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "ContentBlock")]
pub(crate) struct Block {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"]))]
    pub(crate) kind: String,
    /// Of `text`.
    pub(crate) text: Option<String>,
    /// Of `thinking`.
    pub(crate) thinking: Option<String>,
    /// Of `thinking`; it is not checked.
    pub(crate) signature: Option<String>,
    /// Of `redacted_thinking`, which is not read.
    pub(crate) data: Option<String>,
    /// Of `image`.
    pub(crate) source: Option<BlockSource>,
    /// Of `tool_use`.
    pub(crate) id: Option<String>,
    /// Of `tool_use`: the tool.
    pub(crate) name: Option<String>,
    /// Of `tool_use`: the arguments.
    pub(crate) input: Option<Map<String, Value>>,
    /// Of `tool_result`: the call that it answers.
    pub(crate) tool_use_id: Option<String>,
    /// Of `tool_result`: a text, or blocks of text and images.
    pub(crate) content: Option<Blocks>,
    /// Of `tool_result`: whether the call failed.
    pub(crate) is_error: Option<bool>,
    /// Of `text`; they are not read.
    pub(crate) citations: Option<Anything>,
    /// Of `tool_use`.
    pub(crate) caller: Option<AnyObject>,
    /// Of `tool_use` and `tool_result`.
    pub(crate) toolset_name: Option<String>,
    pub(crate) tool_name: Option<String>,
    #[serde(rename = "cache_control")]
    _cache_control: Option<AnyObject>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct AnthropicTool {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["custom", null]))]
    pub(crate) kind: Option<String>,
    #[schemars(required, length(min = 1))]
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// A JSON schema of the arguments.
    #[schemars(required)]
    pub(crate) input_schema: Option<Map<String, Value>>,
    /// Whether arguments follow the schema for certain.
    pub(crate) strict: Option<bool>,
    /// Only `false`: there is no search for tools.
    pub(crate) defer_loading: Option<bool>,
    /// Only `direct`.
    pub(crate) allowed_callers: Option<Vec<String>>,
    /// Only an empty list.
    pub(crate) input_examples: Option<Vec<AnyObject>>,
    /// Arguments are streamed as they are written in any case.
    #[serde(rename = "eager_input_streaming")]
    _eager_input_streaming: Option<bool>,
    #[serde(rename = "cache_control")]
    _cache_control: Option<AnyObject>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct AnthropicChoice {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["auto", "any", "tool", "none"]))]
    pub(crate) kind: String,
    /// Of `tool`: its name.
    pub(crate) name: Option<String>,
    /// Whether there is one call at the most.
    pub(crate) disable_parallel_tool_use: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct Thinking {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["enabled", "adaptive", "disabled"]))]
    pub(crate) kind: String,
    /// Of `enabled`: most tokens of thinking, which then ends by force.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = 1))]
    pub(crate) budget_tokens: Option<u32>,
    /// `omitted` leaves its text out of the response.
    #[schemars(extend("enum" = ["summarized", "updates", "omitted", null]))]
    pub(crate) display: Option<String>,
    /// What to do with thinking of another conversation: none is refused.
    #[serde(rename = "block_binding")]
    _block_binding: Option<AnyObject>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct OutputConfig {
    #[schemars(extend("enum" = ["low", "medium", "high", "xhigh", "max", null]))]
    pub(crate) effort: Option<String>,
    pub(crate) format: Option<OutputFormat>,
    /// Only `null`: one request is one answer.
    pub(crate) task_budget: Option<Anything>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct OutputFormat {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["json_schema"]))]
    pub(crate) kind: String,
    /// A JSON schema that the output follows.
    #[schemars(required)]
    pub(crate) schema: Option<Value>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ContextManagement {
    pub(crate) edits: Option<Vec<ContextEdit>>,
}

/// An edit; its options do not matter.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ContextEdit {
    #[serde(rename = "type")]
    #[schemars(extend("enum" =
        ["clear_tool_uses_20250919", "clear_thinking_20251015", "compact_20260112"]))]
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
