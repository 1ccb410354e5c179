//! Checkpoints as weights.
//!
//! A [`Checkpoint`] is a `config.json` and safetensors files, one or sharded by
//! `model.safetensors.index.json`, dense or quantized by MLX. Files are memory-mapped: opening a
//! checkpoint reads headers only, and weights are paged in when they are used.

mod checkpoint;
mod error;
mod quantization;
mod shard;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use error::WeightsError;
pub use quantization::Quantization;
