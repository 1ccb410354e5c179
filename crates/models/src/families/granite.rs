//! Granite 3 and 4: Llama with multipliers of embeddings, scores, branches and logits; dense, or with experts.

use super::read;
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertNames, ExpertSpec, SharedSpec},
    router::Route,
    source::Renames,
    spec::{MlpSpec, Spec},
};
use serde::Deserialize;
use serde_json::Value;

/// Maps of all experts are in one tensor, those of gate and up too; so are gate and up of the expert of all tokens.
const RENAMES: Renames = &[
    ("experts.gate_up_proj", "input_linear.weight"),
    ("experts.down_proj", "output_linear.weight"),
    ("block_sparse_moe.shared_expert", "shared_mlp"),
    ("shared_mlp.gate_up_proj", "shared_mlp.input_linear"),
    ("shared_mlp.down_proj", "shared_mlp.output_linear"),
];

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default = "one")]
    embedding_multiplier: f32,
    #[serde(default = "one")]
    attention_multiplier: f32,
    #[serde(default = "one")]
    residual_multiplier: f32,
    #[serde(default = "one")]
    logits_scaling: f32,
}

fn one() -> f32 {
    1.0
}

#[derive(Deserialize)]
struct Mixture {
    num_local_experts: usize,
    num_experts_per_tok: usize,
    shared_intermediate_size: Option<usize>,
}

pub(super) fn granite(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (_, mut spec, own) = build("granite", config, options)?;
    spec.mlp_bias = own.mlp_bias;
    Ok(spec)
}

pub(super) fn granitemoe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    with_experts("granitemoe", config, options)
}

/// Granite with one more expert, for every token.
pub(super) fn granitemoeshared(
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    with_experts("granitemoeshared", config, options)
}

fn with_experts(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let (shape, mut spec, _) = build(family, config, options)?;
    let mixture: Mixture = config::parse(family, config)?;
    let route = Route::softmax(mixture.num_experts_per_tok, true);
    let shared = mixture.shared_intermediate_size.filter(|&size| size > 0);
    let experts = ExpertSpec {
        names: ExpertNames { router: "router.layer", ..ExpertNames::MIXTRAL },
        shared: shared.map(|intermediate| SharedSpec { intermediate, gated: false }),
        ..ExpertSpec::new(mixture.num_local_experts, shape.intermediate_size, route)
    };
    experts.check(family)?;
    (spec.renames, spec.fused_mlp) = (RENAMES, true);
    spec.layers.iter_mut().for_each(|layer| layer.mlp = MlpSpec::Experts(experts));
    Ok(spec)
}

fn build(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<(Shape, Spec, Own), ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    let own: Own = config::parse(family, config)?;
    let factors = [
        ("embedding_multiplier", Some(own.embedding_multiplier)),
        ("attention_multiplier", Some(own.attention_multiplier)),
        ("residual_multiplier", Some(own.residual_multiplier)),
        ("logits_scaling", Some(own.logits_scaling)),
    ];
    config::factors(family, &factors)?;
    let (shape, mut spec) = read(family, config, 10_000.0, options)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    let unless_one = |factor: f32| (factor != 1.0).then_some(factor);
    spec.embed_scale = unless_one(own.embedding_multiplier);
    spec.attn_scale = own.attention_multiplier;
    spec.branch_scale = unless_one(own.residual_multiplier);
    spec.logit_scale = unless_one(1.0 / own.logits_scaling);
    Ok((shape, spec, own))
}
