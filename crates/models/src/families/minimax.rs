//! MiniMax M2: queries and keys are normed over all heads of a token, half of each head is rotated.

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    experts::{ExpertNames, ExpertSpec},
    router::Route,
    spec::{MlpSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "minimax_m2";

#[derive(Deserialize)]
struct Own {
    num_local_experts: usize,
    num_experts_per_tok: usize,
    rotary_dim: Option<f64>,
    head_dim: Option<f64>,
    use_qk_norm: Option<bool>,
    use_routing_bias: Option<bool>,
    shared_intermediate_size: Option<usize>,
    /// 1 where a layer attends, 0 where it has the linear attention of MiniMax 01.
    attn_type_list: Option<Vec<u8>>,
    layer_types: Option<Vec<String>>,
}

pub(super) fn minimax_m2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    config::require(FAMILY, config, "scoring_func", &["sigmoid"])?;
    config::require(FAMILY, config, "qk_norm_type", &["per_layer"])?;
    let own: Own = config::parse(FAMILY, config)?;
    own.check()?;
    let part = own.rotary_dim.map(|dim| dim / own.head_dim.unwrap_or(128.0));
    let config = &match part {
        Some(part) => config::with_default(config, "partial_rotary_factor", part),
        None => config.clone(),
    };
    let config = &config::with_default(config, "head_dim", 128);
    let (shape, mut spec) = read(FAMILY, config, 5_000_000.0, options)?;
    spec.qk_norm = Some(QkNorm::Whole);
    let route = Route {
        normalise: Some(0.0),
        bias: Some("e_score_correction_bias"),
        ..Route::sigmoid(own.num_experts_per_tok, true)
    };
    let experts = ExpertSpec {
        names: ExpertNames::MIXTRAL,
        ..ExpertSpec::new(own.num_local_experts, shape.intermediate_size, route)
    };
    experts.check(FAMILY)?;
    spec.layers.iter_mut().for_each(|layer| layer.mlp = MlpSpec::Experts(experts));
    Ok(spec)
}

/// MiniMax M2 under the name of MiniMax 01, as some of its files have it. That model's own attention is not here.
pub(super) fn minimax(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let own: Own = config::parse(FAMILY, config)?;
    if own.use_qk_norm.is_none() {
        return Err(unsupported("use_qk_norm", "nothing, as of MiniMax 01"));
    }
    minimax_m2(config, options)
}

impl Own {
    fn check(&self) -> Result<(), ModelError> {
        for (field, says) in
            [("use_qk_norm", self.use_qk_norm), ("use_routing_bias", self.use_routing_bias)]
        {
            if says == Some(false) {
                return Err(unsupported(field, "false"));
            }
        }
        if let Some(size) = self.shared_intermediate_size.filter(|&size| size > 0) {
            return Err(unsupported("shared_intermediate_size", &size.to_string()));
        }
        let linear = self.attn_type_list.iter().flatten().find(|&&kind| kind != 1);
        if let Some(kind) = linear {
            return Err(unsupported("attn_type_list", &kind.to_string()));
        }
        let other = |kind: &&String| *kind != "full_attention";
        match self.layer_types.iter().flatten().find(other) {
            Some(kind) => Err(unsupported("layer_types", kind)),
            None => Ok(()),
        }
    }
}

fn unsupported(field: &'static str, value: &str) -> ModelError {
    ModelError::Unsupported { family: FAMILY, field, value: value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn minimax_01_is_refused() {
        let mut config = json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 16, "num_local_experts": 4,
            "num_experts_per_tok": 2, "head_dim": 8, "rotary_dim": 4});
        let field = |error: ModelError| match error {
            ModelError::Unsupported { field, .. } => field,
            _ => "none",
        };
        let refused = |config: &Value| minimax(config, LoadOptions::default()).map_err(field).err();
        assert_eq!(refused(&config), Some("use_qk_norm"));
        config["use_qk_norm"] = json!(true);
        assert_eq!(refused(&config), None);
        config["attn_type_list"] = json!([1, 0]);
        assert_eq!(refused(&config), Some("attn_type_list"));
        config["attn_type_list"] = json!([1, 1]);
        config["layer_types"] = json!(["linear_attention", "full_attention"]);
        assert_eq!(refused(&config), Some("layer_types"));
    }
}
