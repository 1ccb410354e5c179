//! How precisely a model computes: what activations are rounded to, by phase.

use crate::{FlashTile, Phase, dense::DenseLevel};

/// What activations are rounded to, group by group, for products in integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// 8 bits: `x = scale * code`, off by at most a 254th of the group's largest magnitude.
    #[default]
    Int8,
    /// 16 bits: a second row of 8 bits holds what the first leaves, and every product takes two.
    Int16,
}

impl Rounding {
    /// Rows of codes for a row of activations.
    pub(crate) fn parts(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Int16 => 2,
        }
    }
}

/// Precision of the products of quantized weights with activations, and of attention in prefill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Precision {
    /// Exact: weights are widened to `f32`.
    #[default]
    F32,
    /// Activations are rounded to 16 bits.
    Int16,
    /// Prefill, whose errors stay in the KV cache, is rounded to `bf16` where the processor multiplies that fast,
    /// elsewhere to 16 bits; its attention is rounded to `bf16` too. On a GPU, products of many rows round weights
    /// and activations to `f16` instead.
    Mixed {
        /// Rounding of decode.
        decode: Rounding,
    },
    /// Activations are rounded to 8 bits.
    Int8,
}

impl Precision {
    /// Values of `--dtype`.
    pub const DTYPES: [&str; 4] = ["auto", "int8", "float16", "float32"];

    /// By its name among [`Self::DTYPES`], where at most so many sequences run together. One alone waits for memory,
    /// and has time for the two products of 16 bits; several would wait for these.
    #[must_use]
    pub fn of_dtype(name: &str, sequences: usize) -> Option<Self> {
        match name {
            "auto" if sequences <= 1 => Some(Self::Mixed { decode: Rounding::Int16 }),
            "auto" => Some(Self::Mixed { decode: Rounding::Int8 }),
            "int8" => Some(Self::Int8),
            "float16" => Some(Self::Int16),
            "float32" => Some(Self::F32),
            _ => None,
        }
    }

    /// Whether prefill is computed otherwise than decode: its products, or its attention with heads of so many
    /// elements.
    #[must_use]
    pub fn prefill_apart(self, head_dim: usize) -> bool {
        match self {
            Self::Mixed { .. } => true,
            Self::Int8 => FlashTile::rounds(head_dim, head_dim),
            Self::Int16 | Self::F32 => false,
        }
    }

    /// What integers tokens of a phase are rounded to; `None` without rounding.
    #[must_use]
    pub fn rounding(self, phase: Phase) -> Option<Rounding> {
        match (self, phase) {
            (Self::F32, _) => None,
            (Self::Int8, _) => Some(Rounding::Int8),
            (Self::Mixed { decode }, Phase::Decode) => Some(decode),
            (Self::Int16 | Self::Mixed { .. }, _) => Some(Rounding::Int16),
        }
    }

    /// Whether tokens of a phase are multiplied in `bf16`, with weights that are widened to it.
    pub(crate) fn widens(self, phase: Phase) -> bool {
        matches!(self, Self::Mixed { .. })
            && phase == Phase::Prefill
            && DenseLevel::detect().widens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_spares_bits_where_several_sequences_run() {
        let auto = |sequences| Precision::of_dtype("auto", sequences);
        assert_eq!(auto(1), Some(Precision::Mixed { decode: Rounding::Int16 }));
        assert_eq!(auto(2), Some(Precision::Mixed { decode: Rounding::Int8 }));
        assert!(Precision::DTYPES.iter().all(|name| Precision::of_dtype(name, 2).is_some()));
        assert_eq!(Precision::of_dtype("float8", 1), None);
    }

    #[test]
    fn prefill_is_never_rounded_more_than_it_was_asked_for() {
        let mixed = Precision::Mixed { decode: Rounding::Int8 };
        assert_eq!(mixed.rounding(Phase::Prefill), Some(Rounding::Int16));
        assert_eq!(mixed.rounding(Phase::Decode), Some(Rounding::Int8));
        assert_eq!(Precision::F32.rounding(Phase::Decode), None);
        assert!(!Precision::Int8.widens(Phase::Prefill) && !mixed.widens(Phase::Decode));
    }
}
