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
mod routed;
mod seed_oss;
mod smollm3;
mod step3p5;

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
    family(&["afmoe"], "Trinity", false, afmoe::afmoe),
    family(&["apertus"], "Apertus", false, apertus::apertus),
    family(&["arcee"], "AFM", false, plain::arcee),
    family(&["bailing_moe"], "Ling, Ling 2", false, bailing_moe::bailing_moe),
    family(&["bamba"], "Bamba", false, falcon_h1::bamba),
    family(&["bitnet"], "BitNet b1.58 in plain weights", false, bitnet::bitnet),
    family(&["cohere"], "Command R, Aya", false, cohere::cohere),
    family(&["cohere2"], "Command R7B and A", false, cohere::cohere2),
    family(&["cohere2_moe"], "Command A+", false, cohere2_moe::cohere2_moe),
    family(&["cwm"], "Code World Model", true, llama::cwm),
    family(&["deepseek_v2"], "DeepSeek V2", false, deepseek::deepseek_v2),
    family(
        &["deepseek_v3", "joyai_llm_flash", "kimi_k2", "kimi_k25"],
        "DeepSeek V3 and R1, Kimi K2, JoyAI; of Kimi K2.5 the text",
        false,
        deepseek::deepseek_v3,
    ),
    family(
        &["deepseek_v32"],
        "DeepSeek V3.2, as many tokens as its indexer picks",
        false,
        deepseek::deepseek_v32,
    ),
    family(&["dots1"], "dots.llm1", false, routed::dots1),
    family(&["ernie4_5"], "ERNIE 4.5, dense", true, ernie4_5::ernie4_5),
    family(&["ernie4_5_moe"], "ERNIE 4.5 with experts", false, ernie4_5_moe::ernie4_5_moe),
    family(&["exaone"], "EXAONE 3, 3.5", true, exaone::exaone),
    family(&["exaone4"], "EXAONE 4", true, exaone4::exaone4),
    family(&["exaone_moe"], "K-EXAONE", false, routed::exaone_moe),
    family(&["falcon"], "Falcon with rotations", false, falcon::falcon),
    family(&["falcon_h1"], "Falcon-H1", false, falcon_h1::falcon_h1),
    family(&["falcon_mamba"], "Falcon Mamba", false, mamba::falcon_mamba),
    family(&["flex_olmo"], "FlexOlmo", true, mixtral::flex_olmo),
    family(&["gemma"], "Gemma", true, gemma::gemma),
    family(&["gemma2"], "Gemma 2", true, gemma::gemma2),
    family(&["gemma3", "gemma3_text"], "Gemma 3, text only", true, gemma3::gemma3),
    family(&["gemma3n", "gemma3n_text"], "Gemma 3n, text only", false, gemma3n::gemma3n),
    family(&["gemma4", "gemma4_text"], "Gemma 4, text only", false, gemma4::gemma4),
    family(
        &["gemma4_unified", "gemma4_unified_text"],
        "Gemma 4 Unified, text only",
        false,
        gemma4::unified,
    ),
    family(&["glm"], "GLM 4 9B of 2024, GLM Edge", true, glm::glm),
    family(&["glm4"], "GLM 4 of 2025", true, glm::glm4),
    family(&["glm4_moe"], "GLM 4.5 to 4.7", false, routed::glm4_moe),
    family(&["glm4_moe_lite"], "GLM 4.7 Flash", false, deepseek::glm4_moe_lite),
    family(
        &["glm_moe_dsa"],
        "GLM 5, as many tokens as its indexer picks",
        false,
        deepseek::glm_moe_dsa,
    ),
    family(&["gpt2"], "GPT-2", false, gpt2::gpt2),
    family(&["gpt_bigcode"], "StarCoder 1", false, gpt2::gpt_bigcode),
    family(&["gpt_neox"], "GPT-NeoX, Pythia", false, gpt_neox::gpt_neox),
    family(&["gpt_oss"], "gpt-oss", false, gpt_oss::gpt_oss),
    family(&["gptj"], "GPT-J", false, gpt2::gptj),
    family(&["granite"], "Granite 3 and 4, dense", true, granite::granite),
    family(&["granite_swa"], "Granite with windows", true, granite::granite_swa),
    family(&["granitemoe"], "Granite 3 with experts", false, granite_moe::granitemoe),
    family(&["granitemoehybrid"], "Granite 4, hybrid", false, granite_hybrid::granitemoehybrid),
    family(
        &["granitemoeshared"],
        "Granite with experts and a shared one",
        false,
        granite_moe::granitemoeshared,
    ),
    family(&["helium"], "Helium", true, helium::helium),
    family(&["hunyuan_v1_dense"], "Hunyuan, dense", true, hunyuan_v1_dense::hunyuan_v1_dense),
    family(&["hunyuan_v1_moe"], "Hunyuan A13B", false, hunyuan_moe::hunyuan_moe),
    family(&["hy_v3"], "Hunyuan 3", false, routed::hy_v3),
    family(&["internlm2"], "InternLM 2, 2.5", true, internlm::internlm2),
    family(&["internlm3"], "InternLM 3", true, internlm::internlm3),
    family(
        &["iquestcoder", "llama", "xverse"],
        "Llama 2 to 3.3, SmolLM2; Mistral's GGUF files",
        true,
        llama::llama,
    ),
    family(&["jais2"], "Jais 2", false, plain::jais2),
    family(&["jamba"], "Jamba", false, jamba::jamba),
    family(&["kimi_linear"], "Kimi Linear", false, kimi_linear::kimi_linear),
    family(&["laguna"], "Laguna", false, laguna::laguna),
    family(&["lfm2"], "LFM2", false, lfm2::lfm2),
    family(&["lfm2_moe"], "LFM2 with experts", false, lfm2::lfm2_moe),
    family(&["lfm3"], "LFM3", false, lfm2::lfm3),
    family(&["llama4", "llama4_text"], "Llama 4, text only", false, llama4::llama4),
    family(&["llava"], "LLaVA 1.5, 1.6, text only", true, llama::llava),
    family(&["longcat_flash"], "LongCat Flash", false, longcat::longcat_flash),
    family(&["mamba"], "Mamba", false, mamba::mamba),
    family(&["mamba2"], "Mamba 2, Mamba-Codestral", false, mamba::mamba2),
    family(&["mellum"], "Mellum 2", false, mellum::mellum),
    family(&["mimo"], "MiMo 7B", true, llama::mimo),
    family(&["mimo_v2_flash"], "MiMo V2 Flash", false, mimo_v2::mimo_v2_flash),
    family(&["minicpm"], "MiniCPM 1, 2", true, minicpm::minicpm),
    family(&["minicpm3"], "MiniCPM 3", false, deepseek::minicpm3),
    family(&["minimax"], "MiniMax M2 as it was first published", false, minimax::minimax),
    family(&["minimax_m2"], "MiniMax M2", false, minimax::minimax_m2),
    family(&["ministral"], "Ministral", true, llama::ministral),
    family(&["ministral3"], "Ministral 3", true, ministral3::ministral3),
    family(&["mistral"], "Mistral", true, llama::mistral),
    family(&["mistral3"], "Mistral Small 3.1, Ministral 3, text only", true, ministral3::mistral3),
    family(&["mistral4"], "Mistral Small 4", false, deepseek::mistral4),
    family(&["mixtral"], "Mixtral", true, mixtral::mixtral),
    family(
        &["muse_glimmer", "muse_glimmer_text"],
        "Muse Glimmer, text only",
        false,
        muse_glimmer::muse_glimmer,
    ),
    family(&["nanochat"], "nanochat", true, nanochat::nanochat),
    family(&["nemotron"], "Nemotron 4, Minitron", false, plain::nemotron),
    family(
        &["nemotron_h"],
        "Nemotron-H, Nemotron Nano 2 and 3, without latent experts",
        false,
        nemotron_h::nemotron_h,
    ),
    family(&["olmo"], "OLMo 1", false, olmo::olmo),
    family(&["olmo2"], "OLMo 2", true, olmo::olmo2),
    family(&["olmo3"], "OLMo 3", true, olmo::olmo3),
    family(&["olmo_hybrid"], "OLMo Hybrid", false, olmo_hybrid::olmo_hybrid),
    family(&["olmoe"], "OLMoE", true, mixtral::olmoe),
    family(&["phi"], "Phi 1, 1.5, 2", false, plain::phi),
    family(&["phi3"], "Phi 3, 3.5, 4-mini", true, phi3::phi3),
    family(&["phimoe"], "Phi 3.5 with experts", false, phimoe::phimoe),
    family(&["qwen2"], "Qwen 2, 2.5", true, qwen::qwen2),
    family(&["qwen2_5_vl", "qwen2_5_vl_text"], "Qwen 2.5 VL, text only", true, qwen_vl::qwen2_5_vl),
    family(&["qwen2_moe"], "Qwen 1.5 and 2 with experts", false, qwen::qwen2_moe),
    family(&["qwen2_vl", "qwen2_vl_text"], "Qwen 2 VL, text only", true, qwen_vl::qwen2_vl),
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
    family(&["qwen3_vl", "qwen3_vl_text"], "Qwen 3 VL, text only", true, qwen_vl::qwen3_vl),
    family(
        &["qwen3_vl_moe", "qwen3_vl_moe_text"],
        "Qwen 3 VL with experts, text only",
        true,
        qwen::qwen3_vl_moe,
    ),
    family(&["recurrent_gemma"], "RecurrentGemma", false, recurrent_gemma::recurrent_gemma),
    family(&["seed_oss"], "Seed-OSS", true, seed_oss::seed_oss),
    family(&["smollm3"], "SmolLM 3", true, smollm3::smollm3),
    family(&["solar_open"], "Solar Open", false, routed::solar_open),
    family(&["stablelm"], "Stable LM", false, plain::stablelm),
    family(&["starcoder2"], "StarCoder 2", false, plain::starcoder2),
    family(&["step3p5"], "Step 3.5", false, step3p5::step3p5),
    family(&["telechat3"], "TeleChat 3", true, llama::telechat3),
    family(&["vaultgemma"], "VaultGemma", true, gemma::vaultgemma),
    family(&["youtu", "youtu_llm"], "Youtu", false, deepseek::youtu),
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
    let sees = MULTIMODAL.contains(&model_type);
    let nested = config.get("text_config").filter(|_| sees);
    let config = text_config(config, nested);
    let mut spec = spec(model_type, &config, options)?;
    step3p5::stored(&mut spec, weights);
    if let Some(renames) = lfm2::mlx_names(&spec, |name| weights.has(name)) {
        spec.renames = renames;
    }
    let weights_by_name = Source::new(weights, spec.renames, spec.inputs_first);
    let names = names(weights_by_name, spec.top);
    qwen3_5::stored_norms(&mut spec, weights_by_name, &names)?;
    ernie4_5_moe::stored(&mut spec, weights_by_name, &names);
    ministral3::stored_head(&mut spec, weights_by_name, &names, &config);
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
    Ok(Box::new(model))
}

