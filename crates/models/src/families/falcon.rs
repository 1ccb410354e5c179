//! Falcon (arXiv 2311.16867): attention and feed-forward read the same rows, with a norm each in larger models; query,
//! key and value rows are one tensor. Models with ALiBi are refused.

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    norms::{LayerNorms, NormKind},
    spec::{FusedQkv, Spec, TopNames},
};
use serde::Deserialize;
use serde_json::{Value, json};
use taper_tensor::ops::Activation;

const FAMILY: &str = "falcon";

#[derive(Deserialize)]
struct Own {
    num_kv_heads: Option<usize>,
    num_ln_in_parallel_attn: Option<usize>,
    new_decoder_architecture: Option<bool>,
    multi_query: Option<bool>,
    parallel_attn: Option<bool>,
    bias: Option<bool>,
}

pub(super) fn falcon(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::refuse(FAMILY, config, "alibi")?;
    let config = &config::one_name(config, "rms_norm_eps", "layer_norm_epsilon")?;
    let config = &config::one_name(config, "intermediate_size", "ffn_hidden_size")?;
    let own: Own = config::parse(FAMILY, config)?;
    let hidden = config.get("hidden_size").and_then(Value::as_u64).unwrap_or_default();
    let defaults = [
        ("intermediate_size", json!(hidden.saturating_mul(4))),
        ("rms_norm_eps", json!(1e-5)),
        ("max_position_embeddings", json!(2048)),
    ];
    let mut config = config::with_defaults(config, &defaults);
    let newer = own.new_decoder_architecture.unwrap_or(false);
    let shared = own.multi_query.unwrap_or(true);
    if let Some(fields) = config.as_object_mut() {
        fields.shift_remove("num_key_value_heads");
        let heads = match (newer, shared) {
            (true, _) => own.num_kv_heads,
            (false, true) => Some(1),
            (false, false) => None,
        };
        heads.and_then(|heads| fields.insert("num_key_value_heads".to_owned(), heads.into()));
    }
    let (shape, mut spec) = read(FAMILY, &config, 10_000.0, options)?;
    spec.tied = shape.tied(true);
    spec.norm = NormKind::LayerBias;
    spec.parallel = newer || own.parallel_attn.unwrap_or(true);
    spec.norms = match (newer, own.num_ln_in_parallel_attn.unwrap_or(2)) {
        (true, 2) => LayerNorms { mixer: Some("ln_attn"), mlp: Some("ln_mlp"), ..LayerNorms::PRE },
        (true, 1) => LayerNorms::SHARED,
        (true, other) => {
            let (field, value) = ("num_ln_in_parallel_attn", other.to_string());
            return Err(ModelError::Unsupported { family: FAMILY, field, value });
        }
        (false, _) if spec.parallel => LayerNorms::SHARED,
        (false, _) => LayerNorms::PRE,
    };
    spec.fused_qkv = Some(FusedQkv::Groups);
    let bias = own.bias.unwrap_or(false);
    (spec.qkv_bias, spec.out_bias, spec.mlp_bias) = (bias, bias, bias);
    spec.gated_mlp = false;
    spec.activation = config::activation(FAMILY, &config, "activation", Activation::Gelu)?;
    spec.renames = &[
        ("self_attn.qkv_proj", "self_attention.query_key_value"),
        ("self_attn.o_proj", "self_attention.dense"),
        ("mlp.up_proj", "mlp.dense_h_to_4h"),
        ("mlp.down_proj", "mlp.dense_4h_to_h"),
    ];
    spec.top = TopNames {
        places: &[("transformer.", "lm_head")],
        embed: "word_embeddings",
        layers: "h",
        norm: "ln_f",
    };
    Ok(spec)
}
