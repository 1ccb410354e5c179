//! MiMo V2 Flash: layers with windows have twice the heads of keys and values, and attention sinks; values are shorter
//! than keys.
//!
//! The cache keeps keys and values of all layers alike: as many heads as layers with windows have, each as long as a
//! key.

use super::{common, context, laguna, routed};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    rope::RopeConfig,
    source::Renames,
    spec::{AttentionSpec, MixerSpec, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};

const FAMILY: &str = "mimo_v2_flash";
const RENAMES: Renames = &[("self_attn.sinks", "self_attn.attention_sink_bias")];
/// The part of a head that is rotated.
const PART: f64 = 0.334;

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    attention_bias: bool,
    v_head_dim: Option<usize>,
    /// Null says 1.
    #[serde(default = "value_scale")]
    attention_value_scale: Option<f32>,
    sliding_window: Option<usize>,
    /// Tokens before a token that it sees: the window, but for the token itself.
    sliding_window_size: Option<usize>,
    layer_types: Option<Vec<String>>,
    /// 1 where a layer has a window, 0 where it sees all tokens.
    hybrid_layer_pattern: Option<Vec<u8>>,
    mlp_layer_types: Option<Vec<String>>,
    /// 1 where a layer has experts.
    moe_layer_freq: Option<Vec<u8>>,
    partial_rotary_factor: Option<f64>,
    rope_theta: Option<f64>,
    swa_rope_theta: Option<f64>,
    // Of layers with windows.
    swa_num_attention_heads: Option<usize>,
    swa_num_key_value_heads: Option<usize>,
    swa_head_dim: Option<usize>,
    swa_v_head_dim: Option<usize>,
    add_swa_attention_sink_bias: Option<bool>,
    add_full_attention_sink_bias: Option<bool>,
}

fn value_scale() -> Option<f32> {
    Some(0.707)
}

pub(super) fn mimo_v2_flash(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    config::require(FAMILY, config, "scoring_func", &["sigmoid"])?;
    let config = &config::one_name(config, "rms_norm_eps", "layernorm_epsilon")?;
    let config = &config::with_default(config, "rms_norm_eps", 1e-5);
    let config = &config::with_default(config, "head_dim", 192);
    let shape: Shape = config::parse(FAMILY, config)?;
    let own: Own = config::parse(FAMILY, config)?;
    let mixture: routed::Mixture = config::parse(FAMILY, config)?;
    shape.check(FAMILY)?;
    let value = own.v_head_dim.unwrap_or(128);
    own.check(&shape, value)?;
    let [global, local] = own.ropes(config)?;
    let mut spec = common(FAMILY, &shape, &global, options)?;
    spec.ropes.push(local.table(context(FAMILY, &shape, options))?);
    (spec.renames, spec.qkv_bias) = (RENAMES, own.attention_bias);
    spec.kv_heads = 2 * shape.kv_heads();
    config::factors(FAMILY, &[("attention_value_scale", own.attention_value_scale)])?;
    (spec.window_sinks, spec.value_scale) = (true, own.attention_value_scale);
    spec.value_dim = (value != spec.head_dim).then_some(value);
    let window = own.sliding_window_size.map(|size| size.saturating_add(1));
    let window = window.or(own.sliding_window).or(Some(129));
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let slides = own.slides(i)?;
        let rope = if slides { laguna::LOCAL } else { 0 };
        let stored_kv_heads = (!slides).then_some(shape.kv_heads());
        let attention = AttentionSpec::new(Some(rope), window.filter(|_| slides));
        layer.mixer = MixerSpec::Attention(AttentionSpec { stored_kv_heads, ..attention });
    }
    let experts = mixture.experts((true, 1.0));
    mixture.place(&mut spec, experts, 1)?;
    Ok(spec)
}

impl Own {
    /// Refuses heads that the cache could not keep alike.
    fn check(&self, shape: &Shape, value: usize) -> Result<(), ModelError> {
        let (heads, d) = (shape.num_attention_heads, shape.head_dim());
        let bad =
            |field, value: String| Err(ModelError::Unsupported { family: FAMILY, field, value });
        if value == 0 || value > d {
            return bad("v_head_dim", value.to_string());
        }
        if !heads.is_multiple_of(2 * shape.kv_heads()) {
            return bad("num_key_value_heads", shape.kv_heads().to_string());
        }
        for (field, says, known) in [
            ("swa_num_attention_heads", self.swa_num_attention_heads, heads),
            ("swa_num_key_value_heads", self.swa_num_key_value_heads, 2 * shape.kv_heads()),
            ("swa_head_dim", self.swa_head_dim, d),
            ("swa_v_head_dim", self.swa_v_head_dim, value),
        ] {
            if let Some(other) = says.filter(|&says| says != known) {
                return bad(field, other.to_string());
            }
        }
        if self.add_swa_attention_sink_bias == Some(false) {
            return bad("add_swa_attention_sink_bias", "false".to_owned());
        }
        if self.add_full_attention_sink_bias == Some(true) {
            return bad("add_full_attention_sink_bias", "true".to_owned());
        }
        // Layers with experts are told as transformers tells them.
        match (&self.mlp_layer_types, &self.moe_layer_freq) {
            (None, Some(freq)) if freq.iter().enumerate().any(|(i, &f)| (f == 1) != (i > 0)) => {
                bad("moe_layer_freq", format!("{freq:?}"))
            }
            _ => Ok(()),
        }
    }

    fn slides(&self, layer: usize) -> Result<bool, ModelError> {
        let otherwise = match &self.hybrid_layer_pattern {
            Some(pattern) => match pattern.get(layer) {
                Some(0) => false,
                Some(1) => true,
                other => {
                    let value = other.map_or("too few entries".to_owned(), u8::to_string);
                    let field = "hybrid_layer_pattern";
                    return Err(ModelError::Unsupported { family: FAMILY, field, value });
                }
            },
            None => layer > 0 && !(layer + 1).is_multiple_of(6),
        };
        config::slides(FAMILY, self.layer_types.as_deref(), layer, otherwise)
    }

    /// Rotations of layers that see all tokens, and of those with a window.
    fn ropes(&self, config: &Value) -> Result<[RopeConfig; 2], ModelError> {
        let part = self.partial_rotary_factor.unwrap_or(PART);
        let thetas =
            [self.rope_theta.unwrap_or(5_000_000.0), self.swa_rope_theta.unwrap_or(10_000.0)];
        let mut config = config.clone();
        for kind in ["full_attention", "sliding_attention"] {
            let own = config.get_mut("rope_parameters").and_then(|p| p.get_mut(kind));
            if let Some(own) = own.and_then(Value::as_object_mut) {
                own.entry("partial_rotary_factor").or_insert(json!(part));
            }
        }
        let ropes = laguna::ropes(FAMILY, &config, thetas.map(|theta| (theta, part)))?;
        let [_, local] = &ropes;
        match self.swa_rope_theta.filter(|&theta| local.rope_theta != Some(theta)) {
            Some(theta) => {
                let (field, value) = ("swa_rope_theta", theta.to_string());
                Err(ModelError::Unsupported { family: FAMILY, field, value })
            }
            None => Ok(ropes),
        }
    }
}
