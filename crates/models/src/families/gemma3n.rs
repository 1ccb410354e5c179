//! Gemma 3n text: several streams, embeddings a layer, shared keys and values, sparse feed-forwards.

use super::{common, context, gemma4};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    norms::LayerNorms,
    spec::{MixerSpec, MlpSpec, PerLayerSpec, SharingSpec, Spec, StreamSpec, Values},
};
use serde::Deserialize;
use serde_json::{Value, json};
use taper_tensor::ops::Activation;

const FAMILY: &str = "gemma3n_text";
const GLOBAL: usize = 0;
const LOCAL: usize = 1;
/// Every so many layers one is global, where `layer_types` is missing.
const PATTERN: usize = 5;

#[derive(Deserialize)]
struct Own {
    num_kv_shared_layers: usize,
    hidden_size_per_layer_input: usize,
    vocab_size_per_layer_input: usize,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    rope_local_base_freq: Option<f64>,
    final_logit_softcapping: Option<f32>,
    altup_active_idx: usize,
    altup_num_inputs: usize,
    altup_correct_scale: bool,
    laurel_rank: usize,
    activation_sparsity_pattern: Option<Each<f64>>,
}

/// A number for every layer, or for each its own.
#[derive(Deserialize)]
#[serde(untagged)]
enum Each<T> {
    One(T),
    Many(Vec<T>),
}

impl<T: Copy> Each<T> {
    fn of(&self, layer: usize, layers: usize) -> Option<T> {
        match self {
            Self::One(one) => Some(*one),
            Self::Many(many) => many.get(layer).filter(|_| many.len() == layers).copied(),
        }
    }
}

pub(super) fn gemma3n(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_activation", &["gelu_pytorch_tanh"])?;
    let config = &with_published_defaults(config);
    let inner: Each<usize> =
        config::parse(FAMILY, config.get("intermediate_size").unwrap_or(&Value::Null))?;
    let one = inner.of(0, config::parse(FAMILY, &config["num_hidden_layers"])?);
    let config = &config::with(config, "intermediate_size", one.unwrap_or(0).into());
    let shape: Shape = config::parse(FAMILY, config)?;
    let own: Own = config::parse(FAMILY, config)?;
    config::refuse(FAMILY, config, "attention_bias")?;
    config::factors(FAMILY, &[("final_logit_softcapping", own.final_logit_softcapping)])?;
    let local = own.rope_local_base_freq.unwrap_or(10_000.0);
    let (global, local) = config::ropes_by_type(FAMILY, config, 1_000_000.0, local)?;
    let mut spec = common(FAMILY, &shape, &global, options)?;
    spec.ropes.push(local.table(context(FAMILY, &shape, options))?);
    spec.norms = LayerNorms::SANDWICH;
    spec.activation = Activation::GeluTanh;
    spec.attn_scale = 1.0;
    spec.logit_soft_cap = own.final_logit_softcapping;
    spec.embed_scale = Some((spec.hidden as f32).sqrt());
    spec.tied = shape.tied(true);
    spec.streams = Some(own.streams()?);
    spec.per_layer = Some(own.per_layer()?);
    let n = spec.layers.len();
    let slides = |i: usize| {
        let otherwise = !(i + 1).is_multiple_of(PATTERN);
        config::slides(FAMILY, own.layer_types.as_deref(), i, otherwise)
    };
    let slides = (0..n).map(slides).collect::<Result<Vec<_>, _>>()?;
    let values = gemma4::sources(FAMILY, &slides, own.num_kv_shared_layers)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.mixer = MixerSpec::Sharing(SharingSpec {
            heads: shape.num_attention_heads,
            kv_heads: shape.kv_heads(),
            head_dim: shape.head_dim(),
            rope: if slides[i] { LOCAL } else { GLOBAL },
            window: own.sliding_window.filter(|_| slides[i]),
            values: values[i].map_or(Values::Own, Values::Of),
        });
        let inner =
            inner.of(i, n).ok_or_else(|| unsupported("intermediate_size", "a short list"))?;
        config::size(FAMILY, "intermediate_size", inner, config::MAX_SIZE)?;
        layer.mlp = match own.sparsity(i, n)? {
            share if share > 0.0 => MlpSpec::Sparse(inner, quantile(share) as f32),
            _ => MlpSpec::Dense(inner),
        };
    }
    Ok(spec)
}

impl Own {
    fn streams(&self) -> Result<StreamSpec, ModelError> {
        let (count, active) = (self.altup_num_inputs, self.altup_active_idx);
        config::size(FAMILY, "altup_num_inputs", count, 64)?;
        config::size(FAMILY, "laurel_rank", self.laurel_rank, config::MAX_SIZE)?;
        if active >= count {
            return Err(unsupported("altup_active_idx", &format!("{active} of {count}")));
        }
        let (scaled, laurel) = (self.altup_correct_scale, self.laurel_rank);
        Ok(StreamSpec { count, active, scaled, laurel })
    }

