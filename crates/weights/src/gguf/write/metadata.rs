//! config.json as llama.cpp's metadata.

use super::{Meta, Value};
use crate::gguf::{
    GgufError,
    architectures::{self, Architecture},
};
use serde_json::Value as Json;
use std::f64::consts::PI;

/// Architectures that are written.
const WRITTEN: [&str; 7] = ["llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "phi3", "smollm3"];

/// A tensor that no checkpoint has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Extra {
    pub(crate) name: &'static str,
    pub(crate) values: Vec<f32>,
}

/// Reads config.json.
struct Config<'a> {
    json: &'a Json,
    model_type: &'a str,
}

impl<'a> Config<'a> {
    fn get(&self, field: &str) -> Option<&'a Json> {
        self.json.get(field).filter(|v| !v.is_null())
    }

    fn whole(&self, field: &str) -> Option<u32> {
        u32::try_from(self.get(field)?.as_u64()?).ok()
    }

    fn need(&self, field: &'static str) -> Result<u32, GgufError> {
        let what = || GgufError::unsupported(format!("config.json has no usable {field:?}"));
        self.whole(field).ok_or_else(what)
    }

    fn is(&self, field: &str) -> bool {
        self.get(field).and_then(Json::as_bool).unwrap_or(false)
    }

    fn refuse(&self, what: &str) -> GgufError {
        GgufError::unsupported(format!("llama.cpp has no {} with {what}", self.model_type))
    }
}

/// llama.cpp's name of the architecture, the size of a head, the metadata, and tensors that go with it.
///
/// # Errors
/// An architecture that is not written, or a setting that llama.cpp does not have for it.
pub(crate) fn metadata(
    config: &Json,
) -> Result<(&'static Architecture, usize, Meta, Vec<Extra>), GgufError> {
    let model_type = config.get("model_type").and_then(Json::as_str).unwrap_or_default();
    let config = Config { json: config, model_type };
    let own = if model_type == "mistral" { "llama" } else { model_type };
    let mut written = WRITTEN.iter().filter_map(|name| architectures::find(name).ok());
    let found = written.clone().find(|known| known.model_type == own).ok_or_else(|| {
        let names: Vec<_> = written.by_ref().map(|known| known.model_type).collect();
        GgufError::unsupported(format!(
            "models of type {model_type:?} are not written; these are: {}, mistral",
            names.join(", ")
        ))
    })?;
    let architecture = found.name;
    check(&config, architecture)?;
    let heads = config.need("num_attention_heads")?;
    let hidden = config.need("hidden_size")?;
    let head = config.whole("head_dim").unwrap_or(hidden / heads.max(1));
    let mut meta: Meta =
        vec![("general.architecture".to_owned(), Value::Text(architecture.to_owned()))];
    let mut set = |key: &str, value| meta.push((format!("{architecture}.{key}"), value));
    set("context_length", Value::U32(config.need("max_position_embeddings")?));
    set("embedding_length", Value::U32(hidden));
    set("block_count", Value::U32(config.need("num_hidden_layers")?));
    set("feed_forward_length", Value::U32(config.need("intermediate_size")?));
    set("attention.head_count", Value::U32(heads));
    let kv_heads = config.whole("num_key_value_heads").unwrap_or(heads);
    set("attention.head_count_kv", Value::U32(kv_heads));
    set("attention.key_length", Value::U32(head));
    set("attention.value_length", Value::U32(head));
    let eps = config.get("rms_norm_eps").and_then(Json::as_f64).unwrap_or(1e-6);
    set("attention.layer_norm_rms_epsilon", Value::F32(eps as f32));
    set("vocab_size", Value::U32(config.need("vocab_size")?));
    if let (Some(window), "gemma3" | "phi3") = (config.whole("sliding_window"), architecture) {
        set("attention.sliding_window", Value::U32(window));
    }
    if let Some(cap) = config.get("final_logit_softcapping").and_then(Json::as_f64) {
        set("final_logit_softcapping", Value::F32(cap as f32));
    }
    if architecture == "qwen3moe" {
        set("expert_count", Value::U32(config.need("num_experts")?));
        set("expert_used_count", Value::U32(config.need("num_experts_per_tok")?));
        set("expert_feed_forward_length", Value::U32(config.need("moe_intermediate_size")?));
    }
    let extras = rope(&config, head, &mut set)?;
    Ok((found, head as usize, meta, extras))
}

