//! The families, and the registry that picks one by `model_type`.

mod afmoe;
mod apertus;
mod bailing_moe;
mod bitnet;
mod cohere;
mod cohere2_moe;
mod deepseek;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone;
mod exaone4;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm;
mod gpt2;
mod gpt_neox;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod helium;
mod hunyuan_moe;
mod hunyuan_v1_dense;
mod hybrid;
mod internlm;
mod jamba;
mod kimi_linear;
mod laguna;
mod lfm2;
mod llama;
mod llama4;
mod longcat;
mod mamba;
mod mellum;
mod mimo_v2;
mod minicpm;
mod minimax;
mod ministral3;
mod mixtral;
mod muse_glimmer;
mod nanochat;
mod nemotron_h;
mod olmo;
mod olmo_hybrid;
mod phi3;
mod phimoe;
mod plain;
mod qwen;
mod qwen3_5;
mod qwen_vl;
mod recurrent_gemma;
mod registry;
mod routed;
mod seed_oss;
mod seeing;
mod smollm3;
mod step3p5;
mod unused;

pub use registry::{FAMILIES, Family};

use crate::{
    Ahead, ImagePositions, LoadOptions, Model, ModelError,
    config::{self, Shape},
    decoder::{Decoder, Names},
    norms::{LayerNorms, NormKind},
    rope::{RopeConfig, RopeContext},
    source::Source,
    spec::{LayerSpec, MixerSpec, MlpSpec, Spec, TopNames},
    streaming,
};
use serde_json::Value;
use taper_tensor::ops::Activation;
use taper_weights::Checkpoint;
use unused::{beyond, drafts, unused};

/// Every `model_type`, in alphabetic order.
pub fn model_types() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.model_types.iter().copied())
}

/// Builds the model that a checkpoint holds.
///
/// # Errors
/// The family is unknown, config.json is incomplete, or the weights do not fit it.
pub fn load(weights: &Checkpoint, options: LoadOptions<'_>) -> Result<Box<dyn Model>, ModelError> {
    let model = load_decoder(weights, options, false)?;
    if model.is_bidirectional() {
        let (family, field) = (model.info().family, "use_bidirectional_attention");
        return Err(ModelError::Unsupported { family, field, value: "true".to_owned() });
    }
    Ok(Box::new(model))
}

/// Builds a decoder whose output projection is the token table, which checkpoints for vectors of texts have alone.
pub(crate) fn load_headless(
    weights: &Checkpoint,
    options: LoadOptions<'_>,
) -> Result<Decoder, ModelError> {
    let apart = weights.has("lm_head.weight");
    load_decoder(weights, options, !apart)
}

fn load_decoder(
    weights: &Checkpoint,
    options: LoadOptions<'_>,
    tied: bool,
) -> Result<Decoder, ModelError> {
    let Described { spec, names, config, model_type, sees } = described(weights, options, tied)?;
    let weights_by_name = Source::new(weights, spec.renames, spec.inputs_first);
    let (tied, top, layers) = (spec.tied, spec.top, spec.layers.len());
    let drafts = drafts(&config);
    let model = Decoder::load(spec, weights_by_name, &names, options)?;
    let Names { decoder, head } = &names;
    weights.expect_all_used(|name| {
        let head = name.strip_prefix(head.as_str()).is_some_and(|rest| rest.starts_with('.'));
        let elsewhere = sees && !head && !name.starts_with(decoder.as_str());
        let layer = name.strip_prefix(decoder.as_str()).and_then(|n| n.strip_prefix(top.layers));
        let later = layer.is_some_and(|rest| beyond(rest, layers));
        let draft = drafts && (later || name.split('.').any(|part| part.starts_with("mtp")));
        let stray = layer.is_some_and(|rest| {
            (model_type.starts_with("gemma4") || model_type.starts_with("gemma3n"))
                && gemma4::is_stray(&config, layers, rest)
        });
        let idle = model_type == "longcat_flash" && longcat::is_idle(&config, name);
        (tied && head) || elsewhere || draft || stray || idle || unused(model_type, name)
    })?;
    Ok(model)
}

/// What a checkpoint says of its model.
pub(crate) struct Described<'a> {
    pub(crate) spec: Spec,
    pub(crate) names: Names,
    /// The language model's.
    config: Value,
    model_type: &'a str,
    /// Whether it sees or hears.
    sees: bool,
}

