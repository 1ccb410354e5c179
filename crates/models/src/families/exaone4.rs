//! EXAONE 4: norms after attention and feed-forward, normed heads; layers without a window are not rotated, where
//! there are windows.

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    norms::LayerNorms,
    spec::{MixerSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};

const FAMILY: &str = "exaone4";

#[derive(Deserialize)]
struct Own {
    sliding_window: Option<usize>,
    sliding_window_pattern: Option<Pattern>,
}

/// Which layers have a window, where `layer_types` is missing.
#[derive(Deserialize)]
#[serde(untagged)]
enum Pattern {
    /// All but every n-th.
    Every(usize),
    /// `L` where a layer has one, `G` where it has none, over and over.
    Letters(String),
}

impl Pattern {
    fn slides(&self, layer: usize) -> bool {
        match self {
            Self::Every(n) => !(layer + 1).is_multiple_of(*n),
            Self::Letters(letters) => {
                let at = layer.checked_rem(letters.len());
                at.is_some_and(|at| letters.as_bytes().get(at) == Some(&b'L'))
            }
        }
    }
}

pub(super) fn exaone4(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let defaults = [
        ("rms_norm_eps", json!(1e-5)),
        ("sliding_window", json!(4096)),
        ("sliding_window_pattern", json!(4)),
    ];
    let config = &config::with_defaults(config, &defaults);
    let own: Own = config::parse(FAMILY, config)?;
    let (_, mut spec) = read(FAMILY, config, 10_000.0, options)?;
    spec.norms = LayerNorms::POST;
    spec.qk_norm = Some(QkNorm::Head);
    let pattern = |i| own.sliding_window_pattern.as_ref().is_some_and(|p| p.slides(i));
    let windows = config::windows(FAMILY, config, spec.layers.len(), pattern)?;
    for (layer, window) in spec.layers.iter_mut().zip(windows) {
        let rotates = own.sliding_window.is_none() || window.is_some();
        layer.mixer = MixerSpec::attention(rotates.then_some(0), window);
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_the_layers_with_a_window() {
        let sliding = |p: Pattern| (0..4).map(|i| p.slides(i)).collect::<Vec<_>>();
        assert_eq!(sliding(Pattern::Every(2)), [true, false, true, false]);
        assert_eq!(sliding(Pattern::Every(0)), [true; 4]);
        assert_eq!(sliding(Pattern::Letters("LLG".into())), [true, true, false, true]);
        assert_eq!(sliding(Pattern::Letters(String::new())), [false; 4]);
    }
}
