//! Llama 2 to 3.3, and Mistral, which adds a sliding window.

use super::common;
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    spec::Spec,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    sliding_window: Option<usize>,
}

pub(super) fn llama(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, own) = build("llama", config, options)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.mlp_bias = own.mlp_bias;
    Ok(spec)
}

pub(super) fn mistral(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, own) = build("mistral", config, options)?;
    spec.layers.iter_mut().for_each(|layer| layer.set_window(own.sliding_window));
    Ok(spec)
}

fn build(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<(Spec, Own), ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    let shape: Shape = config::parse(family, config)?;
    let rope = config::rope(family, config, 10_000.0)?;
    Ok((common(family, &shape, &rope, options)?, config::parse(family, config)?))
}
