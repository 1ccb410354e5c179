//! OLMo Hybrid: Gated DeltaNet in most layers, OLMo 3's attention in the others.

use super::{
    common,
    hybrid::{kind, require_attention, unknown},
    qwen3_5::delta_shape,
};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    mixers::{DeltaLayout, DeltaSpec},
    norms::LayerNorms,
    rope::RopeConfig,
    source::Renames,
    spec::{MixerSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;
use taper_tensor::GatedDeltaShape;

const FAMILY: &str = "olmo_hybrid";
/// Layers with Gated DeltaNet have these names, in some files, and transformers gives them to others.
const RENAMES: Renames = &[
    ("input_layernorm", "attention_layer_norm"),
    ("post_attention_layernorm", "feedforward_layer_norm"),
];
/// What its norms of heads add to a mean square, whatever config.json says of the others.
const HEAD_EPS: f32 = 1e-5;

#[derive(Deserialize)]
struct Own {
    layer_types: Option<Vec<String>>,
    linear_num_key_heads: Option<usize>,
    linear_num_value_heads: Option<usize>,
    linear_key_head_dim: Option<usize>,
    linear_value_head_dim: Option<usize>,
    linear_conv_kernel_dim: Option<usize>,
    linear_allow_neg_eigval: Option<bool>,
    #[serde(default)]
    attention_bias: bool,
}

impl Own {
    fn delta(&self, spec: &Spec) -> Result<DeltaSpec, ModelError> {
        let key_heads = self.linear_num_key_heads.unwrap_or(spec.heads);
        // As in transformers: three quarters of a head, cut to a whole number.
        let key_dim = || (0.75 * spec.hidden as f64 / key_heads.max(1) as f64) as usize;
        let key_dim = self.linear_key_head_dim.unwrap_or_else(key_dim);
        let value_dim = self.linear_value_head_dim.unwrap_or(key_dim.saturating_mul(2));
        let shape = GatedDeltaShape {
            key_heads,
            value_heads: self.linear_num_value_heads.unwrap_or(spec.heads),
            key_dim,
            value_dim,
            kernel: self.linear_conv_kernel_dim.unwrap_or(4),
            decay_per_key: false,
        };
        let write = if self.linear_allow_neg_eigval.unwrap_or(true) { 2.0 } else { 1.0 };
        let (shape, layout) = (delta_shape(FAMILY, shape)?, DeltaLayout::Single);
        Ok(DeltaSpec { write, ..DeltaSpec::qwen(shape, layout, HEAD_EPS) })
    }
}

pub(super) fn olmo_hybrid(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let shape: Shape = config::parse(FAMILY, config)?;
    let own: Own = config::parse(FAMILY, config)?;
    // Released models have a section that says there is no rotation.
    let section = config::section(config, "rope_parameters");
    let rotates = section.is_none_or(|rope| rope.get("rope_theta").is_none_or(|x| !x.is_null()));
    let rope = match rotates {
        true => config::rope(FAMILY, config, 10_000.0)?,
        false => RopeConfig::default(),
    };
    let mut spec = common(FAMILY, &shape, &rope, options)?;
    spec.renames = RENAMES;
    spec.attention_norms = Some(LayerNorms::POST);
    spec.qk_norm = Some(QkNorm::Whole);
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    let delta = own.delta(&spec)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let given = match &own.layer_types {
            Some(types) => kind(FAMILY, "layer_types", types, i)?,
            None if i % 4 == 3 => "full_attention",
            None => "linear_attention",
        };
        layer.mixer = match given {
            "linear_attention" => MixerSpec::GatedDelta(delta),
            "full_attention" => MixerSpec::attention(rotates.then_some(0), None),
            other => return Err(unknown(FAMILY, "layer_types", other)),
        };
    }
    require_attention(FAMILY, "layer_types", &spec.layers)?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        let config = json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8,
                            "num_hidden_layers": 4, "num_attention_heads": 2,
                            "max_position_embeddings": 16});
        let spec = olmo_hybrid(&config, LoadOptions::default()).unwrap();
        let attends: Vec<_> = spec.layers.iter().map(|layer| layer.mixer.attends()).collect();
        assert_eq!(attends, [false, false, false, true]);
        for (field, value) in [
            ("layer_types", json!(["linear_attention"])),
            ("layer_types", json!(vec!["linear_attention"; 4])),
            ("layer_types", json!(vec!["sliding_attention"; 4])),
            ("linear_num_key_heads", json!(0)),
            ("linear_num_value_heads", json!(3)),
            ("linear_key_head_dim", json!(1u64 << 40)),
        ] {
            let mut config = config.clone();
            config[field] = value;
            let error = olmo_hybrid(&config, LoadOptions::default()).unwrap_err().to_string();
            let shown = error.contains(field);
            assert!(
                shown || field == "linear_num_key_heads" && error.contains("linear_"),
                "{error}"
            );
        }
    }
}
