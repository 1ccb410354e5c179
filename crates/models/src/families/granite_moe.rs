//! Granite 3 with experts: those of all tokens beside them, or not.

use super::granite;
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertNames, ExpertSpec, SharedSpec},
    router::Route,
    source::Renames,
    spec::{MlpSpec, Spec},
};
use serde::Deserialize;
use serde_json::Value;

/// Maps of all experts are in one tensor, those of gate and up too; so are gate and up of the expert of all tokens.
const RENAMES: Renames = &[
    ("experts.gate_up_proj", "input_linear.weight"),
    ("experts.down_proj", "output_linear.weight"),
    ("block_sparse_moe.shared_expert", "shared_mlp"),
    ("shared_mlp.gate_up_proj", "shared_mlp.input_linear"),
    ("shared_mlp.down_proj", "shared_mlp.output_linear"),
];

#[derive(Deserialize)]
struct Mixture {
    num_local_experts: usize,
    num_experts_per_tok: usize,
    shared_intermediate_size: Option<usize>,
}

pub(super) fn granitemoe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    build("granitemoe", config, options)
}

/// Granite with one more expert, for every token.
pub(super) fn granitemoeshared(
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    build("granitemoeshared", config, options)
}

fn build(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let mut spec = granite::build(family, config, options)?;
    let shape: Shape = config::parse(family, config)?;
    let mixture: Mixture = config::parse(family, config)?;
    let route = Route::softmax(mixture.num_experts_per_tok, true);
    let shared = mixture.shared_intermediate_size.filter(|&size| size > 0);
    let experts = ExpertSpec {
        names: ExpertNames { router: "router.layer", ..ExpertNames::MIXTRAL },
        shared: shared.map(|intermediate| SharedSpec { intermediate, gated: false }),
        ..ExpertSpec::new(mixture.num_local_experts, shape.intermediate_size, route)
    };
    experts.check(family)?;
    (spec.renames, spec.fused_mlp, spec.mlp_bias) = (RENAMES, true, false);
    spec.layers.iter_mut().for_each(|layer| layer.mlp = MlpSpec::Experts(experts));
    Ok(spec)
}
