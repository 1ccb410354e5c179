//! `generation_config.json`: the sampling that a model's makers recommend, and its stop tokens.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use taper_base::{SamplingParams, TokenId};

/// What the file may say; everything else in it is for training or for other programs.
#[derive(Debug, Clone, Default)]
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
#[serde(untagged, expecting = "a token's number or a list of them")]
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
    /// Reads the file. It only recommends, and transformers starts without it: what is broken in it
    /// is left out, with a warning.
    pub(crate) fn parse(json: &[u8]) -> Self {
        let mut fields: Map<String, Value> = match serde_json::from_slice(json) {
            Ok(fields) => fields,
            Err(error) => {
                tracing::warn!("generation_config.json is left out, it is not valid: {error}");
                return Self::default();
            }
        };
        let mut config = Self {
            eos_token_id: field(&mut fields, "eos_token_id"),
            do_sample: field(&mut fields, "do_sample"),
            temperature: field(&mut fields, "temperature"),
            top_k: field(&mut fields, "top_k"),
            top_p: field(&mut fields, "top_p"),
            min_p: field(&mut fields, "min_p"),
            typical_p: field(&mut fields, "typical_p"),
            repetition_penalty: field(&mut fields, "repetition_penalty"),
        };
        if let Err(error) = config.sampling().validate() {
            tracing::warn!("the sampling in generation_config.json is left out: {error}");
            config = Self { eos_token_id: config.eos_token_id, ..Self::default() };
        }
        config
    }

    /// Tokens that end a generation: the file's, or else those of config.json. What is no token of
    /// the model is left out, with a warning.
    pub(crate) fn eos_token_ids(
        &self,
        config: &Value,
        vocab: usize,
    ) -> Result<Vec<TokenId>, serde_json::Error> {
        let mut ids = self.named_eos(config)?;
        ids.retain(|id| {
            let known = (*id as usize) < vocab;
            if !known {
                tracing::warn!("eos_token_id {id} is left out, the model has {vocab} tokens");
            }
            known
        });
        Ok(ids)
    }

    fn named_eos(&self, config: &Value) -> Result<Vec<TokenId>, serde_json::Error> {
        if let Some(ids) = self.eos_token_id.clone() {
            return Ok(ids.tokens());
        }
        let text = config.get("text_config").and_then(|t| t.get("eos_token_id"));
        match config.get("eos_token_id").or(text).filter(|v| !v.is_null()) {
            Some(ids) => Ok(OneOrMany::deserialize(ids)?.tokens()),
            None => Ok(Vec::new()),
        }
    }

    /// Sampling where a request says nothing. Where the model's makers disable sampling, decoding
    /// is greedy.
    pub(crate) fn sampling(&self) -> SamplingParams {
        let base = SamplingParams::default();
        let greedy = self.do_sample == Some(false);
        SamplingParams {
            temperature: if greedy { 0.0 } else { self.temperature.unwrap_or(base.temperature) },
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            typical_p: self.typical_p.unwrap_or(base.typical_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            ..base
        }
    }
}

/// A field, unless it is absent, null or of another type.
fn field<T: DeserializeOwned>(fields: &mut Map<String, Value>, name: &str) -> Option<T> {
    match serde_json::from_value(fields.remove(name)?) {
        Ok(value) => value,
        Err(error) => {
            tracing::warn!("{name} in generation_config.json is left out: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stop_tokens_come_from_either_file() {
        let eos = |own: &str, config: Value| {
            GenerationConfig::parse(own.as_bytes()).eos_token_ids(&config, 10).unwrap()
        };
        assert_eq!(eos(r#"{"eos_token_id": [3, 4]}"#, json!({"eos_token_id": 5})), [3, 4]);
        assert_eq!(eos("{}", json!({"eos_token_id": 5})), [5]);
        assert_eq!(eos("{}", json!({"text_config": {"eos_token_id": [1, 2]}})), [1, 2]);
        assert!(eos("{}", json!({})).is_empty());
        assert_eq!(eos(r#"{"eos_token_id": [3, 10]}"#, json!({})), [3], "no token of the model");
    }

    #[test]
    fn sampling_is_checked() {
        let sampling = |json: &str| GenerationConfig::parse(json.as_bytes()).sampling();
        assert_eq!(sampling("{}"), SamplingParams::default());
        let s = sampling(r#"{"temperature": 0.6, "top_k": 20, "top_p": 0.95}"#);
        assert_eq!((s.temperature, s.top_k, s.top_p), (0.6, 20, 0.95));
        assert_eq!(sampling(r#"{"do_sample": false}"#).temperature, 0.0);
    }

    #[test]
    fn what_is_broken_is_left_out() {
        let parse = |json: &str| GenerationConfig::parse(json.as_bytes());
        for broken in ["", "{", "[]", r#"{"top_k": 20,}"#] {
            assert_eq!(parse(broken).sampling(), SamplingParams::default());
        }
        // One bad field leaves the others.
        let config = parse(r#"{"temperature": "hot", "top_k": 7, "eos_token_id": 4}"#);
        assert_eq!(config.sampling(), SamplingParams { top_k: 7, ..SamplingParams::default() });
        let config = parse(r#"{"temperature": -1, "eos_token_id": 4}"#);
        assert_eq!(config.sampling(), SamplingParams::default());
        assert_eq!(config.eos_token_ids(&json!({}), 10).unwrap(), [4]);
    }
}
