//! Granite 3 and 4, dense: Llama with multipliers of embeddings, scores, branches and logits. `granite_swa` has windows,
//! attention sinks, and an angle base a layer.

use super::{context, read};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    rope::RopeContext,
    spec::{MixerSpec, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};

const FAMILY: &str = "granite";
const WINDOWS: &str = "granite_swa";

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

pub(super) fn granite(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    build(FAMILY, config, options)
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
    let mut spec = build(WINDOWS, config, options)?;
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

/// Granite's spec, under the name of a family of its kin.
pub(super) fn build(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    let own: Own = config::parse(family, config)?;
    let factors = [
        ("embedding_multiplier", Some(own.embedding_multiplier)),
        ("attention_multiplier", Some(own.attention_multiplier)),
        ("residual_multiplier", Some(own.residual_multiplier)),
        ("logits_scaling", Some(own.logits_scaling)),
    ];
    config::factors(family, &factors)?;
    let (_, mut spec) = read(family, config, 10_000.0, options)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.mlp_bias = own.mlp_bias;
    let unless_one = |factor: f32| (factor != 1.0).then_some(factor);
    spec.embed_scale = unless_one(own.embedding_multiplier);
    spec.attn_scale = own.attention_multiplier;
    spec.branch_scale = unless_one(own.residual_multiplier);
    spec.logit_scale = unless_one(1.0 / own.logits_scaling);
    Ok(spec)
}
