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
//! come from memory anyway. With [`Rounding::Phased`] rows of prompts are multiplied in another way where the
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

pub use activations::{Answers, Int8Rows, Rounding};
pub(crate) use gated::gated;
pub(crate) use gemm::{Product, products};
pub use gemm::{matmul, matmul_with};
pub use pack::PackedWeight;

use std::sync::OnceLock;

/// A way to compute the integer products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Int8Level {
    /// x86-64 with AMX for sixteen rows at a time; AVX-512 VNNI does the rest.
    Amx,
    /// x86-64 with AVX-512 VNNI.
    Vnni,
    /// x86-64 with AVX-VNNI.
    AvxVnni,
    /// x86-64 with AVX2.
    Avx2,
    /// aarch64 with 8-bit matrix products.
    I8mm,
    /// aarch64 with dot products.
    DotProd,
    /// aarch64.
    Neon,
    /// Any machine.
    Portable,
}

impl Int8Level {
    /// Every level of this machine, best first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut levels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
        {
            if super::tiles::int8() {
                levels.push(Self::Amx);
            }
            levels.push(Self::Vnni);
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            if is_x86_feature_detected!("avxvnni") {
                levels.push(Self::AvxVnni);
            }
            levels.push(Self::Avx2);
        }
        #[cfg(target_arch = "aarch64")]
        {
            if std::arch::is_aarch64_feature_detected!("i8mm") {
                levels.push(Self::I8mm);
            }
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                levels.push(Self::DotProd);
            }
            levels.push(Self::Neon);
        }
        levels.push(Self::Portable);
        levels
    }

    /// The best level of this machine.
    #[must_use]
    pub fn detect() -> Self {
        static LEVEL: OnceLock<Int8Level> = OnceLock::new();
        *LEVEL.get_or_init(|| Self::available().first().copied().unwrap_or(Self::Portable))
    }
}
