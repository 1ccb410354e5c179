//! Mixtral, OLMoE and FlexOlmo: experts in every layer.

use super::read;
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertNames, ExpertSpec},
    norms::LayerNorms,
    router::Route,
    spec::{MlpSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Own {
    num_experts: usize,
    num_experts_per_tok: usize,
    #[serde(default)]
    norm_topk_prob: bool,
    sliding_window: Option<usize>,
    #[serde(default)]
    attention_bias: bool,
    clip_qkv: Option<f32>,
}

pub(super) fn mixtral(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (shape, mut spec, own) = build("mixtral", config, options)?;
    let route = Route::softmax(own.num_experts_per_tok, true);
    let experts = ExpertSpec {
        names: ExpertNames::MIXTRAL,
        ..ExpertSpec::new(own.num_experts, shape.intermediate_size, route)
    };
    for layer in &mut spec.layers {
        layer.mlp = MlpSpec::Experts(experts);
        layer.set_window(own.sliding_window);
    }
    experts.check("mixtral").map(|()| spec)
}

pub(super) fn olmoe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    olmo("olmoe", config, options)
}

/// OLMoE with norms after attention and experts, not before.
pub(super) fn flex_olmo(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let spec = olmo("flex_olmo", config, options)?;
    Ok(Spec { norms: LayerNorms::POST, ..spec })
}

fn olmo(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let (shape, mut spec, own) = build(family, config, options)?;
    if let Some(clip) = own.clip_qkv {
        let (field, value) = ("clip_qkv", clip.to_string());
        return Err(ModelError::Unsupported { family, field, value });
    }
    spec.qk_norm = Some(QkNorm::Whole);
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    let route = Route::softmax(own.num_experts_per_tok, own.norm_topk_prob);
    let experts = ExpertSpec::new(own.num_experts, shape.intermediate_size, route);
    spec.layers.iter_mut().for_each(|layer| layer.mlp = MlpSpec::Experts(experts));
    experts.check(family).map(|()| spec)
}

fn build(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<(Shape, Spec, Own), ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    let config = &config::one_name(config, "num_experts", "num_local_experts")?;
    let theta = match family {
        "mixtral" => 1e6,
        "flex_olmo" => 5e5,
        _ => 1e4,
    };
    let (shape, spec) = read(family, config, theta, options)?;
    Ok((shape, spec, config::parse(family, config)?))
}
