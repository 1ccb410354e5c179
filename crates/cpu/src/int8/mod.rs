//! Quantized weights times activations quantized on the fly, in integer arithmetic.
//!
//! A group of a weight row is `w = s q + b` with unsigned codes `q`; the same group of an
//! activation row is rounded to `x = t c` with `c` in -127..=127. Their dot product is
//!
//! ```text
//! sum w x = (s t) (sum q c) + b (t sum c)
//! ```
//! where `sum q c` is exact in 32 bits. Every level computes, for each group in order,
//! `acc = fma(float(sum q c), s * t, acc)` and then `acc = fma(b, t sum c, acc)`, so that all levels
//! and all batch sizes agree to the bit; `portable` is the definition.
//!
//! Rounding to 8 bits moves the demo model's next token by a KL divergence of 7e-4, in all products alike. So a
//! second row of codes can hold what the first leaves (below 1e-6), which costs little where weights have to
//! come from memory anyway. With [`Precision::Mixed`](crate::Precision::Mixed) rows of prompts are multiplied in another way where the
//! processor is fast at it: weights are widened to `bf16`, panel by panel, for [`dense`](super::dense), where
//! nothing has to be scaled between products and activations keep eight bits each instead of eight below a
//! group's largest (6e-5).

mod activations;
#[cfg(test)]
mod agreement;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_many;
mod blocks;
mod gated;
mod gemm;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod portable;
#[cfg(target_arch = "x86_64")]
mod tile_rows;
mod tiles;
#[cfg(target_arch = "x86_64")]
mod vnni;
mod widen;

pub use activations::Int8Rows;
pub(crate) use gated::gated;
pub(crate) use gemm::{Product, products};
pub use gemm::{matmul, matmul_with};
pub use pack::PackedWeight;

use super::features::levels;

levels! {
    /// A way to compute the integer products.
    pub enum Int8Level {
        /// x86-64 with AMX for sixteen rows at a time; AVX-512 VNNI does the rest.
        Amx(AmxInt8),
        /// x86-64 with AVX-512 VNNI.
        Vnni(Avx512Vnni),
        /// x86-64 with AVX-VNNI.
        AvxVnni(AvxVnni),
        /// x86-64 with AVX2.
        Avx2(Avx2),
        /// aarch64 with 8-bit matrix products.
        I8mm(I8mm),
        /// aarch64 with dot products.
        DotProd(DotProd),
        /// aarch64.
        Neon(Neon),
    }
}
