//! CPU kernels: plain functions over slices.
#![doc = include_str!("../README.md")]
//!
//! # For contributors
//!
//! Each kernel is written once, generic over `lanes::Lanes`, and instantiated for every SIMD
//! level; [`Level::detect`] picks one for the process. The order of additions inside one output is
//! fixed by the level alone, never by how many rows are computed together.

#![allow(unsafe_code, reason = "vector loads, aligned memory and disjoint parallel writes")]

#[cfg(target_arch = "x86_64")]
mod ahead;
mod bytes;
pub mod codes;
pub mod dense;
mod dtype;
mod elementwise;
mod error;
pub mod features;
mod flash;
mod floats;
mod formats;
mod gemm;
mod heads;
pub mod int8;
mod kernels;
mod lanes;
pub mod lookup;
pub mod maps;
#[cfg(target_arch = "aarch64")]
mod neon;
mod next;
pub mod pool;
mod precision;
mod shared;
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only kernels of x86-64 ask for what was announced")
)]
mod soon;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod unpack;
mod unseen;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
use ahead::{intel, zen5};
/// As on x86-64.
#[cfg(not(target_arch = "x86_64"))]
fn intel() -> bool {
    false
}
/// As on x86-64.
#[cfg(not(target_arch = "x86_64"))]
fn zen5() -> bool {
    false
}

/// Whether kernels choose as for processors by Intel: of equal instructions other vendors are fast at
/// others, and some choices change the rounding.
#[must_use]
pub fn chooses_as_intel() -> bool {
    intel()
}

pub use bytes::{AlignedBytes, ByteOwner, Bytes};
pub use dtype::DType;
pub use elementwise::{
    Activation, activate, add, add_scaled, gated, rms_norm, silu_mul_row, soft_cap,
};
pub use error::{Result, TensorError};
pub use flash::{Arithmetic, Attended, FlashTile};
pub use floats::Floats;
pub use formats::{
    AffineFormat, AffineParts, AffineWeight, Compensation, DenseWeight, E2M1, Gram, OrderedWeight,
    ScaleMethod, TableFormat, TableScales, TableWeight, Weight, WeightFormat, e4m3, e8m0, gptq,
    quantize, quantize_by, quantize_mxfp4, quantize_row, read_floats,
};
pub(crate) use gemm::matmul_to;
pub use gemm::{RowSource, matmul};
pub use heads::HeadRows;
pub use precision::{Precision, Rounding};
pub use soon::{read_soon, reads_soon};
pub use taper_base::Phase;
pub use unpack::{bf16_to_f32, f16_to_f32, f32_to_f16, unpack_affine};

features::levels! {
    /// A set of vector instructions.
    pub enum Level {
        /// x86-64 with AVX-512.
        Avx512(Avx512),
        /// x86-64 with AVX2 and FMA.
        Avx2(Avx2),
        /// aarch64.
        Neon(Neon),
    }
}
