//! Language models of others in models that see: InternVL, LFM2-VL, PaliGemma.

use super::spec;
use crate::{LoadOptions, ModelError, config, spec::Spec};
use serde_json::Value;

/// InternVL has the language model that its `text_config` names.
pub(super) fn internvl(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    of("internvl", &["qwen2", "qwen3", "qwen3_moe", "llama", "gpt_oss"], config, options)
}

pub(super) fn lfm2_vl(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    of("lfm2_vl", &["lfm2", "lfm2_moe"], config, options)
}

pub(super) fn paligemma(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let config = &config::with_default(config, "max_position_embeddings", 8192);
    of("paligemma", &["gemma", "gemma2"], config, options)
}

/// A language model among those that a family has; the first where nothing is said.
fn of(
    family: &'static str,
    known: &[&'static str],
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    let named = config.get("model_type").and_then(Value::as_str).unwrap_or(known[0]);
    match known.contains(&named) {
        true => spec(named, config, options),
        false => {
            let (field, value) = ("text_config.model_type", named.to_owned());
            Err(ModelError::Unsupported { family, field, value })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_language_model_is_one_of_those_that_the_family_has() {
        for named in ["internvl", "mamba", "lfm2_vl"] {
            for read in [internvl, lfm2_vl, paligemma] {
                let refused = read(&json!({ "model_type": named }), LoadOptions::default());
                assert!(matches!(refused, Err(ModelError::Unsupported { .. })), "{named}");
            }
        }
    }
}
