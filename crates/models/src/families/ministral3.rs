//! Ministral 3, alone and below a model that sees (`mistral3`, which has Mistral's language model, too): queries of far
//! positions are scaled.

use super::{deepseek, llama, read};
use crate::{
    LoadOptions, ModelError, config,
    decoder::Names,
    source::Source,
    spec::{MixerSpec, PositionScale, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};

const FAMILY: &str = "ministral3";

/// What `rope_parameters` says beside the frequencies.
#[derive(Deserialize)]
struct Own {
    llama_4_scaling_beta: Option<f32>,
    original_max_position_embeddings: Option<f32>,
}

/// The language model of a model that sees.
pub(super) fn mistral3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    match config.get("model_type").and_then(Value::as_str) {
        Some("ministral3") => ministral3(config, options),
        Some("mistral") | None => llama::mistral(config, options),
        Some("mistral4") => deepseek::mistral4(config, options),
        Some(other) => {
            let (family, field) = ("mistral3", "text_config.model_type");
            Err(ModelError::Unsupported { family, field, value: other.to_owned() })
        }
    }
}

pub(super) fn ministral3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let yarn = json!({
        "rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 16384, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    });
    let defaults = [("rms_norm_eps", json!(1e-5)), ("head_dim", json!(128))];
    let mut config = config::with_defaults(config, &defaults);
    let says = |name| config::section(&config, name).is_some();
    if !says("rope_parameters")
        && !says("rope_scaling")
        && let Some(fields) = config.as_object_mut()
    {
        fields.insert("rope_parameters".to_owned(), yarn);
    }
    let config = &config;
    let q_scale = position_scale(FAMILY, config)?;
    let (_, mut spec) = read(FAMILY, config, 1_000_000.0, options)?;
    let windows = config::windows(FAMILY, config, spec.layers.len(), |_| true)?;
    for (layer, window) in spec.layers.iter_mut().zip(windows) {
        if let MixerSpec::Attention(attention) = &mut layer.mixer {
            (attention.window, attention.q_scale) = (window, q_scale);
        }
    }
    Ok(spec)
}

/// Where nothing is said of it, the head is the token table if there is no head: the references differ in their
/// default.
pub(super) fn stored_head(spec: &mut Spec, weights: Source<'_>, names: &Names, config: &Value) {
    let silent = config.get("tie_word_embeddings").is_none_or(Value::is_null);
    if spec.family == FAMILY && silent {
        spec.tied = !weights.has(&format!("{}.weight", names.head));
    }
}

/// How queries of far positions are scaled.
pub(super) fn position_scale(
    family: &'static str,
    config: &Value,
) -> Result<Option<PositionScale>, ModelError> {
    let section = ["rope_scaling", "rope_parameters"];
    let section = section.iter().find_map(|name| config::section(config, name));
    let Some(section) = section else { return Ok(None) };
    let own: Own = config::parse(family, section)?;
    let Some(beta) = own.llama_4_scaling_beta.filter(|&beta| beta != 0.0) else { return Ok(None) };
    let every = own.original_max_position_embeddings;
    let factors =
        [("llama_4_scaling_beta", Some(beta)), ("original_max_position_embeddings", every)];
    config::factors(family, &factors)?;
    let missing = || ModelError::Unsupported {
        family,
        field: "original_max_position_embeddings",
        value: "nothing".to_owned(),
    };
    Ok(Some(PositionScale { beta, every: every.ok_or_else(missing)?, offset: 0.0 }))
}
