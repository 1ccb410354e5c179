//! Apertus (arXiv 2509.14233): normed heads, and a feed-forward of one projection before xIELU.

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    spec::{QkNorm, Spec},
};
use serde_json::{Value, json};

const FAMILY: &str = "apertus";

pub(super) fn apertus(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["xielu"])?;
    // Norms after each branch, of unpublished variants.
    config::refuse(FAMILY, config, "post_norm")?;
    let mut config = config::with_defaults(config, &[("rms_norm_eps", json!(1e-5))]);
    let says = |name| config::section(&config, name).is_some();
    if !says("rope_parameters")
        && !says("rope_scaling")
        && let Some(fields) = config.as_object_mut()
    {
        let llama3 = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        });
        fields.insert("rope_scaling".to_owned(), llama3);
    }
    let (_, mut spec) = read(FAMILY, &config, 12_000_000.0, options)?;
    spec.qk_norm = Some(QkNorm::Head);
    spec.gated_mlp = false;
    spec.xielu = true;
    spec.renames = &[
        ("input_layernorm", "attention_layernorm"),
        ("post_attention_layernorm", "feedforward_layernorm"),
    ];
    config::biases(&mut spec, &config)?;
    spec.mlp_bias = false;
    Ok(spec)
}
