//! How a key or value row becomes bytes, and attention over those bytes.
#![doc = include_str!("../README.md")]

mod attend;
mod codec;
mod dense;

pub use attend::{AttnBatch, AttnParams, BlockReader, SeqSpan, attend_blocks};
pub use codec::{BlockBytes, KvCodec, KvCodecError, KvGeometry, LayerPages, parse};
pub use dense::DenseCodec;
