//! Granite 3 and 4: Llama with multipliers of embeddings, scores, branches and logits; dense, or with experts.
//! `granite_swa` has windows, attention sinks, and an angle base a layer.

use super::{context, read};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertNames, ExpertSpec, SharedSpec},
    rope::RopeContext,
    router::Route,
    source::Renames,
    spec::{MixerSpec, MlpSpec, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};

const FAMILY: &str = "granite";
const WINDOWS: &str = "granite_swa";

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
    Ok(build(FAMILY, config, options)?.1)
}

#[derive(Deserialize)]
struct Thetas {
    /// 0 where a layer is not rotated.
    layer_rope_theta: Option<Vec<f64>>,
}

pub(super) fn granite_swa(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let defaults = [("rms_norm_eps", json!(1e-5)), ("sliding_window", json!(128))];
    let config = &config::with_defaults(config, &defaults);
    let shape: Shape = config::parse(WINDOWS, config)?;
    let own: Thetas = config::parse(WINDOWS, config)?;
    let (_, mut spec) = build(WINDOWS, config, options)?;
    spec.attn_sinks = true;
    spec.tied = shape.tied(true);
    let fourths = |i: usize| !i.is_multiple_of(4);
    let windows = config::windows(WINDOWS, config, spec.layers.len(), fourths)?;
    let ropes = match &own.layer_rope_theta {
        Some(thetas) => own_ropes(&mut spec, thetas, config, context(WINDOWS, &shape, options))?,
        None => vec![Some(0); spec.layers.len()],
    };
    for ((layer, window), rope) in spec.layers.iter_mut().zip(windows).zip(ropes) {
        layer.mixer = MixerSpec::attention(rope, window);
    }
    Ok(spec)
}

/// The tables of all angle bases in place of the one, and which of them each layer has.
fn own_ropes(
    spec: &mut Spec,
    thetas: &[f64],
    config: &Value,
    context: RopeContext,
) -> Result<Vec<Option<usize>>, ModelError> {
    if thetas.len() != spec.layers.len() {
        let (field, value) = ("layer_rope_theta", format!("{} entries", thetas.len()));
        let range = "each layer needs one".to_owned();
        return Err(ModelError::OutOfRange { family: WINDOWS, field, value, range });
    }
    let rope = config::rope(WINDOWS, config, 10_000.0)?;
    let (mut known, mut layers) = (Vec::new(), Vec::new());
    spec.ropes.clear();
    for &theta in thetas {
        let at = known.iter().position(|&other| other == theta);
        layers.push(match at {
            _ if theta == 0.0 => None,
            Some(at) => Some(at),
            None => {
                let own = rope.clone().at(theta);
                spec.ropes.push(own.table(context)?);
                known.push(theta);
                Some(known.len() - 1)
            }
        });
    }
    Ok(layers)
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
    let (shape, mut spec) = build(family, config, options)?;
    spec.mlp_bias = false;
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
) -> Result<(Shape, Spec), ModelError> {
    let (shape, spec) = read(family, config, 10_000.0, options)?;
    Ok((shape, multiplied(spec, config)?))
}

/// The model with Granite's multipliers and biases.
pub(super) fn multiplied(mut spec: Spec, config: &Value) -> Result<Spec, ModelError> {
    let family = spec.family;
    config::require(family, config, "hidden_act", &["silu"])?;
    let own: Own = config::parse(family, config)?;
    let factors = [
        ("embedding_multiplier", Some(own.embedding_multiplier)),
        ("attention_multiplier", Some(own.attention_multiplier)),
        ("residual_multiplier", Some(own.residual_multiplier)),
        ("logits_scaling", Some(own.logits_scaling)),
    ];
    config::factors(family, &factors)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.mlp_bias = own.mlp_bias;
    let unless_one = |factor: f32| (factor != 1.0).then_some(factor);
    spec.embed_scale = unless_one(own.embedding_multiplier);
    spec.attn_scale = own.attention_multiplier;
    spec.branch_scale = unless_one(own.residual_multiplier);
    spec.logit_scale = unless_one(1.0 / own.logits_scaling);
    Ok(spec)
}
