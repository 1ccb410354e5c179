//! Phi 3.5 with experts: Llama with LayerNorms, and a router of its own (SparseMixer, arXiv 2409.12136).

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    experts::{ExpertNames, ExpertSpec},
    norms::NormKind,
    router::{Route, Score},
    spec::{MlpSpec, Spec},
};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "phimoe";

#[derive(Deserialize)]
struct Own {
    num_local_experts: usize,
    num_experts_per_tok: usize,
    router_jitter_noise: Option<f32>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    lm_head_bias: bool,
    sliding_window: Option<usize>,
}

/// With rotations for long contexts the long factors are applied as in Phi 3. transformers applies the short ones.
pub(super) fn phimoe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let own: Own = config::parse(FAMILY, config)?;
    if own.num_experts_per_tok != 2 {
        let (field, value) = ("num_experts_per_tok", own.num_experts_per_tok.to_string());
        return Err(ModelError::Unsupported { family: FAMILY, field, value });
    }
    let noise = own.router_jitter_noise.unwrap_or(0.01);
    if !(0.0..=1.0).contains(&noise) {
        let (value, range) = (noise.to_string(), "it must be from 0 to 1".to_owned());
        let field = "router_jitter_noise";
        return Err(ModelError::OutOfRange { family: FAMILY, field, value, range });
    }
    let (shape, mut spec) = read(FAMILY, config, 1e6, options)?;
    spec.norm = NormKind::LayerBias;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.head_bias = own.lm_head_bias;
    if spec.tied && spec.head_bias {
        let (field, value) = ("lm_head_bias", "true, of a tied head".to_owned());
        return Err(ModelError::Unsupported { family: FAMILY, field, value });
    }
    let score = Score::SparseMixer { spread: 2.0 * noise };
    let route = Route { score, ..Route::softmax(2, false) };
    let experts = ExpertSpec {
        names: ExpertNames::MIXTRAL,
        ..ExpertSpec::new(own.num_local_experts, shape.intermediate_size, route)
    };
    experts.check(FAMILY)?;
    for layer in &mut spec.layers {
        layer.mlp = MlpSpec::Experts(experts);
        layer.set_window(own.sliding_window);
    }
    Ok(spec)
}