/// Refuses what llama.cpp fixes for an architecture and the model has otherwise.
fn check(config: &Config<'_>, architecture: &str) -> Result<(), GgufError> {
    let layers = config.need("num_hidden_layers")? as usize;
    let list = |field: &str| config.get(field).and_then(Json::as_array);
    let full = |i: usize| {
        list("layer_types")
            .and_then(|types| types.get(i)?.as_str().map(|kind| kind == "full_attention"))
    };
    match architecture {
        "llama" if config.get("sliding_window").is_some() && config.model_type == "mistral" => {
            Err(config.refuse("a sliding window"))
        }
        "qwen2" | "qwen3" | "qwen3moe" | "smollm3" if config.is("use_sliding_window") => {
            Err(config.refuse("a sliding window"))
        }
        "qwen3moe"
            if config.whole("decoder_sparse_step").is_some_and(|step| step != 1)
                || list("mlp_only_layers").is_some_and(|layers| !layers.is_empty()) =>
        {
            Err(config.refuse("layers without experts"))
        }
        "qwen3moe" if !config.is("norm_topk_prob") => {
            Err(config.refuse("weights of experts that are not normalised"))
        }
        "smollm3" => {
            let rotates = |i: usize| match list("no_rope_layers") {
                Some(all) => all.get(i).and_then(Json::as_u64) == Some(1),
                None => !(i + 1)
                    .is_multiple_of(config.whole("no_rope_layer_interval").unwrap_or(4) as usize),
            };
            match (0..layers).all(|i| rotates(i) == ((i + 1) % 4 != 0)) {
                true => Ok(()),
                false => Err(config.refuse("other layers without rotation than every fourth")),
            }
        }
        "gemma3" => {
            let pattern = config.whole("sliding_window_pattern").unwrap_or(6) as usize;
            let sixths = |i: usize| (i + 1).is_multiple_of(pattern.max(1));
            let fixed = |i: usize| (i + 1).is_multiple_of(6);
            if !(0..layers).all(|i| full(i).unwrap_or_else(|| sixths(i)) == fixed(i)) {
                return Err(config.refuse("other layers without a window than every sixth"));
            }
            let heads = config.need("num_attention_heads")?.max(1);
            let hidden = config.need("hidden_size")?;
            let head = config.whole("head_dim").unwrap_or(256);
            let own = if layers == 62 { hidden / heads } else { head };
            match config.whole("query_pre_attn_scalar").is_none_or(|scalar| scalar == own) {
                true => Ok(()),
                false => Err(config.refuse("such a query_pre_attn_scalar")),
            }
        }
        _ => Ok(()),
    }
}

/// The rotary settings, and divisors of the frequencies.
fn rope(
    config: &Config<'_>,
    head: u32,
    set: &mut dyn FnMut(&str, Value),
) -> Result<Vec<Extra>, GgufError> {
    let parameters = config.get("rope_parameters");
    let parameters = parameters.map(|p| p.get("full_attention").unwrap_or(p));
    let section = config.get("rope_scaling").or(parameters);
    let real = |section: Option<&Json>, field: &str| section?.get(field)?.as_f64();
    let top = |field: &str| config.get(field).and_then(Json::as_f64);
    let theta = top("rope_theta").or(real(parameters, "rope_theta")).unwrap_or(10_000.0);
    let part = top("partial_rotary_factor").or(real(section, "partial_rotary_factor"));
    set("rope.freq_base", Value::F32(theta as f32));
    set("rope.dimension_count", Value::U32((f64::from(head) * part.unwrap_or(1.0)) as u32));
    let kind = section.and_then(|s| s.get("rope_type").or(s.get("type"))?.as_str());
    let field = "original_max_position_embeddings";
    let original = real(section, field).or(top(field));
    let factor = real(section, "factor");
    let missing = || config.refuse("rotary settings that lack a number");
    match kind {
        None | Some("default") => Ok(Vec::new()),
        Some(kind @ ("linear" | "yarn")) => {
            set("rope.scaling.type", Value::Text(kind.to_owned()));
            set("rope.scaling.factor", Value::F32(factor.ok_or_else(missing)? as f32));
            if let Some(original) = original {
                set("rope.scaling.original_context_length", Value::U32(original as u32));
            }
            if let Some(attention) = real(section, "attention_factor") {
                set("rope.scaling.attn_factor", Value::F32(attention as f32));
            }
            Ok(Vec::new())
        }
        Some("llama3") => {
            let (low, high) = (real(section, "low_freq_factor"), real(section, "high_freq_factor"));
            let numbers = factor.zip(original).zip(low.zip(high));
            let ((factor, original), (low, high)) = numbers.ok_or_else(missing)?;
            let divisor = |i: u32| {
                let wave = 2.0 * PI * theta.powf(f64::from(2 * i) / f64::from(head));
                let smooth = ((original / wave - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            };
            let values = (0..head / 2).map(divisor).collect();
            Ok(vec![Extra { name: "rope_freqs.weight", values }])
        }
        Some("longrope" | "su") => {
            let original = original.ok_or_else(missing)?;
            let scale = f64::from(config.need("max_position_embeddings")?) / original;
            let usual =
                || if scale > 1.0 { (1.0 + scale.ln() / original.ln()).sqrt() } else { 1.0 };
            let attention = real(section, "attention_factor").unwrap_or_else(usual);
            set("rope.scaling.original_context_length", Value::U32(original as u32));
            set("rope.scaling.attn_factor", Value::F32(attention as f32));
            let list = |name, field: &str| {
                let all = section.and_then(|s| s.get(field)?.as_array()).ok_or_else(missing)?;
                let values = all.iter().map(|x| x.as_f64().unwrap_or(1.0) as f32).collect();
                Ok(Extra { name, values })
            };
            Ok(vec![
                list("rope_factors_long.weight", "long_factor")?,
                list("rope_factors_short.weight", "short_factor")?,
            ])
        }
        Some(other) => Err(config.refuse(&format!("the rotary scaling {other:?}"))),
    }
}
