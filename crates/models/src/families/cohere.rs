//! Cohere's Command R and Aya (`cohere`) and Command R7B and A (`cohere2`): attention and feed-forward read the same
//! norm, neighbours are rotated, logits are scaled; the second with windows, and rotated only there.

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    norms::{LayerNorms, NormKind},
    spec::{MixerSpec, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};

const SECOND: &str = "cohere2";

#[derive(Deserialize)]
struct Own {
    logit_scale: f32,
    /// Every n-th layer has no window, where `layer_types` is missing.
    sliding_window_pattern: Option<usize>,
}

pub(super) fn cohere(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    Ok(build("cohere", config, 500_000.0, options)?.0)
}

pub(super) fn cohere2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let config = &config::with_defaults(config, &[("sliding_window", json!(4096))]);
    let (mut spec, own) = build(SECOND, config, 10_000.0, options)?;
    let pattern = own.sliding_window_pattern.unwrap_or(4);
    let slides = |i: usize| !(i + 1).is_multiple_of(pattern);
    let windows = config::windows(SECOND, config, spec.layers.len(), slides)?;
    for (layer, window) in spec.layers.iter_mut().zip(windows) {
        layer.mixer = MixerSpec::attention(window.map(|_| 0), window);
    }
    Ok(spec)
}

fn build(
    family: &'static str,
    config: &Value,
    theta: f64,
    options: LoadOptions<'_>,
) -> Result<(Spec, Own), ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    config::refuse(family, config, "use_qk_norm")?;
    let config = &config::one_name(config, "rms_norm_eps", "layer_norm_eps")?;
    let config = &config::one_name(config, "sliding_window_pattern", "_sliding_window_pattern")?;
    let defaults = [("rms_norm_eps", json!(1e-5)), ("logit_scale", json!(0.0625))];
    let config = &config::with_defaults(config, &defaults);
    let own: Own = config::parse(family, config)?;
    config::factors(family, &[("logit_scale", Some(own.logit_scale))])?;
    let (shape, mut spec) = read(family, config, theta, options)?;
    spec.norm = NormKind::Layer;
    spec.norms = LayerNorms::SHARED;
    spec.parallel = true;
    spec.interleaved = true;
    spec.logit_scale = Some(own.logit_scale);
    spec.tied = shape.tied(true);
    config::biases(&mut spec, config)?;
    Ok((spec, own))
}
