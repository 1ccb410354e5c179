//! `/v1/responses`: what comes in.

use super::{AnyObject, Anything, Glance, Unsupported, from_objects, unsupported::field, whole};
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
#[derive(Debug, Deserialize)]
pub(crate) struct ResponsesRequest {
    pub(crate) model: Option<String>,
    pub(crate) input: Option<Input>,
    pub(crate) instructions: Option<String>,
    pub(crate) previous_response_id: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) max_output_tokens: Option<u32>,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) top_logprobs: Option<u8>,
    pub(crate) tools: Option<Vec<ResponseTool>>,
    pub(crate) tool_choice: Option<ResponseToolChoice>,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) text: Option<TextAsked>,
    pub(crate) reasoning: Option<ReasoningAsked>,
    pub(crate) truncation: Option<String>,
    pub(crate) include: Option<Vec<String>>,
    pub(crate) store: Option<bool>,
    pub(crate) background: Option<bool>,
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<super::StreamOptions>,
}

/// What comes back as it was sent.
#[derive(Debug, Clone, Default, Deserialize)]
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
#[derive(Debug, Deserialize)]
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
#[derive(Debug)]
pub(crate) enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

/// One item; which fields it has depends on `type`.
#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct InputItem {
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) role: Option<String>,
    pub(crate) content: Option<InputContent>,
    pub(crate) call_id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) arguments: Option<String>,
    pub(crate) output: Option<InputContent>,
    pub(crate) summary: Option<Vec<InputPart>>,
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
#[derive(Debug)]
pub(crate) enum InputContent {
    Text(String),
    Parts(Vec<InputPart>),
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct InputPart {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<String>,
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

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ResponseTool {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) parameters: Option<Map<String, Value>>,
    pub(crate) strict: Option<bool>,
    pub(crate) defer_loading: Option<bool>,
    pub(crate) allowed_callers: Option<Vec<String>>,
    #[serde(rename = "async")]
    pub(crate) asynchronous: Option<bool>,
    /// What a result looks like; results are not checked.
    #[serde(rename = "output_schema")]
    _output_schema: Option<AnyObject>,
    /// The functions of a namespace.
    pub(crate) tools: Option<Vec<ResponseTool>>,
}

/// `"auto"`, or an object that names a function or several tools.
#[derive(Debug)]
pub(crate) enum ResponseToolChoice {
    Mode(String),
    Chosen(ResponseToolChosen),
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ResponseToolChosen {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) name: Option<String>,
    pub(crate) mode: Option<String>,
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

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ReasoningAsked {
    pub(crate) effort: Option<String>,
    pub(crate) summary: Option<String>,
    /// What `summary` was before.
    pub(crate) generate_summary: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct TextAsked {
    pub(crate) format: Option<TextFormat>,
    pub(crate) verbosity: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct TextFormat {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) schema: Option<Value>,
    pub(crate) strict: Option<bool>,
    pub(crate) name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
}
