//! The language models of Qwen 2, 2.5 and 3 VL. Positions have three axes, which are alike for text.

use super::{qwen, turn_by_axes};
use crate::{LoadOptions, ModelError, config, spec::Spec};
use serde_json::{Value, json};

pub(super) fn qwen2_vl(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    qwen2(config, "qwen2_vl", options)
}

pub(super) fn qwen2_5_vl(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    qwen2(config, "qwen2_5_vl", options)
}

pub(super) fn qwen3_vl(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::refuse("qwen3_vl", config, "use_sliding_window")?;
    let defaults = [("head_dim", json!(128)), ("rope_theta", json!(500_000.0))];
    let config = plain(config, &defaults);
    let mut spec = Spec { family: "qwen3_vl", ..qwen::qwen3(&config, options)? };
    turn_by_axes(&mut spec, &config, [24, 20, 20], false)?;
    Ok(spec)
}

fn qwen2(
    config: &Value,
    family: &'static str,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let defaults = [
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(1_000_000.0)),
        ("max_window_layers", json!(80)),
    ];
    let config = plain(config, &defaults);
    let mut spec = Spec { family, ..qwen::qwen2(&config, options)? };
    turn_by_axes(&mut spec, &config, [16, 24, 24], true)?;
    Ok(spec)
}

/// The configuration with defaults, and with a rotary section that says what is done to text. An angle base that
/// the section has is not given twice.
fn plain(config: &Value, defaults: &[(&str, Value)]) -> Value {
    let sections = ["rope_scaling", "rope_parameters"];
    let theta = |name| config::section(config, name).is_some_and(|s| s.get("rope_theta").is_some());
    let based = sections.into_iter().any(theta);
    let defaults: Vec<_> =
        defaults.iter().filter(|(name, _)| !(based && *name == "rope_theta")).cloned().collect();
    let mut config = config::with_defaults(config, &defaults);
    for name in sections {
        let Some(fields) = config.get_mut(name).and_then(Value::as_object_mut) else { continue };
        for kind in ["rope_type", "type"] {
            if fields.get(kind).is_some_and(|kind| kind == "mrope") {
                fields.insert(kind.to_owned(), json!("default"));
            }
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_angle_base_is_given_once() {
        let defaults = [("rope_theta", json!(5.0))];
        let section = json!({"rope_parameters": {"rope_type": "mrope", "rope_theta": 7.0}});
        let config = plain(&section, &defaults);
        assert!(config.get("rope_theta").is_none());
        assert_eq!(config["rope_parameters"]["rope_type"], "default");
        assert_eq!(plain(&json!({}), &defaults)["rope_theta"], 5.0);
    }
}
