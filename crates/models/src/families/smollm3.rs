//! SmolLM 3: every fourth layer has no positions (NoPE).

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    spec::{MixerSpec, Spec},
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Own {
    /// 1 where a layer rotates, 0 where it does not.
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
    #[serde(default)]
    use_sliding_window: bool,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

pub(super) fn smollm3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require("smollm3", config, "hidden_act", &["silu"])?;
    let own: Own = config::parse("smollm3", config)?;
    let (shape, mut spec) = read("smollm3", config, 2_000_000.0, options)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.mlp_bias = own.mlp_bias;
    spec.tied = shape.tied(true);
    let interval = own.no_rope_layer_interval.unwrap_or(4).max(1);
    let window = own.sliding_window.filter(|_| own.use_sliding_window);
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let rotates = match own.no_rope_layers.as_ref().and_then(|l| l.get(i)) {
            Some(&flag) => flag != 0,
            None => !(i + 1).is_multiple_of(interval),
        };
        let slides = config::slides("smollm3", own.layer_types.as_deref(), i, !rotates)?;
        layer.mixer = MixerSpec::attention(rotates.then_some(0), window.filter(|_| slides));
    }
    Ok(spec)
}
