//! MLX affine quantization: `w = scale * code + bias`, a scale and a bias per group of a row.
//!
//! ```text
//! weight  u32 [out, in * bits / 32]   codes, little-endian bit stream (see crate::unpack_affine)
//! scales  T   [out, in / group]       T: f32, f16 or bf16
//! biases  T   [out, in / group]
//! ```
//! The format and the rounding are MLX's (`mx.quantize`).

mod gptq;
mod gram;
mod quantize;
mod search;

pub use gptq::{Compensation, gptq};
pub use gram::Gram;
pub use quantize::{AffineParts, ScaleMethod, quantize, quantize_by, quantize_row};

use crate::{
    Bytes, DType, Result, RowSource, TensorError,
    formats::{FloatBytes, product},
};

/// Bits a code and codes a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AffineFormat {
    /// Bits of an element: 2, 3, 4, 5, 6 or 8.
    pub bits: u8,
    /// Elements that share a scale: 32, 64 or 128.
    pub group: usize,
}

impl AffineFormat {
    /// Supported bits per element.
    pub const BITS: [u8; 6] = [2, 3, 4, 5, 6, 8];
    /// Supported group sizes.
    pub const GROUPS: [usize; 3] = [32, 64, 128];

    /// Bytes of the codes of a row of `cols` weights, a multiple of 8.
    #[must_use]
    pub fn row_bytes(self, cols: usize) -> usize {
        // In this order no `cols` overflows, whatever a config.json says.
        cols / 8 * usize::from(self.bits)
    }

    /// Checks that the format exists and divides rows of `cols`.
    ///
    /// # Errors
    /// [`TensorError::UnsupportedAffine`].
    pub fn check(self, cols: usize) -> Result<()> {
        let Self { bits, group } = self;
        let known = Self::BITS.contains(&bits) && Self::GROUPS.contains(&group);
        if known && cols > 0 && cols.is_multiple_of(group) {
            return Ok(());
        }
        Err(TensorError::UnsupportedAffine { bits, group, row: cols })
    }
}

/// A quantized matrix, still packed.
#[derive(Debug, Clone)]
pub struct AffineWeight {
    format: AffineFormat,
    rows: usize,
    cols: usize,
    codes: Bytes,
    scales: FloatBytes,
    biases: FloatBytes,
}

impl AffineWeight {
    /// # Shapes
    /// `codes`: `rows` times [`AffineFormat::row_bytes`]; `scales`, `biases`: `[rows, cols / group]`
    /// of `dtype`.
    ///
    /// # Errors
    /// The format is unknown, a buffer has another length, or the matrix is larger than memory can be.
    pub fn new(
        format: AffineFormat,
        (rows, cols): (usize, usize),
        codes: Bytes,
        scales: (DType, Bytes),
        biases: (DType, Bytes),
    ) -> Result<Self> {
        format.check(cols)?;
        // Every weight is counted, as what unpacks them makes a float of each.
        product("affine weight", &[rows, cols, size_of::<f32>()])?;
        let expected = product("affine weight", &[rows, format.row_bytes(cols)])?;
        if codes.len() != expected {
            let got = codes.len();
            return Err(TensorError::Bytes { what: "affine weight", expected, got });
        }
        let groups = rows * (cols / format.group);
        let scales = FloatBytes::new("affine scales", scales.0, scales.1, groups)?;
        let biases = FloatBytes::new("affine biases", biases.0, biases.1, groups)?;
        Ok(Self { format, rows, cols, codes, scales, biases })
    }

    /// Bits and group size.
    #[must_use]
    pub fn format(&self) -> AffineFormat {
        self.format
    }

