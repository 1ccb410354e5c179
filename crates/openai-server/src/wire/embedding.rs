//! `/v1/embeddings`.

use super::Prompts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EmbeddingRequest {
    /// A served name; the first one when absent.
    pub(crate) model: Option<String>,
    /// Texts or lists of tokens.
    pub(crate) input: Prompts,
    /// `float` or `base64`.
    pub(crate) encoding_format: Option<String>,
    /// First elements to keep.
    pub(crate) dimensions: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EmbeddingResponse {
    pub(crate) object: &'static str,
    pub(crate) data: Vec<Embedding>,
    pub(crate) model: String,
    pub(crate) usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Embedding {
    pub(crate) object: &'static str,
    pub(crate) index: usize,
    pub(crate) embedding: Vector,
}

/// Numbers, or their bytes in base64, the lowest of each first.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Vector {
    Numbers(Vec<f32>),
    Text(String),
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EmbeddingUsage {
    pub(crate) prompt_tokens: usize,
    pub(crate) total_tokens: usize,
}
