//! Granite 4: Mamba 2 in most layers, attention without positions in the others, and experts beside a feed-forward,
//! or that one alone.

use super::{
    granite::multiplied,
    hybrid::{Bamba, kind, require_attention, unknown},
    read,
};
use crate::{
    LoadOptions, ModelError, config,
    experts::{ExpertSpec, SharedSpec},
    router::Route,
    source::Renames,
    spec::{MixerSpec, MlpSpec, Spec},
};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "granitemoehybrid";

const RENAMES: Renames = &[
    ("mlp.shared_expert.gate_up_proj", "shared_mlp.input_linear"),
    ("mlp.shared_expert.down_proj", "shared_mlp.output_linear"),
    ("mlp.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"),
    ("mlp.experts.down_proj", "block_sparse_moe.output_linear.weight"),
    ("mlp.switch_mlp", "block_sparse_moe.switch_mlp"),
    ("mlp.gate", "block_sparse_moe.router.layer"),
];

const DENSE_RENAMES: Renames = &[
    ("mlp.gate_up_proj", "shared_mlp.input_linear"),
    ("mlp.down_proj", "shared_mlp.output_linear"),
];

#[derive(Deserialize)]
struct Own {
    layer_types: Option<Vec<String>>,
    layers_block_type: Option<Vec<String>>,
    position_embedding_type: Option<String>,
    shared_intermediate_size: usize,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    intermediate_size: usize,
}

pub(super) fn granitemoehybrid(
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let config = &config::with_default(config, "num_local_experts", 8);
    let config = &config::with_default(config, "num_experts_per_tok", 2);
    let own: Own = config::parse(FAMILY, config)?;
    let bamba: Bamba = config::parse(FAMILY, config)?;
    let (_, spec) = read(FAMILY, config, 10_000.0, options)?;
    let mut spec = multiplied(spec, config)?;
    let rope = match own.position_embedding_type.as_deref() {
        Some("rope") => Some(0),
        None | Some("nope") => None,
        Some(other) => return Err(unknown(FAMILY, "position_embedding_type", other)),
    };
    let mamba = bamba.spec(FAMILY, spec.hidden)?;
    let mlp = own.mlp()?;
    spec.fused_mlp = true;
    spec.renames = if matches!(mlp, MlpSpec::Experts(_)) { RENAMES } else { DENSE_RENAMES };
    let kinds = own.layer_types.or(own.layers_block_type).unwrap_or_default();
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.mixer = match kind(FAMILY, "layer_types", &kinds, i)? {
            "mamba" | "linear_attention" => MixerSpec::Mamba2(mamba),
            "attention" | "full_attention" => MixerSpec::attention(rope, None),
            other => return Err(unknown(FAMILY, "layer_types", other)),
        };
        layer.mlp = mlp;
    }
    require_attention(FAMILY, "layer_types", &spec.layers)?;
    Ok(spec)
}

impl Own {
    fn mlp(&self) -> Result<MlpSpec, ModelError> {
        let shared = self.shared_intermediate_size;
        let experts = self.num_local_experts.unwrap_or(0);
        if experts == 0 {
            config::size(FAMILY, "shared_intermediate_size", shared, config::MAX_SIZE)?;
            return Ok(MlpSpec::Dense(shared));
        }
        let route = Route::softmax(self.num_experts_per_tok.unwrap_or(0), true);
        let experts = ExpertSpec {
            shared: Some(SharedSpec { intermediate: shared, gated: false }),
            ..ExpertSpec::new(experts, self.intermediate_size, route)
        };
        experts.check(FAMILY)?;
        Ok(MlpSpec::Experts(experts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        let config = json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8,
                            "num_hidden_layers": 2, "num_attention_heads": 2,
                            "max_position_embeddings": 16, "shared_intermediate_size": 8,
                            "layer_types": ["mamba", "attention"], "mamba_n_heads": 4,
                            "mamba_d_state": 4, "num_local_experts": 0});
        let spec = |config: &Value| granitemoehybrid(config, LoadOptions::default());
        assert!(spec(&config).is_ok());
        for (field, value) in [
            ("layer_types", json!(["mamba", "mamba"])),
            ("layer_types", json!(["mamba", "other"])),
            ("layer_types", json!(["mamba"])),
            ("position_embedding_type", json!("alibi")),
            ("shared_intermediate_size", json!(0)),
            ("num_experts_per_tok", json!(9)),
            ("hidden_act", json!("gelu")),
        ] {
            let mut config = config.clone();
            if field == "num_experts_per_tok" {
                config["num_local_experts"] = json!(4);
            }
            config[field] = value;
            let error = spec(&config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
