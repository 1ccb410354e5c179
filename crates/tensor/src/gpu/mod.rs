//! GPUs: buffers, launches and the operations of a transformer on them.
//!
//! Every kernel is written once, in Metal Shading Language, under `kernels/`. A [`Backend`] runs it:
//! Metal compiles it as it is, CUDA takes the PTX that `cargo xtask kernels` makes of it, and the host
//! runner (feature `gpu-host`) runs it with one fiber a GPU thread, for tests on any machine. What is
//! in this module is the same for all three.
//!
//! A model runs on a GPU because its [`crate::Embedding`] was placed there: it gives tensors on the
//! GPU, and every operation runs where its input is.

pub mod attention;
mod backend;
pub mod conformance;
mod families;
#[cfg(feature = "gpu-host")]
mod host;
mod launch;
mod ops;
mod resident;
mod weight;

pub use backend::{Buffer, Gpu, Memory};
pub use families::{FAMILIES, Family};
#[cfg(feature = "gpu-host")]
pub use host::HostOptions;
#[cfg_attr(not(feature = "cuda"), expect(unused_imports, reason = "only CUDA has a library"))]
pub(crate) use backend::MatmulOperands;
pub(crate) use backend::{Backend, Handle};
pub(crate) use launch::{Launch, Operand, params};
pub(crate) use ops::{Elements, norm_rope, rms_norm, take_rows};
pub use ops::argmax;
pub(crate) use resident::Resident;
pub(crate) use weight::{GpuWeight, Product};

/// Lanes of a simdgroup (a warp).
pub(crate) const LANES: u32 = 32;

/// A length as kernels count.
pub(crate) fn count(op: &'static str, n: usize) -> crate::Result<u32> {
    let limit = u32::MAX as usize;
    u32::try_from(n).map_err(|_| crate::TensorError::Index { op, index: n, limit })
}
