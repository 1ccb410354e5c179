//! GPT-NeoX and Pythia (arXiv 2304.01373): attention and feed-forward read norms of their own of the same rows; query,
//! key and value rows of a head are side by side in one tensor.

use super::common;
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    norms::NormKind,
    spec::{FusedQkv, Spec, TopNames},
};
use serde::Deserialize;
use serde_json::{Value, json};
use taper_tensor::ops::Activation;

const FAMILY: &str = "gpt_neox";

#[derive(Deserialize)]
struct Own {
    rotary_pct: Option<f64>,
    rotary_emb_base: Option<f64>,
    use_parallel_residual: Option<bool>,
    attention_bias: Option<bool>,
}

pub(super) fn gpt_neox(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let config = &config::one_name(config, "rms_norm_eps", "layer_norm_eps")?;
    let config = &config::with_defaults(config, &[("rms_norm_eps", json!(1e-5))]);
    let shape: Shape = config::parse(FAMILY, config)?;
    let own: Own = config::parse(FAMILY, config)?;
    let mut rope = config::rope(FAMILY, config, own.rotary_emb_base.unwrap_or(10_000.0))?;
    rope.partial_rotary_factor.get_or_insert(own.rotary_pct.unwrap_or(0.25));
    let mut spec = common(FAMILY, &shape, &rope, options)?;
    spec.norm = NormKind::LayerBias;
    spec.parallel = own.use_parallel_residual.unwrap_or(true);
    spec.fused_qkv = Some(FusedQkv::Groups);
    let bias = own.attention_bias.unwrap_or(true);
    (spec.qkv_bias, spec.out_bias, spec.mlp_bias) = (bias, bias, true);
    spec.gated_mlp = false;
    spec.activation = config::activation(FAMILY, config, "hidden_act", Activation::Gelu)?;
    spec.renames = &[
        ("self_attn.qkv_proj", "attention.query_key_value"),
        ("self_attn.o_proj", "attention.dense"),
        ("mlp.up_proj", "mlp.dense_h_to_4h"),
        ("mlp.down_proj", "mlp.dense_4h_to_h"),
    ];
    spec.top = TopNames {
        places: &[("gpt_neox.", "embed_out")],
        embed: "embed_in",
        norm: "final_layer_norm",
        ..TopNames::LLAMA
    };
    Ok(spec)
}
