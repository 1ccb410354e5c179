//! Qwen 2, 2.5 (biased projections) and Qwen 3 (normed heads, no bias).

use super::common;
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    decoder::Spec,
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Windows {
    #[serde(default)]
    use_sliding_window: bool,
    sliding_window: Option<usize>,
    /// Layers from here on have the window.
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    attention_bias: Option<bool>,
}

pub(super) fn qwen2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let mut spec = qwen("qwen2", config, options)?;
    spec.qkv_bias = true;
    Ok(spec)
}

pub(super) fn qwen3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let mut spec = qwen("qwen3", config, options)?;
    spec.qk_norm = true;
    Ok(spec)
}

fn qwen(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    let shape: Shape = config::parse(family, config)?;
    let windows: Windows = config::parse(family, config)?;
    let rope = config::rope(family, config, 10_000.0)?;
    let mut spec = common(family, &shape, &rope, options)?;
    let bias = windows.attention_bias.unwrap_or(false);
    (spec.qkv_bias, spec.out_bias) = (bias, bias);
    let window = windows.sliding_window.filter(|_| windows.use_sliding_window);
    let from = windows.max_window_layers.unwrap_or(usize::MAX);
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let slides = match windows.layer_types.as_ref().and_then(|types| types.get(i)) {
            Some(kind) => kind == "sliding_attention",
            None => i >= from,
        };
        layer.window = window.filter(|_| slides);
    }
    Ok(spec)
}
