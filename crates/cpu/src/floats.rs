//! Borrowed floats of any stored type.

use super::unpack::{bf16_to_f32, f16_to_f32};
use half::{bf16, f16};
use std::ops::Range;

/// Floats as they lie in memory.
#[derive(Debug, Clone, Copy)]
pub enum Floats<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// IEEE half precision.
    F16(&'a [f16]),
    /// The upper half of single precision.
    Bf16(&'a [bf16]),
}

impl<'a> Floats<'a> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(x) => x.len(),
            Self::F16(x) => x.len(),
            Self::Bf16(x) => x.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part.
    ///
    /// # Panics
    /// When it is not inside.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(x) => Self::F32(&x[range]),
            Self::F16(x) => Self::F16(&x[range]),
            Self::Bf16(x) => Self::Bf16(&x[range]),
        }
    }

    /// Whether none is infinite or not a number.
    #[must_use]
    pub fn all_finite(self) -> bool {
        // Exponents of ones. Integers, without a branch: the loops become vectors.
        match self {
            Self::F32(x) => {
                let bad = |x: &f32| u32::from(x.to_bits() & 0x7f80_0000 == 0x7f80_0000);
                x.iter().fold(0, |any, x| any | bad(x)) == 0
            }
            Self::F16(x) => {
                let bad = |x: &f16| u16::from(x.to_bits() & 0x7c00 == 0x7c00);
                x.iter().fold(0, |any, x| any | bad(x)) == 0
            }
            Self::Bf16(x) => {
                let bad = |x: &bf16| u16::from(x.to_bits() & 0x7f80 == 0x7f80);
                x.iter().fold(0, |any, x| any | bad(x)) == 0
            }
        }
    }

    pub(crate) fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::F32(x) => bytemuck::cast_slice(x),
            Self::F16(x) => bytemuck::cast_slice(x),
            Self::Bf16(x) => bytemuck::cast_slice(x),
        }
    }

    pub(crate) fn as_f16(self) -> Option<&'a [f16]> {
        if let Self::F16(x) = self { Some(x) } else { None }
    }

    pub(crate) fn as_bf16(self) -> Option<&'a [bf16]> {
        if let Self::Bf16(x) = self { Some(x) } else { None }
    }

    /// Copies them as `f32`.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn widen(self, out: &mut [f32]) {
        match self {
            Self::F32(x) => out.copy_from_slice(x),
            Self::F16(x) => f16_to_f32(x, out),
            Self::Bf16(x) => bf16_to_f32(x, out),
        }
    }

    /// As `f32`: the slice itself, or a copy in `scratch`.
    pub(crate) fn widened(self, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        if let Self::F32(x) = self {
            return x;
        }
        scratch.resize(self.len(), 0.0);
        self.widen(scratch);
        scratch
    }
}
