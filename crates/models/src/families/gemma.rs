//! Gemma, Gemma 2 and VaultGemma: norms stored as `w - 1`, scaled embeddings; the others with capped scores
//! and logits and a window in every other layer; the second with four norms a layer.

use super::read;
use crate::{LoadOptions, ModelError, config, norms::LayerNorms, spec::Spec};
use serde::Deserialize;
use serde_json::{Value, json};
use taper_tensor::ops::Activation;

const SECOND: &str = "gemma2";

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    attention_bias: bool,
    query_pre_attn_scalar: Option<f32>,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    attn_logit_softcapping: Option<f32>,
    final_logit_softcapping: Option<f32>,
    use_bidirectional_attention: Option<bool>,
}

pub(super) fn gemma(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    Ok(build("gemma", config, options)?.0)
}

pub(super) fn gemma2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    later(SECOND, LayerNorms::SANDWICH, config, options)
}

/// Gemma 2 without norms after attention and feed-forward (arXiv 2510.15001).
pub(super) fn vaultgemma(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    // What transformers takes where nothing is said.
    let caps = [("attn_logit_softcapping", json!(50.0)), ("final_logit_softcapping", json!(30.0))];
    let config = &config::with_defaults(config, &caps);
    let norms = LayerNorms { mlp: Some("pre_feedforward_layernorm"), ..LayerNorms::PRE };
    later("vaultgemma", norms, config, options)
}

fn later(
    family: &'static str,
    norms: LayerNorms,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let (mut spec, own) = build(family, config, options)?;
    let scalar = own.query_pre_attn_scalar.unwrap_or(256.0);
    let factors = [
        ("query_pre_attn_scalar", Some(scalar)),
        ("attn_logit_softcapping", own.attn_logit_softcapping),
        ("final_logit_softcapping", own.final_logit_softcapping),
    ];
    config::factors(family, &factors)?;
    spec.norms = norms;
    spec.attn_scale = scalar.powf(-0.5);
    spec.attn_soft_cap = own.attn_logit_softcapping;
    spec.logit_soft_cap = own.final_logit_softcapping;
    let window = own.sliding_window.or(Some(4096));
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let even = i.is_multiple_of(2);
        let slides = config::slides(family, own.layer_types.as_deref(), i, even)?;
        layer.set_window(window.filter(|_| slides));
    }
    Ok(spec)
}

fn build(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<(Spec, Own), ModelError> {
    // Published files of the first Gemma say "gelu" and mean its approximation by tanh.
    config::require(family, config, "hidden_act", &["gelu_pytorch_tanh", "gelu"])?;
    config::require(family, config, "hidden_activation", &["gelu_pytorch_tanh"])?;
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        // What transformers takes where nothing is said.
        fields.entry("head_dim").or_insert_with(|| 256.into());
    }
    let own: Own = config::parse(family, &config)?;
    if own.use_bidirectional_attention == Some(true) {
        let (field, value) = ("use_bidirectional_attention", "true".to_owned());
        return Err(ModelError::Unsupported { family, field, value });
    }
    let (shape, mut spec) = read(family, &config, 10_000.0, options)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.norm_offset = 1.0;
    spec.activation = Activation::GeluTanh;
    spec.embed_scale = Some((spec.hidden as f32).sqrt());
    spec.tied = shape.tied(true);
    Ok((spec, own))
}
