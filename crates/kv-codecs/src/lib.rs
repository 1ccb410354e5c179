//! How a key or value row becomes bytes, and attention over those bytes.
#![doc = include_str!("../README.md")]

mod attend;
mod codec;
mod dense;
mod gpu;

pub use attend::{AttnBatch, AttnParams, BlockReader, SeqSpan, attend_blocks};
pub use codec::{BlockBytes, KvCodec, KvCodecError, KvGeometry, LayerPages, parse, parse_on};
pub use dense::DenseCodec;
pub use gpu::GpuCodec;
