//! The fields that `config.json` of nearly every decoder has.

use crate::{ModelError, rope::RopeConfig};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

/// Shape of a decoder, as Hugging Face names it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Shape {
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    pub(crate) max_position_embeddings: usize,
    #[serde(default = "default_eps")]
    pub(crate) rms_norm_eps: f32,
    tie_word_embeddings: Option<bool>,
}

fn default_eps() -> f32 {
    1e-6
}

impl Shape {
    pub(crate) fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Whether the output projection is the token table, where config.json says nothing.
    pub(crate) fn tied(&self, default: bool) -> bool {
        self.tie_word_embeddings.unwrap_or(default)
    }

    /// Refuses shapes that would divide by zero or not divide at all.
    pub(crate) fn check(&self, family: &'static str) -> Result<(), ModelError> {
        let (heads, kv_heads) = (self.num_attention_heads, self.kv_heads());
        let bad = |field, value: usize| {
            Err(ModelError::Unsupported { family, field, value: value.to_string() })
        };
        if heads == 0 || self.hidden_size == 0 || self.vocab_size == 0 {
            return bad("num_attention_heads, hidden_size or vocab_size", 0);
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return bad("num_key_value_heads", kv_heads);
        }
        if self.head_dim() == 0 || !self.head_dim().is_multiple_of(2) {
            return bad("head_dim", self.head_dim());
        }
        if self.num_hidden_layers == 0 || self.num_hidden_layers > usize::from(u16::MAX) {
            return bad("num_hidden_layers", self.num_hidden_layers);
        }
        Ok(())
    }
}

/// Reads a family's configuration.
pub(crate) fn parse<T: DeserializeOwned>(
    family: &'static str,
    config: &Value,
) -> Result<T, ModelError> {
    T::deserialize(config).map_err(|source| ModelError::Config { family, source })
}

/// The rotary settings of a model with one set of them: `rope_parameters`, or the older
/// `rope_theta` and `rope_scaling`.
pub(crate) fn rope(
    family: &'static str,
    config: &Value,
    default_theta: f64,
) -> Result<RopeConfig, ModelError> {
    let section = |key: &str| config.get(key).filter(|v| !v.is_null());
    let mut rope = match section("rope_parameters").or_else(|| section("rope_scaling")) {
        Some(value) => parse::<RopeConfig>(family, value)?,
        None => RopeConfig::default(),
    };
    let number = |key: &str| config.get(key).and_then(Value::as_f64);
    rope.rope_theta = rope.rope_theta.or(number("rope_theta")).or(Some(default_theta));
    rope.partial_rotary_factor = rope.partial_rotary_factor.or(number("partial_rotary_factor"));
    let outer = number("original_max_position_embeddings");
    // Phi-3 keeps it beside the section, and transformers lets that one win.
    rope.original_max_position_embeddings = outer.or(rope.original_max_position_embeddings);
    Ok(rope)
}

/// Whether a layer has the sliding window: what `layer_types` says of it, or else the family.
pub(crate) fn slides(layer_types: Option<&[String]>, layer: usize, otherwise: bool) -> bool {
    match layer_types.and_then(|types| types.get(layer)) {
        Some(kind) => kind == "sliding_attention",
        None => otherwise,
    }
}

/// Fails when a field that changes the arithmetic has another value than the family implements.
pub(crate) fn require(
    family: &'static str,
    config: &Value,
    field: &'static str,
    allowed: &[&str],
) -> Result<(), ModelError> {
    match config.get(field).and_then(Value::as_str) {
        Some(value) if !allowed.contains(&value) => {
            Err(ModelError::Unsupported { family, field, value: value.to_owned() })
        }
        _ => Ok(()),
    }
}
