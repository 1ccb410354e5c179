//! Mellum 2: Qwen 3 with experts, and windows in some layers, with rotations of their own.

use super::{common, context, laguna, routed};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::ExpertSpec,
    router::Route,
    spec::{MixerSpec, MlpSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "mellum";

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    attention_bias: bool,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    mlp_layer_types: Option<Vec<String>>,
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    norm_topk_prob: Option<bool>,
}

pub(super) fn mellum(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let config = &config::one_name(config, "num_experts", "num_local_experts")?;
    let config = &config::with_default(config, "head_dim", 128);
    let (shape, own): (Shape, Own) =
        (config::parse(FAMILY, config)?, config::parse(FAMILY, config)?);
    let [global, local] = laguna::ropes(FAMILY, config, [(500_000.0, 1.0), (10_000.0, 1.0)])?;
    let mut spec = common(FAMILY, &shape, &global, options)?;
    spec.ropes.push(local.table(context(FAMILY, &shape, options))?);
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.qk_norm = Some(QkNorm::Head);
    let route = Route::softmax(own.num_experts_per_tok, own.norm_topk_prob.unwrap_or(true));
    let experts = ExpertSpec::new(own.num_experts, own.moe_intermediate_size, route);
    experts.check(FAMILY)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let slides = config::slides(FAMILY, own.layer_types.as_deref(), i, false)?;
        let rope = if slides { laguna::LOCAL } else { 0 };
        let window = own.sliding_window.or(Some(1024)).filter(|_| slides);
        layer.mixer = MixerSpec::attention(Some(rope), window);
        if routed::sparse(FAMILY, own.mlp_layer_types.as_deref(), i, true)? {
            layer.mlp = MlpSpec::Experts(experts);
        }
    }
    Ok(spec)
}
