//! Families whose feed-forward has one projection before its activation: AFM (`arcee`), Nemotron, Jais 2, StarCoder 2
//! and Phi 1 to 2; and Stable LM, which has their norms.

use super::{common, read};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    norms::{LayerNorms, NormKind},
    spec::{Spec, TopNames},
};
use serde::Deserialize;
use serde_json::{Value, json};
use taper_tensor::ops::Activation;

/// Llama with squared ReLUs.
pub(super) fn arcee(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let config = &config::with_defaults(config, &[("rms_norm_eps", json!(1e-5))]);
    let (_, mut spec) = read("arcee", config, 10_000.0, options)?;
    spec.gated_mlp = false;
    spec.activation = config::activation("arcee", config, "hidden_act", Activation::Relu2)?;
    config::biases(&mut spec, config)?;
    Ok(spec)
}

/// Squared ReLUs, and LayerNorms that store `w - 1`.
pub(super) fn nemotron(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let config = &layer_norms(config, "norm_eps")?;
    let mut spec = partial("nemotron", config, 0.5, options)?;
    spec.norm_offset = 1.0;
    spec.gated_mlp = false;
    spec.activation = config::activation("nemotron", config, "hidden_act", Activation::Relu2)?;
    config::biases(&mut spec, config)?;
    Ok(spec)
}

/// Jais 2: Nemotron with plain LayerNorms, whole heads rotated, and biases.
pub(super) fn jais2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let config = &layer_norms(config, "layer_norm_eps")?;
    let biases = [("attention_bias", json!(true)), ("mlp_bias", json!(true))];
    let config = &config::with_defaults(config, &biases);
    let mut spec = partial("jais2", config, 1.0, options)?;
    spec.gated_mlp = false;
    spec.activation = config::activation("jais2", config, "hidden_act", Activation::Relu2)?;
    config::biases(&mut spec, config)?;
    Ok(spec)
}

#[derive(Deserialize)]
struct Starcoder2 {
    use_bias: Option<bool>,
    sliding_window: Option<usize>,
}

/// Biases everywhere, and a window in every layer.
pub(super) fn starcoder2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "starcoder2";
    config::require(family, config, "norm_type", &["layer_norm"])?;
    config::require(family, config, "mlp_type", &["default"])?;
    let config = &layer_norms(config, "norm_epsilon")?;
    let own: Starcoder2 = config::parse(family, config)?;
    let (shape, mut spec) = read(family, config, 10_000.0, options)?;
    spec.norm = NormKind::LayerBias;
    spec.gated_mlp = false;
    spec.activation = config::activation(family, config, "hidden_act", Activation::GeluTanh)?;
    spec.renames = &[("mlp.up_proj", "mlp.c_fc"), ("mlp.down_proj", "mlp.c_proj")];
    let bias = own.use_bias.unwrap_or(true);
    (spec.qkv_bias, spec.out_bias, spec.mlp_bias) = (bias, bias, bias);
    spec.tied = shape.tied(true);
    spec.layers.iter_mut().for_each(|layer| layer.set_window(own.sliding_window));
    Ok(spec)
}

/// Attention and feed-forward read one norm; biases everywhere, the output projection's included.
pub(super) fn phi(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::refuse("phi", config, "qk_layernorm")?;
    // A token table has no bias.
    config::refuse("phi", config, "tie_word_embeddings")?;
    let config = &layer_norms(config, "layer_norm_eps")?;
    let mut spec = partial("phi", config, 0.5, options)?;
    (spec.norms, spec.parallel) = (LayerNorms::SHARED, true);
    spec.gated_mlp = false;
    spec.activation = config::activation("phi", config, "hidden_act", Activation::GeluTanh)?;
    spec.renames = &[
        ("self_attn.o_proj", "self_attn.dense"),
        ("mlp.up_proj", "mlp.fc1"),
        ("mlp.down_proj", "mlp.fc2"),
    ];
    spec.top = TopNames { norm: "final_layernorm", ..TopNames::LLAMA };
    (spec.qkv_bias, spec.out_bias, spec.mlp_bias) = (true, true, true);
    spec.head_bias = true;
    Ok(spec)
}

/// Stable LM: SiLU with a gate, and LayerNorms; one for attention and feed-forward both, in some.
pub(super) fn stablelm(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    #[derive(Deserialize)]
    struct Own {
        use_qkv_bias: Option<bool>,
        use_parallel_residual: Option<bool>,
    }
    let family = "stablelm";
    config::require(family, config, "hidden_act", &["silu"])?;
    config::refuse(family, config, "qk_layernorm")?;
    let config = &layer_norms(config, "layer_norm_eps")?;
    let own: Own = config::parse(family, config)?;
    let mut spec = partial(family, config, 0.25, options)?;
    spec.qkv_bias = own.use_qkv_bias.unwrap_or(false);
    if own.use_parallel_residual == Some(true) {
        (spec.norms, spec.parallel) = (LayerNorms::SHARED, true);
    }
    Ok(spec)
}

/// The configuration with a LayerNorm's epsilon where RMSNorm's is read.
fn layer_norms(config: &Value, field: &'static str) -> Result<Value, ModelError> {
    let config = config::one_name(config, "rms_norm_eps", field)?;
    Ok(config::with_defaults(&config, &[("rms_norm_eps", json!(1e-5))]))
}

/// LayerNorms with biases, and a part of each head that is rotated.
fn partial(
    family: &'static str,
    config: &Value,
    factor: f64,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let shape: Shape = config::parse(family, config)?;
    let mut rope = config::rope(family, config, 10_000.0)?;
    rope.partial_rotary_factor.get_or_insert(factor);
    let mut spec = common(family, &shape, &rope, options)?;
    spec.norm = NormKind::LayerBias;
    Ok(spec)
}
