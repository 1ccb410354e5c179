//! GLM 4 of 2024 (`glm`), of 2025 (`glm4`, norms after attention and feed-forward, too) and GLM 4.1V (`glm4v`, turned by
//! three axes): neighbours of the first half of a head are rotated, gate and up are one tensor.

use super::{common, turn_by_axes};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    norms::LayerNorms,
    spec::Spec,
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Own {
    attention_bias: Option<bool>,
}

pub(super) fn glm(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    build("glm", &with_text_defaults(config), options)
}

pub(super) fn glm4(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    later("glm4", &with_text_defaults(config), options)
}

/// Its heads are of `hidden_size / num_attention_heads`.
pub(super) fn glm4v(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let config = &config::with_default(config, "rms_norm_eps", 1e-5);
    let mut spec = later("glm4v", config, options)?;
    turn_by_axes(&mut spec, config, [8, 12, 12], true)?;
    Ok(spec)
}

fn with_text_defaults(config: &Value) -> Value {
    let defaults = [("rms_norm_eps", json!(1.5625e-7)), ("head_dim", json!(128))];
    config::with_defaults(config, &defaults)
}

fn later(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let mut spec = build(family, config, options)?;
    spec.norms = LayerNorms {
        after_mixer: Some("post_self_attn_layernorm"),
        after_mlp: Some("post_mlp_layernorm"),
        ..LayerNorms::PRE
    };
    Ok(spec)
}

fn build(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    let shape: Shape = config::parse(family, config)?;
    let own: Own = config::parse(family, config)?;
    let mut rope = config::rope(family, config, 10_000.0)?;
    rope.partial_rotary_factor.get_or_insert(0.5);
    let mut spec = common(family, &shape, &rope, options)?;
    spec.interleaved = true;
    spec.fused_mlp = true;
    spec.qkv_bias = own.attention_bias.unwrap_or(true);
    Ok(spec)
}
