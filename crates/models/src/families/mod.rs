//! The families, and the registry that picks one by `model_type`.

mod gemma3;
mod gpt_oss;
mod llama;
mod phi3;
mod qwen;
mod qwen3_5;
mod smollm3;

use crate::{
    LoadOptions, Model, ModelError,
    config::{self, Shape},
    decoder::{Decoder, Names},
    rope::{RopeConfig, RopeContext},
    spec::{LayerSpec, Spec},
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
    "qwen3_5",
    "qwen3_5_text",
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
    // Multimodal checkpoints keep the language model's configuration apart.
    let nested = config.get("text_config").filter(|_| MULTIMODAL.contains(&model_type));
    let names = names(weights);
    let mut spec = spec(model_type, &text_config(config, nested), options)?;
    qwen3_5::stored_norms(&mut spec, weights, &names)?;
    let tied = spec.tied;
    let model = Decoder::load(spec, weights, &names, options)?;
    let Names { decoder, head } = &names;
    weights.expect_all_used(|name| {
        let head = name.strip_prefix(head.as_str()).is_some_and(|rest| rest.starts_with('.'));
        let elsewhere = nested.is_some() && !head && !name.starts_with(decoder.as_str());
        (tied && head) || elsewhere || unused(model_type, name)
    })?;
    Ok(Box::new(model))
}

/// `model_type`s of models that see or hear, of which the language model is loaded.
const MULTIMODAL: &[&str] = &["gemma3", "qwen3_5"];

/// The language model's configuration. Whether the head is the token table is said beside it by some.
fn text_config(config: &Value, nested: Option<&Value>) -> Value {
    let mut text = nested.unwrap_or(config).clone();
    if let (Some(fields), Some(tied)) = (text.as_object_mut(), config.get("tie_word_embeddings")) {
        fields.entry("tie_word_embeddings").or_insert_with(|| tied.clone());
    }
    text
}

/// Where a checkpoint has the language model: Hugging Face and MLX put it below a multimodal one
/// differently.
fn names(weights: &Checkpoint) -> Names {
    let places =
        [("model.language_model.", "lm_head"), ("language_model.model.", "language_model.lm_head")];
    let has = |(decoder, _): &&(&str, &str)| weights.has(&format!("{decoder}embed_tokens.weight"));
    let &(decoder, head) = places.iter().find(has).unwrap_or(&("model.", "lm_head"));
    Names { decoder: decoder.to_owned(), head: head.to_owned() }
}

/// Tensors that a checkpoint may have and that generation does not need: computed ones, and heads for
/// drafts.
fn unused(model_type: &str, name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || (model_type.starts_with("qwen3_5") && name.starts_with("mtp."))
}

/// What config.json says of a model of a family.
pub(crate) fn spec(
    model_type: &str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let spec = match model_type {
        "qwen3" => qwen::qwen3(config, options),
        "qwen3_5" | "qwen3_5_text" => qwen3_5::qwen3_5(config, options),
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
    for window in spec.layers.iter().filter_map(LayerSpec::window) {
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
    let layer = LayerSpec::attention(Some(0), None);
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
        gated_attention: false,
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
