//! Hunyuan, dense: heads are normed after they are rotated, and a factor makes the angle base larger.

use super::read;
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    spec::{QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};

const FAMILY: &str = "hunyuan_v1_dense";

pub(super) fn hunyuan_v1_dense(
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    // Layers that share keys and values.
    config::refuse(FAMILY, config, "use_cla")?;
    let config = &config::with_defaults(config, &[("rms_norm_eps", json!(1e-5))]);
    let config = &with_alpha(FAMILY, config)?;
    let (_, mut spec) = read(FAMILY, config, 10_000.0, options)?;
    spec.qk_norm = Some(QkNorm::Rotated);
    spec.renames = &[("q_norm", "query_layernorm"), ("k_norm", "key_layernorm")];
    config::biases(&mut spec, config)?;
    Ok(spec)
}

#[derive(Deserialize)]
struct Scaling {
    rope_type: Option<String>,
    r#type: Option<String>,
    rope_theta: Option<f64>,
    alpha: Option<f64>,
}

#[derive(Deserialize)]
struct Theta {
    rope_theta: Option<f64>,
}

/// The configuration with an angle base that is `alpha^(d / (d - 2))` times larger in place of the "dynamic" scaling
/// that says so, for heads of `d` elements.
pub(super) fn with_alpha(family: &'static str, config: &Value) -> Result<Value, ModelError> {
    let sections = ["rope_scaling", "rope_parameters"];
    let found = sections.iter().find_map(|name| config::section(config, name));
    let Some(section) = found else { return Ok(config.clone()) };
    let own: Scaling = config::parse(family, section)?;
    let dynamic = own.rope_type.or(own.r#type).as_deref() == Some("dynamic");
    let Some(alpha) = own.alpha.filter(|_| dynamic) else { return Ok(config.clone()) };
    config::factors(family, &[("alpha", Some(alpha as f32))])?;
    let shape: Shape = config::parse(family, config)?;
    let beside: Theta = config::parse(family, config)?;
    shape.check(family)?;
    let d = shape.head_dim() as f64;
    if d < 4.0 {
        let (field, value) = ("head_dim", d.to_string());
        return Err(ModelError::Unsupported { family, field, value });
    }
    let theta = own.rope_theta.or(beside.rope_theta).unwrap_or(10_000.0);
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        sections.iter().for_each(|name| drop(fields.shift_remove(*name)));
        fields.insert("rope_theta".to_owned(), json!(theta * alpha.powf(d / (d - 2.0))));
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_makes_the_angle_base_larger() {
        let mut config = json!({"vocab_size": 8, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 2, "max_position_embeddings": 16, "rope_theta": 100.0,
            "rope_scaling": {"type": "dynamic", "alpha": 8.0}});
        let theta = |config: &Value| with_alpha(FAMILY, config).unwrap()["rope_theta"].as_f64();
        // 8^(8/6) = 16.
        assert!((theta(&config).unwrap() - 1600.0).abs() < 1e-6);
        config["rope_scaling"] = json!({"type": "linear", "factor": 2.0, "alpha": 8.0});
        assert_eq!(theta(&config), Some(100.0));
    }
}
