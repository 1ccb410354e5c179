//! `/v1/messages` and `/v1/messages/count_tokens`: what goes out.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// The whole response, and what a stream begins with.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "MessageResponse")]
pub(crate) struct MessageOut<'a> {
    pub(crate) id: &'a str,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "message"))]
    pub(crate) kind: &'static str,
    #[schemars(extend("const" = "assistant"))]
    pub(crate) role: &'static str,
    pub(crate) model: &'a str,
    pub(crate) content: Vec<BlockOut>,
    /// Why it ends; nothing at the beginning of a stream.
    #[schemars(extend("enum" =
        ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded", null]))]
    pub(crate) stop_reason: Option<&'static str>,
    /// Which string ended it.
    pub(crate) stop_sequence: Option<String>,
    pub(crate) usage: MessageUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context_management: Option<AppliedEdits>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseBlock")]
pub(crate) enum BlockOut {
    Thinking { thinking: String, signature: &'static str },
    Text { text: String },
    ToolUse { id: String, name: String, input: Map<String, Value> },
}

/// Tokens by Anthropic's count: what was read from the cache is not among `input_tokens`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct MessageUsage {
    pub(crate) input_tokens: u64,
    pub(crate) cache_creation_input_tokens: u64,
    pub(crate) cache_read_input_tokens: u64,
    pub(crate) output_tokens: u64,
    pub(crate) output_tokens_details: ThinkingTokens,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ThinkingTokens {
    pub(crate) thinking_tokens: u64,
}

/// The edits of a conversation that were applied: none, ever.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub(crate) struct AppliedEdits {
    applied_edits: [(); 0],
}

/// One event of a stream.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum MessageEvent<'a> {
    MessageStart {
        message: MessageOut<'a>,
    },
    Ping,
    ContentBlockStart {
        index: usize,
        content_block: BlockOut,
    },
    ContentBlockDelta {
        index: usize,
        delta: BlockDelta,
    },
    ContentBlockStop {
        index: usize,
    },
    MessageDelta {
        delta: MessageDelta,
        usage: MessageUsage,
        #[serde(skip_serializing_if = "Option::is_none")]
        context_management: Option<AppliedEdits>,
    },
    MessageStop,
}

impl MessageEvent<'_> {
    /// Its name, which is also its `type`.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::Ping => "ping",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop => "message_stop",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names of the API")]
pub(crate) enum BlockDelta {
    TextDelta { text: String },
    ThinkingDelta { thinking: String },
    SignatureDelta { signature: &'static str },
    InputJsonDelta { partial_json: String },
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct MessageDelta {
    #[schemars(extend("enum" = ["end_turn", "max_tokens", "stop_sequence", "tool_use",
                                "model_context_window_exceeded"]))]
    pub(crate) stop_reason: &'static str,
    pub(crate) stop_sequence: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenCount {
    pub(crate) input_tokens: usize,
}

/// An error, as a body and as the last event of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnthropicError {
    #[serde(rename = "type")]
    #[schemars(extend("const" = "error"))]
    pub(crate) kind: &'static str,
    pub(crate) error: AnthropicErrorDetail,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnthropicErrorDetail {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = [
        "invalid_request_error", "authentication_error", "permission_error", "not_found_error",
        "request_too_large", "timeout_error", "rate_limit_error", "overloaded_error", "api_error",
    ]))]
    pub(crate) kind: &'static str,
    pub(crate) message: String,
}
