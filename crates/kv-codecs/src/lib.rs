//! How a key or value row becomes bytes, and attention over those bytes.
//!
//! A [`KvCodec`] deals in *pages*: one byte buffer a layer and side, cut into blocks of
//! [`KvGeometry::block_tokens`] tokens. Which block belongs to which sequence is the cache's
//! business; the codec sees slots and block tables.

mod attend;
mod codec;
mod dense;

pub use attend::{AttnBatch, AttnParams, BlockReader, SeqSpan, attend_blocks};
pub use codec::{BlockBytes, KvCodec, KvCodecError, KvGeometry, LayerPages, parse};
pub use dense::DenseCodec;
