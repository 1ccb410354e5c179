//! `/api/*`: Ollama's API.

use super::{
    Anything, Glance, OneOrMany, Unsupported, WireTool, from_objects, unsupported::field, whole,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

from_objects!(OllamaMessage, OllamaCall, OllamaCalled, OllamaOptions);

/// The fields of `/api/chat` alone.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct OllamaChatRequest {
    /// The conversation. Without one, the response says that the model is loaded.
    pub(crate) messages: Option<Vec<OllamaMessage>>,
    /// Functions that the model may call.
    pub(crate) tools: Option<Vec<WireTool>>,
}

/// The fields of `/api/generate` alone.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct OllamaGenerateRequest {
    /// What the user says. Without it, the response says that the model is loaded.
    pub(crate) prompt: Option<String>,
    /// Images in base64, which the prompt is about.
    pub(crate) images: Option<Vec<String>>,
    /// What the model is told before.
    pub(crate) system: Option<String>,
    /// What follows the output: the model fills in the middle, without its template.
    pub(crate) suffix: Option<String>,
    /// Whether the prompt goes to the model as it is, without its template.
    pub(crate) raw: Option<bool>,
}

/// The fields of both.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct OllamaFields {
    /// A served name, with or without `:latest`; the first served name when absent.
    pub(crate) model: Option<String>,
    /// `json`, or a JSON schema that the output follows.
    pub(crate) format: Option<Value>,
    /// How tokens are chosen and when to stop.
    pub(crate) options: Option<OllamaOptions>,
    /// Whether the response comes line by line; it does when absent.
    pub(crate) stream: Option<bool>,
    /// Whether the model thinks, or how much: `low`, `medium` or `high`.
    pub(crate) think: Option<Think>,
}

