//! Tensors of checkpoints that generation does not need.

use serde_json::Value;

/// Tensors that a checkpoint may have and that generation does not need: computed ones, and heads for
/// drafts.
pub(super) fn unused(model_type: &str, name: &str) -> bool {
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
pub(super) fn drafts(config: &Value) -> bool {
    ["num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules"]
        .iter()
        .any(|field| config.get(field).and_then(Value::as_u64).is_some_and(|n| n > 0))
}

/// Whether what follows the name of all layers, `.7.norm.weight`, is of a layer after the last.
pub(super) fn beyond(rest: &str, layers: usize) -> bool {
    let number = rest.strip_prefix('.').and_then(|rest| rest.split('.').next());
    number.and_then(|n| n.parse().ok()).is_some_and(|n: usize| n >= layers)
}

/// Families whose checkpoints may have heads for drafts.
const DRAFTS: &[&str] =
    &["nemotron_h", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"];
