//! CPU kernels: plain functions over slices.
//!
//! Each kernel is written once, generic over `lanes::Lanes`, and instantiated for every SIMD
//! level; [`Level::detect`] picks one for the process. The order of additions inside one output is
//! fixed by the level alone, never by how many rows are computed together.

#[cfg(target_arch = "x86_64")]
mod ahead;
pub mod codes;
pub mod dense;
mod elementwise;
pub mod features;
mod flash;
mod floats;
mod gemm;
mod heads;
pub mod int8;
mod kernels;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod next;
pub(crate) mod shared;
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only kernels of x86-64 ask for what was announced")
)]
pub(crate) mod soon;
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

pub use elementwise::{Activation, add, gated, rms_norm, soft_cap};
pub(crate) use elementwise::{add_scaled, silu_mul_row};
pub use flash::{Arithmetic, Attended, FlashTile};
pub use floats::Floats;
pub(crate) use gemm::matmul_to;
pub use gemm::{RowSource, matmul};
pub use heads::HeadRows;
pub use soon::{read_soon, reads_soon};
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