    /// Bytes of codes, scales and biases.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.codes.len() + self.scales.len_bytes() + self.biases.len_bytes()) as u64
    }

    /// Codes, scales and biases as they are stored.
    #[must_use]
    pub fn stored(&self) -> [Bytes; 3] {
        [self.codes.clone(), self.scales.bytes().clone(), self.biases.bytes().clone()]
    }

    /// Hints that the stored bytes will not be read soon.
    pub(crate) fn release(&self) {
        self.codes.release();
        self.parts().iter().for_each(|part| part.release());
    }

    /// Type of scales and biases.
    #[must_use]
    pub fn scale_type(&self) -> DType {
        self.scales.dtype()
    }

    /// The stored codes of a row.
    pub(crate) fn row_codes(&self, row: usize) -> &[u8] {
        let bytes = self.format.row_bytes(self.cols);
        &self.codes.as_slice()[row * bytes..][..bytes]
    }

    /// The scales and the biases, `[rows, cols / group]` each.
    pub(crate) fn parts(&self) -> [&FloatBytes; 2] {
        [&self.scales, &self.biases]
    }

    /// What `mx.dequantize` makes of it on the CPU: `scale * code` and the sum with the bias are
    /// each rounded to the scales' type. [`crate::Linear`] computes in `f32` and is closer to the
    /// weights; this is for comparing with MLX bit for bit.
    ///
    /// # Shapes
    /// `[rows * cols]`, row-major.
    #[must_use]
    pub fn dequantize_as_mlx(&self) -> Vec<f32> {
        let (bytes, group) = (self.format.row_bytes(self.cols), self.format.group);
        let groups = self.rows * (self.cols / group);
        let (mut scales, mut biases) = (vec![0.0; groups], vec![0.0; groups]);
        self.scales.read(0, &mut scales);
        self.biases.read(0, &mut biases);
        let round = quantize::rounding(self.scales.dtype());
        let mut out = vec![0.0; self.rows * self.cols];
        for (i, row) in out.chunks_exact_mut(self.cols).enumerate() {
            let packed = &self.codes.as_slice()[i * bytes..][..bytes];
            crate::unpack_affine(packed, self.format.bits, row);
        }
        for ((codes, &s), &b) in out.chunks_exact_mut(group).zip(&scales).zip(&biases) {
            codes.iter_mut().for_each(|c| *c = round(round(*c * s) + b));
        }
        out
    }

    /// The rows of these numbers, copied; `None` when one is not there.
    pub(crate) fn take_rows(&self, rows: &[usize]) -> Option<Self> {
        let groups = self.cols / self.format.group;
        Some(Self {
            rows: rows.len(),
            codes: self.codes.take_rows(self.format.row_bytes(self.cols), rows)?,
            scales: self.scales.take_rows(groups, rows)?,
            biases: self.biases.take_rows(groups, rows)?,
            ..self.clone()
        })
    }

    /// Rows `range` as a matrix of its own, over the same memory.
    pub(crate) fn row_range(&self, first: usize, rows: usize) -> Option<Self> {
        let row = self.format.row_bytes(self.cols);
        let (groups, end) = (self.cols / self.format.group, first.checked_add(rows)?);
        if end > self.rows {
            return None;
        }
        Some(Self {
            rows,
            codes: self.codes.slice(first * row..end * row)?,
            scales: self.scales.slice(first * groups, rows * groups)?,
            biases: self.biases.slice(first * groups, rows * groups)?,
            ..self.clone()
        })
    }
}

impl RowSource for AffineWeight {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn read_rows(&self, first: usize, out: &mut [f32]) {
        let (bits, group) = (self.format.bits, self.format.group);
        let (bytes, groups) = (self.format.row_bytes(self.cols), self.cols / group);
        let (mut scales, mut biases) = (vec![0.0; groups], vec![0.0; groups]);
        for (i, row) in out.chunks_exact_mut(self.cols).enumerate() {
            let at = first + i;
            crate::unpack_affine(&self.codes.as_slice()[at * bytes..][..bytes], bits, row);
            self.scales.read(at * groups, &mut scales);
            self.biases.read(at * groups, &mut biases);
            for ((codes, s), b) in row.chunks_exact_mut(group).zip(&scales).zip(&biases) {
                codes.iter_mut().for_each(|c| *c = *c * s + b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_whose_product_wraps_are_refused() {
        let none = || Bytes::from_vec(Vec::new());
        let floats = || (DType::F16, none());
        for bits in AffineFormat::BITS {
            let format = AffineFormat { bits, group: 32 };
            for shape in [(1 << 32, 1 << 32), (1 << 59, 32), (1 << 58, 64), (2, 1 << 63)] {
                let error = AffineWeight::new(format, shape, none(), floats(), floats());
                let wraps = matches!(error, Err(TensorError::TooLarge { .. }));
                assert!(wraps, "{shape:?} of {bits} bits");
            }
        }
    }

    #[test]
    fn rows_past_the_end_are_none() {
        let format = AffineFormat { bits: 4, group: 32 };
        let bytes = |n| Bytes::from_vec(vec![0; n]);
        let side = || (DType::F16, bytes(4));
        let w = AffineWeight::new(format, (2, 32), bytes(32), side(), side()).unwrap();
        assert!(w.row_range(1, 1).is_some());
        for (first, rows) in [(1, 2), (usize::MAX, 1), (1, usize::MAX), (1 << 63, 1 << 63)] {
            assert!(w.row_range(first, rows).is_none(), "{rows} from {first}");
        }
    }
}
