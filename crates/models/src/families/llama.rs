//! Llama 2 to 3.3, and Mistral and Ministral, which add a sliding window; TeleChat 3 and MiMo.

use super::read;
use crate::{LoadOptions, ModelError, config, spec::Spec};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    /// Mistral's and Ministral's, where nothing is said; null says none.
    #[serde(default = "window")]
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
}

fn window() -> Option<usize> {
    Some(4096)
}

pub(super) fn llama(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, own) = build("llama", config, options)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.mlp_bias = own.mlp_bias;
    Ok(spec)
}

/// IQuest-Coder: Llama without what its own code could do besides.
pub(super) fn iquestcoder(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    for field in ["clip_qkv", "use_sliding_window"] {
        config::refuse("iquestcoder", config, field)?;
    }
    let defaults = [("head_dim", json!(128)), ("rms_norm_eps", json!(1e-5))];
    let spec = llama(&config::with_defaults(config, &defaults), options)?;
    Ok(Spec { family: "iquestcoder", ..spec })
}

/// Code World Model: Llama with windows in three of four layers.
pub(super) fn cwm(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let defaults =
        [("rms_norm_eps", json!(1e-5)), ("head_dim", json!(128)), ("sliding_window", json!(8192))];
    let mut config = config::with_defaults(config, &defaults);
    let says = |name| config::section(&config, name).is_some();
    if !says("rope_parameters")
        && !says("rope_scaling")
        && let Some(fields) = config.as_object_mut()
    {
        let llama3 = json!({
            "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        });
        fields.insert("rope_scaling".to_owned(), llama3);
    }
    config::require("cwm", &config, "hidden_act", &["silu"])?;
    let (_, mut spec) = read("cwm", &config, 1_000_000.0, options)?;
    let fourths = |i: usize| !i.is_multiple_of(4);
    let windows = config::windows("cwm", &config, spec.layers.len(), fourths)?;
    spec.layers.iter_mut().zip(windows).for_each(|(layer, window)| layer.set_window(window));
    Ok(spec)
}

/// The language model of Idefics 3 and SmolVLM, which is Llama's.
pub(super) fn idefics3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    match config.get("model_type").and_then(Value::as_str) {
        Some("llama") | None => llama(config, options),
        Some(other) => {
            let (family, field) = ("idefics3", "text_config.model_type");
            Err(ModelError::Unsupported { family, field, value: other.to_owned() })
        }
    }
}

/// What a model that sees has of Llama or Mistral. Published files leave out what equals Llama's defaults.
pub(super) fn llava(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let defaults = [
        ("vocab_size", json!(32_000)),
        ("hidden_size", json!(4096)),
        ("intermediate_size", json!(11_008)),
        ("num_hidden_layers", json!(32)),
        ("num_attention_heads", json!(32)),
        ("max_position_embeddings", json!(2048)),
    ];
    let llama = &config::with_defaults(config, &defaults);
    match config.get("model_type").and_then(Value::as_str) {
        Some("llama") | None => self::llama(llama, options),
        // Mistral's defaults differ, but for these.
        Some("mistral") => {
            let own = [
                ("num_key_value_heads", json!(8)),
                ("intermediate_size", json!(14_336)),
                ("max_position_embeddings", json!(131_072)),
            ];
            mistral(
                &config::with_defaults(&config::with_defaults(config, &own), &defaults),
                options,
            )
        }
        Some(other) => {
            let (family, field) = ("llava", "text_config.model_type");
            Err(ModelError::Unsupported { family, field, value: other.to_owned() })
        }
    }
}

pub(super) fn telechat3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, _) = build("telechat3", config, options)?;
    config::biases(&mut spec, config)?;
    Ok(spec)
}

/// Llama with biases of queries, keys and values.
pub(super) fn mimo(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::refuse("mimo", config, "use_sliding_window")?;
    let (mut spec, _) = build("mimo", config, options)?;
    spec.qkv_bias = true;
    Ok(spec)
}

pub(super) fn mistral(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, own) = build("mistral", config, options)?;
    spec.layers.iter_mut().for_each(|layer| layer.set_window(own.sliding_window));
    Ok(spec)
}

/// Mistral with a window in some layers.
pub(super) fn ministral(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, own) = build("ministral", config, options)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let slides = config::slides("ministral", own.layer_types.as_deref(), i, true)?;
        layer.set_window(own.sliding_window.filter(|_| slides));
    }
    Ok(spec)
}

fn build(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<(Spec, Own), ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    Ok((read(family, config, 10_000.0, options)?.1, config::parse(family, config)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::LayerSpec;

    type Build = fn(&Value, LoadOptions<'_>) -> Result<Spec, ModelError>;

    fn window(build: Build, field: &str, value: Value) -> Option<usize> {
        let mut config = json!({
            "vocab_size": 8, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 16,
            "model_type": "mistral",
        });
        config[field] = value;
        let spec = build(&config, LoadOptions::default()).unwrap();
        spec.layers.first().and_then(LayerSpec::window)
    }

    #[test]
    fn mistral_has_a_window_unless_there_is_said_to_be_none() {
        for build in [mistral as Build, ministral, llava] {
            assert_eq!(window(build, "unused", Value::Null), Some(4096));
            assert_eq!(window(build, "sliding_window", json!(8)), Some(8));
            assert_eq!(window(build, "sliding_window", Value::Null), None);
        }
        assert_eq!(window(llama, "sliding_window", json!(8)), None);
        assert_eq!(window(llava, "model_type", json!("llama")), None);
    }
}
