//! Granite 3 and 4, dense: Llama with multipliers of embeddings, scores, branches and logits.

use super::read;
use crate::{LoadOptions, ModelError, config, spec::Spec};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "granite";

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default = "one")]
    embedding_multiplier: f32,
    #[serde(default = "one")]
    attention_multiplier: f32,
    #[serde(default = "one")]
    residual_multiplier: f32,
    #[serde(default = "one")]
    logits_scaling: f32,
}

fn one() -> f32 {
    1.0
}

pub(super) fn granite(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (_, spec) = read(FAMILY, config, 10_000.0, options)?;
    multiplied(spec, config)
}

/// The model with Granite's multipliers and biases.
pub(super) fn multiplied(mut spec: Spec, config: &Value) -> Result<Spec, ModelError> {
    let family = spec.family;
    config::require(family, config, "hidden_act", &["silu"])?;
    let own: Own = config::parse(family, config)?;
    let factors = [
        ("embedding_multiplier", Some(own.embedding_multiplier)),
        ("attention_multiplier", Some(own.attention_multiplier)),
        ("residual_multiplier", Some(own.residual_multiplier)),
        ("logits_scaling", Some(own.logits_scaling)),
    ];
    config::factors(family, &factors)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.mlp_bias = own.mlp_bias;
    let unless_one = |factor: f32| (factor != 1.0).then_some(factor);
    spec.embed_scale = unless_one(own.embedding_multiplier);
    spec.attn_scale = own.attention_multiplier;
    spec.branch_scale = unless_one(own.residual_multiplier);
    spec.logit_scale = unless_one(1.0 / own.logits_scaling);
    Ok(spec)
}
