//! Qwen3-Next, Qwen 3.5 and later: Gated DeltaNet in most layers, gated attention in every fourth.

use super::{
    common,
    hybrid::{kind, require_attention, unknown},
    qwen::with_experts,
    turn_by_axes,
};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    decoder::Names,
    experts::{ExpertSpec, SharedSpec},
    mixers::{DeltaLayout, DeltaSpec},
    router::Route,
    source::Source,
    spec::{AttentionGate, MixerSpec, MlpSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;
use taper_tensor::GatedDeltaShape;

const FAMILY: &str = "qwen3_5";

#[derive(Deserialize)]
struct Own {
    #[serde(default = "kernel")]
    linear_conv_kernel_dim: usize,
    #[serde(default = "head_dim")]
    linear_key_head_dim: usize,
    #[serde(default = "head_dim")]
    linear_value_head_dim: usize,
    #[serde(default = "key_heads")]
    linear_num_key_heads: usize,
    #[serde(default = "value_heads")]
    linear_num_value_heads: usize,
    /// Every so many layers attention, where `layer_types` is missing.
    full_attention_interval: Option<usize>,
    layer_types: Option<Vec<String>>,
    #[serde(default)]
    attention_bias: bool,
    attn_output_gate: Option<bool>,
}

fn kernel() -> usize {
    4
}

fn head_dim() -> usize {
    128
}

fn key_heads() -> usize {
    16
}

fn value_heads() -> usize {
    32
}

pub(super) fn qwen3_5(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    hybrid(FAMILY, config, DeltaLayout::Split, options)
}

/// What Qwen's families with Gated DeltaNet agree on.
fn hybrid(
    family: &'static str,
    config: &Value,
    layout: DeltaLayout,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    let shape: Shape = config::parse(family, config)?;
    let own: Own = config::parse(family, config)?;
    if own.attn_output_gate == Some(false) {
        let (field, value) = ("attn_output_gate", "false".to_owned());
        return Err(ModelError::Unsupported { family, field, value });
    }
    let mut rope = config::rope(family, config, 10_000.0)?;
    rope.partial_rotary_factor.get_or_insert(0.25);
    let mut spec = common(family, &shape, &rope, options)?;
    if family == FAMILY {
        turn_by_axes(&mut spec, config, [11, 11, 10], false)?;
    }
    spec.norm_offset = 1.0;
    spec.qk_norm = Some(QkNorm::Head);
    spec.attention_gate = Some(AttentionGate::InQuery);
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    let delta = DeltaSpec::qwen(own.delta(family)?, layout, spec.norm_eps);
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if own.is_linear(family, i)? {
            layer.mixer = MixerSpec::GatedDelta(delta);
        }
    }
    require_attention(family, "layer_types", &spec.layers)?;
    Ok(spec)
}

#[derive(Deserialize)]
struct Shared {
    shared_expert_intermediate_size: usize,
}

/// With experts in most layers, and one more for every token.
pub(super) fn qwen3_next(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "qwen3_next";
    let config = &config::with_default(config, "norm_topk_prob", true);
    let spec = hybrid(family, config, DeltaLayout::Grouped, options)?;
    let shared: Shared = config::parse(family, config)?;
    with_experts(spec, config, Some(shared.shared_expert_intermediate_size))
}

#[derive(Deserialize)]
struct Mixture {
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    shared_expert_intermediate_size: usize,
}

/// With experts in every layer, and one more for every token.
pub(super) fn qwen3_5_moe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "qwen3_5_moe";
    let mixture: Mixture = config::parse(family, config)?;
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        // No layer is dense.
        fields.entry("intermediate_size").or_insert_with(|| mixture.moe_intermediate_size.into());
    }
    let mut spec = Spec { family, ..qwen3_5(&config, options)? };
    let route = Route::softmax(mixture.num_experts_per_tok, true);
    let intermediate = mixture.shared_expert_intermediate_size;
    let experts = ExpertSpec {
        shared: Some(SharedSpec { intermediate, gated: true }),
        ..ExpertSpec::new(mixture.num_experts, mixture.moe_intermediate_size, route)
    };
    experts.check(family)?;
    spec.layers.iter_mut().for_each(|layer| layer.mlp = MlpSpec::Experts(experts));
    Ok(spec)
}

impl Own {
    fn delta(&self, family: &'static str) -> Result<GatedDeltaShape, ModelError> {
        let shape = GatedDeltaShape {
            key_heads: self.linear_num_key_heads,
            value_heads: self.linear_num_value_heads,
            key_dim: self.linear_key_head_dim,
            value_dim: self.linear_value_head_dim,
            kernel: self.linear_conv_kernel_dim,
            decay_per_key: false,
        };
        delta_shape(family, shape)
    }

