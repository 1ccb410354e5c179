//! InternLM 2, whose query, key and value rows are one tensor in groups, and InternLM 3.

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    spec::{FusedQkv, Spec, TopNames},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Own {
    bias: Option<bool>,
}

pub(super) fn internlm2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "internlm2";
    config::require(family, config, "hidden_act", &["silu"])?;
    let own: Own = config::parse(family, config)?;
    let (_, mut spec) = read(family, config, 10_000.0, options)?;
    spec.fused_qkv = Some(FusedQkv::Groups);
    let bias = own.bias.unwrap_or(true);
    (spec.qkv_bias, spec.out_bias) = (bias, bias);
    spec.renames = &[
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.qkv_proj", "attention.wqkv"),
        ("self_attn.o_proj", "attention.wo"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
    ];
    spec.top =
        TopNames { places: &[("model.", "output")], embed: "tok_embeddings", ..TopNames::LLAMA };
    Ok(spec)
}

/// Llama; its two fields of biases have names of their own.
pub(super) fn internlm3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "internlm3";
    config::require(family, config, "hidden_act", &["silu"])?;
    let config = &config::one_name(config, "attention_bias", "qkv_bias")?;
    let config = &config::one_name(config, "mlp_bias", "bias")?;
    let defaults = [("rms_norm_eps", json!(1e-5)), ("head_dim", json!(128))];
    let config = &config::with_defaults(config, &defaults);
    let (_, mut spec) = read(family, config, 10_000.0, options)?;
    config::biases(&mut spec, config)?;
    Ok(spec)
}
