//! `/v1/responses`: what comes in.

use super::{
    AnyObject, Anything, Glance, ImageUrl, Unsupported, from_objects, unsupported::field, whole,
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};
use std::fmt;

from_objects!(
    InputItem,
    InputPart,
    ResponseTool,
    ResponseToolChosen,
    ReasoningAsked,
    TextAsked,
    TextFormat
);

/// The fields that matter to the output.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ResponsesRequest {
    /// A served name, or the name of an adapter; the first served name when absent.
    pub(crate) model: Option<String>,
    /// What is answered; it may only be absent where `instructions` or `previous_response_id` say
    /// enough.
    pub(crate) input: Option<Input>,
    /// What the model is told before the conversation.
    pub(crate) instructions: Option<String>,
    /// A stored response that the conversation goes on from.
    pub(crate) previous_response_id: Option<String>,
    /// Most tokens of the response; fills the context when absent.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = 1))]
    pub(crate) max_output_tokens: Option<u32>,
    /// From 0, which takes the likeliest token, to 2; the model's recommendation when absent.
    #[schemars(range(min = 0, max = 2))]
    pub(crate) temperature: Option<f32>,
    /// Keeps the likeliest tokens of this mass.
    #[schemars(range(min = 0, max = 1))]
    pub(crate) top_p: Option<f32>,
    /// Of how many of the likeliest tokens log probabilities are returned, up to 20; needs
    /// `message.output_text.logprobs` in `include`.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(max = 20))]
    pub(crate) top_logprobs: Option<u8>,
    /// Functions that the model may call.
    pub(crate) tools: Option<Vec<ResponseTool>>,
    /// `auto`, `none`, `required`, or the tools to choose from.
    pub(crate) tool_choice: Option<ResponseToolChoice>,
    /// `false` allows one call.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// What the output must be.
    pub(crate) text: Option<TextAsked>,
    /// How much the model reasons, and how that is shown.
    pub(crate) reasoning: Option<ReasoningAsked>,
    /// `auto` leaves the oldest exchanges out where the conversation does not fit.
    #[schemars(extend("enum" = ["auto", "disabled", null]))]
    pub(crate) truncation: Option<String>,
    /// `message.output_text.logprobs`, `reasoning.encrypted_content`; others add nothing.
    pub(crate) include: Option<Vec<String>>,
    /// Whether the response is kept, for `previous_response_id`; on when absent.
    pub(crate) store: Option<bool>,
    /// Whether the response is written while nobody waits; needs `store`.
    pub(crate) background: Option<bool>,
    /// Whether the response is a stream of events.
    pub(crate) stream: Option<bool>,
    /// What a stream reports beside.
    pub(crate) stream_options: Option<super::StreamOptions>,
}

/// What comes back as it was sent.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub(crate) struct Echo {
    pub(crate) input: Option<Value>,
    pub(crate) instructions: Option<Value>,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) tool_choice: Option<Value>,
    pub(crate) text: Option<Map<String, Value>>,
    pub(crate) metadata: Option<Map<String, Value>>,
    pub(crate) user: Option<String>,
    pub(crate) safety_identifier: Option<String>,
    pub(crate) prompt_cache_key: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) max_tool_calls: Option<u32>,
}

/// Fields that cannot change the output; they are only checked for their type.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "read for the type check alone")]
pub(crate) struct InertResponsesFields {
    pub(crate) service_tier: Option<String>,
    pub(crate) prompt_cache_retention: Option<String>,
    pub(crate) prompt_cache_options: Option<AnyObject>,
    /// Codex sends it.
    pub(crate) client_metadata: Option<AnyObject>,
}

/// Fields of OpenAI's API that would change the output and are not honoured.
pub(crate) const UNSUPPORTED_RESPONSES: &[Unsupported] = &[
    field("access_programs", "is not supported", Glance::Null),
    field(
        "context_management",
        "is not supported: conversations are never summed up",
        Glance::Empty,
    ),
    field("conversation", "is not supported; use 'previous_response_id'", Glance::Null),
    field("image", "is not supported: this server answers in text", Glance::Null),
    field("moderation", "is not supported", Glance::Null),
    field("prompt", "is not supported: this server keeps no prompts", Glance::Null),
];

/// A text, or a list of items.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

/// One item; which fields it has depends on `type`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct InputItem {
    /// `message` when absent, or `item_reference` where there is nothing but an id.
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["message", "reasoning", "function_call", "function_call_output",
                                "item_reference", null]))]
    pub(crate) kind: Option<String>,
    /// Of `item_reference`: an item of a stored response.
    pub(crate) id: Option<String>,
    /// Of `message`.
    pub(crate) role: Option<String>,
    /// Of `message` and `reasoning`.
    pub(crate) content: Option<InputContent>,
    /// Of calls and their outputs.
    pub(crate) call_id: Option<String>,
    /// Of `function_call`.
    pub(crate) name: Option<String>,
    /// Of `function_call`: JSON.
    pub(crate) arguments: Option<String>,
    /// Of `function_call_output`.
    pub(crate) output: Option<InputContent>,
    /// Of `reasoning`.
    pub(crate) summary: Option<Vec<InputPart>>,
    /// Of `reasoning`: as a response gave it.
    pub(crate) encrypted_content: Option<String>,
    #[serde(rename = "status")]
    _status: Option<String>,
    #[serde(rename = "phase")]
    _phase: Option<String>,
    #[serde(rename = "caller")]
    _caller: Option<AnyObject>,
    pub(crate) namespace: Option<String>,
}

