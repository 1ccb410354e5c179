//! `/v1/chat/completions`.

use super::{
    AnyObject, Anything, ChunkUsage, ImageUrl, PromptLogprobs, Usage, VideoUrl, from_objects, whole,
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};
use std::fmt;

from_objects!(
    WireMessage,
    WirePart,
    WireToolCall,
    WireCalled,
    WireTool,
    WireFunction,
    ChosenTools,
    ChosenFunction,
    AllowedTools
);

/// The route's own fields; the sampling ones are in `SamplingFields`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChatRequest {
    /// A served name, or the name of an adapter; the first served name when absent.
    pub(crate) model: Option<String>,
    /// The conversation.
    pub(crate) messages: Vec<WireMessage>,
    /// Most tokens of the response; fills the context when absent.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = 1))]
    pub(crate) max_tokens: Option<u32>,
    /// The newer name of `max_tokens`.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = 1))]
    pub(crate) max_completion_tokens: Option<u32>,
    /// Whether log probabilities are returned.
    pub(crate) logprobs: Option<bool>,
    /// Of how many of the likeliest tokens, up to 20.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(max = 20))]
    pub(crate) top_logprobs: Option<u8>,
    /// Functions that the model may call.
    pub(crate) tools: Option<Vec<WireTool>>,
    /// `auto`, `none`, `required`, or the tools to choose from.
    pub(crate) tool_choice: Option<ToolChoice>,
    /// `false` allows one call.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// Only `text`.
    pub(crate) modalities: Option<Vec<String>>,
    /// Variables of the template.
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    /// Short for the template's variable of this name.
    pub(crate) enable_thinking: Option<bool>,
    /// Ollama's name for `enable_thinking`.
    pub(crate) think: Option<bool>,
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`.
    pub(crate) reasoning_effort: Option<String>,
    /// Most tokens of reasoning, which then ends by force; 0 turns it off.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) max_thinking_tokens: Option<u32>,
    /// vLLM's name for `max_thinking_tokens`.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) thinking_token_budget: Option<u32>,
    /// Whether the model begins a message of its own.
    pub(crate) add_generation_prompt: Option<bool>,
    /// Whether the model goes on with the last message.
    pub(crate) continue_final_message: Option<bool>,
    /// What the template shows the model beside the messages.
    pub(crate) documents: Option<Vec<Map<String, Value>>>,
    /// Whether what the server finds for the last message is put behind it; the default where it
    /// searches at all.
    pub(crate) longctx: Option<bool>,
    /// `false` leaves the reasoning out of the response.
    pub(crate) include_reasoning: Option<bool>,
    /// What tools were before there were other kinds of them.
    pub(crate) functions: Option<Vec<WireFunction>>,
    /// `auto`, `none`, or the function to call.
    pub(crate) function_call: Option<FunctionChoice>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "Message")]
pub(crate) struct WireMessage {
    pub(crate) role: WireRole,
    /// A text, or parts of type `text` or `image_url`.
    pub(crate) content: Option<WireContent>,
    /// The speaker's name.
    pub(crate) name: Option<String>,
    /// The reasoning of an earlier response.
    pub(crate) reasoning_content: Option<String>,
    /// Another name for `reasoning_content`; some clients send both.
    pub(crate) reasoning: Option<String>,
    /// The calls of an earlier response.
    pub(crate) tool_calls: Option<Vec<WireToolCall>>,
    /// The call whose result this is.
    pub(crate) tool_call_id: Option<String>,
    /// Clients send replies back as they came, with these fields in them.
    pub(crate) refusal: Option<String>,
    pub(crate) annotations: Option<Vec<Anything>>,
    pub(crate) audio: Option<Anything>,
    /// What calls were before there were several.
    pub(crate) function_call: Option<WireCalled>,
    #[serde(rename = "cache_control")]
    _cache_control: Option<AnyObject>,
    #[serde(rename = "provider_specific_fields")]
    _provider_specific_fields: Option<AnyObject>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[schemars(rename = "Role")]
pub(crate) enum WireRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
    /// The result of a `function_call`.
    Function,
}

impl<'de> Deserialize<'de> for WireRole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const NAMES: &[&str] = &["system", "developer", "user", "assistant", "tool", "function"];
        match String::deserialize(deserializer)?.as_str() {
            "system" => Ok(Self::System),
            "developer" => Ok(Self::Developer),
            "user" => Ok(Self::User),
            "assistant" => Ok(Self::Assistant),
            "tool" => Ok(Self::Tool),
            "function" => Ok(Self::Function),
            other => Err(de::Error::unknown_variant(other, NAMES)),
        }
    }
}

/// A text, or parts of one.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
#[schemars(rename = "Content")]
pub(crate) enum WireContent {
    Text(String),
    Parts(Vec<WirePart>),
}

/// One content part; which field it has depends on `type`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "ContentPart")]
pub(crate) struct WirePart {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<String>,
    pub(crate) refusal: Option<Anything>,
    /// Of `image_url`.
    pub(crate) image_url: Option<ImageUrl>,
    pub(crate) input_audio: Option<Anything>,
    /// Of `video_url`.
    pub(crate) video_url: Option<VideoUrl>,
    pub(crate) audio_url: Option<Anything>,
    pub(crate) file: Option<Anything>,
    #[serde(rename = "cache_control")]
    _cache_control: Option<AnyObject>,
}

impl<'de> Deserialize<'de> for WireContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = WireContent;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of content parts")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<WireContent, E> {
                Ok(WireContent::Text(v.to_owned()))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<WireContent, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = seq.next_element()? {
                    parts.push(part);
                }
                Ok(WireContent::Parts(parts))
            }
        }
        deserializer.deserialize_any(V)
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "ToolCall")]
pub(crate) struct WireToolCall {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) function: WireCalled,
    /// Present when a client puts streamed deltas together by hand.
    #[serde(rename = "index")]
    _index: Option<u32>,
    #[serde(rename = "provider_specific_fields")]
    _provider_specific_fields: Option<AnyObject>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "CalledFunction")]
pub(crate) struct WireCalled {
    pub(crate) name: String,
    pub(crate) arguments: String,
    #[serde(rename = "provider_specific_fields")]
    _provider_specific_fields: Option<AnyObject>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "Tool")]
pub(crate) struct WireTool {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) function: Option<WireFunction>,
    #[serde(rename = "cache_control")]
    _cache_control: Option<AnyObject>,
}

impl WireTool {
    /// A function as a tool.
    pub(crate) fn of(function: WireFunction) -> Self {
        let kind = "function".to_owned();
        Self { kind, function: Some(function), _cache_control: None }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
#[schemars(rename = "Function")]
pub(crate) struct WireFunction {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// A JSON schema of the arguments.
    pub(crate) parameters: Option<Map<String, Value>>,
    /// Whether calls must follow the schema.
    pub(crate) strict: Option<bool>,
}

/// `"auto"`, `"none"`, or an object that names a function.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum FunctionChoice {
    Mode(String),
    Chosen(ChosenFunction),
}

impl<'de> Deserialize<'de> for FunctionChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = FunctionChoice;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an object")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<FunctionChoice, E> {
                Ok(FunctionChoice::Mode(v.to_owned()))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<FunctionChoice, A::Error> {
                let map = de::value::MapAccessDeserializer::new(map);
                ChosenFunction::deserialize(map).map(FunctionChoice::Chosen)
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// `"auto"`, or an object that names a function or several tools.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum ToolChoice {
    Mode(String),
    Chosen(ChosenTools),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ChosenTools {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) function: Option<ChosenFunction>,
    pub(crate) allowed_tools: Option<AllowedTools>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct ChosenFunction {
    pub(crate) name: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct AllowedTools {
    pub(crate) mode: String,
    pub(crate) tools: Vec<ChosenTools>,
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = ToolChoice;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an object")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<ToolChoice, E> {
                Ok(ToolChoice::Mode(v.to_owned()))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ToolChoice, A::Error> {
                let map = de::value::MapAccessDeserializer::new(map);
                ChosenTools::deserialize(map).map(ToolChoice::Chosen)
            }
        }
        deserializer.deserialize_any(V)
    }
}

/// The whole response.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatResponse<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) usage: Usage,
    pub(crate) system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<&'a [u32]>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: ChatMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatMessage {
    pub(crate) role: &'static str,
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function_call: Option<CalledOut>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "ToolCallOut")]
pub(crate) struct CallOut {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: CalledOut,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "CalledFunctionOut")]
pub(crate) struct CalledOut {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<TokenLogprobOut>,
    pub(crate) refusal: Option<Vec<TokenLogprobOut>>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct TokenLogprobOut {
    #[serde(flatten)]
    pub(crate) chosen: TopLogprobOut,
    pub(crate) top_logprobs: Vec<TopLogprobOut>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct TopLogprobOut {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}

/// One event of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatChunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) system_fingerprint: &'static str,
    pub(crate) choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<ChunkUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_token_ids: Option<&'a [u32]>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: DeltaOut,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct DeltaOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallDelta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function_call: Option<CalledDelta>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CallDelta {
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: CalledDelta,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CalledDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}
