//! Fields that several families read alike.

use super::{parse, rope, section, slides};
use crate::{ModelError, rope::RopeConfig, spec::Spec};
use serde::Deserialize;
use serde_json::Value;
use taper_tensor::ops::Activation;

/// The configuration with what a family takes for fields that are not there. A field of `null` is there: it often
/// means that there is no such thing.
pub(crate) fn with_defaults(config: &Value, defaults: &[(&str, Value)]) -> Value {
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        for (field, value) in defaults {
            fields.entry(*field).or_insert_with(|| value.clone());
        }
    }
    config
}

/// The configuration with a value for one field, where it says nothing of it, or `null`.
pub(crate) fn with_default(config: &Value, field: &str, value: impl Into<Value>) -> Value {
    match config.get(field).is_none_or(Value::is_null) {
        true => with(config, field, value.into()),
        false => config.clone(),
    }
}

/// The configuration with another value of a field.
pub(crate) fn with(config: &Value, field: &str, value: Value) -> Value {
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
    config
}

/// Fails where a setting is on that the family does not implement.
pub(crate) fn refuse(
    family: &'static str,
    config: &Value,
    field: &'static str,
) -> Result<(), ModelError> {
    match config.get(field) {
        None | Some(Value::Null | Value::Bool(false)) => Ok(()),
        Some(value) => Err(ModelError::Unsupported { family, field, value: value.to_string() }),
    }
}

/// Fails where there are rotary settings beside `rope_parameters` that a family with a section for each kind of layer
/// does not read: `rope_scaling`, and another angle base than that of layers that see all tokens.
pub(crate) fn refuse_other_ropes(
    family: &'static str,
    config: &Value,
    full: &RopeConfig,
) -> Result<(), ModelError> {
    let theta = config.get("rope_theta").filter(|v| !v.is_null() && v.as_f64() != full.rope_theta);
    let scaling = section(config, "rope_scaling");
    for (field, value) in [("rope_scaling", scaling), ("rope_theta", theta)] {
        if let Some(value) = value {
            return Err(ModelError::Unsupported { family, field, value: value.to_string() });
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Biases {
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
}

/// Biases of all projections of attention, and of the feed-forward's, as Llama's two fields say.
pub(crate) fn biases(spec: &mut Spec, config: &Value) -> Result<(), ModelError> {
    let own: Biases = parse(spec.family, config)?;
    let attention = own.attention_bias.unwrap_or(false);
    (spec.qkv_bias, spec.out_bias) = (attention, attention);
    spec.mlp_bias = own.mlp_bias.unwrap_or(false);
    Ok(())
}

/// The activation that a field names, or the family's.
pub(crate) fn activation(
    family: &'static str,
    config: &Value,
    field: &'static str,
    default: Activation,
) -> Result<Activation, ModelError> {
    match config.get(field).filter(|v| !v.is_null()).map(|v| v.as_str().unwrap_or_default()) {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu") => Ok(Activation::Gelu),
        Some("gelu_new" | "gelu_fast" | "gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some("relu2") => Ok(Activation::Relu2),
        Some(_) => {
            let value = config.get(field).map(ToString::to_string).unwrap_or_default();
            Err(ModelError::Unsupported { family, field, value })
        }
    }
}

#[derive(Deserialize)]
struct Windows {
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
}

/// The sliding window of each layer: `layer_types` says which have one, or else the family.
pub(crate) fn windows(
    family: &'static str,
    config: &Value,
    layers: usize,
    otherwise: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>, ModelError> {
    let own: Windows = parse(family, config)?;
    let window = |i| {
        let slides = slides(family, own.layer_types.as_deref(), i, otherwise(i))?;
        Ok(own.sliding_window.filter(|_| slides))
    };
    (0..layers).map(window).collect()
}

/// The rotary settings of layers without a window, and of those with one. Newer files have a section for each;
/// in older ones scaling is the former's only. As in transformers, `rope_scaling` changes what `rope_parameters`
/// says of the former.
pub(crate) fn ropes_by_type(
    family: &'static str,
    config: &Value,
    full_theta: f64,
    sliding_theta: f64,
) -> Result<(RopeConfig, RopeConfig), ModelError> {
    let parameters = section(config, "rope_parameters");
    let kind = |name: &str| parameters.and_then(|p| section(p, name));
    let (full, sliding) = (kind("full_attention"), kind("sliding_attention"));
    if full.is_none() && sliding.is_none() {
        let full = rope(family, config, full_theta)?;
        return Ok((full, RopeConfig::with_theta(sliding_theta)));
    }
    let mut whole = config.clone();
    if let Some(fields) = whole.as_object_mut() {
        let scaling = section(config, "rope_scaling").and_then(Value::as_object);
        let mut merged = full.and_then(Value::as_object).cloned().unwrap_or_default();
        merged.extend(scaling.cloned().unwrap_or_default());
        fields.shift_remove("rope_scaling");
        fields.insert("rope_parameters".to_owned(), merged.into());
    }
    let full = rope(family, &whole, full_theta)?;
    let mut local = match sliding {
        Some(section) => parse::<RopeConfig>(family, section)?,
        None => RopeConfig::default(),
    };
    local.rope_theta.get_or_insert(sliding_theta);
    Ok((full, local))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_on_is_refused_by_name() {
        let config = json!({"off": false, "nothing": null, "on": true, "ten": 10});
        for field in ["missing", "off", "nothing"] {
            assert!(refuse("x", &config, field).is_ok());
        }
        for field in ["on", "ten"] {
            assert!(refuse("x", &config, field).unwrap_err().to_string().contains(field));
        }
    }

    #[test]
    fn rotations_are_said_in_one_place() {
        let full = RopeConfig::with_theta(500.0);
        let refused = |config| refuse_other_ropes("x", &config, &full).is_err();
        for nothing in [json!({}), json!({"rope_theta": 500, "rope_scaling": {}})] {
            assert!(!refused(nothing));
        }
        assert!(refused(json!({"rope_theta": 600.0})));
        assert!(refused(json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}})));
    }

    #[test]
    fn unknown_activations_are_refused() {
        let config = json!({"a": "gelu_new", "b": null, "c": "mish", "d": 3});
        let named = |field| activation("x", &config, field, Activation::Silu);
        assert_eq!(named("a").unwrap(), Activation::GeluTanh);
        assert_eq!(named("b").unwrap(), Activation::Silu);
        assert_eq!(named("missing").unwrap(), Activation::Silu);
        assert!(named("c").unwrap_err().to_string().contains("mish"));
        assert!(named("d").is_err());
    }

    #[test]
    fn windows_need_a_type_for_each_layer() {
        let config =
            json!({"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]});
        assert_eq!(windows("x", &config, 2, |_| true).unwrap(), [None, Some(8)]);
        assert!(windows("x", &config, 3, |_| true).is_err());
        let config = json!({"sliding_window": 8});
        assert_eq!(windows("x", &config, 2, |i| i == 0).unwrap(), [Some(8), None]);
    }
}
