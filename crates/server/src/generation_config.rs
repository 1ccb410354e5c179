//! `generation_config.json`: the sampling that a model's makers recommend, and its stop tokens.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;
use taper_base::{SamplingParams, TokenId};

/// What the file may say; everything else in it is for training or for other programs.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct GenerationConfig {
    eos_token_id: Option<OneOrMany>,
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(TokenId),
    Many(Vec<TokenId>),
}

impl OneOrMany {
    fn tokens(self) -> Vec<TokenId> {
        match self {
            Self::One(token) => vec![token],
            Self::Many(tokens) => tokens,
        }
    }
}

impl GenerationConfig {
    pub(crate) fn parse(json: &[u8]) -> Result<Self> {
        serde_json::from_slice(json).context("generation_config.json")
    }

    /// Tokens that end a generation: the file's, or else those of config.json.
    pub(crate) fn eos_token_ids(&self, config: &Value) -> Result<Vec<TokenId>> {
        if let Some(ids) = self.eos_token_id.clone() {
            return Ok(ids.tokens());
        }
        let text = config.get("text_config").and_then(|t| t.get("eos_token_id"));
        match config.get("eos_token_id").or(text).filter(|v| !v.is_null()) {
            Some(ids) => {
                let ids = OneOrMany::deserialize(ids).context("eos_token_id in config.json")?;
                Ok(ids.tokens())
            }
            None => Ok(Vec::new()),
        }
    }

    /// Sampling where a request says nothing. Makers who turn sampling off get greedy decoding.
    pub(crate) fn sampling(&self) -> Result<SamplingParams> {
        let base = SamplingParams::default();
        let greedy = self.do_sample == Some(false);
        let sampling = SamplingParams {
            temperature: if greedy { 0.0 } else { self.temperature.unwrap_or(base.temperature) },
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            typical_p: self.typical_p.unwrap_or(base.typical_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            ..base
        };
        sampling.validate().context("generation_config.json")?;
        Ok(sampling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stop_tokens_come_from_either_file() {
        let eos = |own: &str, config: Value| {
            GenerationConfig::parse(own.as_bytes()).unwrap().eos_token_ids(&config).unwrap()
        };
        assert_eq!(eos(r#"{"eos_token_id": [3, 4]}"#, json!({"eos_token_id": 5})), [3, 4]);
        assert_eq!(eos("{}", json!({"eos_token_id": 5})), [5]);
        assert_eq!(eos("{}", json!({"text_config": {"eos_token_id": [1, 2]}})), [1, 2]);
        assert!(eos("{}", json!({})).is_empty());
    }

    #[test]
    fn sampling_is_checked() {
        let sampling = |json: &str| GenerationConfig::parse(json.as_bytes()).unwrap().sampling();
        assert_eq!(sampling("{}").unwrap(), SamplingParams::default());
        let s = sampling(r#"{"temperature": 0.6, "top_k": 20, "top_p": 0.95}"#).unwrap();
        assert_eq!((s.temperature, s.top_k, s.top_p), (0.6, 20, 0.95));
        assert_eq!(sampling(r#"{"do_sample": false}"#).unwrap().temperature, 0.0);
        assert!(sampling(r#"{"temperature": -1}"#).is_err());
        assert!(GenerationConfig::parse(b"{").is_err());
    }
}
