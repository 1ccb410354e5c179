//! Helium: Llama with rotated neighbours.

use super::read;
use crate::{LoadOptions, ModelError, config, spec::Spec};
use serde_json::{Value, json};

const FAMILY: &str = "helium";

pub(super) fn helium(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let defaults = [("rms_norm_eps", json!(1e-8)), ("head_dim", json!(128))];
    let config = &config::with_defaults(config, &defaults);
    let (_, mut spec) = read(FAMILY, config, 100_000.0, options)?;
    spec.interleaved = true;
    config::biases(&mut spec, config)?;
    spec.out_bias = false;
    Ok(spec)
}
