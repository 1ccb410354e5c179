//! Kimi Linear: Kimi Delta Attention in three of four layers, latent attention without positions in the others.

use super::{
    deepseek,
    hybrid::{MAX_KERNEL, require_attention, unknown},
};
use crate::{
    LoadOptions, ModelError, config,
    experts::ExpertNames,
    mixers::{DeltaLayout, DeltaSpec},
    source::Renames,
    spec::{MixerSpec, MlpSpec, Spec},
};
use serde::Deserialize;
use serde_json::Value;
use taper_tensor::GatedDeltaShape;

const FAMILY: &str = "kimi_linear";
const RENAMES: Renames = &[
    ("mlp.shared_expert", "block_sparse_moe.shared_experts"),
    ("mlp", "block_sparse_moe"),
    ("linear_attn", "self_attn"),
];

#[derive(Deserialize)]
struct Own {
    layer_types: Option<Vec<String>>,
    linear_head_dim: Option<usize>,
    linear_num_heads: Option<usize>,
    linear_conv_kernel_dim: Option<usize>,
    linear_attn_config: Option<Linear>,
    mla_use_nope: Option<bool>,
}

/// As published. Layers are counted from 1.
#[derive(Default, Deserialize)]
struct Linear {
    head_dim: Option<usize>,
    num_heads: Option<usize>,
    short_conv_kernel_size: Option<usize>,
    full_attn_layers: Option<Vec<usize>>,
}

impl Own {
    fn delta(&self, norm_eps: f32) -> Result<DeltaSpec, ModelError> {
        let none = Linear::default();
        let published = self.linear_attn_config.as_ref().unwrap_or(&none);
        let heads = published.num_heads.or(self.linear_num_heads).unwrap_or(32);
        let head_dim = published.head_dim.or(self.linear_head_dim).unwrap_or(128);
        let kernel = published.short_conv_kernel_size.or(self.linear_conv_kernel_dim).unwrap_or(4);
        config::size(FAMILY, "linear_num_heads", heads, config::MAX_HEADS)?;
        config::size(FAMILY, "linear_head_dim", head_dim, config::MAX_HEAD_DIM)?;
        config::size(FAMILY, "linear_conv_kernel_dim", kernel, MAX_KERNEL)?;
        let state = heads.saturating_mul(head_dim).saturating_mul(head_dim);
        config::size(FAMILY, "linear_head_dim * linear_head_dim * heads", state, config::MAX_SIZE)?;
        let shape = GatedDeltaShape {
            key_heads: heads,
            value_heads: heads,
            key_dim: head_dim,
            value_dim: head_dim,
            kernel,
            decay_per_key: true,
        };
        Ok(DeltaSpec::qwen(shape, DeltaLayout::LowRank, norm_eps))
    }

    fn is_linear(&self, layer: usize) -> Result<bool, ModelError> {
        let full = self.linear_attn_config.as_ref().and_then(|own| own.full_attn_layers.as_ref());
        match (&self.layer_types, full) {
            (Some(types), _) => match types.get(layer).map(String::as_str) {
                Some("linear_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                other => Err(unknown(FAMILY, "layer_types", other.unwrap_or("too few entries"))),
            },
            (None, Some(full)) => Ok(!full.contains(&(layer + 1))),
            (None, None) => Ok(layer == 0 || !layer.is_multiple_of(4)),
        }
    }
}

pub(super) fn kimi_linear(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "moe_router_activation_func", &["sigmoid"])?;
    let mut config = config.clone();
    for (first, second) in [
        ("max_position_embeddings", "model_max_length"),
        ("norm_topk_prob", "moe_renormalize"),
        ("n_group", "num_expert_group"),
        ("num_experts_per_tok", "num_experts_per_token"),
        ("n_shared_experts", "num_shared_experts"),
    ] {
        config = config::one_name(&config, first, second)?;
    }
    let own: Own = config::parse(FAMILY, &config)?;
    if own.mla_use_nope == Some(false) {
        return Err(unknown(FAMILY, "mla_use_nope", "false"));
    }
    let mut spec = deepseek::sigmoid(FAMILY, (1, 2.446), &config, options)?;
    spec.renames = RENAMES;
    let delta = own.delta(spec.norm_eps)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if let MixerSpec::Latent(latent) = &mut layer.mixer {
            latent.angles = None;
        }
        if own.is_linear(i)? {
            layer.mixer = MixerSpec::GatedDelta(delta);
        }
        if let MlpSpec::Experts(experts) = &mut layer.mlp {
            experts.names = ExpertNames { maps: ["w1", "w3", "w2"], ..ExpertNames::QWEN };
        }
    }
    require_attention(FAMILY, "layer_types", &spec.layers)?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 4,
               "num_attention_heads": 2, "model_max_length": 16, "kv_lora_rank": 4,
               "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4, "num_experts": 4,
               "num_experts_per_token": 2, "moe_intermediate_size": 4, "num_shared_experts": 1,
               "linear_attn_config": {"num_heads": 2, "head_dim": 4, "full_attn_layers": [4]}})
    }

    #[test]
    fn published_layers_are_counted_from_one() {
        let spec = kimi_linear(&config(), LoadOptions::default()).unwrap();
        let attends: Vec<_> = spec.layers.iter().map(|layer| layer.mixer.attends()).collect();
        assert_eq!(attends, [false, false, false, true]);
    }

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        for (field, value) in [
            ("layer_types", json!(["linear_attention"])),
            ("layer_types", json!(vec!["linear_attention"; 4])),
            ("mla_use_nope", json!(false)),
            ("moe_router_activation_func", json!("softmax")),
        ] {
            let mut config = config();
            config[field] = value;
            let error = kimi_linear(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
