//! Codes that name the entries of a table: `w = table[code] * scale`, with a scale per group of a row.
//!
//! ```text
//! codes   [out, in / 2] bytes, the low half first   4 bits: MXFP4, NVFP4, NF4, IQ4
//!         [out, in] bytes                           8 bits: FP8, MXFP8
//! scales  [out, ceil(in / group)]                   a byte each, which names an entry too, or a float
//! ```
//! The last group of a row may be shorter than the others.

mod lookup;
mod mxfp4;
mod numbers;
mod plain;
#[cfg(test)]
mod tests;

pub use mxfp4::quantize_mxfp4;
pub use numbers::{E2M1, e4m3, e8m0};

use crate::{
    Bytes, DType, Result, RowSource, TensorError,
    formats::{FloatBytes, product},
};
use std::sync::Arc;

/// What the codes of a matrix are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableFormat {
    /// The format's usual name, such as `mxfp4`.
    pub name: &'static str,
    /// Bits of a code: 4 or 8.
    pub bits: u8,
    /// Weights of a row that share a scale.
    pub group: usize,
}

impl TableFormat {
    /// Bytes of the codes of a row, whose length must be even where codes are halves of bytes.
    fn row_bytes(self, cols: usize) -> usize {
        if self.bits == 4 { cols / 2 } else { cols }
    }

    /// Entries that a code can name.
    fn entries(self) -> usize {
        1 << self.bits
    }

    /// Scales of a row.
    #[must_use]
    pub fn groups(self, cols: usize) -> usize {
        cols.div_ceil(self.group.max(1))
    }

    fn check(self, cols: usize) -> Result<()> {
        let even = self.bits == 8 || cols.is_multiple_of(2);
        if matches!(self.bits, 4 | 8) && self.group > 0 && cols > 0 && even {
            return Ok(());
        }
        let (bits, group) = (self.bits, self.group);
        Err(TensorError::UnsupportedTable { bits, group, row: cols })
    }
}

/// The scales of a matrix, `[rows, groups]`.
#[derive(Debug, Clone)]
pub enum TableScales {
    /// A byte each, and the 256 scales that bytes name.
    Named(Bytes, Arc<[f32; 256]>),
    /// Floats.
    Floats(DType, Bytes),
}

#[derive(Debug, Clone)]
enum Scales {
    Named(Bytes, Arc<[f32; 256]>),
    Floats(FloatBytes),
}

impl Scales {
    fn new(scales: TableScales, n: usize) -> Result<Self> {
        let what = "scales of table codes";
        match scales {
            TableScales::Floats(dtype, bytes) => {
                FloatBytes::new(what, dtype, bytes, n).map(Self::Floats)
            }
            TableScales::Named(bytes, _) if bytes.len() != n => {
                Err(TensorError::Bytes { what, expected: n, got: bytes.len() })
            }
            TableScales::Named(bytes, values) => Ok(Self::Named(bytes, values)),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Named(bytes, _) => bytes.len(),
            Self::Floats(floats) => floats.len_bytes(),
        }
    }

    /// Scales `first..first + out.len()`.
    fn read(&self, first: usize, out: &mut [f32]) {
        match self {
            Self::Named(bytes, values) => {
                let bytes = &bytes.as_slice()[first..][..out.len()];
                out.iter_mut().zip(bytes).for_each(|(o, &b)| *o = values[usize::from(b)]);
            }
            Self::Floats(floats) => floats.read(first, out),
        }
    }

    /// Rows of `n` scales, copied in the order of their numbers.
    fn take_rows(&self, n: usize, rows: &[usize]) -> Option<Self> {
        Some(match self {
            Self::Named(bytes, values) => {
                Self::Named(bytes.take_rows(n, rows)?, Arc::clone(values))
            }
            Self::Floats(floats) => Self::Floats(floats.take_rows(n, rows)?),
        })
    }

    fn slice(&self, first: usize, n: usize) -> Option<Self> {
        Some(match self {
            Self::Named(bytes, values) => {
                Self::Named(bytes.slice(first..first.checked_add(n)?)?, Arc::clone(values))
            }
            Self::Floats(floats) => Self::Floats(floats.slice(first, n)?),
        })
    }
}

/// A matrix of table codes, still packed.
#[derive(Debug, Clone)]
pub struct TableWeight {
    format: TableFormat,
    rows: usize,
    cols: usize,
    codes: Bytes,
    table: Arc<[f32]>,
    scales: Scales,
}