/// `model_type`s of models that see or hear, of which the language model is loaded.
const MULTIMODAL: &[&str] = &[
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "kimi_k25",
    "llama4",
    "llava",
    "mistral3",
    "muse_glimmer",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
];

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
        || (model_type == "mimo" && name.starts_with("model.mtp_layers."))
        || mask(model_type).is_some_and(|mask| {
            name.ends_with(&format!(".{mask}.bias"))
                || name.ends_with(&format!(".{mask}.masked_bias"))
        })
        || (matches!(model_type, "deepseek_v32" | "glm_moe_dsa") && name.contains(".indexer."))
        || (model_type == "longcat_flash" && name.starts_with("model.mtp."))
}

/// Where older files of a family have the causal mask.
fn mask(model_type: &str) -> Option<&'static str> {
    match model_type {
        "gpt2" | "gptj" => Some("attn"),
        "gpt_neox" => Some("attention"),
        _ => None,
    }
}

/// Whether config.json tells of heads for drafts, which files keep as layers after the last, or below "mtp".
fn drafts(config: &Value) -> bool {
    ["num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules"]
        .iter()
        .any(|field| config.get(field).and_then(Value::as_u64).is_some_and(|n| n > 0))
}

/// Whether what follows the name of all layers, `.7.norm.weight`, is of a layer after the last.
fn beyond(rest: &str, layers: usize) -> bool {
    let number = rest.strip_prefix('.').and_then(|rest| rest.split('.').next());
    number.and_then(|n| n.parse().ok()).is_some_and(|n: usize| n >= layers)
}

/// The configuration with a value for a field that says nothing.
fn with_default(config: &Value, field: &str, value: impl Into<Value>) -> Value {
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        let field = fields.entry(field).or_insert(Value::Null);
        if field.is_null() {
            *field = value.into();
        }
    }
    config
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

#[cfg(test)]
mod refusals;
