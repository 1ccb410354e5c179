//! Why a tower cannot be used.

use std::path::PathBuf;
use taper_weights::WeightsError;
use thiserror::Error;

/// A model's images cannot be encoded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VisionError {
    /// The model has a tower of a kind that is not known.
    #[error("images of model_type {model_type:?} are not supported")]
    ModelType {
        /// As config.json has it.
        model_type: String,
    },
    /// config.json, or the processor's file, lacks a field or has a value that is not supported.
    #[error("{field} is {value}; {expected}")]
    Field {
        /// Name of the field.
        field: String,
        /// What it holds, as JSON.
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// A token that the processor writes is not in the vocabulary.
    #[error("the vocabulary has no token {0:?}, which stands for images")]
    Token(String),
    /// A tensor is missing or wrong.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A tensor cannot be put on the device.
    #[error("the tower cannot be made: {0}")]
    Candle(#[from] candle_core::Error),
    /// A field was given that the processor's file has not.
    #[error("the processor of this model has no {name:?}; it has {known}")]
    NoSuchField {
        /// The field.
        name: String,
        /// Those that it has.
        known: String,
    },
    /// There is no file that says how images are prepared.
    #[error("{} has neither preprocessor_config.json nor processor_config.json", .0.display())]
    NoProcessor(PathBuf),
}
