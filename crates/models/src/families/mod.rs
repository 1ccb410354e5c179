//! The families, and the registry that picks one by `model_type`.

mod falcon_h1;
mod gemma;
mod gemma3;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod hybrid;
mod jamba;
mod lfm2;
mod llama;
mod mamba;
mod mixtral;
mod nemotron_h;
mod olmo_hybrid;
mod phi3;
mod qwen;
mod qwen3_5;
mod recurrent_gemma;
mod seed_oss;
mod smollm3;

use crate::{
    LoadOptions, Model, ModelError,
    config::{self, Shape},
    decoder::{Decoder, Names},
    norms::{LayerNorms, NormKind},
    rope::{RopeConfig, RopeContext},
    source::Source,
    spec::{LayerSpec, MixerSpec, MlpSpec, Spec, TopNames},
};
use serde_json::Value;
use taper_tensor::ops::Activation;
use taper_weights::Checkpoint;

/// A family of models.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Family {
    /// What `model_type` of config.json may say.
    pub model_types: &'static [&'static str],
    /// Models of it, as people call them.
    pub models: &'static str,
    /// Whether GPUs run it, too.
    pub gpu: bool,
    /// Reads config.json.
    spec: fn(&Value, LoadOptions<'_>) -> Result<Spec, ModelError>,
}

/// Every family that [`load`] knows.
pub static FAMILIES: &[Family] = &[
    family(&["bamba"], "Bamba", false, falcon_h1::bamba),
    family(&["falcon_h1"], "Falcon-H1", false, falcon_h1::falcon_h1),
    family(&["falcon_mamba"], "Falcon Mamba", false, mamba::falcon_mamba),
    family(&["gemma"], "Gemma", true, gemma::gemma),
    family(&["gemma2"], "Gemma 2", true, gemma::gemma2),
    family(&["gemma3", "gemma3_text"], "Gemma 3, text only", true, gemma3::gemma3),
    family(&["gpt_oss"], "gpt-oss, not in MXFP4", false, gpt_oss::gpt_oss),
    family(&["granite"], "Granite 3 and 4, dense", true, granite::granite),
    family(&["granitemoehybrid"], "Granite 4, hybrid", false, granite_hybrid::granitemoehybrid),
    family(
        &["iquestcoder", "llama", "xverse"],
        "Llama 2 to 3.3, SmolLM2; Mistral's GGUF files",
        true,
        llama::llama,
    ),
    family(&["jamba"], "Jamba", false, jamba::jamba),
    family(&["lfm2"], "LFM2", false, lfm2::lfm2),
    family(&["lfm2_moe"], "LFM2 with experts", false, lfm2::lfm2_moe),
    family(&["lfm3"], "LFM3", false, lfm2::lfm3),
    family(&["mamba"], "Mamba", false, mamba::mamba),
    family(&["mamba2"], "Mamba 2, Mamba-Codestral", false, mamba::mamba2),
    family(&["ministral"], "Ministral", true, llama::ministral),
    family(&["mistral"], "Mistral", true, llama::mistral),
    family(&["mixtral"], "Mixtral", true, mixtral::mixtral),
    family(
        &["nemotron_h"],
        "Nemotron-H, Nemotron Nano 2 and 3, without latent experts",
        false,
        nemotron_h::nemotron_h,
    ),
    family(&["olmo_hybrid"], "OLMo Hybrid", false, olmo_hybrid::olmo_hybrid),
    family(&["olmoe"], "OLMoE", true, mixtral::olmoe),
    family(&["phi3"], "Phi 3, 3.5, 4-mini", true, phi3::phi3),
    family(&["qwen2"], "Qwen 2, 2.5", true, qwen::qwen2),
    family(&["qwen2_moe"], "Qwen 1.5 and 2 with experts", false, qwen::qwen2_moe),
    family(&["qwen3"], "Qwen 3, dense", true, qwen::qwen3),
    family(
        &["qwen3_5", "qwen3_5_text"],
        "Qwen 3.5 to 3.8, dense, text only",
        false,
        qwen3_5::qwen3_5,
    ),
    family(
        &["qwen3_5_moe", "qwen3_5_moe_text"],
        "Qwen 3.5 to 3.8 with experts, text only",
        false,
        qwen3_5::qwen3_5_moe,
    ),
    family(&["qwen3_moe"], "Qwen 3 with experts", true, qwen::qwen3_moe),
    family(&["qwen3_next"], "Qwen3-Next, Qwen3-Coder-Next", false, qwen3_5::qwen3_next),
    family(&["recurrent_gemma"], "RecurrentGemma", false, recurrent_gemma::recurrent_gemma),
    family(&["seed_oss"], "Seed-OSS", true, seed_oss::seed_oss),
    family(&["smollm3"], "SmolLM 3", true, smollm3::smollm3),
];

const fn family(
    model_types: &'static [&'static str],
    models: &'static str,
    gpu: bool,
    spec: fn(&Value, LoadOptions<'_>) -> Result<Spec, ModelError>,
) -> Family {
    Family { model_types, models, gpu, spec }
}

