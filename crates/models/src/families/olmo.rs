//! OLMo: the first with norms without weights, the second and third with norms after attention and feed-forward, and
//! of all queries and keys of a token together; the third with windows.

use super::{common, context, read};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    norms::{LayerNorms, NormKind},
    spec::{MixerSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};

const THIRD: &str = "olmo3";
const FULL: usize = 0;
const SLIDING: usize = 1;

pub(super) fn olmo(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "olmo";
    config::require(family, config, "hidden_act", &["silu"])?;
    config::refuse(family, config, "clip_qkv")?;
    let (_, mut spec) = read(family, config, 10_000.0, options)?;
    spec.norm = NormKind::LayerPlain;
    // The published code has no field for it.
    spec.norm_eps = 1e-5;
    config::biases(&mut spec, config)?;
    Ok(spec)
}

pub(super) fn olmo2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "olmo2";
    config::require(family, config, "hidden_act", &["silu"])?;
    let config = &config::with_defaults(config, &[("rms_norm_eps", json!(1e-5))]);
    let (_, spec) = read(family, config, 10_000.0, options)?;
    later(spec, config)
}

#[derive(Deserialize)]
struct Own {
    rope_theta: Option<f64>,
}

pub(super) fn olmo3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(THIRD, config, "hidden_act", &["silu"])?;
    let defaults = [("rms_norm_eps", json!(1e-5)), ("sliding_window", json!(4096))];
    let config = &config::with_defaults(config, &defaults);
    let shape: Shape = config::parse(THIRD, config)?;
    let own: Own = config::parse(THIRD, config)?;
    let theta = own.rope_theta.unwrap_or(500_000.0);
    let (full, sliding) = config::ropes_by_type(THIRD, config, theta, theta)?;
    let mut spec = common(THIRD, &shape, &full, options)?;
    spec.ropes.push(sliding.table(context(THIRD, &shape, options))?);
    let every_fourth = |i: usize| !(i + 1).is_multiple_of(4);
    let windows = config::windows(THIRD, config, spec.layers.len(), every_fourth)?;
    for (layer, window) in spec.layers.iter_mut().zip(windows) {
        let rope = if window.is_some() { SLIDING } else { FULL };
        layer.mixer = MixerSpec::attention(Some(rope), window);
    }
    later(spec, config)
}

/// What the second and third have in common.
fn later(mut spec: Spec, config: &Value) -> Result<Spec, ModelError> {
    config::refuse(spec.family, config, "clip_qkv")?;
    spec.norms = LayerNorms::POST;
    spec.qk_norm = Some(QkNorm::Whole);
    config::biases(&mut spec, config)?;
    Ok(spec)
}
