//! Checkpoints as weights: opening, checking and quantizing them.
//!
#![doc = include_str!("../README.md")]

mod checkpoint;
mod convert;
mod error;
mod experts;
mod formats;
mod gguf;
mod json;
mod quantization;
mod shard;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use convert::{ConvertError, ConvertOptions, ConvertReport, Override, TargetFormat, convert};
pub use error::WeightsError;
pub use gguf::{Gguf, GgufError};
pub use quantization::Quantization;