/// What is about loading, which has happened; only its presence is looked at here.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "read for the type check alone")]
pub(crate) struct OllamaInertFields {
    /// How long the model stays loaded without requests, in a server of several: seconds, or a time such as
    /// `5m`; below 0 is for good. A server of one model keeps it whatever it says.
    pub(crate) keep_alive: Option<Anything>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Think {
    Switch(bool),
    Effort(String),
}

/// Fields that are not honoured.
pub(crate) const UNSUPPORTED_OLLAMA: &[Unsupported] = &[
    field("context", "is not supported: send the conversation to /api/chat", Glance::Empty),
    field("logprobs", "is not supported on this route; /v1/chat/completions has it", OFF),
    field("raw", "is not supported on this route", OFF),
    field("suffix", "is not supported on this route", Glance::Empty),
    field("template", "is not taken from requests; start the server with one", Glance::Empty),
    field("top_logprobs", "is not supported on this route", Glance::Number(0.0)),
];
const OFF: Glance = Glance::Bool(false);

/// Fields of `/api/show` that change nothing here; Ollama's own client sends them empty.
pub(crate) const UNSUPPORTED_OLLAMA_SHOW: &[Unsupported] = &[
    field("system", "is not taken from requests", Glance::Empty),
    field("template", "is not taken from requests; start the server with one", Glance::Empty),
];

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct OllamaMessage {
    /// `system`, `user`, `assistant` or `tool`.
    pub(crate) role: String,
    pub(crate) content: Option<String>,
    /// The reasoning of an earlier response.
    pub(crate) thinking: Option<String>,
    /// Images in base64.
    pub(crate) images: Option<Vec<String>>,
    /// The calls of an earlier response.
    pub(crate) tool_calls: Option<Vec<OllamaCall>>,
    /// The tool whose result this is.
    pub(crate) tool_name: Option<String>,
    /// The call whose result this is.
    pub(crate) tool_call_id: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct OllamaCall {
    pub(crate) id: Option<String>,
    #[serde(rename = "type")]
    _kind: Option<String>,
    pub(crate) function: OllamaCalled,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct OllamaCalled {
    pub(crate) name: String,
    pub(crate) arguments: Map<String, Value>,
    #[serde(rename = "index")]
    _index: Option<u32>,
}

/// Ollama's names of sampling fields.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct OllamaOptions {
    /// Most tokens of the output; -1 and -2 fill the context.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) num_predict: Option<i64>,
    pub(crate) temperature: Option<f32>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) top_k: Option<i64>,
    pub(crate) top_p: Option<f32>,
    pub(crate) min_p: Option<f32>,
    pub(crate) typical_p: Option<f32>,
    pub(crate) repeat_penalty: Option<f32>,
    pub(crate) presence_penalty: Option<f32>,
    pub(crate) frequency_penalty: Option<f32>,
    #[serde(default, deserialize_with = "whole")]
    pub(crate) seed: Option<i64>,
    pub(crate) stop: Option<OneOrMany>,
    /// Tokens of context that are needed: no more than the server has.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) num_ctx: Option<u32>,
    /// Only -1: penalties look at the whole text.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) repeat_last_n: Option<i64>,
    /// Only `true`: penalties spare no token.
    pub(crate) penalize_newline: Option<bool>,
    /// Only 0.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) mirostat: Option<i64>,
    #[serde(rename = "mirostat_eta")]
    _mirostat_eta: Option<f32>,
    #[serde(rename = "mirostat_tau")]
    _mirostat_tau: Option<f32>,
    /// Only 1.
    pub(crate) tfs_z: Option<f32>,
    // How a model is loaded, which has happened.
    #[serde(rename = "num_keep")]
    _num_keep: Option<Anything>,
    #[serde(rename = "num_batch")]
    _num_batch: Option<Anything>,
    #[serde(rename = "num_gpu")]
    _num_gpu: Option<Anything>,
    #[serde(rename = "main_gpu")]
    _main_gpu: Option<Anything>,
    #[serde(rename = "num_thread")]
    _num_thread: Option<Anything>,
    #[serde(rename = "use_mmap")]
    _use_mmap: Option<Anything>,
    #[serde(rename = "use_mlock")]
    _use_mlock: Option<Anything>,
    #[serde(rename = "low_vram")]
    _low_vram: Option<Anything>,
    #[serde(rename = "numa")]
    _numa: Option<Anything>,
    #[serde(rename = "f16_kv")]
    _f16_kv: Option<Anything>,
    #[serde(rename = "vocab_only")]
    _vocab_only: Option<Anything>,
    #[serde(rename = "logits_all")]
    _logits_all: Option<Anything>,
    #[serde(rename = "embedding_only")]
    _embedding_only: Option<Anything>,
}

/// A line of a stream, or the whole response. Chats have a `message`, prompts a `response`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OllamaResponse<'a> {
    pub(crate) model: &'a str,
    pub(crate) created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<OllamaMessageOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thinking: Option<String>,
    pub(crate) done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) done_reason: Option<&'static str>,
    #[serde(flatten)]
    pub(crate) counts: Option<OllamaCounts>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct OllamaMessageOut {
    pub(crate) role: &'static str,
    pub(crate) content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thinking: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<OllamaCallOut>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OllamaCallOut {
    pub(crate) id: String,
    pub(crate) function: OllamaCalledOut,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OllamaCalledOut {
    pub(crate) index: usize,
    pub(crate) name: String,
    pub(crate) arguments: Map<String, Value>,
}

/// Tokens, and nanoseconds.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct OllamaCounts {
    pub(crate) total_duration: u64,
    pub(crate) load_duration: u64,
    pub(crate) prompt_eval_count: u64,
    pub(crate) prompt_eval_duration: u64,
    pub(crate) eval_count: u64,
    pub(crate) eval_duration: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct OllamaShowRequest {
    /// A served name, with or without `:latest`.
    pub(crate) model: Option<String>,
    /// What `model` was before.
    pub(crate) name: Option<String>,
    /// Without effect: there are no tensors in the response.
    #[serde(rename = "verbose")]
    pub(crate) _verbose: Option<bool>,
    /// How a model is loaded; without effect.
    #[serde(rename = "options")]
    pub(crate) _options: Option<Anything>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct OllamaPullRequest {
    /// `org/name` on the hub, perhaps `org/name@revision`.
    pub(crate) model: Option<String>,
    /// What `model` was before.
    pub(crate) name: Option<String>,
    /// Whether lines tell how far it is; they do when absent.
    pub(crate) stream: Option<bool>,
    /// Without effect: the hub is the server's choice.
    #[serde(rename = "insecure")]
    pub(crate) _insecure: Option<bool>,
}

/// A line of a download.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OllamaPullStatus {
    /// `pulling manifest`, `pulling` and a file, or `success`.
    pub(crate) status: String,
    /// The file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
    /// Its bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total: Option<u64>,
    /// Those that are here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completed: Option<u64>,
}

impl OllamaPullStatus {
    pub(crate) fn of(status: &str) -> Self {
        Self { status: status.to_owned(), digest: None, total: None, completed: None }
    }

    pub(crate) fn file(name: &str, total: u64, completed: u64) -> Self {
        let digest = Some(name.to_owned());
        let status = format!("pulling {name}");
        Self { status, digest, total: Some(total), completed: Some(completed) }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct OllamaDeleteRequest {
    /// A model's name, with or without `:latest`.
    pub(crate) model: Option<String>,
    /// What `model` was before.
    pub(crate) name: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct OllamaEmbedRequest {
    /// A served name, with or without `:latest`; the first served name when absent.
    pub(crate) model: Option<String>,
    /// A text or a list of texts.
    pub(crate) input: OneOrMany,
    /// Whether texts that are too long are cut; they are when absent.
    pub(crate) truncate: Option<bool>,
    /// Elements of a vector.
    pub(crate) dimensions: Option<u64>,
    /// How a model is loaded; without effect.
    #[serde(rename = "options")]
    pub(crate) _options: Option<Anything>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OllamaEmbedResponse {
    pub(crate) model: String,
    pub(crate) embeddings: Vec<Vec<f32>>,
    pub(crate) total_duration: u64,
    pub(crate) load_duration: u64,
    pub(crate) prompt_eval_count: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OllamaModels {
    pub(crate) models: Vec<OllamaModel>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OllamaModel {
    pub(crate) name: String,
    pub(crate) model: String,
    /// When the server was started.
    pub(crate) modified_at: String,
    /// Bytes of weights.
    pub(crate) size: u64,
    /// 64 hexadecimal digits that stay while the model does.
    pub(crate) digest: String,
    pub(crate) details: OllamaDetails,
    pub(crate) context_length: u32,
    /// Of a loaded model: when it is given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<String>,
    /// Of a loaded model: its bytes on a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size_vram: Option<u64>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct OllamaDetails {
    /// The model whose adapter this is.
    pub(crate) parent_model: String,
    /// `gguf` or `safetensors`.
    pub(crate) format: &'static str,
    pub(crate) family: String,
    pub(crate) families: Vec<String>,
    pub(crate) parameter_size: String,
    /// Bits a weight, as `4.5 bpw`.
    pub(crate) quantization_level: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OllamaShow<'a> {
    pub(crate) modelfile: String,
    /// The chat template.
    pub(crate) template: &'a str,
    pub(crate) details: OllamaDetails,
    pub(crate) model_info: Map<String, Value>,
    /// `completion`, `tools`, `thinking`, `vision`, `embedding`.
    pub(crate) capabilities: Vec<&'static str>,
    pub(crate) modified_at: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OllamaError {
    pub(crate) error: String,
}
