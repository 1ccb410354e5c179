//! BitNet b1.58 (arXiv 2504.12285) in plain weights: Llama with squared ReLUs and norms before the output and the down
//! projection. Weights of three values are refused.

use super::read;
use crate::{LoadOptions, ModelError, config, spec::Spec};
use serde_json::{Value, json};
use taper_tensor::ops::Activation;

const FAMILY: &str = "bitnet";

pub(super) fn bitnet(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    // It rounds weights and activations as it runs, or has the weights packed.
    config::refuse(FAMILY, config, "quantization_config")?;
    let config = &config::with_defaults(config, &[("rms_norm_eps", json!(1e-5))]);
    let (_, mut spec) = read(FAMILY, config, 500_000.0, options)?;
    spec.sub_norms = true;
    spec.activation = config::activation(FAMILY, config, "hidden_act", Activation::Relu2)?;
    config::biases(&mut spec, config)?;
    spec.mlp_bias = false;
    Ok(spec)
}
