//! The fields that `config.json` of nearly every decoder has.

mod fields;

use crate::{ModelError, rope::RopeConfig};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

pub(crate) use fields::{
    activation, biases, refuse, refuse_other_ropes, ropes_by_type, windows, with, with_default,
    with_defaults,
};

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
    rms_norm_eps: Option<f32>,
    tie_word_embeddings: Option<bool>,
}

/// What transformers takes for `rms_norm_eps` of a family whose config.json says nothing.
fn default_eps(family: &str) -> f32 {
    match family {
        "afmoe" | "exaone_moe" | "glm4_moe" | "glm4_moe_lite" | "glm_moe_dsa"
        | "hunyuan_v1_moe" | "hy_v3" | "kimi_linear" | "llama4" | "longcat_flash" | "minicpm3"
        | "mixtral" | "olmoe" | "phi3" | "phimoe" | "solar_open" => 1e-5,
        _ => 1e-6,
    }
}

impl Shape {
    pub(crate) fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Added to the mean square of norms.
    pub(crate) fn norm_eps(&self, family: &str) -> f32 {
        self.rms_norm_eps.unwrap_or_else(|| default_eps(family))
    }

    /// Whether the output projection is the token table, where config.json says nothing.
    pub(crate) fn tied(&self, default: bool) -> bool {
        self.tie_word_embeddings.unwrap_or(default)
    }

    /// Refuses shapes that would divide by zero or not divide at all, and sizes that no model has.
    pub(crate) fn check(&self, family: &'static str) -> Result<(), ModelError> {
        let (heads, kv_heads) = (self.num_attention_heads, self.kv_heads());
        size(family, "vocab_size", self.vocab_size, MAX_SIZE)?;
        size(family, "hidden_size", self.hidden_size, MAX_SIZE)?;
        size(family, "intermediate_size", self.intermediate_size, MAX_SIZE)?;
        size(family, "num_attention_heads", heads, MAX_HEADS)?;
        size(family, "num_key_value_heads", kv_heads, MAX_HEADS)?;
        size(family, "head_dim", self.head_dim(), MAX_HEAD_DIM)?;
        size(family, "num_hidden_layers", self.num_hidden_layers, usize::from(u16::MAX))?;
        size(family, "max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS)?;
        let eps = self.norm_eps(family);
        if !(0.0..=1.0).contains(&eps) {
            let (value, range) = (eps.to_string(), "it must be from 0 to 1".into());
            return Err(ModelError::OutOfRange { family, field: "rms_norm_eps", value, range });
        }
        let bad = |field, value: usize| {
            Err(ModelError::Unsupported { family, field, value: value.to_string() })
        };
        if !heads.is_multiple_of(kv_heads) {
            return bad("num_key_value_heads", kv_heads);
        }
        if !self.head_dim().is_multiple_of(2) {
            return bad("head_dim", self.head_dim());
        }
        Ok(())
    }
}

/// Rows or columns of a matrix: 64 times the largest vocabulary there is.
pub(crate) const MAX_SIZE: usize = 1 << 24;
pub(crate) const MAX_HEADS: usize = 1 << 14;
/// Elements of a head.
pub(crate) const MAX_HEAD_DIM: usize = 1 << 13;
/// Experts a layer.
pub(crate) const MAX_EXPERTS: usize = 1 << 16;
/// Positions are 32 bits.
pub(crate) const MAX_POSITIONS: usize = i32::MAX as usize;

/// Refuses a count of nothing, and one that no model has: tables are made by them.
pub(crate) fn size(
    family: &'static str,
    field: &'static str,
    value: usize,
    max: usize,
) -> Result<(), ModelError> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    let (value, range) = (value.to_string(), format!("it must be from 1 to {max}"));
    Err(ModelError::OutOfRange { family, field, value, range })
}

