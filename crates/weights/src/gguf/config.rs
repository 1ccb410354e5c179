//! The metadata as the config.json that Hugging Face has for the model.

use super::{GgufError, architectures, file::Keys};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// What tensors say of the model.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) vocab: usize,
    pub(super) tied: bool,
    /// Biases of attention's output, of queries, of gates, and of what stands beside these.
    pub(super) attention_bias: bool,
    pub(super) query_bias: bool,
    pub(super) mlp_bias: bool,
    pub(super) up_bias: bool,
    /// Norms of queries.
    pub(super) query_norm: bool,
    /// Biases of the choice of experts.
    pub(super) choice_bias: bool,
    /// Values of layers without a map of their own, which are the keys.
    pub(super) keys_are_values: bool,
    /// Inner size of the first feed-forward without experts.
    pub(super) inner: Option<usize>,
    /// What layers have, as `3.ssm_in`.
    pub(super) parts: BTreeSet<String>,
    /// Divisors of the rotary frequencies, for contexts within the original one and beyond.
    pub(super) divisors: Option<[Vec<f32>; 2]>,
}

/// Size of a head of queries and keys.
pub(super) fn head_dim(keys: Keys<'_>) -> Result<u64, GgufError> {
    if let Some(n) = keys.whole("attention.key_length") {
        return Ok(n);
    }
    let (hidden, heads) = (keys.need("embedding_length")?, keys.need("attention.head_count")?);
    Ok(hidden / heads.max(1))
}

pub(super) fn config(keys: Keys<'_>, seen: &Seen, stops: &[u32]) -> Result<Value, GgufError> {
    let architecture = architectures::find(keys.architecture)?;
    let heads = keys.need("attention.head_count")?;
    // Of layers that differ, each architecture says more.
    let most = |key: &str| keys.whole(key).or_else(|| keys.list(key)?.into_iter().max());
    let inner = most("feed_forward_length").or(keys.whole("expert_feed_forward_length"));
    let inner = inner.map_or_else(|| keys.need("feed_forward_length"), Ok)?;
    let eps = keys.real("attention.layer_norm_rms_epsilon");
    let eps = eps.or(keys.real("attention.layer_norm_epsilon"));
    let mut config = json!({
        "model_type": architecture.model_type,
        "vocab_size": seen.vocab,
        "hidden_size": keys.need("embedding_length")?,
        "intermediate_size": inner,
        "num_hidden_layers": layers(keys)?,
        "num_attention_heads": heads,
        "num_key_value_heads": most("attention.head_count_kv").unwrap_or(heads),
        "head_dim": head_dim(keys)?,
        "max_position_embeddings": keys.need("context_length")?,
        "rms_norm_eps": eps.unwrap_or(1e-5),
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
    (architecture.fields)(keys, seen, fields)?;
    Ok(config)
}

/// Layers without those that only draft.
pub(super) fn layers(keys: Keys<'_>) -> Result<u64, GgufError> {
    let drafts = keys.whole("nextn_predict_layers").unwrap_or(0);
    Ok(keys.need("block_count")?.saturating_sub(drafts))
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
            for (theirs, ours) in [
                ("attn_factor", "attention_factor"),
                ("yarn_attn_factor", "attention_factor"),
                ("yarn_beta_fast", "beta_fast"),
                ("yarn_beta_slow", "beta_slow"),
            ] {
                if let Some(x) = keys.real(&format!("rope.scaling.{theirs}")) {
                    section[ours] = x.into();
                }
            }
            Ok(Some(section))
        }
        (Some(other), _) => {
            Err(GgufError::unsupported(format!("its rotary scaling {other:?} is not read")))
        }
    }
}
