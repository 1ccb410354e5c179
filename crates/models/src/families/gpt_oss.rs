//! gpt-oss (arXiv 2508.10925): experts with biases and a clamped gate, attention sinks, every other layer with a
//! window.

use super::common;
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertNames, ExpertSpec},
    router::Route,
    spec::{MlpSpec, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};
use taper_tensor::ops::Activation;

const FAMILY: &str = "gpt_oss";

#[derive(Deserialize)]
struct Own {
    num_local_experts: usize,
    num_experts_per_tok: usize,
    attention_bias: Option<bool>,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    swiglu_alpha: Option<f64>,
    swiglu_limit: Option<f64>,
}

pub(super) fn gpt_oss(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let config = &config::one_name(config, "num_local_experts", "num_experts")?;
    let config = &with_published_defaults(config);
    let shape: Shape = config::parse(FAMILY, config)?;
    let own: Own = config::parse(FAMILY, config)?;
    own.check_gate()?;
    let rope = config::rope(FAMILY, config, 150_000.0)?;
    let mut spec = common(FAMILY, &shape, &rope, options)?;
    let bias = own.attention_bias.unwrap_or(true);
    (spec.qkv_bias, spec.out_bias) = (bias, bias);
    spec.attn_sinks = true;
    spec.activation = Activation::SwigluOai;
    let route = Route::softmax(own.num_experts_per_tok, true);
    let experts = ExpertSpec {
        bias: true,
        names: ExpertNames::GPT_OSS,
        ..ExpertSpec::new(own.num_local_experts, shape.intermediate_size, route)
    };
    experts.check(FAMILY)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let slides = config::slides(FAMILY, own.layer_types.as_deref(), i, i.is_multiple_of(2))?;
        layer.set_window(own.sliding_window.filter(|_| slides));
        layer.mlp = MlpSpec::Experts(experts);
    }
    Ok(spec)
}

impl Own {
    /// The kernels have the published gate only.
    fn check_gate(&self) -> Result<(), ModelError> {
        for (field, value, known) in
            [("swiglu_alpha", self.swiglu_alpha, 1.702), ("swiglu_limit", self.swiglu_limit, 7.0)]
        {
            if let Some(value) = value.filter(|&v| v != known) {
                let (family, value) = (FAMILY, value.to_string());
                return Err(ModelError::Unsupported { family, field, value });
            }
        }
        Ok(())
    }
}

/// What transformers takes where config.json says nothing.
fn with_published_defaults(config: &Value) -> Value {
    let mut config = config.clone();
    let says = |key| config::section(&config, key).is_some();
    let ropes = says("rope_parameters") || says("rope_scaling");
    let Some(fields) = config.as_object_mut() else { return config };
    fields.entry("head_dim").or_insert_with(|| json!(64));
    fields.entry("sliding_window").or_insert_with(|| json!(128));
    if !ropes {
        let yarn = json!({
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096,
        });
        fields.insert("rope_scaling".to_owned(), yarn);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::LayerSpec;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3,
               "num_attention_heads": 2, "max_position_embeddings": 131_072, "num_local_experts": 4,
               "num_experts_per_tok": 2})
    }

    #[test]
    fn what_is_not_said_is_as_published() -> Result<(), ModelError> {
        let spec = gpt_oss(&config(), LoadOptions::default())?;
        let windows: Vec<_> = spec.layers.iter().map(LayerSpec::window).collect();
        assert_eq!(windows, [Some(128), None, Some(128)]);
        assert_eq!((spec.head_dim, spec.qkv_bias, spec.out_bias), (64, true, true));
        Ok(())
    }

    #[test]
    fn other_gates_and_choices_are_refused() {
        for (field, value) in [
            ("num_experts_per_tok", json!(5)),
            ("swiglu_limit", json!(6.0)),
            ("swiglu_alpha", json!(1.0)),
        ] {
            let mut config = config();
            config[field] = value;
            let error = gpt_oss(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
