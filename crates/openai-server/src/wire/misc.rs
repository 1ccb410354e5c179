//! Models, tokenize, detokenize, health.

use super::{WireMessage, WireTool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelCard {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) owned_by: &'static str,
    pub(crate) root: String,
    pub(crate) parent: Option<String>,
    /// Of a loaded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_model_len: Option<u32>,
    /// What a model takes and gives, where that is not text alone; OpenRouter's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) architecture: Option<Modalities>,
    /// In a server of several models.
    #[serde(flatten)]
    pub(crate) residence: Option<Residence>,
}

/// Where one of several models stands.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Residence {
    pub(crate) status: ModelStatus,
    /// Bytes of its files.
    pub(crate) file_bytes: u64,
    /// Bytes of memory that are kept for it: weights and KV cache.
    pub(crate) memory_bytes: u64,
    /// Requests that use it or wait for it.
    pub(crate) requests: usize,
    /// It is neither evicted nor unloaded when nobody uses it.
    pub(crate) pinned: bool,
    /// It answers requests that name no model.
    pub(crate) default: bool,
    /// Further names.
    pub(crate) aliases: Vec<String>,
    /// Callers may download and delete models here.
    pub(crate) can_update: bool,
}

/// As llama.cpp's server says it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelStatus {
    /// `unloaded`, `loading`, `loaded` or `unloading`.
    pub(crate) value: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Modalities {
    pub(crate) input_modalities: &'static [&'static str],
    pub(crate) output_modalities: &'static [&'static str],
}

impl Modalities {
    pub(crate) fn with_images() -> Self {
        Self { input_modalities: &["text", "image"], output_modalities: &["text"] }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct LoadModelRequest {
    pub(crate) model: String,
    /// Whether events tell how far it is.
    pub(crate) stream: Option<bool>,
    /// How long it stays loaded without requests, as in Ollama's API.
    pub(crate) keep_alive: Option<Value>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct NamedModel {
    pub(crate) model: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Success {
    pub(crate) success: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelDeleted {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) deleted: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelList {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<ModelCard>,
}

/// vLLM's two shapes in one: `prompt`, or `messages` and what goes with them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct TokenizeRequest {
    /// A served name; the first one when absent.
    pub(crate) model: Option<String>,
    /// A text.
    pub(crate) prompt: Option<String>,
    /// A conversation, instead of `prompt`.
    pub(crate) messages: Option<Vec<WireMessage>>,
    /// Whether the tokenizer adds its own.
    pub(crate) add_special_tokens: Option<bool>,
    /// Whether the tokens' texts are returned.
    pub(crate) return_token_strs: Option<bool>,
    pub(crate) tools: Option<Vec<WireTool>>,
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    pub(crate) enable_thinking: Option<bool>,
    pub(crate) think: Option<bool>,
    pub(crate) reasoning_effort: Option<String>,
    pub(crate) add_generation_prompt: Option<bool>,
    pub(crate) continue_final_message: Option<bool>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenizeResponse {
    pub(crate) count: usize,
    pub(crate) max_model_len: u32,
    pub(crate) tokens: Vec<u32>,
    pub(crate) token_strs: Option<Vec<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct DetokenizeRequest {
    /// A served name; the first one when absent.
    pub(crate) model: Option<String>,
    /// Ids of tokens.
    pub(crate) tokens: Vec<u32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct LoadAdapterRequest {
    /// The name that requests use.
    pub(crate) lora_name: String,
    /// A directory on the server.
    pub(crate) lora_path: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct UnloadAdapterRequest {
    pub(crate) lora_name: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct DetokenizeResponse {
    pub(crate) prompt: String,
}