    fn per_layer(&self) -> Result<PerLayerSpec, ModelError> {
        let (size, vocab) = (self.hidden_size_per_layer_input, self.vocab_size_per_layer_input);
        config::size(FAMILY, "hidden_size_per_layer_input", size, config::MAX_HEAD_DIM)?;
        config::size(FAMILY, "vocab_size_per_layer_input", vocab, config::MAX_SIZE)?;
        Ok(PerLayerSpec { size, vocab })
    }

    /// The share of a layer's inner activations that are left out.
    fn sparsity(&self, layer: usize, layers: usize) -> Result<f64, ModelError> {
        const FIELD: &str = "activation_sparsity_pattern";
        let Some(pattern) = &self.activation_sparsity_pattern else {
            return Ok(if layers > 10 && layer < 10 { 0.95 } else { 0.0 });
        };
        let share = pattern.of(layer, layers).ok_or_else(|| unsupported(FIELD, "a short list"))?;
        match (0.0..=0.999_999).contains(&share) {
            true => Ok(share),
            false => Err(unsupported(FIELD, &share.to_string())),
        }
    }
}

/// How many standard deviations above the mean so large a share of a normal distribution is below.
fn quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-6.0, 6.0);
    for _ in 0..64 {
        let middle = (low + high) / 2.0;
        match below(middle) < share {
            true => low = middle,
            false => high = middle,
        }
    }
    (low + high) / 2.0
}

/// The share of a normal distribution that is below `x`, by the series `1/2 + density(x) (x + x³/3 + x⁵/15 ...)`.
fn below(x: f64) -> f64 {
    let (mut term, mut sum, mut odd) = (x, x, 3.0);
    while term.abs() > 1e-17 * sum.abs() {
        term *= x * x / odd;
        sum += term;
        odd += 2.0;
    }
    0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

fn unsupported(field: &'static str, value: &str) -> ModelError {
    ModelError::Unsupported { family: FAMILY, field, value: value.to_owned() }
}

/// Published multimodal checkpoints leave out of `text_config` what equals the defaults.
fn with_published_defaults(config: &Value) -> Value {
    let defaults = [
        ("vocab_size", json!(262_400)),
        ("hidden_size", json!(2048)),
        ("intermediate_size", json!(16_384)),
        ("num_hidden_layers", json!(35)),
        ("num_attention_heads", json!(8)),
        ("num_key_value_heads", json!(2)),
        ("head_dim", json!(256)),
        ("max_position_embeddings", json!(32_768)),
        ("sliding_window", json!(512)),
        ("final_logit_softcapping", json!(30.0)),
        ("vocab_size_per_layer_input", json!(262_144)),
        ("hidden_size_per_layer_input", json!(256)),
        ("altup_active_idx", json!(0)),
        ("altup_correct_scale", json!(true)),
        ("altup_num_inputs", json!(4)),
        ("num_kv_shared_layers", json!(15)),
        ("laurel_rank", json!(64)),
    ];
    config::with_defaults(config, &defaults)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 32, "intermediate_size": [8, 6, 8], "num_hidden_layers": 3,
               "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 8,
               "layer_types": ["sliding_attention", "full_attention", "full_attention"],
               "num_kv_shared_layers": 1, "activation_sparsity_pattern": [0.95, 0.0, 0.5]})
    }

    #[test]
    fn quantiles_are_those_of_a_normal_distribution() {
        for (share, x) in [(0.5, 0.0), (0.95, 1.644_853_626_951_47), (0.999, 3.090_232_306_167_81)]
        {
            assert!((quantile(share) - x).abs() < 1e-9, "{share}: {}", quantile(share));
            assert!((quantile(1.0 - share) + x).abs() < 1e-9, "{share}");
        }
    }

    #[test]
    fn layers_differ_in_size_and_sparsity() {
        let spec = gemma3n(&config(), LoadOptions::default()).unwrap();
        let MlpSpec::Sparse(8, most) = spec.layers[0].mlp else { panic!("sparse") };
        assert!((most - 1.644_853_6).abs() < 1e-6);
        assert_eq!(spec.layers[1].mlp, MlpSpec::Dense(6));
        let MixerSpec::Sharing(last) = spec.layers[2].mixer else { panic!("shares") };
        assert_eq!((last.values, last.window), (Values::Of(1), None));
    }

    #[test]
    fn what_is_not_computed_is_refused_by_its_field() {
        for (field, value) in [
            ("altup_active_idx", json!(4)),
            ("altup_num_inputs", json!(0)),
            ("laurel_rank", json!(0)),
            ("attention_bias", json!(true)),
            ("num_kv_shared_layers", json!(2)),
            ("intermediate_size", json!([8, 8])),
            ("activation_sparsity_pattern", json!([0.5, 0.5, 1.0])),
            ("activation_sparsity_pattern", json!([0.5])),
            ("hidden_size_per_layer_input", json!(0)),
        ] {
            let mut config = config();
            config[field] = value;
            let error = gemma3n(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{field}: {error}");
        }
    }
}
