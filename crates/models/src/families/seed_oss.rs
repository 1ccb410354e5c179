//! Seed-OSS: Llama with biases of queries, keys and values.

use super::read;
use crate::{LoadOptions, ModelError, config, spec::Spec};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Own {
    #[serde(default = "yes")]
    attention_bias: bool,
    #[serde(default)]
    attention_out_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

fn yes() -> bool {
    true
}

pub(super) fn seed_oss(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require("seed_oss", config, "hidden_act", &["silu"])?;
    let own: Own = config::parse("seed_oss", config)?;
    let (_, mut spec) = read("seed_oss", config, 10_000.0, options)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_out_bias);
    spec.mlp_bias = own.mlp_bias;
    Ok(spec)
}
