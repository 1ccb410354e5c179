//! How checkpoints store weights: what lies in their files, and what one row of it is as floats.

mod affine;
mod dense;
mod ordered;
mod table;

pub use affine::{
    AffineFormat, AffineParts, AffineWeight, Compensation, Gram, ScaleMethod, gptq, quantize,
    quantize_by, quantize_row,
};
pub use dense::{DenseWeight, read_floats};
pub(crate) use dense::{FloatBytes, product};
pub use ordered::OrderedWeight;
pub(crate) use ordered::by_inputs;
pub use table::{E2M1, TableFormat, TableScales, TableWeight, e4m3, e8m0, quantize_mxfp4};

use crate::{Bytes, DType, Floats, Result, RowSource, TensorError};
use half::{bf16, f16};
use std::fmt;

/// How a matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// Plain floats.
    Dense(DType),
    /// MLX affine quantization.
    Affine(AffineFormat),
    /// Entries of a table times scales.
    Table(TableFormat),
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(dtype) => write!(f, "{}", dtype.as_str()),
            Self::Affine(a) => write!(f, "{}-bit, group {}", a.bits, a.group),
            Self::Table(t) => f.write_str(t.name),
        }
    }
}

/// A matrix `[out, in]` in its stored format.
#[derive(Debug, Clone)]
pub enum Weight {
    /// Plain floats.
    Dense(DenseWeight),
    /// MLX affine quantization.
    Affine(AffineWeight),
    /// Entries of a table times scales.
    Table(TableWeight),
    /// MLX affine quantization, with columns in an order of their own.
    Ordered(OrderedWeight),
}

impl Weight {
    /// How it is stored.
    #[must_use]
    pub fn format(&self) -> WeightFormat {
        match self {
            Self::Dense(w) => WeightFormat::Dense(w.dtype()),
            Self::Affine(w) => WeightFormat::Affine(w.format()),
            Self::Table(w) => WeightFormat::Table(w.format()),
            Self::Ordered(w) => WeightFormat::Affine(w.inner().format()),
        }
    }

    /// Bytes in memory or mapped.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Dense(w) => w.bytes(),
            Self::Affine(w) => w.bytes(),
            Self::Table(w) => w.bytes(),
            Self::Ordered(w) => w.bytes(),
        }
    }

    /// Rows `first..first + rows` over the same memory: how a fused checkpoint tensor is split.
    ///
    /// # Errors
    /// The range is not inside.
    pub fn row_range(&self, first: usize, rows: usize) -> Result<Self> {
        let part = match self {
            Self::Dense(w) => w.row_range(first, rows).map(Self::Dense),
            Self::Affine(w) => w.row_range(first, rows).map(Self::Affine),
            Self::Table(w) => w.row_range(first, rows).map(Self::Table),
            Self::Ordered(w) => w.row_range(first, rows).map(Self::Ordered),
        };
        let limit = self.rows() + 1;
        part.ok_or(TensorError::Index { op: "row_range", index: first + rows, limit })
    }

    /// The rows of these numbers, in their order, copied: how a rotation by neighbours becomes one by halves.
    ///
    /// # Errors
    /// A row is not there.
    pub fn take_rows(&self, rows: &[usize]) -> Result<Self> {
        let taken = match self {
            Self::Dense(w) => w.take_rows(rows).map(Self::Dense),
            Self::Affine(w) => w.take_rows(rows).map(Self::Affine),
            Self::Table(w) => w.take_rows(rows).map(Self::Table),
            Self::Ordered(w) => w.take_rows(rows).map(Self::Ordered),
        };
        let (index, limit) = (rows.iter().copied().max().unwrap_or(0), self.rows());
        taken.ok_or(TensorError::Index { op: "take_rows", index, limit })
    }

    /// The matrix with rows for columns: of a quantized one, the numbers that it stands for, in f32.
    ///
    /// # Errors
    /// A matrix too large to be written down.
    pub fn transposed(&self) -> Result<Self> {
        let (rows, cols) = (self.rows(), self.cols());
        let dtype = match self.format() {
            WeightFormat::Dense(dtype) => dtype,
            _ => DType::F32,
        };
        let mut values = vec![0.0; dense::product("transposed weight", &[rows, cols])?];
        self.read_rows(0, &mut values);
        let turned = (0..cols).flat_map(|col| values.iter().skip(col).step_by(cols.max(1)));
        let bytes = match dtype {
            DType::F32 => turned.flat_map(|x| x.to_le_bytes()).collect(),
            DType::F16 => turned.flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            DType::BF16 => turned.flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        };
        DenseWeight::new((cols, rows), dtype, Bytes::from_vec(bytes)).map(Self::Dense)
    }

    pub(crate) fn source(&self) -> &dyn RowSource {
        match self {
            Self::Dense(w) => w,
            Self::Affine(w) => w,
            Self::Table(w) => w,
            Self::Ordered(w) => w,
        }
    }
}

impl RowSource for Weight {
    fn rows(&self) -> usize {
        self.source().rows()
    }

    fn cols(&self) -> usize {
        self.source().cols()
    }

    fn read_rows(&self, first: usize, out: &mut [f32]) {
        self.source().read_rows(first, out);
    }

    fn floats(&self) -> Option<Floats<'_>> {
        self.source().floats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        let stored = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let bytes = |x: &[f32]| x.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        let dense = DenseWeight::new((2, 3), DType::BF16, Bytes::from_vec(bytes(&stored))).unwrap();
        let turned = Weight::Dense(dense).transposed().unwrap();
        let Weight::Dense(turned) = turned else { panic!("still dense") };
        assert_eq!((turned.rows(), turned.cols(), turned.dtype()), (3, 2, DType::BF16));
        assert_eq!(turned.stored().as_slice(), bytes(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));
    }
}
