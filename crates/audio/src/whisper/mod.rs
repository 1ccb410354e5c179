//! Whisper (Radford et al., arXiv 2212.04356): a sound file to its text.

mod config;
mod decoder;
mod encoder;
mod layers;
mod rules;
mod segments;
mod tokens;
mod transcribe;
mod window;

#[cfg(test)]
mod tests;

use crate::{DecodeLimits, MelBank, WhisperError};
use config::Config;
use decoder::Decoder;
use encoder::Encoder;
use layers::Weights;
use serde_json::Value;
use std::{io, path::Path};
use taper_chat::Tokenizer;
use taper_weights::Checkpoint;
use tokens::{Specials, Suppressed};

/// A Whisper in Hugging Face's layout, on the CPU in `f32`.
#[derive(Debug)]
pub struct Whisper {
    config: Config,
    bank: MelBank,
    encoder: Encoder,
    decoder: Decoder,
    tokenizer: Tokenizer,
    specials: Specials,
    suppressed: Suppressed,
    limits: DecodeLimits,
}

impl Whisper {
    /// Opens a directory with config.json, tokenizer.json and safetensors; generation_config.json may say which tokens
    /// are never written.
    ///
    /// # Errors
    /// A file is missing or broken, a size is not supported, a tensor is missing, misshapen or not used, or the
    /// vocabulary lacks one of Whisper's tokens.
    pub fn open(dir: &Path, limits: DecodeLimits) -> Result<Self, WhisperError> {
        let tokenizer = Tokenizer::load(dir)?;
        let path = dir.join("generation_config.json");
        let generation = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Value::Null),
            Err(error) => Err(error),
        };
        let generation = generation.map_err(|source| WhisperError::File { path, source })?;
        Self::of(&Checkpoint::open(dir)?, &generation, tokenizer, limits)
    }

    /// Whether a model's config.json is that of a Whisper.
    #[must_use]
    pub fn is_for(config: &Value) -> bool {
        config.get("model_type").and_then(Value::as_str) == Some("whisper")
    }

    fn of(
        checkpoint: &Checkpoint,
        generation: &Value,
        tokenizer: Tokenizer,
        limits: DecodeLimits,
    ) -> Result<Self, WhisperError> {
        let config = Config::read(checkpoint.config())?;
        let specials = Specials::find(&tokenizer, &config, generation)?;
        let suppressed = Suppressed::read(&specials, &tokenizer, checkpoint.config(), generation);
        let (encoder, decoder) = network(checkpoint, &config)?;
        let bank = MelBank::new(config.num_mel_bins);
        Ok(Self { config, bank, encoder, decoder, tokenizer, specials, suppressed, limits })
    }

    /// Its tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Codes of the languages that it knows.
    pub fn languages(&self) -> impl Iterator<Item = &'static str> {
        let english = self.specials.languages.is_empty().then_some("en");
        self.specials.languages.iter().map(|(code, _)| *code).chain(english)
    }

    /// Frames of a window: 3000 of 10 ms.
    fn window(&self) -> usize {
        2 * self.config.max_source_positions
    }
}

fn network(checkpoint: &Checkpoint, config: &Config) -> Result<(Encoder, Decoder), WhisperError> {
    let weights = Weights { checkpoint, prefix: "model.".to_owned() };
    let encoder = Encoder::load(&weights.at("encoder"), config)?;
    let decoder = Decoder::load(&weights.at("decoder"), config)?;
    // Some files have the table of tokens a second time, by this name.
    checkpoint.expect_all_used(|name| name == "proj_out.weight")?;
    Ok((encoder, decoder))
}
