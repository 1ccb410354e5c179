//! Step 3.5: layers with windows have query heads and rotations of their own, attention's result is gated head by
//! head, and activations of some layers have a limit.

use super::{common, context, routed};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertNames, ExpertSpec},
    rope::RopeConfig,
    router::Route,
    source::Renames,
    spec::{AttentionGate, AttentionSpec, MixerSpec, MlpSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;
use taper_weights::Checkpoint;

const FAMILY: &str = "step3p5";
/// Experts are beside `mlp`, and all of them in one tensor.
const RENAMES: Renames = &[
    ("self_attn.gate_proj", "self_attn.g_proj"),
    ("moe.experts", "moe"),
    ("moe.shared_expert", "share_expert"),
];
/// What MLX makes of it.
const MLX: Renames = &[
    ("self_attn.gate_proj", "self_attn.g_proj"),
    ("moe.router_bias", "mlp.gate.router_bias"),
    ("moe.gate", "mlp.gate.gate"),
    ("moe.shared_expert", "mlp.share_expert"),
    ("moe.switch_mlp", "mlp.switch_mlp"),
];

#[derive(Deserialize)]
struct Own {
    layer_types: Option<Vec<String>>,
    sliding_window: Option<usize>,
    attention_other_setting: Option<Other>,
    use_head_wise_attn_gate: Option<bool>,
    rope_theta: Option<Theta>,
    rope_scaling: Option<RopeConfig>,
    /// Types of layers to which `rope_scaling` applies.
    yarn_only_types: Option<Vec<String>>,
    partial_rotary_factors: Option<Vec<f64>>,
    moe_num_experts: usize,
    moe_top_k: usize,
    moe_intermediate_size: usize,
    share_expert_dim: usize,
    /// Numbers of layers with experts, with commas between them.
    moe_layers_enum: Option<String>,
    moe_router_scaling_factor: Option<f32>,
    norm_expert_weight: Option<bool>,
    use_moe_router_bias: Option<bool>,
    swiglu_limits: Option<Vec<Option<f32>>>,
    swiglu_limits_shared: Option<Vec<Option<f32>>>,
}

/// Attention of layers with windows.
#[derive(Deserialize)]
struct Other {
    num_attention_heads: usize,
    num_attention_groups: usize,
    head_dim: Option<usize>,
}

/// One of all layers, or one for each.
#[derive(Deserialize)]
#[serde(untagged)]
enum Theta {
    All(f64),
    Each(Vec<f64>),
}

pub(super) fn step3p5(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    config::require(FAMILY, config, "moe_router_activation", &["sigmoid"])?;
    let config = &config::one_name(config, "num_key_value_heads", "num_attention_groups")?;
    let config = &config::with_default(config, "max_position_embeddings", 262_144);
    let config = &config::with_default(config, "rms_norm_eps", 1e-5);
    let (shape, own): (Shape, Own) =
        (config::parse(FAMILY, config)?, config::parse(FAMILY, config)?);
    own.check(&shape)?;
    let mut spec = common(FAMILY, &shape, &RopeConfig::with_theta(10_000.0), options)?;
    (spec.renames, spec.norm_offset) = (RENAMES, 1.0);
    spec.qk_norm = Some(QkNorm::Head);
    spec.attention_gate = match own.use_head_wise_attn_gate {
        Some(false) => None,
        _ => Some(AttentionGate::ProjectedHead),
    };
    let sparse = own.sparse(spec.layers.len())?;
    spec.ropes.clear();
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let slides = own.slides(i)?;
        let table = own.rope(i, slides)?.table(context(FAMILY, &shape, options))?;
        let rope = spec.ropes.iter().position(|known| *known == table).unwrap_or_else(|| {
            spec.ropes.push(table);
            spec.ropes.len() - 1
        });
        let heads = own.attention_other_setting.as_ref().filter(|_| slides);
        let heads = heads.map(|other| other.num_attention_heads);
        let window = own.sliding_window.or(Some(512)).filter(|_| slides);
        let attention = AttentionSpec { heads, ..AttentionSpec::new(Some(rope), window) };
        layer.mixer = MixerSpec::Attention(attention);
        let limits = [&own.swiglu_limits, &own.swiglu_limits_shared];
        let limits =
            limits.map(|list| list.as_ref()?.get(i).copied()?.filter(|&limit| limit > 0.0));
        match (sparse.contains(&i), limits) {
            (true, limits) => {
                let experts = ExpertSpec { limits, ..own.experts() };
                experts.check(FAMILY)?;
                layer.mlp = MlpSpec::Experts(experts);
            }
            (false, [_, Some(limit)]) => {
                return Err(unsupported("swiglu_limits_shared", format!("{limit} of layer {i}")));
            }
            (false, _) => {}
        }
    }
    Ok(spec)
}

