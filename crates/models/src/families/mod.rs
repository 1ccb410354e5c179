//! The families, and the registry that picks one by `model_type`.

mod gemma3;
mod gpt_oss;
mod llama;
mod phi3;
mod qwen;
mod smollm3;

use crate::{
    LoadOptions, Model, ModelError,
    config::{self, Shape},
    decoder::{Decoder, LayerSpec, Spec},
    rope::{RopeConfig, RopeContext},
};
use serde_json::Value;
use taper_tensor::ops::Activation;
use taper_weights::Checkpoint;

/// `model_type`s that [`load`] knows.
pub const FAMILIES: &[&str] = &[
    "gemma3",
    "gemma3_text",
    "gpt_oss",
    "llama",
    "mistral",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
];

/// Builds the model that a checkpoint holds.
///
/// # Errors
/// The family is unknown, config.json is incomplete, or the weights do not fit it.
pub fn load(weights: &Checkpoint, options: LoadOptions<'_>) -> Result<Box<dyn Model>, ModelError> {
    let config = weights.config();
    let model_type = config.get("model_type").and_then(Value::as_str);
    let model_type = model_type.ok_or(ModelError::NoModelType)?;
    // Multimodal checkpoints keep the language model under a name of its own.
    let (config, root) = match config.get("text_config") {
        Some(text) if model_type == "gemma3" => (text, "language_model."),
        _ => (config, ""),
    };
    let spec = spec(model_type, config, options)?;
    let tied = spec.tied;
    let model = Decoder::load(spec, weights, root, options)?;
    weights.expect_all_used(|name| {
        let tied_head = tied && name.starts_with(&format!("{root}lm_head."));
        let elsewhere = !root.is_empty() && !name.starts_with(root);
        tied_head || elsewhere || name.ends_with("rotary_emb.inv_freq")
    })?;
    Ok(Box::new(model))
}

/// What config.json says of a model of a family.
pub(crate) fn spec(
    model_type: &str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let spec = match model_type {
        "qwen3" => qwen::qwen3(config, options),
        "qwen3_moe" => qwen::qwen3_moe(config, options),
        "qwen2" => qwen::qwen2(config, options),
        "llama" => llama::llama(config, options),
        "mistral" => llama::mistral(config, options),
        "gemma3" | "gemma3_text" => gemma3::gemma3(config, options),
        "gpt_oss" => gpt_oss::gpt_oss(config, options),
        "phi3" => phi3::phi3(config, options),
        "smollm3" => smollm3::smollm3(config, options),
        other => Err(ModelError::UnknownFamily { model_type: other.to_owned() }),
    }?;
    for window in spec.layers.iter().filter_map(|layer| layer.window) {
        config::size(spec.family, "sliding_window", window, config::MAX_POSITIONS)?;
    }
    Ok(spec)
}

/// What most families agree on: pre-norms, no biases, SiLU, one rotary table in every layer.
fn common(
    family: &'static str,
    shape: &Shape,
    rope: &RopeConfig,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    shape.check(family)?;
    let layer = LayerSpec { rope: Some(0), window: None, experts: None };
    Ok(Spec {
        family,
        vocab: shape.vocab_size,
        hidden: shape.hidden_size,
        intermediate: shape.intermediate_size,
        heads: shape.num_attention_heads,
        kv_heads: shape.kv_heads(),
        head_dim: shape.head_dim(),
        max_positions: shape.max_position_embeddings,
        norm_eps: shape.rms_norm_eps,
        norm_offset: 0.0,
        post_norms: false,
        qk_norm: false,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        fused: false,
        activation: Activation::Silu,
        attn_scale: (shape.head_dim() as f32).powf(-0.5),
        attn_soft_cap: None,
        attn_sinks: false,
        logit_soft_cap: None,
        embed_scale: None,
        tied: shape.tied(false),
        ropes: vec![rope.table(context(family, shape, options))?],
        layers: vec![layer; shape.num_hidden_layers],
    })
}

fn context(family: &'static str, shape: &Shape, options: LoadOptions<'_>) -> RopeContext {
    let max_positions = shape.max_position_embeddings;
    RopeContext {
        family,
        head_dim: shape.head_dim(),
        max_positions,
        run_positions: options.max_model_len.unwrap_or(max_positions),
    }
}
