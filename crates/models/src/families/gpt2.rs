//! GPT-2, and StarCoder 1 (`gpt_bigcode`): learned positions instead of rotations. GPT-J has their fields, and rotates.

use super::{common, read};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    norms::{LayerNorms, NormKind},
    rope::RopeConfig,
    spec::{FusedQkv, MixerSpec, Spec, TopNames},
};
use serde::Deserialize;
use serde_json::{Value, json};
use taper_tensor::ops::Activation;

#[derive(Deserialize)]
struct Own {
    scale_attn_weights: Option<bool>,
    multi_query: Option<bool>,
}

/// Its maps have inputs before outputs.
pub(super) fn gpt2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::refuse("gpt2", config, "scale_attn_by_inverse_layer_idx")?;
    let (mut spec, _) = build("gpt2", config, options)?;
    if !spec.tied {
        // A head of its own has outputs first.
        let (field, value) = ("tie_word_embeddings", "false".to_owned());
        return Err(ModelError::Unsupported { family: "gpt2", field, value });
    }
    spec.fused_qkv = Some(FusedQkv::Rows);
    spec.inputs_first = true;
    Ok(spec)
}

/// All heads share one of keys and values, or the rows of a head are side by side.
pub(super) fn gpt_bigcode(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "gpt_bigcode";
    let (mut spec, own) = build(family, config, options)?;
    if own.multi_query.unwrap_or(true) {
        spec.kv_heads = 1;
        spec.fused_qkv = Some(FusedQkv::Rows);
    } else {
        spec.fused_qkv = Some(FusedQkv::Groups);
    }
    Ok(spec)
}

/// Attention and feed-forward read one norm, neighbours of a part of each head are rotated.
pub(super) fn gptj(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    #[derive(Deserialize)]
    struct Rotary {
        rotary_dim: Option<usize>,
    }
    let family = "gptj";
    // A token table has no bias.
    config::refuse(family, config, "tie_word_embeddings")?;
    let config = config::with_defaults(config, &[("rotary_dim", json!(64))]);
    let own: Rotary = config::parse(family, &config)?;
    let config = &llama_names(&config)?;
    let shape: Shape = config::parse(family, config)?;
    shape.check(family)?;
    let Some(turned) = own.rotary_dim.filter(|d| d.is_multiple_of(2) && *d <= shape.head_dim())
    else {
        let (field, value) = ("rotary_dim", format!("{:?}", own.rotary_dim));
        return Err(ModelError::Unsupported { family, field, value });
    };
    let mut rope = RopeConfig::with_theta(10_000.0);
    rope.partial_rotary_factor = Some(turned as f64 / shape.head_dim() as f64);
    let mut spec = common(family, &shape, &rope, options)?;
    spec.norm = NormKind::LayerBias;
    (spec.norms, spec.parallel) = (LayerNorms::SHARED, true);
    spec.interleaved = true;
    (spec.mlp_bias, spec.head_bias) = (true, true);
    spec.gated_mlp = false;
    spec.activation =
        config::activation(family, config, "activation_function", Activation::GeluTanh)?;
    spec.renames = &[
        ("input_layernorm", "ln_1"),
        ("self_attn.o_proj", "self_attn.out_proj"),
        ("self_attn", "attn"),
        ("mlp.up_proj", "mlp.fc_in"),
        ("mlp.down_proj", "mlp.fc_out"),
    ];
    spec.top = GPT2;
    Ok(spec)
}

const GPT2: TopNames = TopNames {
    places: &[("transformer.", "lm_head"), ("", "lm_head")],
    embed: "wte",
    layers: "h",
    norm: "ln_f",
};

/// The configuration with Llama's names of its fields.
fn llama_names(config: &Value) -> Result<Value, ModelError> {
    let mut config = config.clone();
    for (name, own) in [
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "n_positions"),
        ("intermediate_size", "n_inner"),
        ("rms_norm_eps", "layer_norm_epsilon"),
    ] {
        config = config::one_name(&config, name, own)?;
    }
    let hidden = config.get("hidden_size").and_then(Value::as_u64).unwrap_or_default();
    let defaults =
        [("intermediate_size", json!(hidden.saturating_mul(4))), ("rms_norm_eps", json!(1e-5))];
    Ok(config::with_defaults(&config, &defaults))
}

fn build(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<(Spec, Own), ModelError> {
    config::refuse(family, config, "add_cross_attention")?;
    let config = &llama_names(config)?;
    let own: Own = config::parse(family, config)?;
    let (shape, mut spec) = read(family, config, 10_000.0, options)?;
    spec.norm = NormKind::LayerBias;
    if own.scale_attn_weights == Some(false) {
        spec.attn_scale = 1.0;
    }
    spec.learned_positions = Some("wpe");
    for layer in &mut spec.layers {
        layer.mixer = MixerSpec::attention(None, None);
    }
    (spec.qkv_bias, spec.out_bias, spec.mlp_bias) = (true, true, true);
    spec.gated_mlp = false;
    spec.activation =
        config::activation(family, config, "activation_function", Activation::GeluTanh)?;
    spec.tied = shape.tied(true);
    spec.renames = &[
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
        ("self_attn.qkv_proj", "attn.c_attn"),
        ("self_attn.o_proj", "attn.c_proj"),
        ("mlp.up_proj", "mlp.c_fc"),
        ("mlp.down_proj", "mlp.c_proj"),
    ];
    spec.top = GPT2;
    Ok((spec, own))
}
