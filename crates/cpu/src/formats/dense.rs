//! Weights stored as plain floats.

use crate::{
    Bytes, DType, Result, TensorError, {Floats, RowSource},
};
use half::{bf16, f16};
use std::borrow::Cow;

/// How many elements or bytes a shape has.
///
/// # Errors
/// [`TensorError::TooLarge`]: kernels trust the sizes of a weight, so a product must not wrap.
pub(crate) fn product(what: &'static str, shape: &[usize]) -> Result<usize> {
    let product = shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
    product.ok_or_else(|| TensorError::TooLarge { what, shape: shape.to_vec() })
}

/// Floats of any stored type, read as `f32`.
#[derive(Debug, Clone)]
pub(crate) struct FloatBytes {
    dtype: DType,
    bytes: Bytes,
}

impl FloatBytes {
    pub(crate) fn new(what: &'static str, dtype: DType, bytes: Bytes, n: usize) -> Result<Self> {
        let expected = product(what, &[n, dtype.size_in_bytes()])?;
        if bytes.len() != expected {
            return Err(TensorError::Bytes { what, expected, got: bytes.len() });
        }
        Ok(Self { dtype, bytes: bytes.aligned_to(dtype.size_in_bytes()) })
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// As bytes of `dtype`: themselves, or rounded to it.
    pub(crate) fn bytes_as(&self, dtype: DType) -> Cow<'_, [u8]> {
        if dtype == self.dtype {
            return Cow::Borrowed(self.bytes.as_slice());
        }
        let mut x = vec![0.0; self.bytes.len() / self.dtype.size_in_bytes()];
        self.read(0, &mut x);
        Cow::Owned(match dtype {
            DType::F16 => x.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
            DType::BF16 => x.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
            DType::F32 => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
        })
    }

    /// Hints that they will not be read soon.
    pub(crate) fn release(&self) {
        self.bytes.release();
    }

    /// Elements `first..first + out.len()`.
    pub(crate) fn read(&self, first: usize, out: &mut [f32]) {
        self.floats().slice(first..first + out.len()).widen(out);
    }

    pub(crate) fn floats(&self) -> Floats<'_> {
        match self.dtype {
            DType::F16 => Floats::F16(self.typed()),
            DType::BF16 => Floats::Bf16(self.typed()),
            DType::F32 => Floats::F32(self.typed()),
        }
    }

    fn typed<T: bytemuck::Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self.bytes.as_slice())
    }

    /// Rows of `cols` elements, copied.
    pub(crate) fn take_rows(&self, cols: usize, rows: &[usize]) -> Option<Self> {
        let bytes = self.bytes.take_rows(cols * self.dtype.size_in_bytes(), rows)?;
        Some(Self { dtype: self.dtype, bytes })
    }

    pub(crate) fn slice(&self, first: usize, n: usize) -> Option<Self> {
        let size = self.dtype.size_in_bytes();
        let end = first.checked_add(n)?.checked_mul(size)?;
        let bytes = self.bytes.slice(first.checked_mul(size)?..end)?;
        Some(Self { dtype: self.dtype, bytes })
    }
}

/// `n` floats of a stored type, as `f32`. `what` names them in errors.
///
/// # Errors
/// The buffer has another length.
pub fn read_floats(what: &'static str, dtype: DType, bytes: Bytes, n: usize) -> Result<Vec<f32>> {
    let mut out = vec![0.0; n];
    FloatBytes::new(what, dtype, bytes, n)?.read(0, &mut out);
    Ok(out)
}

/// A matrix of `f32`, `f16` or `bf16`, as it lies in the file.
#[derive(Debug, Clone)]
pub struct DenseWeight {
    rows: usize,
    cols: usize,
    data: FloatBytes,
}

impl DenseWeight {
    /// # Shapes
    /// `data`: `[rows, cols]` of `dtype`, row-major.
    ///
    /// # Errors
    /// `dtype` is no float, the buffer has another length, or the matrix is larger than memory can be.
    pub fn new((rows, cols): (usize, usize), dtype: DType, data: Bytes) -> Result<Self> {
        let what = "dense weight";
        let data = FloatBytes::new(what, dtype, data, product(what, &[rows, cols])?)?;
        Ok(Self { rows, cols, data })
    }

    /// Element type in memory.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.data.dtype()
    }

    /// Bytes in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.data.len_bytes() as u64
    }

    /// Hints that the stored bytes will not be read soon.
    pub(crate) fn release(&self) {
        self.data.release();
    }

    /// The bytes as they are stored.
    #[must_use]
    pub fn stored(&self) -> Bytes {
        self.data.bytes.clone()
    }

    /// The rows of these numbers, copied; `None` when one is not there.
    pub(crate) fn take_rows(&self, rows: &[usize]) -> Option<Self> {
        let data = self.data.take_rows(self.cols, rows)?;
        Some(Self { rows: rows.len(), cols: self.cols, data })
    }

    pub(crate) fn row_range(&self, first: usize, rows: usize) -> Option<Self> {
        let (first, n) = (first.checked_mul(self.cols)?, rows.checked_mul(self.cols)?);
        let data = self.data.slice(first, n)?;
        Some(Self { rows, cols: self.cols, data })
    }
}

impl RowSource for DenseWeight {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn read_rows(&self, first: usize, out: &mut [f32]) {
        self.data.read(first * self.cols, out);
    }

    fn floats(&self) -> Option<Floats<'_>> {
        Some(self.data.floats())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_whose_product_wraps_are_refused() {
        let none = || Bytes::from_vec(Vec::new());
        for shape in [(1 << 32, 1 << 32), (usize::MAX, 2), (1 << 62, 1), (2, 1 << 63)] {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let Err(error) = DenseWeight::new(shape, dtype, none()) else {
                    panic!("{shape:?} of {dtype:?} has no bytes");
                };
                // (2^62, 1) of halves does not wrap: its bytes are missing.
                let wraps = matches!(error, TensorError::TooLarge { .. });
                let fits = shape == (1 << 62, 1) && dtype != DType::F32;
                assert_eq!(wraps, !fits, "{shape:?} of {dtype:?}: {error}");
            }
        }
        assert!(DenseWeight::new((0, 7), DType::F32, none()).is_ok());
    }

    #[test]
    fn rows_past_the_end_are_none() {
        let w = DenseWeight::new((2, 3), DType::F16, Bytes::from_vec(vec![0; 12])).unwrap();
        assert!(w.row_range(1, 1).is_some());
        for (first, rows) in [(1, 2), (usize::MAX, 1), (1, usize::MAX), (1 << 63, 1 << 63)] {
            assert!(w.row_range(first, rows).is_none(), "{rows} from {first}");
        }
    }
}
