//! Gemma 3 text: five local layers to one global, four norms a layer, scaled embeddings.

use super::{common, context};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    norms::LayerNorms,
    spec::{MixerSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;
use taper_tensor::ops::Activation;

const FAMILY: &str = "gemma3_text";
const GLOBAL: usize = 0;
const LOCAL: usize = 1;

#[derive(Deserialize)]
struct Own {
    query_pre_attn_scalar: Option<f32>,
    sliding_window: Option<usize>,
    /// Every n-th layer is global, where `layer_types` is missing.
    sliding_window_pattern: Option<usize>,
    layer_types: Option<Vec<String>>,
    rope_local_base_freq: Option<f64>,
    attn_logit_softcapping: Option<f32>,
    final_logit_softcapping: Option<f32>,
    use_bidirectional_attention: Option<bool>,
}

pub(super) fn gemma3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_activation", &["gelu_pytorch_tanh"])?;
    let config = &with_published_defaults(config);
    let config = &config::one_name(config, "sliding_window_pattern", "_sliding_window_pattern")?;
    let shape: Shape = config::parse(FAMILY, config)?;
    let own: Own = config::parse(FAMILY, config)?;
    let local_theta = own.rope_local_base_freq.unwrap_or(10_000.0);
    let (global, local) = config::ropes_by_type(FAMILY, config, 1_000_000.0, local_theta)?;
    let mut spec = common(FAMILY, &shape, &global, options)?;
    spec.ropes.push(local.table(context(FAMILY, &shape, options))?);
    spec.norm_offset = 1.0;
    spec.norms = LayerNorms::SANDWICH;
    spec.qk_norm = Some(QkNorm::Head);
    spec.activation = Activation::GeluTanh;
    let scalar = own.query_pre_attn_scalar.unwrap_or(256.0);
    let factors = [
        ("query_pre_attn_scalar", Some(scalar)),
        ("attn_logit_softcapping", own.attn_logit_softcapping),
        ("final_logit_softcapping", own.final_logit_softcapping),
    ];
    config::factors(FAMILY, &factors)?;
    spec.attn_scale = scalar.powf(-0.5);
    spec.attn_soft_cap = own.attn_logit_softcapping;
    spec.logit_soft_cap = own.final_logit_softcapping;
    spec.embed_scale = Some((spec.hidden as f32).sqrt());
    spec.tied = shape.tied(true);
    let pattern = own.sliding_window_pattern.unwrap_or(6).max(1);
    let window = own.sliding_window.unwrap_or(4096);
    spec.bidirectional = own.use_bidirectional_attention == Some(true);
    // So many in all, before and after.
    let window = Some(if spec.bidirectional { window / 2 + 1 } else { window });
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let otherwise = !(i + 1).is_multiple_of(pattern);
        let local = config::slides(FAMILY, own.layer_types.as_deref(), i, otherwise)?;
        layer.mixer = if local {
            MixerSpec::attention(Some(LOCAL), window)
        } else {
            MixerSpec::attention(Some(GLOBAL), None)
        };
    }
    Ok(spec)
}

/// Published multimodal checkpoints leave out of `text_config` what equals the defaults.
fn with_published_defaults(config: &Value) -> Value {
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        for (field, default) in [
            ("vocab_size", 262_208),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("head_dim", 256),
            ("max_position_embeddings", 131_072),
        ] {
            fields.entry(field).or_insert_with(|| default.into());
        }
    }
    config
}
