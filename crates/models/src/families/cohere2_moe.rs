//! Cohere 2 with experts (Command A+): attention and feed-forward side by side, windows in most layers and positions
//! in these only.

use super::{read, routed};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::ExpertSpec,
    norms::{LayerNorms, NormKind},
    router::{Route, Score},
    spec::{MixerSpec, MlpSpec, Spec},
};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "cohere2_moe";

#[derive(Deserialize)]
struct Own {
    logit_scale: Option<f32>,
    layer_norm_eps: Option<f32>,
    /// Norms are RMSNorms where it is said.
    rms_norm_eps: Option<f32>,
    #[serde(default)]
    attention_bias: bool,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    sliding_window_pattern: Option<usize>,
    // Of the first layers, which have no experts.
    first_k_dense_replace: Option<usize>,
    mlp_layer_types: Option<Vec<String>>,
    prefix_dense_sliding_window_pattern: Option<usize>,
    prefix_dense_intermediate_size: Option<usize>,
    #[serde(alias = "num_local_experts")]
    num_experts: usize,
    num_experts_per_tok: usize,
    num_shared_experts: Option<usize>,
    shared_expert_combination_strategy: Option<String>,
    expert_selection_fn: Option<String>,
    norm_topk_prob: Option<bool>,
}

pub(super) fn cohere2_moe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let own: Own = config::parse(FAMILY, config)?;
    let eps = own.rms_norm_eps.or(own.layer_norm_eps).unwrap_or(1e-5);
    let config = &config::with_default(config, "rms_norm_eps", f64::from(eps));
    let config = &config::with_default(config, "head_dim", 128);
    let (shape, mut spec) = read(FAMILY, config, 10_000.0, options)?;
    let scale = own.logit_scale.unwrap_or(0.0625);
    config::factors(FAMILY, &[("logit_scale", Some(scale))])?;
    spec.logit_scale = Some(scale);
    (spec.norms, spec.parallel, spec.interleaved) = (LayerNorms::SHARED, true, true);
    if own.rms_norm_eps.is_none() {
        spec.norm = NormKind::Layer;
    }
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    (spec.renames, spec.tied) = (routed::SHARED_EXPERTS, shape.tied(true));
    own.layers(&shape, &mut spec)?;
    Ok(spec)
}

impl Own {
    fn layers(&self, shape: &Shape, spec: &mut Spec) -> Result<(), ModelError> {
        let experts = self.experts(shape.intermediate_size)?;
        experts.check(FAMILY)?;
        let inner = self.prefix_dense_intermediate_size.unwrap_or(shape.intermediate_size);
        config::size(FAMILY, "prefix_dense_intermediate_size", inner, config::MAX_SIZE)?;
        let first = self.first_k_dense_replace.unwrap_or(0);
        let prefix = self.prefix_dense_sliding_window_pattern.unwrap_or(1).max(1);
        let every = self.sliding_window_pattern.unwrap_or(4).max(1);
        let window = self.sliding_window.or(Some(4096));
        for (i, layer) in spec.layers.iter_mut().enumerate() {
            let otherwise = match i.checked_sub(first) {
                Some(i) => !(i + 1).is_multiple_of(every),
                None => !(i + 1).is_multiple_of(prefix),
            };
            let local = config::slides(FAMILY, self.layer_types.as_deref(), i, otherwise)?;
            let sparse = routed::sparse(FAMILY, self.mlp_layer_types.as_deref(), i, i >= first)?;
            // Of the first layers all rotate where all see all tokens.
            let rotates = local || (!sparse && prefix == 1);
            layer.mixer = MixerSpec::attention(rotates.then_some(0), window.filter(|_| local));
            layer.mlp = if sparse { MlpSpec::Experts(experts) } else { MlpSpec::Dense(inner) };
        }
        Ok(())
    }

    fn experts(&self, size: usize) -> Result<ExpertSpec, ModelError> {
        let bad = |field, value: &str| {
            Err(ModelError::Unsupported { family: FAMILY, field, value: value.to_owned() })
        };
        let softmax = Route::softmax(self.num_experts_per_tok, true);
        let route = match self.expert_selection_fn.as_deref().unwrap_or("softmax") {
            "softmax" => softmax,
            "sigmoid" => {
                let normalise = self.norm_topk_prob.unwrap_or(true).then_some(0.0);
                Route { score: Score::Sigmoid, normalise, ..softmax }
            }
            other => return bad("expert_selection_fn", other),
        };
        let shared = routed::together(self.num_shared_experts.unwrap_or(0), size);
        let strategy = self.shared_expert_combination_strategy.as_deref();
        let scale = match strategy.unwrap_or("average") {
            "average" if shared.is_some() => 0.5,
            "average" | "sum" => 1.0,
            other => return bad("shared_expert_combination_strategy", other),
        };
        Ok(ExpertSpec { shared, scale, ..ExpertSpec::new(self.num_experts, size, route) })
    }
}
