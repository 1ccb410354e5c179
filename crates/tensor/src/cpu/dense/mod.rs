//! Weights stored as floats times activations in `f32`.
//!
//! Weights are repacked once so that a kernel reads one stream, and keep their type. Products are
//! exact, or nearly, and sums are of `f32`:
//!
//! - with fused multiply-adds, weights are widened in registers. An output is one chain,
//!   `acc = fma(x[k], w[k], acc)` for `k` from 0;
//! - AMX multiplies `bf16` weights with `bf16` activations. An activation is split into the nearest
//!   `bf16` and the `bf16` nearest to the rest, which leaves out less than 2^-17 of it. Sums of
//!   both parts are kept apart and added at the end. It pays from the first row on: a tile register
//!   takes both parts of eight rows.
//!
//! `vdpbf16ps` is not used: with activations in two parts it takes two instructions where two
//! multiply-adds do, and a Zen 4 core runs as many a second of either (3.67e9).
//!
//! A machine has one of the two for a type of weights, whatever the batch, so that a row's outputs
//! do not depend on it.

#[cfg(target_arch = "x86_64")]
mod amx;
mod fma;
mod gemm;
mod pack;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "AMX alone reads the parts"))]
mod split;
#[cfg(test)]
mod tests;
#[cfg(any(test, target_arch = "x86_64"))]
mod tiles;

pub(crate) use gemm::{DenseRows, Product, products};
pub use pack::PackedDense;
pub(crate) use split::SplitRows;

use super::Level;
use crate::DType;
use std::sync::OnceLock;

/// A way to compute the products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenseLevel {
    /// x86-64 with AMX for `bf16` weights; other types are multiplied as at [`Self::Fma`].
    Amx,
    /// Fused multiply-adds.
    Fma(Level),
    /// What AMX does, in plain Rust.
    #[cfg(test)]
    Emulated,
}

impl DenseLevel {
    /// Every level of this machine, best first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut levels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if super::tiles::bf16() {
            levels.push(Self::Amx);
        }
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

    /// Whether it reads activations in two parts.
    pub(crate) fn splits(self, weights: DType) -> bool {
        weights == DType::BF16 && !matches!(self, Self::Fma(_))
    }
}
