//! GLM 4 of 2024 (`glm`) and of 2025 (`glm4`, norms after attention and feed-forward, too): neighbours of the first half
//! of a head are rotated, gate and up are one tensor.

use super::common;
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
    build("glm", config, options)
}

pub(super) fn glm4(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let mut spec = build("glm4", config, options)?;
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
    let defaults = [("rms_norm_eps", json!(1.5625e-7)), ("head_dim", json!(128))];
    let config = &config::with_defaults(config, &defaults);
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
