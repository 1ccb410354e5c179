//! Linear maps over weights as they are stored or repacked: slices in, vectors out.

mod gated;
mod image;
mod input;
mod watch;

pub use gated::gated_down;
pub use image::{IMAGE_ALIGN, MatrixLayout};
pub use input::{Input, Norm, apply};
pub use watch::{Observer, Watch};

use crate::{
    Precision, RowSource, Weight,
    dense::{PackedDense, Sums},
    formats::by_inputs,
    int8::{PackedWeight, Product},
    lookup::PackedTable,
    shared::SharedOut,
};
use std::sync::Arc;

/// A matrix `[out, in]` as products read it.
#[derive(Debug, Clone)]
pub enum Matrix {
    /// As it is stored; products are computed in `f32`.
    Stored(Weight),
    /// Quantized weights, repacked for products with rounded activations.
    Packed(Arc<PackedWeight>, Precision),
    /// Floats, repacked.
    Dense(Arc<PackedDense>),
    /// Table codes, repacked.
    Table(Arc<PackedTable>),
    /// A matrix by columns, and the input that each multiplies.
    Ordered(Box<Self>, Arc<[u32]>),
    /// A matrix as it is stored, whose inputs are shown to somebody. It is never repacked.
    Watched(Weight, Watch),
}

impl Matrix {
    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Stored(w) => w.rows(),
            Self::Packed(w, _) => w.rows(),
            Self::Dense(w) => w.rows(),
            Self::Table(w) => w.rows(),
            Self::Ordered(w, _) => w.rows(),
            Self::Watched(w, _) => w.rows(),
        }
    }

    /// Inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        match self {
            Self::Stored(w) => w.cols(),
            Self::Packed(w, _) => w.cols(),
            Self::Dense(w) => w.cols(),
            Self::Table(w) => w.cols(),
            Self::Ordered(w, _) => w.cols(),
            Self::Watched(w, _) => w.cols(),
        }
    }

    /// Bytes in memory or mapped.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Stored(w) => w.bytes(),
            Self::Packed(w, _) => w.bytes(),
            Self::Dense(w) => w.bytes(),
            Self::Table(w) => w.bytes(),
            Self::Ordered(w, _) => w.bytes(),
            Self::Watched(w, _) => w.bytes(),
        }
    }

    /// A row as floats.
    ///
    /// # Panics
    /// When there is no such row, or `out` has another length than it.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Stored(w) | Self::Watched(w, _) => w.read_rows(row, out),
            Self::Packed(w, _) => w.read_row(row, out),
            Self::Dense(w) => w.read_row(row, out),
            Self::Table(w) => w.read_row(row, out),
            Self::Ordered(w, order) => {
                let mut columns = vec![0.0; out.len()];
                w.read_row(row, &mut columns);
                by_inputs(&columns, order, out);
            }
        }
    }

    /// Repacks what is stored for a precision; those bytes are let go. Exact products read what is stored.
    #[must_use]
    pub fn pack(self, precision: Precision) -> Self {
        if precision == Precision::F32 {
            return self;
        }
        match self {
            Self::Stored(Weight::Affine(w)) => {
                let packed = PackedWeight::new(&w);
                w.release();
                Self::Packed(Arc::new(packed), precision)
            }
            Self::Stored(Weight::Dense(w)) => {
                let packed = PackedDense::new(&w);
                w.release();
                Self::Dense(Arc::new(packed))
            }
            Self::Stored(Weight::Ordered(w)) => {
                let (inner, order) = w.into_parts();
                let inner = Self::Stored(Weight::Affine(inner)).pack(precision);
                Self::Ordered(Box::new(inner), order)
            }
            Self::Stored(Weight::Table(w)) => match PackedTable::new(&w) {
                Some(packed) => {
                    w.release();
                    Self::Table(Arc::new(packed))
                }
                None => Self::Stored(Weight::Table(w)),
            },
            packed => packed,
        }
    }
}

/// A map `y = x Wᵀ + bias + residual`.
#[derive(Debug, Clone, Copy)]
pub struct Map<'a> {
    /// `[out, in]`
    pub matrix: &'a Matrix,
    /// `[out]`
    pub bias: Option<&'a [f32]>,
    /// `[rows of x, out]`
    pub residual: Option<&'a [f32]>,
}

impl<'a> Map<'a> {
    fn sums(&self, out: SharedOut) -> Sums<'a> {
        Sums { bias: self.bias, residual: self.residual, out }
    }

    fn product(&self, weight: &'a PackedWeight, out: SharedOut) -> Product<'a> {
        Product { weight, bias: self.bias, residual: self.residual, out }
    }
}