/// Every `model_type`, in alphabetic order.
pub fn model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.model_types.iter().copied())
}

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
    let mut spec = spec(model_type, &text_config(config, nested), options)?;
    if let Some(renames) = lfm2::mlx_names(&spec, |name| weights.has(name)) {
        spec.renames = renames;
    }
    let weights_by_name = Source::new(weights, spec.renames);
    let names = names(weights_by_name, spec.top);
    qwen3_5::stored_norms(&mut spec, weights_by_name, &names)?;
    let tied = spec.tied;
    let model = Decoder::load(spec, weights_by_name, &names, options)?;
    let Names { decoder, head } = &names;
    weights.expect_all_used(|name| {
        let head = name.strip_prefix(head.as_str()).is_some_and(|rest| rest.starts_with('.'));
        let elsewhere = nested.is_some() && !head && !name.starts_with(decoder.as_str());
        (tied && head) || elsewhere || unused(model_type, name)
    })?;
    Ok(Box::new(model))
}

/// `model_type`s of models that see or hear, of which the language model is loaded.
const MULTIMODAL: &[&str] = &["gemma3", "qwen3_5", "qwen3_5_moe"];

/// The language model's configuration. Whether the head is the token table is said beside it by some.
fn text_config(config: &Value, nested: Option<&Value>) -> Value {
    let mut text = nested.unwrap_or(config).clone();
    if let (Some(fields), Some(tied)) = (text.as_object_mut(), config.get("tie_word_embeddings")) {
        fields.entry("tie_word_embeddings").or_insert_with(|| tied.clone());
    }
    text
}

/// Where a checkpoint has the language model: the first place where there is a token table.
fn names(weights: Source<'_>, top: TopNames) -> Names {
    let table = |decoder: &str| format!("{decoder}{}", top.embed);
    let has = |(decoder, _): &&(&str, &str)| weights.has(&format!("{}.weight", table(decoder)));
    let found = top.places.iter().find(has).or(top.places.first());
    let &(decoder, head) = found.unwrap_or(&("model.", "lm_head"));
    Names { decoder: decoder.to_owned(), head: head.to_owned() }
}

/// Tensors that a checkpoint may have and that generation does not need: computed ones, and heads for
/// drafts.
fn unused(model_type: &str, name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
        || (DRAFTS.contains(&model_type) && name.starts_with("mtp."))
}

/// Families whose checkpoints may have heads for drafts.
const DRAFTS: &[&str] =
    &["nemotron_h", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"];

/// What config.json says of a model of a family.
pub(crate) fn spec(
    model_type: &str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let family = FAMILIES.iter().find(|family| family.model_types.contains(&model_type));
    let unknown = || ModelError::UnknownFamily { model_type: model_type.to_owned() };
    let family = family.ok_or_else(unknown)?;
    let spec = (family.spec)(config, options)?;
    if options.gpu.is_some() && !(family.gpu && spec.runs_on_gpus()) {
        return Err(ModelError::CpuOnly { family: spec.family });
    }
    for window in spec.layers.iter().filter_map(LayerSpec::window) {
        config::size(spec.family, "sliding_window", window, config::MAX_POSITIONS)?;
    }
    Ok(spec)
}

/// The shape that config.json gives, and what most families make of it and of its rotary settings.
fn read(
    family: &'static str,
    config: &Value,
    theta: f64,
    options: LoadOptions<'_>,
) -> Result<(Shape, Spec), ModelError> {
    let shape: Shape = config::parse(family, config)?;
    let rope = config::rope(family, config, theta)?;
    let spec = common(family, &shape, &rope, options)?;
    Ok((shape, spec))
}

/// What most families agree on: pre-norms, no biases, SiLU, one rotary table in every layer.
fn common(
    family: &'static str,
    shape: &Shape,
    rope: &RopeConfig,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    shape.check(family)?;
    let mixer = MixerSpec::attention(Some(0), None);
    let layer = LayerSpec { mixer, mlp: MlpSpec::Dense(shape.intermediate_size) };
    Ok(Spec {
        family,
        vocab: shape.vocab_size,
        hidden: shape.hidden_size,
        heads: shape.num_attention_heads,
        kv_heads: shape.kv_heads(),
        head_dim: shape.head_dim(),
        max_positions: shape.max_position_embeddings,
        norm_eps: shape.rms_norm_eps,
        norm_offset: 0.0,
        norm: NormKind::Rms,
        norms: LayerNorms::PRE,
        attention_norms: None,
        parallel: false,
        renames: &[],
        top: TopNames::LLAMA,
        qk_norm: None,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        head_bias: false,
        fused_qkv: false,
        fused_mlp: false,
        interleaved: false,
        attention_gate: None,
        activation: Activation::Silu,
        gated_mlp: true,
        mlp_scales: None,
        attn_scale: (shape.head_dim() as f32).powf(-0.5),
        attn_soft_cap: None,
        attn_sinks: false,
        logit_soft_cap: None,
        embed_scale: None,
        branch_scale: None,
        logit_scale: None,
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