/// A text, or a list of parts.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum InputContent {
    Text(String),
    Parts(Vec<InputPart>),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct InputPart {
    #[serde(rename = "type")]
    #[schemars(extend("enum" =
        ["input_text", "input_image", "output_text", "text", "reasoning_text", "summary_text"]))]
    pub(crate) kind: String,
    /// Of all but `input_image`.
    pub(crate) text: Option<String>,
    /// Of `input_image`.
    pub(crate) image_url: Option<ImageUrl>,
    /// Of `input_image`: `auto` or `high`.
    pub(crate) detail: Option<String>,
    /// Of `input_image`: there are no files on this server.
    pub(crate) file_id: Option<String>,
    #[serde(rename = "annotations")]
    _annotations: Option<Anything>,
    #[serde(rename = "logprobs")]
    _logprobs: Option<Anything>,
    #[serde(rename = "prompt_cache_breakpoint")]
    _prompt_cache_breakpoint: Option<AnyObject>,
}

/// Reads a text or a list.
macro_rules! text_or_list {
    ($name:ident, $list:ident, $expecting:literal) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct V;
                impl<'de> de::Visitor<'de> for V {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: de::Error>(self, v: &str) -> Result<$name, E> {
                        Ok($name::Text(v.to_owned()))
                    }
                    fn visit_seq<A: de::SeqAccess<'de>>(
                        self,
                        mut seq: A,
                    ) -> Result<$name, A::Error> {
                        let mut all = Vec::new();
                        while let Some(one) = seq.next_element()? {
                            all.push(one);
                        }
                        Ok($name::$list(all))
                    }
                }
                deserializer.deserialize_any(V)
            }
        }
    };
}
text_or_list!(Input, Items, "a string or a list of items");
text_or_list!(InputContent, Parts, "a string or a list of content parts");

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ResponseTool {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["function"]))]
    pub(crate) kind: String,
    #[schemars(required, length(min = 1))]
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// A JSON schema of the arguments.
    pub(crate) parameters: Option<Map<String, Value>>,
    /// Whether arguments follow the schema for certain.
    pub(crate) strict: Option<bool>,
    /// Only `false`: there is no search for tools.
    pub(crate) defer_loading: Option<bool>,
    /// Only `direct`.
    pub(crate) allowed_callers: Option<Vec<String>>,
    /// Only `false`: an answer ends with its calls.
    #[serde(rename = "async")]
    pub(crate) asynchronous: Option<bool>,
    /// What a result looks like; results are not checked.
    #[serde(rename = "output_schema")]
    _output_schema: Option<AnyObject>,
    /// The functions of a namespace.
    pub(crate) tools: Option<Vec<ResponseTool>>,
}

/// `"auto"`, or an object that names a function or several tools.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum ResponseToolChoice {
    Mode(String),
    Chosen(ResponseToolChosen),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ResponseToolChosen {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["function", "allowed_tools"]))]
    pub(crate) kind: String,
    /// Of `function`.
    pub(crate) name: Option<String>,
    /// Of `allowed_tools`: `auto` or `required`.
    pub(crate) mode: Option<String>,
    /// Of `allowed_tools`.
    pub(crate) tools: Option<Vec<ResponseToolChosen>>,
}

impl<'de> Deserialize<'de> for ResponseToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = ResponseToolChoice;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an object")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<ResponseToolChoice, E> {
                Ok(ResponseToolChoice::Mode(v.to_owned()))
            }
            fn visit_map<A: de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<ResponseToolChoice, A::Error> {
                let map = de::value::MapAccessDeserializer::new(map);
                // The derived function would take a list too.
                <ResponseToolChosen as Deserialize>::deserialize(map)
                    .map(ResponseToolChoice::Chosen)
            }
        }
        deserializer.deserialize_any(V)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ReasoningAsked {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`.
    pub(crate) effort: Option<String>,
    /// Shows reasoning as a summary, which is all of it.
    #[schemars(extend("enum" = ["auto", "concise", "detailed", null]))]
    pub(crate) summary: Option<String>,
    /// What `summary` was before.
    #[schemars(extend("enum" = ["auto", "concise", "detailed", null]))]
    pub(crate) generate_summary: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct TextAsked {
    pub(crate) format: Option<TextFormat>,
    #[schemars(extend("enum" = ["medium", null]))]
    pub(crate) verbosity: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct TextFormat {
    #[serde(rename = "type")]
    #[schemars(extend("enum" = ["text", "json_object", "json_schema"]))]
    pub(crate) kind: String,
    /// Of `json_schema`: a JSON schema that the output follows.
    pub(crate) schema: Option<Value>,
    pub(crate) strict: Option<bool>,
    pub(crate) name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
}
