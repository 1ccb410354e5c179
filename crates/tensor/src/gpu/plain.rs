//! Weights in the formats that kernels read.

use super::weight::CHUNK;
use crate::{
    AffineFormat, AffineWeight, Bytes, DType, DenseWeight, Result, TensorError, Weight,
    cpu::RowSource,
};

/// Kernels find what they read at multiples of so many bytes.
const ALIGNED: usize = 4;

/// The formats that kernels read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Dense(DType),
    Affine(AffineFormat),
    Mxfp4,
}

/// A matrix in a format that kernels read: of table codes MXFP4 alone, and no columns in an order of their own.
pub(super) enum Plain {
    Dense(DenseWeight),
    Affine(AffineWeight),
    Mxfp4 { rows: usize, cols: usize, sides: [Bytes; 2] },
}

impl Plain {
    /// As kernels read it, `alone` or below others.
    pub(super) fn new(weight: &Weight, exact: bool, alone: bool) -> Result<Self> {
        match weight {
            Weight::Dense(w) => Ok(Self::Dense(w.clone())),
            Weight::Affine(w) => Ok(Self::Affine(w.clone())),
            Weight::Table(w) => {
                let aligned = |sides: &[Bytes; 2]| sides[1].len().is_multiple_of(ALIGNED);
                match w.mxfp4().filter(|sides| alone || aligned(sides)) {
                    Some(sides) => Ok(Self::Mxfp4 { rows: w.rows(), cols: w.cols(), sides }),
                    None => Self::new(&w.to_plain(exact)?, exact, alone),
                }
            }
            Weight::Ordered(w) => w.to_dense(exact).map(Self::Dense),
        }
    }

    /// As kernels read it: dense rows end with zeros where they are no whole chunks.
    ///
    /// # Errors
    /// Rows of codes that are no whole chunks.
    pub(super) fn in_chunks(self) -> Result<Self> {
        let (rows, cols) = (self.rows(), self.cols());
        if cols.is_multiple_of(CHUNK) {
            return Ok(self);
        }
        let Self::Dense(weight) = self else {
            return Err(TensorError::shape("gpu weight", "rows of a multiple of 32", &[cols]));
        };
        let (size, stored) = (weight.dtype().size_in_bytes(), weight.stored());
        let width = cols.next_multiple_of(CHUNK);
        let mut bytes = vec![0; rows * width * size];
        let pairs = bytes.chunks_exact_mut(width * size);
        for (to, from) in pairs.zip(stored.as_slice().chunks_exact((cols * size).max(1))) {
            to[..cols * size].copy_from_slice(from);
        }
        let bytes = Bytes::from_vec(bytes);
        Ok(Self::Dense(DenseWeight::new((rows, width), weight.dtype(), bytes)?))
    }

    pub(super) fn format(&self) -> Format {
        match self {
            Self::Dense(w) => Format::Dense(w.dtype()),
            Self::Affine(w) => Format::Affine(w.format()),
            Self::Mxfp4 { .. } => Format::Mxfp4,
        }
    }

    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Dense(w) => w.rows(),
            Self::Affine(w) => w.rows(),
            Self::Mxfp4 { rows, .. } => *rows,
        }
    }

    pub(super) fn cols(&self) -> usize {
        match self {
            Self::Dense(w) => w.cols(),
            Self::Affine(w) => w.cols(),
            Self::Mxfp4 { cols, .. } => *cols,
        }
    }

    /// Codes or floats as they are stored, and pairs of scale and bias, or scales.
    pub(super) fn stored(&self) -> [Option<Bytes>; 2] {
        match self {
            Self::Dense(w) => [Some(w.stored()), None],
            Self::Mxfp4 { sides, .. } => sides.clone().map(Some),
            Self::Affine(w) => {
                let [codes, scales, biases] = w.stored();
                let size = w.scale_type().size_in_bytes();
                let both = scales.as_slice().chunks(size).zip(biases.as_slice().chunks(size));
                let pairs = both.flat_map(|(s, b)| [s, b]).flatten().copied().collect();
                [Some(codes), Some(Bytes::from_vec(pairs))]
            }
        }
    }

    /// The number that kernels have for the type of scales.
    pub(super) fn scale_type(&self) -> u32 {
        match self {
            Self::Dense(_) | Self::Mxfp4 { .. } => 0,
            Self::Affine(w) => match w.scale_type() {
                DType::F32 => 0,
                DType::F16 => 1,
                DType::BF16 => 2,
            },
        }
    }
}
