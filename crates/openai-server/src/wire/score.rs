//! `/v1/rerank` and `/v1/score`.

use super::{EmbeddingUsage, OneOrMany, from_objects, whole};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::fmt;

from_objects!(TextObject);

/// Jina's and Cohere's first version, as vLLM has it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RerankRequest {
    /// A served name; the first one when absent.
    pub(crate) model: Option<String>,
    /// What the documents are to answer.
    pub(crate) query: String,
    /// Texts.
    pub(crate) documents: Vec<RerankText>,
    /// 0 returns all.
    #[serde(default, deserialize_with = "whole")]
    pub(crate) top_n: Option<u32>,
    /// Whether results have their texts; on when absent.
    pub(crate) return_documents: Option<bool>,
}

/// A text, or an object that holds it.
#[derive(Debug, JsonSchema)]
pub(crate) struct RerankText(#[schemars(with = "RerankShapes")] pub(crate) String);

#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "the shapes of [`RerankText`] in the schema")]
enum RerankShapes {
    Text(String),
    Object(TextObject),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(remote = "Self")]
pub(crate) struct TextObject {
    pub(crate) text: String,
}

impl<'de> Deserialize<'de> for RerankText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct V;
        impl<'de> de::Visitor<'de> for V {
            type Value = RerankText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an object with a 'text'")
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<RerankText, E> {
                Ok(RerankText(v.to_owned()))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<RerankText, A::Error> {
                let map = de::value::MapAccessDeserializer::new(map);
                TextObject::deserialize(map).map(|object| RerankText(object.text))
            }
        }
        deserializer.deserialize_any(V)
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RerankResponse {
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) usage: EmbeddingUsage,
    /// The best first.
    pub(crate) results: Vec<RerankResult>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RerankResult {
    /// Which of the documents.
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) document: Option<RerankDocument>,
    pub(crate) relevance_score: f32,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RerankDocument {
    pub(crate) text: String,
}

/// vLLM's: one text with one or several, or as many with as many.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ScoreRequest {
    /// A served name; the first one when absent.
    pub(crate) model: Option<String>,
    /// One text, or as many as `text_2` has.
    pub(crate) text_1: OneOrMany,
    /// One text or several.
    pub(crate) text_2: OneOrMany,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ScoreResponse {
    pub(crate) id: String,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) data: Vec<Score>,
    pub(crate) usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Score {
    pub(crate) index: usize,
    pub(crate) object: &'static str,
    pub(crate) score: f32,
}
