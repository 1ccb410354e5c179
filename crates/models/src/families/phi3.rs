//! Phi 3, 3.5 and 4-mini: fused projections, longrope, partial rotation.

use super::common;
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    spec::{FusedQkv, Spec},
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Own {
    sliding_window: Option<usize>,
}

pub(super) fn phi3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require("phi3", config, "hidden_act", &["silu"])?;
    let shape: Shape = config::parse("phi3", config)?;
    let own: Own = config::parse("phi3", config)?;
    let rope = config::rope("phi3", config, 10_000.0)?;
    let mut spec = common("phi3", &shape, &rope, options)?;
    (spec.fused_qkv, spec.fused_mlp) = (Some(FusedQkv::Rows), true);
    spec.layers.iter_mut().for_each(|layer| layer.set_window(own.sliding_window));
    Ok(spec)
}
