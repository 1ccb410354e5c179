//! Shapes of caches of floats, and which kernels they have.

use super::MAX_HEAD;
use crate::{DType, Result, TensorError};

/// Elements of the largest head of floats, and of the largest value.
pub(super) const MAX_WIDE: usize = 512;
/// Elements of the largest latent, whose end is its value.
const MAX_LATENT: usize = 576;

/// Shape and element type of a layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Element type of keys and values: f16, bf16 or f32.
    pub dtype: DType,
    /// Values are the ends of their keys, and there are no pages of values.
    pub latent: bool,
}

impl KvShape {
    /// Checks that there are kernels for it.
    ///
    /// # Errors
    /// There are none.
    pub fn check(self) -> Result<()> {
        if !matches!(self.dtype, DType::F16 | DType::BF16 | DType::F32) {
            return Err(TensorError::DType { op: "gpu kv cache", got: self.dtype });
        }
        let most = if self.latent { MAX_LATENT } else { MAX_WIDE };
        if self.head_dim == 0 || self.head_dim > most || !self.head_dim.is_multiple_of(8) {
            let expected = format!("heads of a multiple of 8 up to {most}");
            return Err(TensorError::shape("gpu kv cache", expected, &[self.head_dim]));
        }
        Ok(())
    }

    /// Whether there are kernels for heads of this size alone.
    #[must_use]
    pub fn is_typed(self) -> bool {
        self.dtype == DType::F16 && matches!(self.head_dim, 64 | 128 | 256) && !self.latent
    }

    /// The file that has kernels for caches of this shape.
    pub(super) fn family(self) -> &'static str {
        if self.latent || self.head_dim > MAX_HEAD { "attend_more" } else { "attend" }
    }

    /// What kernels for caches of this shape are called.
    pub(super) fn kernel(self) -> String {
        let name = self.name();
        match self.head_dim {
            _ if self.latent => format!("latent_{name}"),
            d if self.is_typed() => format!("{name}_d{d}"),
            512 if self.dtype == DType::F16 => format!("{name}_d512"),
            d if d > MAX_HEAD => format!("{name}_wide"),
            _ => format!("{name}_d0"),
        }
    }

    pub(in crate::gpu) fn name(self) -> &'static str {
        match self.dtype {
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            _ => "f32",
        }
    }
}
