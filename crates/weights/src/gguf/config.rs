//! The metadata as the config.json that Hugging Face has for the model.

use super::{GgufError, file::Keys};
use serde_json::{Map, Value, json};

/// What tensors say of the model.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) vocab: usize,
    pub(super) tied: bool,
    pub(super) attention_bias: bool,
    pub(super) mlp_bias: bool,
    /// Divisors of the rotary frequencies, for contexts within the original one and beyond.
    pub(super) divisors: Option<[Vec<f32>; 2]>,
}

/// Architectures that are read, and their `model_type`s.
pub(crate) const ARCHITECTURES: [(&str, &str); 7] = [
    ("llama", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3moe", "qwen3_moe"),
    ("gemma3", "gemma3_text"),
    ("phi3", "phi3"),
    ("smollm3", "smollm3"),
];

/// Layers of Gemma 3 27B, whose queries are scaled in a way of their own.
const GEMMA3_27B: u64 = 62;

/// Size of a head of queries and keys.
pub(super) fn head_dim(keys: Keys<'_>) -> Result<u64, GgufError> {
    if let Some(n) = keys.whole("attention.key_length") {
        return Ok(n);
    }
    let (hidden, heads) = (keys.need("embedding_length")?, keys.need("attention.head_count")?);
    Ok(hidden / heads.max(1))
}

pub(super) fn config(keys: Keys<'_>, seen: &Seen, stops: &[u32]) -> Result<Value, GgufError> {
    let known = ARCHITECTURES.iter().find(|(name, _)| *name == keys.architecture);
    let (_, model_type) = known.ok_or_else(|| {
        let names: Vec<_> = ARCHITECTURES.iter().map(|(name, _)| *name).collect();
        let own = keys.architecture;
        GgufError::unsupported(format!(
            "its architecture is {own:?}, and these are read from GGUF files: {}",
            names.join(", ")
        ))
    })?;
    let heads = keys.need("attention.head_count")?;
    let mut config = json!({
        "model_type": model_type,
        "vocab_size": seen.vocab,
        "hidden_size": keys.need("embedding_length")?,
        "intermediate_size": keys.need("feed_forward_length")?,
        "num_hidden_layers": keys.need("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("attention.head_count_kv").unwrap_or(heads),
        "head_dim": head_dim(keys)?,
        "max_position_embeddings": keys.need("context_length")?,
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon").unwrap_or(1e-5),
        "rope_theta": keys.real("rope.freq_base").unwrap_or(10_000.0),
        "tie_word_embeddings": seen.tied,
        "attention_bias": seen.attention_bias,
        "mlp_bias": seen.mlp_bias,
        "eos_token_id": stops,
    });
    let Some(fields) = config.as_object_mut() else { return Ok(config) };
    if let Some(scaling) = scaling(keys, seen)? {
        fields.insert("rope_scaling".into(), scaling);
    }
    own(keys, fields)?;
    Ok(config)
}

/// Fields that one architecture has.
fn own(keys: Keys<'_>, fields: &mut Map<String, Value>) -> Result<(), GgufError> {
    let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    let experts = keys.whole("expert_count").unwrap_or(0);
    match keys.architecture {
        "qwen3moe" => {
            set("num_experts", experts.into());
            set("num_experts_per_tok", keys.need("expert_used_count")?.into());
            set("moe_intermediate_size", keys.need("expert_feed_forward_length")?.into());
            // The files do not say it, and llama.cpp always does it.
            set("norm_topk_prob", true.into());
            set("decoder_sparse_step", 1.into());
            set("mlp_only_layers", json!([]));
            return Ok(());
        }
        "gemma3" => {
            let (layers, head) = (keys.need("block_count")?, head_dim(keys)?);
            let heads = keys.need("attention.head_count")?.max(1);
            let large = layers == GEMMA3_27B;
            let scalar = if large { keys.need("embedding_length")? / heads } else { head };
            set("query_pre_attn_scalar", scalar.into());
            set("hidden_activation", "gelu_pytorch_tanh".into());
            set("rope_local_base_freq", 10_000.0.into());
            if let Some(window) = keys.whole("attention.sliding_window") {
                set("sliding_window", window.into());
            }
            if let Some(cap) = keys.real("final_logit_softcapping") {
                set("final_logit_softcapping", cap.into());
            }
        }
        "phi3" => {
            let turned = keys.whole("rope.dimension_count").unwrap_or(head_dim(keys)?);
            set("partial_rotary_factor", (turned as f64 / head_dim(keys)?.max(1) as f64).into());
            if let Some(window) = keys.whole("attention.sliding_window") {
                set("sliding_window", window.into());
            }
        }
        _ => {}
    }
    match experts {
        0 => Ok(()),
        _ => Err(GgufError::unsupported(format!(
            "{} with experts is not read yet",
            keys.architecture
        ))),
    }
}

/// How rotary frequencies are stretched.
fn scaling(keys: Keys<'_>, seen: &Seen) -> Result<Option<Value>, GgufError> {
    let original = keys.whole("rope.scaling.original_context_length");
    let attention = keys.real("rope.scaling.attn_factor");
    if let Some([short, long]) = &seen.divisors {
        let original = original.unwrap_or(keys.need("context_length")?);
        // Llama 3.1 has one list, which stands in both places, and scales no attention scores. Without
        // the field longrope would compute a factor for them.
        let attention = attention.or((short == long).then_some(1.0));
        let mut section = json!({
            "rope_type": "longrope", "short_factor": short, "long_factor": long,
            "original_max_position_embeddings": original,
        });
        if let Some(attention) = attention {
            section["attention_factor"] = attention.into();
        }
        return Ok(Some(section));
    }
    let factor = keys.real("rope.scaling.factor").or(keys.real("rope.scale_linear"));
    match (keys.text("rope.scaling.type"), factor) {
        (None | Some("none"), None) | (Some("none"), _) => Ok(None),
        (None | Some("linear"), Some(factor)) => {
            Ok(Some(json!({ "rope_type": "linear", "factor": factor })))
        }
        (Some("yarn"), Some(factor)) => {
            let mut section = json!({ "rope_type": "yarn", "factor": factor });
            if let Some(original) = original {
                section["original_max_position_embeddings"] = original.into();
            }
            if let Some(attention) = attention {
                section["attention_factor"] = attention.into();
            }
            Ok(Some(section))
        }
        (Some(other), _) => {
            Err(GgufError::unsupported(format!("its rotary scaling {other:?} is not read")))
        }
    }
}
