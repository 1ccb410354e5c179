//! Muse Glimmer's language model: normed embeddings, Gemma's four norms a layer, heads normed without weights, gated
//! attention; layers without a window are not rotated.

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    norms::LayerNorms,
    spec::{AttentionGate, MixerSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};

const FAMILY: &str = "muse_glimmer";
const THETA: f64 = 10_000.0;

#[derive(Deserialize)]
struct Own {
    attention_bias: Option<bool>,
    qk_scale_factor: f32,
    output_multiplier: f32,
    final_logit_softcapping: Option<f32>,
    post_norm_eps: f32,
    /// 0 where a layer is not rotated.
    layer_rope_theta: Option<Vec<f64>>,
}

pub(super) fn muse_glimmer(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_activation", &["silu"])?;
    let defaults = [
        ("rms_norm_eps", json!(1e-5)),
        ("head_dim", json!(128)),
        ("sliding_window", json!(2048)),
        ("qk_scale_factor", json!(3.87)),
        ("output_multiplier", json!(0.196_116_135_138_184_04)),
        ("final_logit_softcapping", json!(20.0)),
        ("post_norm_eps", json!(1e-8)),
    ];
    let config = &config::with_defaults(config, &defaults);
    let own: Own = config::parse(FAMILY, config)?;
    own.check(config)?;
    let (_, mut spec) = read(FAMILY, config, THETA, options)?;
    spec.norms = LayerNorms::SANDWICH;
    spec.norm_offset = 1.0;
    spec.last_norm_offset = Some(0.0);
    spec.after_norm_eps = Some(own.post_norm_eps);
    spec.embed_norm = true;
    spec.qk_norm = Some(QkNorm::HeadPlain);
    spec.attention_gate = Some(AttentionGate::Projected);
    let bias = own.attention_bias.unwrap_or(false);
    (spec.qkv_bias, spec.out_bias) = (bias, bias);
    // Queries are multiplied by it, once they are normed.
    spec.attn_scale *= own.qk_scale_factor;
    spec.logit_scale = Some(own.output_multiplier);
    spec.logit_soft_cap = own.final_logit_softcapping;
    let layers = spec.layers.len();
    let slides = |i: usize| !(layers - 1 - i).is_multiple_of(4);
    let windows = config::windows(FAMILY, config, layers, slides)?;
    for (i, (layer, window)) in spec.layers.iter_mut().zip(windows).enumerate() {
        let rotates = match &own.layer_rope_theta {
            Some(thetas) => thetas.get(i).is_some_and(|&theta| theta != 0.0),
            None => slides(i),
        };
        layer.mixer = MixerSpec::attention(rotates.then_some(0), window);
    }
    Ok(spec)
}

impl Own {
    fn check(&self, config: &Value) -> Result<(), ModelError> {
        let factors = [
            ("qk_scale_factor", Some(self.qk_scale_factor)),
            ("output_multiplier", Some(self.output_multiplier)),
            ("final_logit_softcapping", self.final_logit_softcapping),
        ];
        config::factors(FAMILY, &factors)?;
        if !(0.0..=1.0).contains(&self.post_norm_eps) {
            let (field, value) = ("post_norm_eps", self.post_norm_eps.to_string());
            let range = "it must be from 0 to 1".to_owned();
            return Err(ModelError::OutOfRange { family: FAMILY, field, value, range });
        }
        let layers = config.get("num_hidden_layers").and_then(Value::as_u64);
        let theta = config::rope(FAMILY, config, THETA)?.rope_theta;
        let Some(thetas) = &self.layer_rope_theta else { return Ok(()) };
        // The published code has one table for all layers.
        let other = thetas.iter().find(|&&own| own != 0.0 && Some(own) != theta);
        let value = match other {
            Some(theta) => theta.to_string(),
            None if layers != Some(thetas.len() as u64) => format!("{} entries", thetas.len()),
            None => return Ok(()),
        };
        Err(ModelError::Unsupported { family: FAMILY, field: "layer_rope_theta", value })
    }
}
