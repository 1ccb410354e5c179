//! The quantization that `config.json` describes.

mod method;

use crate::WeightsError;
use method::Method;
use serde_json::Value;
use std::collections::HashMap;
use taper_tensor::AffineFormat;

/// Which layers are quantized, and how.
///
/// ```json
/// "quantization": {"group_size": 64, "bits": 4, "mode": "affine",
///   "model.layers.0.mlp.down_proj": {"group_size": 64, "bits": 6},
///   "lm_head": false}
/// ```
/// Where other tools have written the section, it says little that tensors do not say.
#[derive(Debug, Clone, Default)]
pub struct Quantization {
    default: Option<AffineFormat>,
    /// `None`: in another of MLX's modes, which scales show.
    layers: HashMap<String, Option<AffineFormat>>,
    method: Option<Method>,
}

impl Quantization {
    /// Reads `quantization`, or `quantization_config` where that is missing.
    ///
    /// # Errors
    /// The section is malformed, or describes a method that is not read.
    pub fn from_config(config: &Value) -> Result<Self, WeightsError> {
        let places = ["/quantization", "/quantization_config", "/text_config/quantization_config"];
        let mut sections = places.into_iter().filter_map(|place| config.pointer(place));
        let Some(section) = sections.find(|s| !s.is_null()) else {
            return Ok(Self::default());
        };
        let bad =
            |layer: &str, reason| WeightsError::BadQuantization { layer: layer.into(), reason };
        let section = section.as_object().ok_or_else(|| bad("*", "is not an object"))?;
        if let Some(method) = Method::of(section)? {
            return Ok(Self { method: Some(method), ..Self::default() });
        }
        let default = format_of("*", section)?;
        let mut layers = HashMap::new();
        for (name, value) in section {
            match value {
                Value::Object(own) => {
                    layers.insert(name.clone(), format_of(name, own)?);
                }
                // `false`: kept dense; the missing scales say so as well.
                Value::Bool(_) if name.contains('.') || name == "lm_head" => {}
                _ if matches!(name.as_str(), "bits" | "group_size" | "mode" | "linear_class") => {}
                Value::Bool(_) => {}
                _ => return Err(bad(name, "is neither an object nor false")),
            }
        }
        Ok(Self { default, layers, method: None })
    }

    /// The affine format of a quantized layer, such as `model.layers.0.mlp.down_proj`.
    #[must_use]
    pub fn format(&self, layer: &str) -> Option<AffineFormat> {
        self.layers.get(layer).copied().unwrap_or(self.default)
    }
}

fn format_of(
    layer: &str,
    section: &serde_json::Map<String, Value>,
) -> Result<Option<AffineFormat>, WeightsError> {
    let bad = |reason| WeightsError::BadQuantization { layer: layer.into(), reason };
    match section.get("mode").and_then(Value::as_str) {
        None | Some("affine") => {}
        Some("mxfp4" | "mxfp8" | "nvfp4") => return Ok(None),
        Some(mode) => {
            return Err(WeightsError::UnsupportedQuantization { method: mode.to_owned() });
        }
    }
    let number = |key| section.get(key).and_then(Value::as_u64);
    let bits = number("bits").ok_or_else(|| bad("has no integer \"bits\""))?;
    let group = number("group_size").ok_or_else(|| bad("has no integer \"group_size\""))?;
    let format = AffineFormat {
        bits: u8::try_from(bits).unwrap_or(u8::MAX),
        group: usize::try_from(group).unwrap_or(usize::MAX),
    };
    if !AffineFormat::BITS.contains(&format.bits) {
        return Err(bad("\"bits\" is none of 2, 3, 4, 5, 6, 8"));
    }
    if !AffineFormat::GROUPS.contains(&format.group) {
        return Err(bad("\"group_size\" is none of 32, 64, 128"));
    }
    Ok(Some(format))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn uniform_overridden_and_absent() {
        let q = Quantization::from_config(&json!({})).unwrap();
        assert_eq!(q.format("lm_head"), None);
        let q = Quantization::from_config(&json!({"quantization_config": {
            "group_size": 64, "bits": 4,
            "model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 6},
            "lm_head": false
        }}));
        let q = q.unwrap();
        assert_eq!(q.format("x"), Some(AffineFormat { bits: 4, group: 64 }));
        let own = q.format("model.layers.0.mlp.down_proj");
        assert_eq!(own, Some(AffineFormat { bits: 6, group: 32 }));
    }

    #[test]
    fn other_methods_and_broken_sections_are_named() {
        let error = |q: Value| {
            let config = json!({ "quantization": q });
            Quantization::from_config(&config).unwrap_err().to_string()
        };
        assert!(error(json!({"quant_method": "hqq", "bits": 4})).contains("hqq"));
        assert!(error(json!({"mode": "mxfp3", "bits": 4, "group_size": 32})).contains("mxfp3"));
        assert!(error(json!({"bits": 7, "group_size": 64})).contains("bits"));
        assert!(error(json!({"bits": 4})).contains("group_size"));
        assert!(error(json!({"bits": 4, "group_size": 48})).contains("group_size"));
        assert!(error(json!({"bits": 4, "group_size": 64, "a.b": 3})).contains("a.b"));
        assert!(error(json!([])).contains("object"));
    }
}