/// Reads config.json, and what only the tensors tell. The head is the token table where it is `tied`, whatever
/// config.json says.
pub(crate) fn described<'a>(
    weights: &'a Checkpoint,
    options: LoadOptions<'_>,
    tied: bool,
) -> Result<Described<'a>, ModelError> {
    let config = weights.config();
    let model_type = config.get("model_type").and_then(Value::as_str);
    let model_type = model_type.ok_or(ModelError::NoModelType)?;
    // Multimodal checkpoints keep the language model's configuration apart.
    let sees = MULTIMODAL.contains(&model_type);
    let nested = config.get("text_config").filter(|_| sees);
    let config = text_config(config, nested);
    let mut spec = spec(model_type, &config, options)?;
    spec.tied |= tied;
    step3p5::stored(&mut spec, weights);
    if let Some(renames) = lfm2::mlx_names(&spec, |name| weights.has(name)) {
        spec.renames = renames;
    }
    let by_name = Source::new(weights, spec.renames, spec.inputs_first);
    let names = names(by_name, spec.top);
    qwen3_5::stored_norms(&mut spec, by_name, &names)?;
    ernie4_5_moe::stored(&mut spec, by_name, &names);
    ministral3::stored_head(&mut spec, by_name, &names, &config);
    if sees {
        (spec.images, spec.ahead) = images(model_type, &config);
    }
    // Attention there has no tokens that see those after them.
    if options.gpu.is_some() && spec.ahead.is_some() {
        (spec.images, spec.ahead) = (None, None);
    }
    Ok(Described { spec, names, config, model_type, sees })
}

/// `model_type`s of models that see or hear, of which the language model is loaded.
const MULTIMODAL: &[&str] = &[
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "glm4v",
    "idefics3",
    "internvl",
    "kimi_k25",
    "lfm2-vl",
    "lfm2_vl",
    "llama4",
    "llava",
    "llava_next",
    "mistral3",
    "muse_glimmer",
    "paligemma",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
    "smolvlm",
];

/// How images count in models that see, of those that take any so far, and which tokens see those after them.
fn images(model_type: &str, text: &Value) -> (Option<ImagePositions>, Option<Ahead>) {
    let positions = match model_type {
        "glm4v" | "qwen2_5_vl" | "qwen2_vl" | "qwen3_5" | "qwen3_5_moe" | "qwen3_vl"
        | "qwen3_vl_moe" => Some(ImagePositions::Axes),
        "gemma3" | "gemma4" | "idefics3" | "internvl" | "lfm2-vl" | "lfm2_vl" | "llama4"
        | "llava" | "llava_next" | "mistral3" | "paligemma" | "smolvlm" => {
            Some(ImagePositions::Text)
        }
        // Of others, towers are not there yet.
        _ => None,
    };
    let both_ways = text.get("use_bidirectional_attention").and_then(Value::as_str);
    let ahead = match model_type {
        "gemma3" => Some(Ahead::Images),
        "gemma4" if both_ways == Some("vision") => Some(Ahead::ImagesInWindows),
        "paligemma" => Some(Ahead::Prompts),
        _ => None,
    };
    (positions, ahead)
}

/// Has positions of three axes turn pairs of the rotary table.
fn turn_by_axes(
    spec: &mut Spec,
    config: &Value,
    default: [usize; 3],
    blocks: bool,
) -> Result<(), ModelError> {
    let rope = config::rope(spec.family, config, 10_000.0)?;
    for table in &mut spec.ropes {
        let axes = rope.axes(spec.family, table.pairs(), default, blocks)?;
        *table = table.clone().with_axes(axes);
    }
    Ok(())
}

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

/// What config.json says of a model of a family.
pub(crate) fn spec(
    model_type: &str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let family = FAMILIES.iter().find(|family| family.model_types.contains(&model_type));
    let unknown = || ModelError::UnknownFamily { model_type: model_type.to_owned() };
    let family = family.ok_or_else(unknown)?;
    let mut spec = (family.spec)(config, options)?;
    if options.experts.is_some() {
        streaming::check(options)?;
    }
    if let Some(asked) = options.moe_top_k {
        spec.choose(asked)?;
    }
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
        norm_eps: shape.norm_eps(family),
        norm_offset: 0.0,
        norm: NormKind::Rms,
        norms: LayerNorms::PRE,
        after_norm_eps: None,
        last_norm_offset: None,
        embed_norm: false,
        sub_norms: false,
        learned_positions: None,
        inputs_first: false,
        attention_norms: None,
        parallel: false,
        renames: &[],
        halves: None,
        top: TopNames::LLAMA,
        qk_norm: None,
        qkv_bias: false,
        out_bias: false,
        mlp_bias: false,
        head_bias: false,
        fused_qkv: None,
        fused_mlp: false,
        interleaved: false,
        attention_gate: None,
        activation: Activation::Silu,
        gated_mlp: true,
        xielu: false,
        mlp_scales: None,
        attn_scale: (shape.head_dim() as f32).powf(-0.5),
        attn_soft_cap: None,
        attn_sinks: false,
        window_sinks: false,
        value_dim: None,
        value_scale: None,
        logit_soft_cap: None,
        embed_scale: None,
        branch_scale: None,
        logit_scale: None,
        per_layer: None,
        streams: None,
        layer_scalar: false,
        bidirectional: false,
        tied: shape.tied(false),
        ropes: vec![rope.table(context(family, shape, options))?],
        images: None,
        padding: 0,
        ahead: None,
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

#[cfg(test)]
mod refusals;
