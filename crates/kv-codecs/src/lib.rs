//! How a key or value row becomes bytes, and attention over those bytes.
#![doc = include_str!("../README.md")]

mod affine;
mod attend;
mod codebook;
mod codec;
mod compact;
mod dense;
mod drive;
mod exact;
mod foreign;
mod fused;
mod gpu;
mod gpu_coded;
mod gpu_staged;
mod paged;
mod polar;
mod qjl;
mod rotation;
mod rows;
mod scheme;
mod side;
mod special;
mod tables;
mod taper;
mod tiles;
mod trellis;
mod turbo;

pub use taper_base;
pub use taper_tensor;

pub use attend::{
    AttnBatch, AttnParams, BlockReader, Mutual, MutualSpan, SeqSpan, Together, attend_blocks,
};
pub use codebook::Codebook;
pub use codec::{
    BlockBytes, KvCodec, KvCodecError, KvGeometry, LayerPages, bits, f16, parse, parse_on,
};
pub use compact::{KeptBlock, KeptRow};
pub use dense::DenseCodec;
pub use exact::{Exact, ExactBlocks};
pub use foreign::{Foreign, ForeignCodec};
pub use gpu::GpuCodec;
pub use paged::PagedCodec;
pub use polar::{Coded, Polar, SCALE_SEARCH, SEED, Scale};
pub use qjl::{Prod, Sketch, Sketched};
pub use rotation::Rotation;
pub use scheme::{Scheme, SideFormat};
pub use taper_tensor::cpu::Arithmetic;
pub use trellis::{STATE_BITS, TrellisCode, WIDE_STATE_BITS, Walk};
