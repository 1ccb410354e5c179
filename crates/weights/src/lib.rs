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
mod tensors;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use convert::{
    ConvertError, ConvertOptions, ConvertReport, First, GgufType, Matrices, Matrix, Override,
    QuantizedLayer, TargetFormat, convert, convert_with, survey,
};
pub use error::WeightsError;
pub use experts::ExpertMaps;
pub use gguf::{Gguf, GgufError};
pub use quantization::Quantization;
pub use tensors::{TensorFile, read_json};
