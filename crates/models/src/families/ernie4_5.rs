//! ERNIE 4.5, dense: Llama with rotated neighbours and biases by a field.

use super::read;
use crate::{LoadOptions, ModelError, config, spec::Spec};
use serde::Deserialize;
use serde_json::{Value, json};

const FAMILY: &str = "ernie4_5";

#[derive(Deserialize)]
struct Own {
    use_bias: Option<bool>,
}

pub(super) fn ernie4_5(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let defaults = [("rms_norm_eps", json!(1e-5)), ("head_dim", json!(128))];
    let config = &config::with_defaults(config, &defaults);
    let own: Own = config::parse(FAMILY, config)?;
    let (shape, mut spec) = read(FAMILY, config, 500_000.0, options)?;
    spec.interleaved = true;
    let bias = own.use_bias.unwrap_or(false);
    (spec.qkv_bias, spec.out_bias, spec.mlp_bias) = (bias, bias, bias);
    spec.tied = shape.tied(true);
    Ok(spec)
}
