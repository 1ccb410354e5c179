//! AFMoE (Trinity): norms before and after each part, gated attention, windows in most layers and positions in these
//! only.

use super::{read, routed};
use crate::{
    LoadOptions, ModelError, config,
    experts::{ExpertNames, ExpertSpec},
    norms::LayerNorms,
    router::Route,
    spec::{AttentionGate, MixerSpec, MlpSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "afmoe";
const NORMS: LayerNorms = LayerNorms {
    mixer: Some("input_layernorm"),
    after_mixer: Some("post_attention_layernorm"),
    mlp: Some("pre_mlp_layernorm"),
    after_mlp: Some("post_mlp_layernorm"),
};

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    attention_bias: bool,
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    num_shared_experts: Option<usize>,
    num_dense_layers: Option<usize>,
    route_scale: Option<f32>,
    route_norm: Option<bool>,
    n_group: Option<usize>,
    num_expert_groups: Option<usize>,
    global_attn_every_n_layers: Option<usize>,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    #[serde(default)]
    mup_enabled: bool,
}

pub(super) fn afmoe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    config::require(FAMILY, config, "score_func", &["sigmoid"])?;
    let own: Own = config::parse(FAMILY, config)?;
    let bad = |field, value: String| Err(ModelError::Unsupported { family: FAMILY, field, value });
    if own.route_norm == Some(false) {
        return bad("route_norm", "false".to_owned());
    }
    for (field, groups) in [("n_group", own.n_group), ("num_expert_groups", own.num_expert_groups)]
    {
        if let Some(groups) = groups.filter(|&groups| groups != 1) {
            return bad(field, groups.to_string());
        }
    }
    let config = &config::with_default(config, "head_dim", 128);
    let (_, mut spec) = read(FAMILY, config, 10_000.0, options)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    (spec.norms, spec.renames) = (NORMS, routed::SHARED_EXPERTS);
    spec.qk_norm = Some(QkNorm::Head);
    spec.attention_gate = Some(AttentionGate::Projected);
    spec.embed_scale = own.mup_enabled.then(|| (spec.hidden as f32).sqrt());
    let experts = own.experts();
    experts.check(FAMILY)?;
    let (window, dense) = (own.sliding_window.or(Some(1024)), own.num_dense_layers.unwrap_or(1));
    let every = own.global_attn_every_n_layers.unwrap_or(4).max(1);
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let otherwise = !(i + 1).is_multiple_of(every);
        let local = config::slides(FAMILY, own.layer_types.as_deref(), i, otherwise)?;
        layer.mixer = MixerSpec::attention(local.then_some(0), window.filter(|_| local));
        if i >= dense {
            layer.mlp = MlpSpec::Experts(experts);
        }
    }
    Ok(spec)
}

impl Own {
    fn experts(&self) -> ExpertSpec {
        let (bias, scale) = (Some("expert_bias"), self.route_scale.unwrap_or(1.0));
        let route = Route { bias, scale, ..Route::sigmoid(self.num_experts_per_tok, true) };
        let size = self.moe_intermediate_size;
        ExpertSpec {
            names: ExpertNames { router: "router.gate", ..ExpertNames::QWEN },
            shared: routed::together(self.num_shared_experts.unwrap_or(2), size),
            ..ExpertSpec::new(self.num_experts, size, route)
        }
    }
}
