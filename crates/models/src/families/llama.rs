//! Llama 2 to 3.3, and Mistral and Ministral, which add a sliding window; TeleChat 3 and MiMo.

use super::read;
use crate::{LoadOptions, ModelError, config, spec::Spec};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
}

pub(super) fn llama(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, own) = build("llama", config, options)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.mlp_bias = own.mlp_bias;
    Ok(spec)
}

pub(super) fn telechat3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, _) = build("telechat3", config, options)?;
    config::biases(&mut spec, config)?;
    Ok(spec)
}

/// Llama with biases of queries, keys and values.
pub(super) fn mimo(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::refuse("mimo", config, "use_sliding_window")?;
    let (mut spec, _) = build("mimo", config, options)?;
    spec.qkv_bias = true;
    Ok(spec)
}

pub(super) fn mistral(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, own) = build("mistral", config, options)?;
    spec.layers.iter_mut().for_each(|layer| layer.set_window(own.sliding_window));
    Ok(spec)
}

/// Mistral with a window in some layers.
pub(super) fn ministral(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, own) = build("ministral", config, options)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let slides = config::slides("ministral", own.layer_types.as_deref(), i, true)?;
        layer.set_window(own.sliding_window.filter(|_| slides));
    }
    Ok(spec)
}

fn build(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<(Spec, Own), ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    Ok((read(family, config, 10_000.0, options)?.1, config::parse(family, config)?))
}