    fn is_linear(&self, family: &'static str, layer: usize) -> Result<bool, ModelError> {
        let field = "layer_types";
        let Some(types) = &self.layer_types else {
            let interval = self.full_attention_interval.unwrap_or(4).max(1);
            return Ok(!(layer + 1).is_multiple_of(interval));
        };
        match kind(family, field, types, layer)? {
            "linear_attention" => Ok(true),
            "full_attention" => Ok(false),
            other => Err(unknown(family, field, other)),
        }
    }
}

/// Checks what config.json says of a layer's sizes.
pub(super) fn delta_shape(
    family: &'static str,
    shape: GatedDeltaShape,
) -> Result<GatedDeltaShape, ModelError> {
    for (field, value) in [
        ("linear_conv_kernel_dim", shape.kernel),
        ("linear_key_head_dim", shape.key_dim),
        ("linear_value_head_dim", shape.value_dim),
        ("linear_num_key_heads", shape.key_heads),
        ("linear_num_value_heads", shape.value_heads),
    ] {
        config::size(family, field, value, config::MAX_HEADS)?;
    }
    // A state is as large for every sequence.
    let state = shape.value_heads.saturating_mul(shape.value_dim).saturating_mul(shape.key_dim);
    config::size(
        family,
        "linear_key_head_dim * linear_value_head_dim * heads",
        state,
        config::MAX_SIZE,
    )?;
    let (field, value) = ("linear_num_value_heads", shape.value_heads);
    if !value.is_multiple_of(shape.key_heads) {
        return Err(ModelError::Unsupported { family, field, value: value.to_string() });
    }
    Ok(shape)
}

/// MLX's files have 1 added to the norms already. Their convolutions tell: these are `[channels, kernel, 1]`
/// there and `[channels, 1, kernel]` in Hugging Face's.
pub(super) fn stored_norms(
    spec: &mut Spec,
    weights: Source<'_>,
    names: &Names,
) -> Result<(), ModelError> {
    let delta = spec.layers.iter().enumerate().find_map(|(i, layer)| match layer.mixer {
        MixerSpec::GatedDelta(delta) if spec.norm_offset != 0.0 => Some((i, delta.shape)),
        _ => None,
    });
    let Some((i, shape)) = delta else { return Ok(()) };
    let name = format!("{}layers.{i}.linear_attn.conv1d.weight", names.decoder);
    if weights.floats(&name)?.1 == [shape.channels(), shape.kernel, 1] {
        spec.norm_offset = 0.0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 4,
               "num_attention_heads": 2, "max_position_embeddings": 16})
    }

    fn linear(config: &Value) -> Result<Vec<bool>, ModelError> {
        let spec = qwen3_5(config, LoadOptions::default())?;
        let linear = |l: &crate::spec::LayerSpec| matches!(l.mixer, MixerSpec::GatedDelta(_));
        Ok(spec.layers.iter().map(linear).collect())
    }

    #[test]
    fn every_fourth_layer_attends_unless_layer_types_says_otherwise() -> Result<(), ModelError> {
        let mut config = config();
        assert_eq!(linear(&config)?, [true, true, true, false]);
        config["full_attention_interval"] = json!(2);
        assert_eq!(linear(&config)?, [true, false, true, false]);
        let (full, delta) = ("full_attention", "linear_attention");
        config["layer_types"] = json!([full, delta, delta, delta]);
        assert_eq!(linear(&config)?, [false, true, true, true]);
        Ok(())
    }

    #[test]
    fn qwen3_next_has_experts_and_rows_in_groups() {
        let mut config = config();
        let sizes = json!({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 4,
                           "shared_expert_intermediate_size": 4, "mlp_only_layers": [1]});
        config.as_object_mut().unwrap().extend(sizes.as_object().unwrap().clone());
        let spec = qwen3_next(&config, LoadOptions::default()).unwrap();
        let dense = |layer: &crate::spec::LayerSpec| matches!(layer.mlp, MlpSpec::Dense(_));
        let dense: Vec<_> = spec.layers.iter().map(dense).collect();
        assert_eq!(dense, [false, true, false, false]);
        let MixerSpec::GatedDelta(delta) = spec.layers[0].mixer else { panic!("no recurrence") };
        assert_eq!(delta.layout, DeltaLayout::Grouped);
    }

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        for (field, value) in [
            ("layer_types", json!(["full_attention"])),
            ("layer_types", json!(vec!["chunked_attention"; 4])),
            ("layer_types", json!(vec!["linear_attention"; 4])),
            ("linear_num_value_heads", json!(17)),
            ("linear_key_head_dim", json!(0)),
            ("linear_value_head_dim", json!(1u64 << 40)),
            ("attn_output_gate", json!(false)),
        ] {
            let mut config = config();
            config[field] = value;
            let error = linear(&config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
