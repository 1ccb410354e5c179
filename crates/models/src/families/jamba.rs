//! Jamba: Mamba in most layers, attention without positions in the others, experts in every second one.

use super::{
    common,
    hybrid::{MAX_KERNEL, require_attention},
    mamba::rank,
};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::ExpertSpec,
    mixers::{MambaSpec, ScanNorms},
    norms::LayerNorms,
    rope::RopeConfig,
    router::Route,
    source::Renames,
    spec::{MixerSpec, MlpSpec, Spec, TopNames},
};
use serde::Deserialize;
use serde_json::Value;
use taper_tensor::SelectiveScanShape;

const FAMILY: &str = "jamba";
const RENAMES: Renames = &[("mlp.gate", "feed_forward.router"), ("mlp", "feed_forward")];

#[derive(Deserialize)]
struct Own {
    attn_layer_period: Option<usize>,
    attn_layer_offset: Option<usize>,
    expert_layer_period: Option<usize>,
    expert_layer_offset: Option<usize>,
    num_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    mamba_d_state: Option<usize>,
    mamba_d_conv: Option<usize>,
    mamba_expand: Option<usize>,
    mamba_dt_rank: Option<Value>,
    mamba_conv_bias: Option<bool>,
    #[serde(default)]
    mamba_proj_bias: bool,
}

pub(super) fn jamba(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let config = &config::with_default(config, "max_position_embeddings", 262_144);
    let shape: Shape = config::parse(FAMILY, config)?;
    let own: Own = config::parse(FAMILY, config)?;
    let mut spec = common(FAMILY, &shape, &RopeConfig::default(), options)?;
    spec.renames = RENAMES;
    spec.norms = LayerNorms { mlp: Some("pre_ff_layernorm"), ..LayerNorms::PRE };
    spec.top = TopNames { norm: "final_layernorm", ..TopNames::LLAMA };
    let mamba = own.mamba(spec.hidden)?;
    let attends = period("attn_layer_period", own.attn_layer_period.unwrap_or(8))?;
    let attends = (attends, own.attn_layer_offset.unwrap_or(4));
    let sparse = period("expert_layer_period", own.expert_layer_period.unwrap_or(2))?;
    let sparse = (sparse, own.expert_layer_offset.unwrap_or(1));
    let experts = own.experts(shape.intermediate_size)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let is = |(period, offset): (usize, usize)| i % period == offset;
        layer.mixer = match is(attends) {
            true => MixerSpec::attention(None, None),
            false => MixerSpec::Mamba(mamba),
        };
        if let Some(experts) = experts.filter(|_| is(sparse)) {
            layer.mlp = MlpSpec::Experts(experts);
        }
    }
    require_attention(FAMILY, "attn_layer_period", &spec.layers)?;
    Ok(spec)
}

fn period(field: &'static str, value: usize) -> Result<usize, ModelError> {
    config::size(FAMILY, field, value, config::MAX_SIZE)?;
    Ok(value)
}

impl Own {
    /// Experts, of a model that has more than one.
    fn experts(&self, intermediate: usize) -> Result<Option<ExpertSpec>, ModelError> {
        let experts = self.num_experts.unwrap_or(16);
        if experts == 1 {
            return Ok(None);
        }
        let route = Route::softmax(self.num_experts_per_tok.unwrap_or(2), false);
        let experts = ExpertSpec::new(experts, intermediate, route);
        experts.check(FAMILY)?;
        Ok(Some(experts))
    }

    fn mamba(&self, hidden: usize) -> Result<MambaSpec, ModelError> {
        let (state, kernel) = (self.mamba_d_state.unwrap_or(16), self.mamba_d_conv.unwrap_or(4));
        let expand = self.mamba_expand.unwrap_or(2);
        config::size(FAMILY, "mamba_d_state", state, config::MAX_HEADS)?;
        config::size(FAMILY, "mamba_d_conv", kernel, MAX_KERNEL)?;
        config::size(FAMILY, "mamba_expand", expand, config::MAX_HEADS)?;
        let channels = expand * hidden;
        config::size(FAMILY, "mamba_d_state", channels.saturating_mul(state), config::MAX_SIZE)?;
        Ok(MambaSpec {
            scan: SelectiveScanShape { channels, state },
            kernel,
            rank: rank(FAMILY, "mamba_dt_rank", self.mamba_dt_rank.as_ref(), hidden)?,
            bias: self.mamba_proj_bias,
            conv_bias: self.mamba_conv_bias.unwrap_or(true),
            norms: ScanNorms::Weights,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 4,
               "num_attention_heads": 2, "num_experts": 4, "attn_layer_period": 2,
               "attn_layer_offset": 0})
    }

    #[test]
    fn layers_are_told_by_period_and_offset() {
        let spec = jamba(&config(), LoadOptions::default()).unwrap();
        let attends: Vec<_> = spec.layers.iter().map(|layer| layer.mixer.attends()).collect();
        assert_eq!(attends, [true, false, true, false]);
        let sparse = |mlp: &MlpSpec| matches!(mlp, MlpSpec::Experts(_));
        let sparse: Vec<_> = spec.layers.iter().map(|layer| sparse(&layer.mlp)).collect();
        assert_eq!(sparse, [false, true, false, true]);
    }

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        for (field, value) in [
            ("attn_layer_period", json!(0)),
            ("expert_layer_period", json!(0)),
            ("mamba_d_state", json!(0)),
            ("mamba_expand", json!(1u64 << 60)),
            ("mamba_dt_rank", json!("many")),
            ("num_experts_per_tok", json!(5)),
            ("hidden_act", json!("gelu")),
        ] {
            let mut config = config();
            config[field] = value;
            let error = jamba(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
