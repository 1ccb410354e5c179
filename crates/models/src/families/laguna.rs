//! Laguna: gated attention whose gate is a softplus, windows in some layers with rotations of their own, experts
//! that a sigmoid chooses.

use super::{common, context, routed};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertSpec, SharedSpec},
    rope::RopeConfig,
    router::Route,
    source::Renames,
    spec::{AttentionGate, AttentionSpec, MixerSpec, MlpSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};

const FAMILY: &str = "laguna";
const RENAMES: Renames = &[("self_attn.gate_proj", "self_attn.g_proj")];
/// Layers with a window have rotations of their own.
pub(super) const LOCAL: usize = 1;

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    attention_bias: bool,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    mlp_layer_types: Option<Vec<String>>,
    num_attention_heads_per_layer: Option<Vec<usize>>,
    /// True or "per-head", or "per-element".
    gating: Option<Value>,
    #[serde(alias = "num_local_experts")]
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    shared_expert_intermediate_size: usize,
    moe_routed_scaling_factor: Option<f32>,
    #[serde(default)]
    moe_apply_router_weight_on_input: bool,
    moe_router_logit_softcapping: Option<f32>,
}

pub(super) fn laguna(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let config = &config::with_default(config, "head_dim", 128);
    let (shape, own): (Shape, Own) =
        (config::parse(FAMILY, config)?, config::parse(FAMILY, config)?);
    let [global, local] = ropes(FAMILY, config, [(500_000.0, 0.5), (10_000.0, 1.0)])?;
    let mut spec = common(FAMILY, &shape, &global, options)?;
    spec.ropes.push(local.table(context(FAMILY, &shape, options))?);
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.qk_norm = Some(QkNorm::Head);
    spec.attention_gate = Some(own.gate()?);
    spec.renames = RENAMES;
    if own.moe_apply_router_weight_on_input {
        return Err(unsupported("moe_apply_router_weight_on_input", "true".to_owned()));
    }
    let experts = own.experts();
    experts.check(FAMILY)?;
    let window = own.sliding_window.or(Some(512));
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let slides = config::slides(FAMILY, own.layer_types.as_deref(), i, false)?;
        let rope = if slides { LOCAL } else { 0 };
        let (window, heads) = (window.filter(|_| slides), own.heads(&shape, i)?);
        let attention = AttentionSpec { heads, ..AttentionSpec::new(Some(rope), window) };
        layer.mixer = MixerSpec::Attention(attention);
        if routed::sparse(FAMILY, own.mlp_layer_types.as_deref(), i, i > 0)? {
            layer.mlp = MlpSpec::Experts(experts);
        }
    }
    Ok(spec)
}

impl Own {
    fn gate(&self) -> Result<AttentionGate, ModelError> {
        match &self.gating {
            None | Some(Value::Bool(true)) => Ok(AttentionGate::SoftplusHead),
            Some(Value::String(kind)) if kind == "per-head" => Ok(AttentionGate::SoftplusHead),
            Some(Value::String(kind)) if kind == "per-element" => Ok(AttentionGate::Softplus),
            Some(other) => Err(unsupported("gating", other.to_string())),
        }
    }

    /// Query heads of a layer, where the configuration says them layer by layer.
    fn heads(&self, shape: &Shape, layer: usize) -> Result<Option<usize>, ModelError> {
        const FIELD: &str = "num_attention_heads_per_layer";
        let Some(heads) = &self.num_attention_heads_per_layer else { return Ok(None) };
        let Some(&heads) = heads.get(layer) else {
            return Err(unsupported(FIELD, format!("{} entries", heads.len())));
        };
        config::size(FAMILY, FIELD, heads, config::MAX_HEADS)?;
        match heads.is_multiple_of(shape.kv_heads()) {
            true => Ok(Some(heads)),
            false => Err(unsupported(FIELD, heads.to_string())),
        }
    }

    fn experts(&self) -> ExpertSpec {
        let route = Route {
            normalise: Some(0.0),
            scale: self.moe_routed_scaling_factor.unwrap_or(1.0),
            bias: Some("experts.e_score_correction_bias"),
            soft_cap: self.moe_router_logit_softcapping.filter(|&cap| cap > 0.0),
            ..Route::sigmoid(self.num_experts_per_tok, true)
        };
        let intermediate = self.shared_expert_intermediate_size;
        let shared = Some(SharedSpec { intermediate, gated: false });
        ExpertSpec {
            shared,
            ..ExpertSpec::new(self.num_experts, self.moe_intermediate_size, route)
        }
    }
}

fn unsupported(field: &'static str, value: String) -> ModelError {
    ModelError::Unsupported { family: FAMILY, field, value }
}

/// Rotations of layers that see all tokens, and of those with a window: what `rope_parameters` says of each, or else
/// an angle base and the part of a head that is rotated. Other rotary settings are refused.
pub(super) fn ropes(
    family: &'static str,
    config: &Value,
    defaults: [(f64, f64); 2],
) -> Result<[RopeConfig; 2], ModelError> {
    let parameters = config::section(config, "rope_parameters");
    let one = |kind: &str, (theta, part): (f64, f64)| match parameters {
        None => config::parse(family, &json!({"rope_theta": theta, "partial_rotary_factor": part})),
        Some(parameters) => match config::section(parameters, kind) {
            Some(section) => config::parse(family, section),
            None => {
                let (field, value) = ("rope_parameters", format!("nothing of {kind}"));
                Err(ModelError::Unsupported { family, field, value })
            }
        },
    };
    let [global, local] = defaults;
    let global = one("full_attention", global)?;
    config::refuse_other_ropes(family, config, &global)?;
    Ok([global, one("sliding_attention", local)?])
}
