//! Sizes of a Whisper.

use crate::WhisperError;
use serde_json::Value;

/// Sizes, by the names of config.json.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) d_model: usize,
    pub(crate) encoder: Stack,
    pub(crate) decoder: Stack,
    pub(crate) vocab_size: usize,
    pub(crate) num_mel_bins: usize,
    /// Rows of the encoder's output; a window has twice as many frames.
    pub(crate) max_source_positions: usize,
    pub(crate) max_target_positions: usize,
}

/// Layers of the encoder, or of the decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stack {
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) inner: usize,
}

/// More than any model has, and little enough for products of sizes.
const MOST: u64 = 1 << 20;

impl Config {
    pub(crate) fn read(json: &Value) -> Result<Self, WhisperError> {
        expect(json, "model_type", &Value::from("whisper"))?;
        expect(json, "activation_function", &Value::from("gelu"))?;
        expect(json, "scale_embedding", &Value::from(false))?;
        let size = |name: &str| size(json, name);
        let stack = |of: &str| {
            Ok::<_, WhisperError>(Stack {
                layers: size(&format!("{of}_layers"))?,
                heads: size(&format!("{of}_attention_heads"))?,
                inner: size(&format!("{of}_ffn_dim"))?,
            })
        };
        let config = Self {
            d_model: size("d_model")?,
            encoder: stack("encoder")?,
            decoder: stack("decoder")?,
            vocab_size: size("vocab_size")?,
            num_mel_bins: size("num_mel_bins")?,
            max_source_positions: size("max_source_positions")?,
            max_target_positions: size("max_target_positions")?,
        };
        for (field, heads) in [
            ("encoder_attention_heads", config.encoder.heads),
            ("decoder_attention_heads", config.decoder.heads),
        ] {
            if !config.d_model.is_multiple_of(heads) {
                return Err(wrong(json, field, "it must divide d_model"));
            }
        }
        // The prompt's half, the tokens of a start, and one word.
        if config.max_target_positions < 16 {
            return Err(wrong(json, "max_target_positions", "16 positions are needed"));
        }
        Ok(config)
    }
}

fn size(json: &Value, name: &str) -> Result<usize, WhisperError> {
    let value = json.get(name).and_then(Value::as_u64).filter(|n| (1..=MOST).contains(n));
    let value = value.and_then(|n| usize::try_from(n).ok());
    value.ok_or_else(|| wrong(json, name, "a size above 0 is needed"))
}

/// Refuses a field with another value than the one that is computed.
fn expect(json: &Value, name: &str, expected: &Value) -> Result<(), WhisperError> {
    match json.get(name) {
        Some(value) if value != expected => Err(wrong(json, name, "this is not supported")),
        _ => Ok(()),
    }
}

fn wrong(json: &Value, field: &str, expected: &'static str) -> WhisperError {
    let value = json.get(field).map_or_else(|| "absent".to_owned(), Value::to_string);
    WhisperError::Field { field: field.to_owned(), value, expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sizes_are_checked() {
        let good = json!({
            "model_type": "whisper", "d_model": 48, "encoder_layers": 2, "encoder_attention_heads": 3,
            "encoder_ffn_dim": 64, "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 32,
            "vocab_size": 128, "num_mel_bins": 80, "max_source_positions": 150, "max_target_positions": 64,
        });
        let config = Config::read(&good).unwrap();
        assert_eq!(config.decoder, Stack { layers: 1, heads: 4, inner: 32 });
        let bad = [
            ("model_type", json!("bart")),
            ("activation_function", json!("relu")),
            ("scale_embedding", json!(true)),
            ("d_model", json!(0)),
            ("d_model", json!("48")),
            ("encoder_layers", json!(-1)),
            ("decoder_attention_heads", json!(5)),
            ("vocab_size", json!(1u64 << 40)),
            ("max_target_positions", json!(4)),
            ("num_mel_bins", json!(null)),
        ];
        for (field, value) in bad {
            let mut json = good.clone();
            json[field] = value;
            let error = Config::read(&json).unwrap_err();
            assert!(matches!(error, WhisperError::Field { field: f, .. } if f == field), "{field}");
        }
    }
}
