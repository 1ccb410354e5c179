//! ERNIE 4.5 with experts: Llama whose rotations turn neighbours, experts chosen by a softmax and a bias.

use super::{read, routed};
use crate::{
    LoadOptions, ModelError, config,
    decoder::Names,
    experts::ExpertSpec,
    router::Route,
    source::Source,
    spec::{MlpSpec, Spec},
};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "ernie4_5_moe";

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    use_bias: bool,
    moe_num_experts: usize,
    moe_k: usize,
    moe_intermediate_size: usize,
    moe_num_shared_experts: Option<usize>,
    /// The least sum that divides weights.
    moe_norm_min: Option<f32>,
    // Layers from the first to the last of them, every so many, have experts.
    moe_layer_start_index: Option<usize>,
    moe_layer_end_index: Option<i64>,
    moe_layer_interval: Option<usize>,
}

/// MLX leaves out the bias of the choice.
pub(super) fn stored(spec: &mut Spec, weights: Source<'_>, names: &Names) {
    for (i, layer) in spec.layers.iter_mut().enumerate().filter(|_| spec.family == FAMILY) {
        let MlpSpec::Experts(experts) = &mut layer.mlp else { continue };
        let at = format!("{}layers.{i}.mlp", names.decoder);
        if weights.has(&format!("{at}.switch_mlp.up_proj.weight")) {
            let bias = |name: &&str| weights.has(&format!("{at}.{name}"));
            experts.route.bias = experts.route.bias.filter(bias);
        }
    }
}

pub(super) fn ernie4_5_moe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    config::require(FAMILY, config, "moe_gate_act", &["softmax"])?;
    let config = &config::one_name(config, "moe_num_experts", "num_experts")?;
    let config = &config::one_name(config, "moe_k", "num_experts_per_tok")?;
    let own: Own = config::parse(FAMILY, config)?;
    if own.use_bias {
        let (family, field, value) = (FAMILY, "use_bias", "true".to_owned());
        return Err(ModelError::Unsupported { family, field, value });
    }
    let least = own.moe_norm_min.unwrap_or(1e-12);
    if !(0.0..1.0).contains(&least) {
        let (value, range) = (least.to_string(), "it must be from 0 to 1".to_owned());
        return Err(ModelError::OutOfRange { family: FAMILY, field: "moe_norm_min", value, range });
    }
    let (shape, mut spec) = read(FAMILY, config, 500_000.0, options)?;
    (spec.interleaved, spec.renames) = (true, routed::SHARED_EXPERTS);
    spec.tied = shape.tied(true);
    let bias = Some("moe_statics.e_score_correction_bias");
    let route = Route { bias, least, ..Route::softmax(own.moe_k, true) };
    let size = own.moe_intermediate_size;
    let shared = routed::together(own.moe_num_shared_experts.unwrap_or(2), size);
    let experts = ExpertSpec { shared, ..ExpertSpec::new(own.moe_num_experts, size, route) };
    experts.check(FAMILY)?;
    let first = own.moe_layer_start_index.unwrap_or(1);
    // -1 is the last layer.
    let last = usize::try_from(own.moe_layer_end_index.unwrap_or(-1)).unwrap_or(usize::MAX);
    let interval = own.moe_layer_interval.unwrap_or(1).max(1);
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if (first..=last).contains(&i) && (i + 1).is_multiple_of(interval) {
            layer.mlp = MlpSpec::Experts(experts);
        }
    }
    Ok(spec)
}
