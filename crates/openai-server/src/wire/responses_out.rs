//! `/v1/responses`: what goes out.

use super::{TokenLogprobOut, Usage};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::sync::Arc;

/// A whole response, as bodies, stored responses and events hold it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Response")]
pub(crate) struct ResponseOut {
    pub(crate) id: String,
    #[schemars(extend("const" = "response"))]
    pub(crate) object: &'static str,
    pub(crate) created_at: u64,
    #[schemars(extend("enum" = ["in_progress", "completed", "incomplete", "failed", "cancelled"]))]
    pub(crate) status: &'static str,
    pub(crate) background: bool,
    pub(crate) completed_at: Option<u64>,
    pub(crate) error: Option<ResponseErrorOut>,
    pub(crate) incomplete_details: Option<IncompleteOut>,
    pub(crate) model: String,
    pub(crate) output: Vec<OutputItem>,
    pub(crate) usage: Option<ResponseUsage>,
    #[serde(flatten, serialize_with = "shared")]
    pub(crate) asked: Arc<AskedOut>,
}

fn shared<S: Serializer>(asked: &Arc<AskedOut>, serializer: S) -> Result<S::Ok, S::Error> {
    AskedOut::serialize(asked, serializer)
}

/// What was asked for.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AskedOut {
    pub(crate) instructions: Option<Value>,
    pub(crate) max_output_tokens: Option<u32>,
    pub(crate) max_tool_calls: Option<u32>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) previous_response_id: Option<String>,
    pub(crate) reasoning: ReasoningOut,
    pub(crate) service_tier: &'static str,
    pub(crate) store: bool,
    pub(crate) temperature: f32,
    pub(crate) text: Value,
    pub(crate) tool_choice: Value,
    pub(crate) tools: Vec<Value>,
    pub(crate) top_logprobs: u8,
    pub(crate) top_p: f32,
    pub(crate) truncation: &'static str,
    pub(crate) user: Option<String>,
    pub(crate) safety_identifier: Option<String>,
    pub(crate) prompt_cache_key: Option<String>,
    pub(crate) metadata: Map<String, Value>,
}

#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[schemars(rename = "ReasoningSettings")]
pub(crate) struct ReasoningOut {
    pub(crate) effort: Option<String>,
    pub(crate) summary: Option<String>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "ResponseError")]
pub(crate) struct ResponseErrorOut {
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "IncompleteDetails")]
pub(crate) struct IncompleteOut {
    pub(crate) reason: &'static str,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct ResponseUsage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
struct InputDetails {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> Self {
        let cached_tokens = usage.prompt_tokens_details.cached_tokens;
        let reasoning_tokens = usage.completion_tokens_details.reasoning_tokens;
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens, cache_write_tokens: 0 },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens },
            total_tokens: usage.total_tokens,
        }
    }
}

/// One item of the output.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    Reasoning {
        id: String,
        status: &'static str,
        summary: Vec<PartOut>,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<Vec<PartOut>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
    },
    Message {
        id: String,
        status: &'static str,
        role: &'static str,
        content: Vec<PartOut>,
    },
    FunctionCall {
        id: String,
        status: &'static str,
        call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        arguments: String,
    },
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names of the API")]
#[schemars(rename = "OutputPart")]
pub(crate) enum PartOut {
    OutputText { text: String, annotations: [(); 0], logprobs: Vec<TokenLogprobOut> },
    ReasoningText { text: String },
    SummaryText { text: String },
}

/// One event of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseEvent<'a> {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = [
        "response.created", "response.in_progress", "response.completed", "response.incomplete",
        "response.failed", "response.output_item.added", "response.output_item.done",
        "response.content_part.added", "response.content_part.done",
        "response.output_text.delta", "response.output_text.done",
        "response.reasoning_text.delta", "response.reasoning_text.done",
        "response.reasoning_summary_part.added", "response.reasoning_summary_part.done",
        "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
        "response.function_call_arguments.delta", "response.function_call_arguments.done",
    ]))]
    pub(crate) kind: &'static str,
    pub(crate) sequence_number: u64,
    #[serde(flatten)]
    pub(crate) what: What<'a>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "ResponseEventContent")]
pub(crate) enum What<'a> {
    Response {
        response: &'a ResponseOut,
    },
    Item {
        output_index: usize,
        item: &'a OutputItem,
    },
    Part {
        item_id: &'a str,
        output_index: usize,
        #[serde(flatten)]
        at: PartIndex,
        part: &'a PartOut,
    },
    Delta {
        item_id: &'a str,
        output_index: usize,
        #[serde(flatten)]
        at: PartIndex,
        delta: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<&'a [TokenLogprobOut]>,
    },
    Done {
        item_id: &'a str,
        output_index: usize,
        #[serde(flatten)]
        at: PartIndex,
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<&'a [TokenLogprobOut]>,
    },
    Arguments {
        item_id: &'a str,
        output_index: usize,
        name: &'a str,
        arguments: &'a str,
    },
}

/// Where in its item a part stands: every item has one part, at the most.
#[derive(Debug, Clone, Copy, Default, Serialize, JsonSchema)]
pub(crate) struct PartIndex {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) summary_index: Option<usize>,
}

/// `GET /v1/responses/{id}/input_items`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ItemList {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<Value>,
    pub(crate) first_id: Option<String>,
    pub(crate) last_id: Option<String>,
    pub(crate) has_more: bool,
}

/// `DELETE /v1/responses/{id}`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseDeleted {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) deleted: bool,
}
