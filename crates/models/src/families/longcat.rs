//! LongCat Flash: two blocks of latent attention a layer, and experts whose result goes around the second. Some of
//! the experts give back what they read.

use super::deepseek;
use crate::{
    LoadOptions, ModelError, config,
    experts::{ExpertNames, ExpertSpec},
    router::{Route, Score},
    source::Renames,
    spec::{MixerSpec, MlpSpec, Spec},
};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "longcat_flash";

#[derive(Deserialize)]
struct Own {
    num_layers: usize,
    ffn_hidden_size: usize,
    expert_ffn_hidden_size: usize,
    moe_topk: usize,
    n_routed_experts: usize,
    zero_expert_num: Option<usize>,
    routed_scaling_factor: Option<f32>,
    q_lora_rank: usize,
    kv_lora_rank: usize,
}

/// What each block of a layer calls its tensors.
const BLOCKS: [Renames; 2] = [
    &[
        ("self_attn", "self_attn.0"),
        ("input_layernorm", "input_layernorm.0"),
        ("post_attention_layernorm", "post_attention_layernorm.0"),
        ("mlp.gate_proj", "mlps.0.gate_proj"),
        ("mlp.up_proj", "mlps.0.up_proj"),
        ("mlp.down_proj", "mlps.0.down_proj"),
    ],
    &[
        ("self_attn", "self_attn.1"),
        ("input_layernorm", "input_layernorm.1"),
        ("post_attention_layernorm", "post_attention_layernorm.1"),
        ("mlp.gate_proj", "mlps.1.gate_proj"),
        ("mlp.up_proj", "mlps.1.up_proj"),
        ("mlp.down_proj", "mlps.1.down_proj"),
    ],
];

pub(super) fn longcat_flash(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "zero_expert_type", &["identity"])?;
    for (field, needed) in
        [("mla_scale_q_lora", true), ("mla_scale_kv_lora", true), ("router_bias", false)]
    {
        let said = config.get(field).and_then(Value::as_bool);
        if let Some(value) = said.filter(|said| *said != needed) {
            return Err(ModelError::Unsupported {
                family: FAMILY,
                field,
                value: value.to_string(),
            });
        }
    }
    let own: Own = config::parse(FAMILY, config)?;
    config::size(FAMILY, "num_layers", own.num_layers, usize::from(u16::MAX) / 2)?;
    let config = &config::with(config, "num_hidden_layers", (2 * own.num_layers).into());
    let config = &config::with(config, "intermediate_size", own.ffn_hidden_size.into());
    let mut spec = deepseek::latent(FAMILY, config, options, (10_000_000.0, true, false))?;
    let factor = |rank: usize| (spec.hidden as f32 / rank as f32).sqrt();
    let factors = [factor(own.q_lora_rank), factor(own.kv_lora_rank)];
    let route = Route {
        score: Score::Softmax,
        bias: Some("router.e_score_correction_bias"),
        scale: own.routed_scaling_factor.unwrap_or(6.0),
        ..Route::softmax(own.moe_topk, false)
    };
    let experts = ExpertSpec {
        names: ExpertNames::LONGCAT,
        idle: own.zero_expert_num.unwrap_or(0),
        ..ExpertSpec::new(own.n_routed_experts, own.expert_ffn_hidden_size, route)
    };
    experts.check(FAMILY)?;
    spec.halves = Some(BLOCKS);
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if let MixerSpec::Latent(latent) = &mut layer.mixer {
            latent.factors = factors;
        }
        layer.mlp = match i.is_multiple_of(2) {
            true => MlpSpec::Shortcut(own.ffn_hidden_size, experts),
            false => MlpSpec::AfterShortcut(own.ffn_hidden_size),
        };
    }
    Ok(spec)
}

/// Whether a tensor is of an expert that computes nothing, to which transformers gives gates.
pub(super) fn is_idle(config: &Value, name: &str) -> bool {
    let experts = config.get("n_routed_experts").and_then(Value::as_u64).unwrap_or(u64::MAX);
    let number = name.split_once(".mlp.experts.").and_then(|(_, rest)| rest.split('.').next());
    number.and_then(|number| number.parse::<u64>().ok()).is_some_and(|number| number >= experts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 32, "num_layers": 2, "num_attention_heads": 2, "ffn_hidden_size": 8,
               "max_position_embeddings": 512, "q_lora_rank": 8, "kv_lora_rank": 2, "qk_nope_head_dim": 6,
               "qk_rope_head_dim": 4, "v_head_dim": 5, "n_routed_experts": 4, "moe_topk": 6, "zero_expert_num": 3,
               "expert_ffn_hidden_size": 4})
    }

    #[test]
    fn a_layer_is_two_blocks_with_experts_around_the_second() {
        let spec = longcat_flash(&config(), LoadOptions::default()).unwrap();
        let first = |mlp| matches!(mlp, MlpSpec::Shortcut(8, experts) if experts.idle == 3);
        let firsts: Vec<_> = spec.layers.iter().map(|layer| first(layer.mlp)).collect();
        assert_eq!(firsts, [true, false, true, false]);
        let MixerSpec::Latent(latent) = spec.layers[1].mixer else { panic!("latent") };
        assert_eq!(latent.factors, [2.0, 4.0]);
    }

    #[test]
    fn what_is_not_computed_is_refused_by_its_field() {
        for (field, value) in [
            ("mla_scale_q_lora", json!(false)),
            ("router_bias", json!(true)),
            ("zero_expert_type", json!("noise")),
            ("num_layers", json!(0)),
            ("zero_expert_num", json!(1u64 << 40)),
            ("num_experts_per_tok", json!(1)),
        ] {
            let mut config = config();
            config[field] = value;
            if field == "num_experts_per_tok" {
                config["moe_topk"] = json!(8);
            }
            let error = longcat_flash(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{field}: {error}");
        }
    }
}
