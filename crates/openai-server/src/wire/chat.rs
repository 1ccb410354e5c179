//! `/v1/chat/completions`.

use super::{AnyObject, Anything, ChunkUsage, Usage, from_objects, whole};
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
#[derive(Debug, Deserialize)]
pub(crate) struct ChatRequest {
    pub(crate) model: Option<String>,
    pub(crate) messages: Vec<WireMessage>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) max_tokens: Option<u32>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) max_completion_tokens: Option<u32>,
    pub(crate) logprobs: Option<bool>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) top_logprobs: Option<u8>,
    pub(crate) tools: Option<Vec<WireTool>>,
    pub(crate) tool_choice: Option<ToolChoice>,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) modalities: Option<Vec<String>>,
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    pub(crate) enable_thinking: Option<bool>,
    /// Ollama's name for it.
    pub(crate) think: Option<bool>,
    pub(crate) reasoning_effort: Option<String>,
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) continue_final_message: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct WireMessage {
    pub(crate) role: WireRole,
    pub(crate) content: Option<WireContent>,
    pub(crate) name: Option<String>,
    pub(crate) reasoning_content: Option<String>,
    /// Another name for it; some clients send both.
    pub(crate) reasoning: Option<String>,
    pub(crate) tool_calls: Option<Vec<WireToolCall>>,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

#[derive(Debug)]
pub(crate) enum WireContent {
    Text(String),
    Parts(Vec<WirePart>),
}

/// One content part; which field it has depends on `type`.
#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct WirePart {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: Option<String>,
    pub(crate) refusal: Option<Anything>,
    pub(crate) image_url: Option<Anything>,
    pub(crate) input_audio: Option<Anything>,
    pub(crate) video_url: Option<Anything>,
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

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
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

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct WireCalled {
    pub(crate) name: String,
    pub(crate) arguments: String,
    #[serde(rename = "provider_specific_fields")]
    _provider_specific_fields: Option<AnyObject>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct WireTool {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) function: Option<WireFunction>,
    #[serde(rename = "cache_control")]
    _cache_control: Option<AnyObject>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct WireFunction {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) parameters: Option<Map<String, Value>>,
    pub(crate) strict: Option<bool>,
}

/// `"auto"`, or an object that names a function or several tools.
#[derive(Debug)]
pub(crate) enum ToolChoice {
    Mode(String),
    Chosen(ChosenTools),
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ChosenTools {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) function: Option<ChosenFunction>,
    pub(crate) allowed_tools: Option<AllowedTools>,
}

#[derive(Debug, Deserialize)]
#[serde(remote = "Self")]
pub(crate) struct ChosenFunction {
    pub(crate) name: String,
}

#[derive(Debug, Deserialize)]
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
#[derive(Debug, Serialize)]
pub(crate) struct ChatResponse<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) usage: Usage,
    pub(crate) system_fingerprint: &'static str,
}

#[derive(Debug, Serialize)]
pub(crate) struct ChatChoice {
    pub(crate) index: usize,
    pub(crate) message: ChatMessage,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: &'static str,
}

#[derive(Debug, Serialize)]
pub(crate) struct ChatMessage {
    pub(crate) role: &'static str,
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallOut>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct CallOut {
    pub(crate) id: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) function: CalledOut,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct CalledOut {
    pub(crate) name: String,
    pub(crate) arguments: String,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<TokenLogprobOut>,
    pub(crate) refusal: Option<Vec<TokenLogprobOut>>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct TokenLogprobOut {
    #[serde(flatten)]
    pub(crate) chosen: TopLogprobOut,
    pub(crate) top_logprobs: Vec<TopLogprobOut>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct TopLogprobOut {
    pub(crate) token: String,
    pub(crate) logprob: f32,
    pub(crate) bytes: Vec<u8>,
}

/// One event of a stream.
#[derive(Debug, Serialize)]
pub(crate) struct ChatChunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) system_fingerprint: &'static str,
    pub(crate) choices: Vec<ChunkChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<ChunkUsage>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ChunkChoice {
    pub(crate) index: usize,
    pub(crate) delta: DeltaOut,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<&'static str>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct DeltaOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<CallDelta>,
}

#[derive(Debug, Serialize)]
pub(crate) struct CallDelta {
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: CalledDelta,
}

#[derive(Debug, Serialize)]
pub(crate) struct CalledDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}
