//! Ling (Bailing): fused projections, half of each head is rotated, experts that a sigmoid or a softmax chooses.

use super::{read, routed};
use crate::{
    LoadOptions, ModelError, config,
    experts::ExpertSpec,
    router::{Groups, Route, Score},
    source::Renames,
    spec::{FusedQkv, MlpSpec, QkNorm, Spec, TopNames},
};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "bailing_moe";
const RENAMES: Renames = &[
    ("self_attn.qkv_proj", "attention.query_key_value"),
    ("self_attn.o_proj", "attention.dense"),
    ("self_attn.q_norm", "attention.query_layernorm"),
    ("self_attn.k_norm", "attention.key_layernorm"),
    ("shared_expert", "shared_experts"),
];
const TOP: TopNames = TopNames { embed: "word_embeddings", ..TopNames::LLAMA };

#[derive(Deserialize)]
struct Own {
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    num_shared_experts: usize,
    moe_shared_expert_intermediate_size: Option<usize>,
    moe_router_enable_shared_expert: Option<bool>,
    first_k_dense_replace: usize,
    norm_topk_prob: bool,
    #[serde(default)]
    moe_router_enable_expert_bias: bool,
    routed_scaling_factor: Option<f32>,
    score_function: Option<String>,
    n_group: Option<usize>,
    topk_group: Option<usize>,
    #[serde(default)]
    use_qkv_bias: bool,
    #[serde(default)]
    use_qk_norm: bool,
    rotary_dim: Option<usize>,
    // What is not here.
    #[serde(default)]
    use_bias: bool,
    #[serde(default)]
    norm_head: bool,
    #[serde(default)]
    norm_softmax: bool,
}

pub(super) fn bailing_moe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let own: Own = config::parse(FAMILY, config)?;
    for (field, set) in [
        ("use_bias", own.use_bias),
        ("norm_head", own.norm_head),
        ("norm_softmax", own.norm_softmax),
    ] {
        if set {
            let value = "true".to_owned();
            return Err(ModelError::Unsupported { family: FAMILY, field, value });
        }
    }
    let (shape, _) = read(FAMILY, config, 10_000.0, options)?;
    let config = &match own.rotary_dim {
        Some(dim) => {
            let part = dim as f64 / shape.head_dim() as f64;
            config::with_default(config, "partial_rotary_factor", part)
        }
        None => config.clone(),
    };
    let (_, mut spec) = read(FAMILY, config, 10_000.0, options)?;
    (spec.renames, spec.top, spec.fused_qkv) = (RENAMES, TOP, Some(FusedQkv::Rows));
    spec.qkv_bias = own.use_qkv_bias;
    spec.qk_norm = own.use_qk_norm.then_some(QkNorm::Head);
    let experts = own.experts()?;
    experts.check(FAMILY)?;
    let dense = own.first_k_dense_replace;
    spec.layers.iter_mut().skip(dense).for_each(|layer| layer.mlp = MlpSpec::Experts(experts));
    Ok(spec)
}

impl Own {
    fn experts(&self) -> Result<ExpertSpec, ModelError> {
        let score = match self.score_function.as_deref().unwrap_or("softmax") {
            "softmax" => Score::Softmax,
            "sigmoid" => Score::Sigmoid,
            other => {
                let (field, value) = ("score_function", other.to_owned());
                return Err(ModelError::Unsupported { family: FAMILY, field, value });
            }
        };
        let (count, kept) = (self.n_group.unwrap_or(1), self.topk_group.unwrap_or(1));
        let normalise = self.norm_topk_prob && self.num_experts_per_tok > 1;
        let route = Route {
            score,
            normalise: normalise.then_some(1e-20),
            scale: self.routed_scaling_factor.unwrap_or(1.0),
            bias: self.moe_router_enable_expert_bias.then_some("gate.expert_bias"),
            groups: (count > 1).then_some(Groups { count, kept, best: 2 }),
            ..Route::softmax(self.num_experts_per_tok, false)
        };
        let size = self.moe_intermediate_size;
        let wide = self.moe_shared_expert_intermediate_size.unwrap_or(size);
        let shared = self.moe_router_enable_shared_expert != Some(false);
        let shared = routed::together(self.num_shared_experts, wide).filter(|_| shared);
        Ok(ExpertSpec { shared, ..ExpertSpec::new(self.num_experts, size, route) })
    }
}
