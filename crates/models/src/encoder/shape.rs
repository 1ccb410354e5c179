//! What config.json says of an encoder.

use crate::{ModelError, config};
use serde::Deserialize;
use serde_json::Value;
use taper_tensor::ops::Activation;

/// Sizes of an encoder.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct EncoderShape {
    pub(super) vocab: usize,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Rows of the table of positions.
    pub(super) positions: usize,
    /// The row of a text's first token.
    pub(super) first_position: usize,
    pub(super) token_kinds: usize,
    pub(super) norm_eps: f32,
    pub(super) activation: Activation,
}

#[derive(Deserialize)]
struct Own {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    layer_norm_eps: Option<f32>,
    hidden_act: Option<String>,
    pad_token_id: Option<usize>,
}

impl EncoderShape {
    pub(super) fn read(config: &Value) -> Result<Self, ModelError> {
        let model_type = config.get("model_type").and_then(Value::as_str);
        let model_type = model_type.ok_or(ModelError::NoModelType)?;
        let known = ["bert", "roberta", "xlm-roberta"];
        let Some(&family) = known.iter().find(|known| **known == model_type) else {
            return Err(ModelError::UnknownEncoder { model_type: model_type.to_owned() });
        };
        config::require(family, config, "position_embedding_type", &["absolute"])?;
        let own: Own = config::parse(family, config)?;
        // RoBERTa counts positions from the one after its padding.
        let first_position = match family {
            "bert" => 0,
            _ => own.pad_token_id.unwrap_or(1).saturating_add(1),
        };
        let activation = activation(family, "hidden_act", own.hidden_act.as_deref())?;
        let shape = Self {
            vocab: own.vocab_size,
            hidden: own.hidden_size,
            intermediate: own.intermediate_size,
            layers: own.num_hidden_layers,
            heads: own.num_attention_heads,
            positions: own.max_position_embeddings,
            first_position,
            token_kinds: own.type_vocab_size,
            norm_eps: own.layer_norm_eps.unwrap_or(1e-12),
            activation,
        };
        shape.check(family)
    }

    fn check(self, family: &'static str) -> Result<Self, ModelError> {
        for (field, value) in [
            ("vocab_size", self.vocab),
            ("hidden_size", self.hidden),
            ("intermediate_size", self.intermediate),
            ("num_attention_heads", self.heads),
            ("type_vocab_size", self.token_kinds),
            ("max_position_embeddings", self.positions),
        ] {
            config::size(family, field, value, config::MAX_SIZE)?;
        }
        config::size(family, "num_hidden_layers", self.layers, usize::from(u16::MAX))?;
        let bad = |field, value: String| Err(ModelError::Unsupported { family, field, value });
        if !self.hidden.is_multiple_of(self.heads) {
            return bad("num_attention_heads", self.heads.to_string());
        }
        if self.first_position >= self.positions {
            return bad("pad_token_id", (self.first_position - 1).to_string());
        }
        if !(0.0..=1.0).contains(&self.norm_eps) {
            return bad("layer_norm_eps", self.norm_eps.to_string());
        }
        Ok(self)
    }
}

/// By its name in config.json; encoders have GELU where it says nothing.
pub(super) fn activation(
    family: &'static str,
    field: &'static str,
    name: Option<&str>,
) -> Result<Activation, ModelError> {
    Ok(match name {
        None | Some("gelu") => Activation::Gelu,
        Some("gelu_new" | "gelu_pytorch_tanh") => Activation::GeluTanh,
        Some("silu") => Activation::Silu,
        Some(other) => {
            return Err(ModelError::Unsupported { family, field, value: other.to_owned() });
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"model_type": "bert", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 8,
               "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16,
               "type_vocab_size": 2})
    }

    #[test]
    fn roberta_begins_behind_its_padding() -> Result<(), ModelError> {
        assert_eq!(EncoderShape::read(&config())?.first_position, 0);
        let mut config = config();
        config["model_type"] = json!("xlm-roberta");
        assert_eq!(EncoderShape::read(&config)?.first_position, 2);
        Ok(())
    }

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        for (field, value) in [
            ("model_type", json!("t5")),
            ("hidden_act", json!("relu")),
            ("position_embedding_type", json!("relative_key")),
            ("num_attention_heads", json!(3)),
            ("num_attention_heads", json!(0)),
            ("type_vocab_size", json!(0)),
            ("hidden_size", json!(1u64 << 40)),
            ("layer_norm_eps", json!(-1.0)),
        ] {
            let mut config = config();
            config[field] = value;
            let error = EncoderShape::read(&config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
        let mut config = config();
        config["model_type"] = json!("roberta");
        config["pad_token_id"] = json!(15);
        assert!(EncoderShape::read(&config).is_err());
    }
}