/// Refuses what is no factor, of those that are there.
pub(crate) fn factors(
    family: &'static str,
    factors: &[(&'static str, Option<f32>)],
) -> Result<(), ModelError> {
    for &(field, value) in factors {
        if let Some(value) = value.filter(|value| !(1e-6..=1e6).contains(value)) {
            let (value, range) = (value.to_string(), "it must be from 1e-6 to 1e6".to_owned());
            return Err(ModelError::OutOfRange { family, field, value, range });
        }
    }
    Ok(())
}

/// The configuration with a setting of two names under the first of them.
pub(crate) fn one_name(
    config: &Value,
    first: &'static str,
    second: &'static str,
) -> Result<Value, ModelError> {
    let mut config = config.clone();
    let Some(fields) = config.as_object_mut() else { return Ok(config) };
    let Some(other) = fields.shift_remove(second).filter(|v| !v.is_null()) else {
        return Ok(config);
    };
    match fields.get(first).filter(|v| !v.is_null()) {
        Some(value) if *value != other => Err(ModelError::Contradiction { first, second }),
        Some(_) => Ok(config),
        None => {
            fields.insert(first.to_owned(), other);
            Ok(config)
        }
    }
}

/// Reads a family's configuration.
pub(crate) fn parse<T: DeserializeOwned>(
    family: &'static str,
    config: &Value,
) -> Result<T, ModelError> {
    serde_path_to_error::deserialize(config).map_err(|error| {
        let field = error.path().to_string();
        ModelError::Config { family, field, source: error.into_inner() }
    })
}

/// A section of settings; one that is null or empty says nothing, as in transformers.
pub(crate) fn section<'a>(config: &'a Value, key: &str) -> Option<&'a Value> {
    config.get(key).filter(|v| !v.is_null() && v.as_object().is_none_or(|o| !o.is_empty()))
}

/// The rotary settings of a model with one set of them. As in transformers, `rope_scaling` counts
/// before `rope_parameters`, and the section before what stands beside it. An angle base is never
/// dropped: two different ones are refused.
pub(crate) fn rope(
    family: &'static str,
    config: &Value,
    default_theta: f64,
) -> Result<RopeConfig, ModelError> {
    let read = |key| section(config, key).map(|v| parse::<RopeConfig>(family, v)).transpose();
    let (scaling, parameters) = (read("rope_scaling")?, read("rope_parameters")?);
    let number = |key: &str| match config.get(key).filter(|v| !v.is_null()) {
        Some(value) => parse::<f64>(family, value).map(Some),
        None => Ok(None),
    };
    let other = parameters.as_ref().and_then(|p| p.rope_theta);
    let partial = parameters.as_ref().and_then(|p| p.partial_rotary_factor);
    let mut rope = scaling.or(parameters).unwrap_or_default();
    let beside = number("rope_theta")?;
    rope.rope_theta = rope.rope_theta.or(beside).or(other);
    if other.is_some() && rope.rope_theta != other {
        let (first, second) = ("rope_theta", "rope_parameters.rope_theta");
        return Err(ModelError::Contradiction { first, second });
    }
    rope.rope_theta.get_or_insert(default_theta);
    rope.partial_rotary_factor =
        rope.partial_rotary_factor.or(number("partial_rotary_factor")?).or(partial);
    let outer = number("original_max_position_embeddings")?;
    // Phi-3 keeps it beside the section, and transformers lets that one win.
    rope.original_max_position_embeddings = outer.or(rope.original_max_position_embeddings);
    Ok(rope)
}

/// Whether a layer has the sliding window: what `layer_types` says of it, or else the family.
pub(crate) fn slides(
    family: &'static str,
    layer_types: Option<&[String]>,
    layer: usize,
    otherwise: bool,
) -> Result<bool, ModelError> {
    const FIELD: &str = "layer_types";
    let Some(types) = layer_types else { return Ok(otherwise) };
    match types.get(layer).map(String::as_str) {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        Some(other) => {
            Err(ModelError::Unsupported { family, field: FIELD, value: other.to_owned() })
        }
        None => {
            let value = format!("{} entries", types.len());
            let range = "each layer needs one".to_owned();
            Err(ModelError::OutOfRange { family, field: FIELD, value, range })
        }
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

#[cfg(test)]
mod tests;
