//! Why a model of speech cannot be used.

use std::{io, path::PathBuf};
use taper_weights::WeightsError;
use thiserror::Error;

/// A Whisper cannot be loaded, or fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WhisperError {
    /// A configuration lacks a field, or has a value that is not supported.
    #[error("{field} is {value}; {expected}")]
    Field {
        /// Name of the field.
        field: String,
        /// What it holds, as JSON.
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// A token that Whisper cannot do without.
    #[error("the vocabulary has no token {0:?}")]
    Token(&'static str),
    /// A file beside the weights.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// A tensor is missing or wrong, or config.json is.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A product cannot be computed.
    #[error("the model failed: {0}")]
    Candle(#[from] candle_core::Error),
    /// A text and its tokens.
    #[error(transparent)]
    Chat(#[from] taper_chat::ChatError),
    /// Weights that are broken.
    #[error("the model gave logits that are not numbers")]
    NotANumber,
    /// More tokens than the decoder has positions.
    #[error("{got} tokens do not fit the {most} positions of the decoder")]
    TooLong {
        /// Tokens.
        got: usize,
        /// Positions.
        most: usize,
    },
}
