//! Mixtral and OLMoE: experts in every layer.

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    feed_forward::{ExpertNames, ExpertSpec},
    spec::Spec,
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
    let (mut spec, own) = build("mixtral", config, options)?;
    let experts = own.experts(&spec, ExpertNames::MIXTRAL);
    for layer in &mut spec.layers {
        layer.experts = Some(ExpertSpec { normalise: true, ..experts });
        layer.set_window(own.sliding_window);
    }
    experts.check("mixtral").map(|()| spec)
}

pub(super) fn olmoe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, own) = build("olmoe", config, options)?;
    if let Some(clip) = own.clip_qkv {
        let (field, value) = ("clip_qkv", clip.to_string());
        return Err(ModelError::Unsupported { family: "olmoe", field, value });
    }
    spec.qk_norm_whole = true;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    let experts = own.experts(&spec, ExpertNames::QWEN);
    spec.layers.iter_mut().for_each(|layer| layer.experts = Some(experts));
    experts.check("olmoe").map(|()| spec)
}

impl Own {
    fn experts(&self, spec: &Spec, names: ExpertNames) -> ExpertSpec {
        ExpertSpec {
            experts: self.num_experts,
            chosen: self.num_experts_per_tok,
            intermediate: spec.intermediate,
            normalise: self.norm_topk_prob,
            bias: false,
            names,
            shared: None,
        }
    }
}

fn build(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<(Spec, Own), ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    let config = &config::one_name(config, "num_experts", "num_local_experts")?;
    let theta = if family == "mixtral" { 1e6 } else { 1e4 };
    Ok((read(family, config, theta, options)?.1, config::parse(family, config)?))
}