impl TableWeight {
    /// # Shapes
    /// `codes`: `[rows, cols * bits / 8]` bytes; `table`: `2^bits` entries; `scales`: `[rows, groups]`.
    ///
    /// # Errors
    /// The format is unknown or does not fit the rows, a buffer or the table has another length, or the
    /// matrix is larger than memory can be.
    pub fn new(
        format: TableFormat,
        (rows, cols): (usize, usize),
        codes: Bytes,
        table: Arc<[f32]>,
        scales: TableScales,
    ) -> Result<Self> {
        format.check(cols)?;
        let what = "table codes";
        // Every weight is counted, as what unpacks them makes a float of each.
        product(what, &[rows, cols, size_of::<f32>()])?;
        let expected = product(what, &[rows, format.row_bytes(cols)])?;
        if codes.len() != expected {
            return Err(TensorError::Bytes { what, expected, got: codes.len() });
        }
        if table.len() != format.entries() {
            let (what, expected) = ("table", format.entries());
            return Err(TensorError::Bytes { what, expected, got: table.len() });
        }
        let scales = Scales::new(scales, product(what, &[rows, format.groups(cols)])?)?;
        Ok(Self { format, rows, cols, codes, table, scales })
    }

    /// Name, bits and group size.
    #[must_use]
    pub fn format(&self) -> TableFormat {
        self.format
    }

    /// Bytes of codes and scales.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.codes.len() + self.scales.bytes()) as u64
    }

    /// What codes stand for, without scales.
    pub(crate) fn table(&self) -> &[f32] {
        &self.table
    }

    /// The stored codes of a row.
    pub(crate) fn row_codes(&self, row: usize) -> &[u8] {
        let bytes = self.format.row_bytes(self.cols);
        &self.codes.as_slice()[row * bytes..][..bytes]
    }

    /// What bytes of scales stand for, where scales are bytes.
    pub(crate) fn scale_names(&self) -> Option<&[f32; 256]> {
        match &self.scales {
            Scales::Named(_, values) => Some(values),
            Scales::Floats(_) => None,
        }
    }

    /// The bytes of a row's scales, where scales are bytes.
    pub(crate) fn row_names(&self, row: usize) -> Option<&[u8]> {
        let groups = self.format.groups(self.cols);
        match &self.scales {
            Scales::Named(bytes, _) => Some(&bytes.as_slice()[row * groups..][..groups]),
            Scales::Floats(_) => None,
        }
    }

    /// The scales of a row.
    pub(crate) fn read_scales(&self, row: usize, out: &mut [f32]) {
        self.scales.read(row * self.format.groups(self.cols), out);
    }

    /// Hints that the stored bytes will not be read soon.
    pub(crate) fn release(&self) {
        self.codes.release();
        match &self.scales {
            Scales::Named(bytes, _) => bytes.release(),
            Scales::Floats(floats) => floats.release(),
        }
    }

    /// The rows of these numbers, copied; `None` when one is not there.
    pub(crate) fn take_rows(&self, rows: &[usize]) -> Option<Self> {
        Some(Self {
            rows: rows.len(),
            codes: self.codes.take_rows(self.format.row_bytes(self.cols), rows)?,
            scales: self.scales.take_rows(self.format.groups(self.cols), rows)?,
            ..self.clone()
        })
    }

    /// Rows `range` as a matrix of its own, over the same memory.
    pub(crate) fn row_range(&self, first: usize, rows: usize) -> Option<Self> {
        let row = self.format.row_bytes(self.cols);
        let (groups, end) = (self.format.groups(self.cols), first.checked_add(rows)?);
        if end > self.rows {
            return None;
        }
        Some(Self {
            rows,
            codes: self.codes.slice(first * row..end * row)?,
            scales: self.scales.slice(first * groups, rows * groups)?,
            ..self.clone()
        })
    }
}

impl RowSource for TableWeight {
    fn rows(&self) -> usize {
        self.rows
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn read_rows(&self, first: usize, out: &mut [f32]) {
        let (row, groups) = (self.format.row_bytes(self.cols), self.format.groups(self.cols));
        let mut scales = vec![0.0; groups];
        for (i, out) in out.chunks_exact_mut(self.cols).enumerate() {
            let codes = &self.codes.as_slice()[(first + i) * row..][..row];
            self.scales.read((first + i) * groups, &mut scales);
            lookup::row(codes, &self.table, (&scales, self.format.group), out);
        }
    }
}
