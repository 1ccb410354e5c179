//! Hunyuan A13B: queries and keys are normed after they are rotated, and one expert is every token's.

use super::{hunyuan_v1_dense::with_alpha, read, routed};
use crate::{
    LoadOptions, ModelError, config,
    experts::{ExpertNames, ExpertSpec},
    router::Route,
    source::Renames,
    spec::{MlpSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "hunyuan_v1_moe";
const RENAMES: Renames = &[
    ("self_attn.q_norm", "self_attn.query_layernorm"),
    ("self_attn.k_norm", "self_attn.key_layernorm"),
    ("shared_expert", "shared_mlp"),
];

#[derive(Deserialize)]
struct Own {
    #[serde(alias = "num_local_experts")]
    num_experts: usize,
    #[serde(alias = "num_experts_per_tok")]
    moe_topk: PerLayer,
    moe_intermediate_size: Option<PerLayer>,
    num_shared_expert: Option<PerLayer>,
    use_mixed_mlp_moe: Option<bool>,
    use_qk_norm: Option<bool>,
    use_cla: Option<bool>,
    use_mla: Option<bool>,
    /// Layers without experts, the first ones.
    #[serde(default)]
    moe_layer_num_skipped: usize,
    #[serde(default)]
    attention_bias: bool,
}

/// A number for all layers, or one for each.
#[derive(Deserialize)]
#[serde(untagged)]
enum PerLayer {
    All(usize),
    Each(Vec<usize>),
}

impl PerLayer {
    fn at(&self, field: &'static str, layer: usize) -> Result<usize, ModelError> {
        match self {
            Self::All(value) => Ok(*value),
            Self::Each(values) => values.get(layer).copied().ok_or_else(|| {
                let (value, range) = (format!("{} entries", values.len()), "each layer needs one");
                ModelError::OutOfRange { family: FAMILY, field, value, range: range.to_owned() }
            }),
        }
    }
}

pub(super) fn hunyuan_moe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let own: Own = config::parse(FAMILY, config)?;
    for (field, says, known) in [
        ("use_cla", own.use_cla, false),
        ("use_mla", own.use_mla, false),
        ("use_mixed_mlp_moe", own.use_mixed_mlp_moe, true),
        ("use_qk_norm", own.use_qk_norm, true),
    ] {
        if let Some(value) = says.filter(|&says| says != known) {
            let (family, value) = (FAMILY, value.to_string());
            return Err(ModelError::Unsupported { family, field, value });
        }
    }
    let config = &with_alpha(FAMILY, config)?;
    let (shape, mut spec) = read(FAMILY, config, 10_000.0, options)?;
    spec.qk_norm = Some(QkNorm::Rotated);
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.renames = RENAMES;
    let inner = shape.intermediate_size;
    for (i, layer) in spec.layers.iter_mut().enumerate().skip(own.moe_layer_num_skipped) {
        let read = |field, numbers: &Option<PerLayer>, otherwise| match numbers {
            Some(numbers) => numbers.at(field, i),
            None => Ok(otherwise),
        };
        let route = Route::softmax(own.moe_topk.at("moe_topk", i)?, true);
        let size = read("moe_intermediate_size", &own.moe_intermediate_size, inner)?;
        let shared = read("num_shared_expert", &own.num_shared_expert, 1)?;
        let experts = ExpertSpec {
            names: ExpertNames { router: "gate.wg", ..ExpertNames::QWEN },
            shared: routed::together(shared, inner),
            ..ExpertSpec::new(own.num_experts, size, route)
        };
        experts.check(FAMILY)?;
        layer.mlp = MlpSpec::Experts(experts);
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_may_be_said_layer_by_layer() -> Result<(), ModelError> {
        let mut config = json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 16, "num_experts": 4, "moe_topk": [1, 3]});
        let spec = hunyuan_moe(&config, LoadOptions::default())?;
        let chosen = spec.layers.iter().map(|layer| match layer.mlp {
            MlpSpec::Experts(experts) => experts.route.chosen,
            _ => 0,
        });
        assert!(chosen.eq([1, 3]));
        config["moe_topk"] = json!([1]);
        assert!(hunyuan_moe(&config, LoadOptions::default()).is_err());
        config["moe_topk"] = json!(1);
        config["use_cla"] = json!(true);
        let error = hunyuan_moe(&config, LoadOptions::default()).unwrap_err().to_string();
        assert!(error.contains("use_cla"), "{error}");
        Ok(())
    }
}
