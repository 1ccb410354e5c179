//! Affine weights whose columns stand in another order than inputs: how groups of GPTQ that are in no order
//! become groups of neighbours.

use super::AffineWeight;
use crate::{Bytes, DType, DenseWeight, Result, RowSource, TensorError, pool};
use half::bf16;
use std::sync::Arc;

/// Affine weights, and the input that each column multiplies.
#[derive(Debug, Clone)]
pub struct OrderedWeight {
    inner: AffineWeight,
    order: Arc<[u32]>,
}

impl OrderedWeight {
    /// Column `i` of `inner` multiplies input `order[i]`.
    ///
    /// # Errors
    /// `order` does not name each input once.
    pub fn new(inner: AffineWeight, order: Vec<u32>) -> Result<Self> {
        let cols = inner.cols();
        let mut seen = vec![false; cols];
        for &input in &order {
            let (index, op) = (input as usize, "order of columns");
            match seen.get_mut(index) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(TensorError::Index { op, index, limit: cols }),
            }
        }
        if order.len() != cols {
            return Err(TensorError::shape("order of columns", "one an input", &[order.len()]));
        }
        Ok(Self { inner, order: order.into() })
    }

    /// The weights by columns.
    #[must_use]
    pub fn inner(&self) -> &AffineWeight {
        &self.inner
    }

    /// The weights by columns, and the input of each.
    pub(crate) fn into_parts(self) -> (AffineWeight, Arc<[u32]>) {
        (self.inner, self.order)
    }

    /// Bytes of the weights and of the order.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.bytes() + size_of_val(&*self.order) as u64
    }

    pub(crate) fn row_range(&self, first: usize, rows: usize) -> Option<Self> {
        Some(Self { inner: self.inner.row_range(first, rows)?, order: Arc::clone(&self.order) })
    }

    pub(crate) fn take_rows(&self, rows: &[usize]) -> Option<Self> {
        Some(Self { inner: self.inner.take_rows(rows)?, order: Arc::clone(&self.order) })
    }

    /// As floats by inputs: `f32` if they are to be `exact`, or rounded to `bf16`.
    ///
    /// # Errors
    /// The matrix is too large.
    pub fn to_dense(&self, exact: bool) -> Result<DenseWeight> {
        dense(self, exact)
    }
}

/// Any matrix as floats: `f32` if they are to be `exact`, or rounded to `bf16`.
pub(super) fn dense(weight: &dyn RowSource, exact: bool) -> Result<DenseWeight> {
    let (rows, cols) = (weight.rows(), weight.cols());
    let dtype = if exact { DType::F32 } else { DType::BF16 };
    let size = dtype.size_in_bytes();
    let mut out = vec![0; super::product("dense weight", &[rows, cols, size])?];
    let mut all: Vec<_> = out.chunks_exact_mut((cols * size).max(1)).collect();
    pool::for_each(&mut all, |r, out| {
        let mut values = vec![0.0; cols];
        weight.read_rows(r, &mut values);
        for (out, value) in out.chunks_exact_mut(size).zip(values) {
            match exact {
                true => out.copy_from_slice(&value.to_le_bytes()),
                false => out.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
            }
        }
    });
    DenseWeight::new((rows, cols), dtype, Bytes::from_vec(out))
}

/// `out[order[i]] = row[i]`.
pub(crate) fn by_inputs(row: &[f32], order: &[u32], out: &mut [f32]) {
    row.iter().zip(order).for_each(|(value, &input)| out[input as usize] = *value);
}

impl RowSource for OrderedWeight {
    fn rows(&self) -> usize {
        self.inner.rows()
    }

    fn cols(&self) -> usize {
        self.inner.cols()
    }

    fn read_rows(&self, first: usize, out: &mut [f32]) {
        let mut row = vec![0.0; self.cols()];
        for (i, out) in out.chunks_exact_mut(self.cols()).enumerate() {
            self.inner.read_rows(first + i, &mut row);
            by_inputs(&row, &self.order, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Precision, Weight,
        formats::AffineFormat,
        maps::{Input, Map, Matrix, apply},
    };
    use taper_base::Phase;

    const COLS: usize = 64;

    fn ordered(order: Vec<u32>) -> Result<OrderedWeight> {
        let format = AffineFormat { bits: 8, group: 32 };
        let codes = Bytes::from_vec((0..3 * COLS).map(|i| (i * 7 % 251) as u8).collect());
        let side = |x: f32| (DType::F32, Bytes::from_vec(x.to_le_bytes().repeat(6)));
        let inner = AffineWeight::new(format, (3, COLS), codes, side(0.1), side(-12.0))?;
        OrderedWeight::new(inner, order)
    }

    fn order() -> Vec<u32> {
        (0..COLS as u32).map(|i| i * 5 % COLS as u32).collect()
    }

    #[test]
    fn columns_multiply_their_inputs() {
        let weight = ordered(order()).unwrap();
        let (mut row, mut columns) = (vec![0.0; COLS], vec![0.0; COLS]);
        weight.read_rows(1, &mut row);
        weight.inner().read_rows(1, &mut columns);
        assert!((0..COLS).all(|i| row[i * 5 % COLS] == columns[i]));
        let mut dense = vec![0.0; COLS];
        weight.to_dense(true).unwrap().read_rows(1, &mut dense);
        assert_eq!(dense, row);

        let x: Vec<f32> = (0..2 * COLS).map(|i| (i as f32 * 0.3).sin()).collect();
        for precision in [Precision::F32, Precision::default()] {
            let matrix = Matrix::Stored(Weight::Ordered(weight.clone())).pack(precision);
            let mut read = vec![0.0; COLS];
            matrix.read_row(1, &mut read);
            assert_eq!(read, row);
            let (bias, residual) = ([1.0, 2.0, 3.0], [0.5; 6]);
            let map = Map { matrix: &matrix, bias: Some(&bias), residual: Some(&residual) };
            let [out] = apply([map], &mut Input::new(&x, Phase::Decode));
            for (t, x) in x.chunks_exact(COLS).enumerate() {
                let dot: f32 = x.iter().zip(&row).map(|(x, w)| x * w).sum();
                let got = out[t * 3 + 1];
                assert!((got - (dot + 2.5)).abs() < 1e-2 * dot.abs().max(1.0), "{got} {dot}");
            }
        }
    }

    #[test]
    fn an_order_names_each_input_once() {
        let with = |at: usize, input: u32| {
            let mut order = order();
            order[at] = input;
            ordered(order)
        };
        assert!(with(1, 0).is_err() && with(1, COLS as u32).is_err() && with(1, u32::MAX).is_err());
        assert!(ordered((0..63).collect()).is_err() && ordered((0..65).collect()).is_err());
    }
}
