//! Weights stored as floats times activations.
//!
//! Weights are repacked once so that a kernel reads one stream, and keep their type. Sums are of
//! `f32`:
//!
//! - `bf16` weights are multiplied with activations rounded to `bf16`, as PyTorch does, where the
//!   processor multiplies those: in tile registers (AMX), or two inputs an instruction (AVX-512
//!   BF16). An output is one chain over the inputs;
//! - all else is multiplied in `f32`, weights widened in registers. An output is one chain,
//!   `acc = fma(x[k], w[k], acc)` for `k` from 0.
//!
//! On x86-64 `bf16` weights are kept in twelve bits (`coded.rs`) unless their sizes differ too much, and
//! unpacked to what they were for every product: decoding waits for memory.
//!
//! A machine has one of these for a type of weights, whatever the batch, so that a row's outputs
//! do not depend on it.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "x86-64 alone has tiles"))]
mod beside;
mod coded;
#[cfg(target_arch = "x86_64")]
mod dot;
mod fma;
mod gemm;
mod pack;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "x86-64 alone reads them"))]
mod rounded;
#[cfg(test)]
mod tests;
#[cfg(any(test, target_arch = "x86_64"))]
mod tiles;
pub(crate) mod widened;

pub(crate) use coded::Chunk;
pub(crate) use gemm::{DenseRows, Product, Sums, products};
pub use pack::PackedDense;
pub(crate) use rounded::Bf16Rows;

use super::{
    Level,
    features::{AmxBf16, Avx512Bf16, named},
};
use crate::{DType, Result, TensorError};
use std::{fmt, str::FromStr, sync::OnceLock};

/// A way to compute the products.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum DenseLevel {
    /// x86-64 with AMX for `bf16` weights; other types are multiplied as at [`Self::Fma`].
    Amx(AmxBf16),
    /// x86-64 with AVX-512 BF16 for `bf16` weights; other types as at [`Self::Fma`].
    Avx512Bf16(Avx512Bf16),
    /// Fused multiply-adds.
    Fma(Level),
    /// What AMX does, in plain Rust.
    #[cfg(test)]
    Emulated,
}

/// Names without tokens, as those of other levels.
impl fmt::Debug for DenseLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Amx(_) => f.write_str("Amx"),
            Self::Avx512Bf16(_) => f.write_str("Avx512Bf16"),
            Self::Fma(level) => f.debug_tuple("Fma").field(level).finish(),
            #[cfg(test)]
            Self::Emulated => f.write_str("Emulated"),
        }
    }
}

/// By the name that `Debug` writes, as `Fma(Avx2)`; a level that this machine lacks is an error.
impl FromStr for DenseLevel {
    type Err = TensorError;

    fn from_str(name: &str) -> Result<Self> {
        named(&Self::available(), name)
    }
}

impl DenseLevel {
    /// Every level of this machine, best first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut levels = Vec::new();
        levels.extend(AmxBf16::detect().map(Self::Amx));
        levels.extend(Avx512Bf16::detect().map(Self::Avx512Bf16));
        levels.extend(Level::available().into_iter().map(Self::Fma));
        levels
    }

    /// The best level of this machine.
    #[must_use]
    pub fn detect() -> Self {
        static LEVEL: OnceLock<DenseLevel> = OnceLock::new();
        let best = || Self::available().first().copied();
        *LEVEL.get_or_init(|| best().unwrap_or(Self::Fma(Level::Portable)))
    }

    /// Whether `bf16` weights are kept in twelve bits for it.
    fn codes(self) -> bool {
        self.rounds(DType::BF16) || self.unpacks()
    }

    /// Whether few rows are multiplied with coded weights by AVX2.
    fn unpacks(self) -> bool {
        matches!(self, Self::Fma(Level::Avx2(_) | Level::Avx512(_)))
    }

    /// Whether it multiplies `bf16` faster than other instructions do integers of 16 bits. Of Intel's processors
    /// those without tile registers begin a `vdpbf16ps` every other cycle only.
    pub(crate) fn widens(self) -> bool {
        match self {
            Self::Amx(_) => true,
            Self::Avx512Bf16(_) => !super::intel(),
            _ => false,
        }
    }

    /// Whether it reads activations in `bf16`.
    pub(crate) fn rounds(self, weights: DType) -> bool {
        weights == DType::BF16 && !matches!(self, Self::Fma(_))
    }
}