/// MLX adds one to the norms' weights, and renames experts.
pub(super) fn stored(spec: &mut Spec, weights: &Checkpoint) {
    let sparse = |i: &usize| matches!(spec.layers[*i].mlp, MlpSpec::Experts(_));
    let Some(i) = (0..spec.layers.len()).find(sparse).filter(|_| spec.family == FAMILY) else {
        return;
    };
    if !weights.has(&format!("model.layers.{i}.moe.gate.weight")) {
        (spec.renames, spec.norm_offset) = (MLX, 0.0);
    }
}

impl Own {
    fn check(&self, shape: &Shape) -> Result<(), ModelError> {
        if self.use_moe_router_bias == Some(false) {
            return Err(unsupported("use_moe_router_bias", "false".to_owned()));
        }
        let Some(other) = &self.attention_other_setting else { return Ok(()) };
        let (heads, groups) = (other.num_attention_heads, other.num_attention_groups);
        config::size(FAMILY, "num_attention_heads", heads, config::MAX_HEADS)?;
        if groups != shape.kv_heads() || !heads.is_multiple_of(groups.max(1)) {
            return Err(unsupported("attention_other_setting", format!("{groups} groups")));
        }
        match other.head_dim.filter(|&size| size != shape.head_dim()) {
            Some(size) => Err(unsupported("attention_other_setting", format!("heads of {size}"))),
            None => Ok(()),
        }
    }

    fn slides(&self, layer: usize) -> Result<bool, ModelError> {
        config::slides(FAMILY, self.layer_types.as_deref(), layer, layer.is_multiple_of(2))
    }

    /// Layers with experts.
    fn sparse(&self, layers: usize) -> Result<Vec<usize>, ModelError> {
        let Some(list) = self.moe_layers_enum.as_deref().filter(|list| !list.is_empty()) else {
            return Ok((1..layers).collect());
        };
        let number = |part: &str| {
            let bad = |_| unsupported("moe_layers_enum", part.to_owned());
            part.trim().parse::<usize>().map_err(bad)
        };
        list.split(',').map(number).collect()
    }

    fn rope(&self, layer: usize, slides: bool) -> Result<RopeConfig, ModelError> {
        // Without types there is one rotation, as of layers that see all tokens.
        let kind = match (&self.layer_types, slides) {
            (Some(_), true) => "sliding_attention",
            _ => "full_attention",
        };
        let only = self.yarn_only_types.as_ref().filter(|types| !types.is_empty());
        let scaled = only.is_none_or(|types| types.iter().any(|own| own == kind));
        let mut rope = self.rope_scaling.clone().filter(|_| scaled).unwrap_or_default();
        let theta = match &self.rope_theta {
            None => Some(10_000.0),
            Some(Theta::All(theta)) => Some(*theta),
            Some(Theta::Each(thetas)) => thetas.get(layer).copied(),
        };
        let missing = || unsupported("rope_theta", format!("nothing of layer {layer}"));
        rope.rope_theta = Some(theta.ok_or_else(missing)?);
        let parts = self.partial_rotary_factors.as_ref();
        rope.partial_rotary_factor = parts.and_then(|parts| parts.get(layer)).copied();
        Ok(rope)
    }

    fn experts(&self) -> ExpertSpec {
        let route = Route {
            scale: self.moe_router_scaling_factor.unwrap_or(3.0),
            bias: Some("router_bias"),
            ..Route::sigmoid(self.moe_top_k, self.norm_expert_weight.unwrap_or(true))
        };
        ExpertSpec {
            names: ExpertNames { block: "moe", ..ExpertNames::QWEN },
            shared: routed::together(1, self.share_expert_dim),
            ..ExpertSpec::new(self.moe_num_experts, self.moe_intermediate_size, route)
        }
    }
}

fn unsupported(field: &'static str, value: String) -> ModelError {
    ModelError::Unsupported { family: FAMILY, field, value }
}
