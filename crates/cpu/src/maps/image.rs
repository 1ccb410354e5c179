//! Repacked matrices as bytes that somebody else keeps, such as records of a file.
//!
//! ```text
//! affine   the records of crate::int8
//! dense    the panels of crate::dense, never coded
//! table    the records of crate::lookup, then (at a multiple of 64) the entries that codes name, f32, and the
//!          scales that bytes name, f32
//! ordered  the affine matrix, then (at a multiple of 64) the input of each column, u32
//! ```

use super::Matrix;
use crate::{
    AffineFormat, AlignedBytes, Bytes, DType, Precision, Result, TensorError, Weight,
    dense::PackedDense, int8::PackedWeight, lookup::PackedTable,
};
use std::{fmt, str::FromStr, sync::Arc};

/// Parts of an image begin at a multiple of this.
pub const IMAGE_ALIGN: usize = 64;

/// What the bytes of a repacked matrix `[rows, cols]` are. Its text, as `affine 768 2048 64 4 bf16`, is what files
/// say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixLayout {
    /// Quantized weights in groups of so many inputs, and the type of their scales.
    Affine {
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
        /// Inputs that share a scale.
        group: usize,
        /// Whether a code takes half a byte.
        nibbles: bool,
        /// Type of scales and biases.
        scales: DType,
        /// Whether columns stand in another order than inputs.
        ordered: bool,
    },
    /// Floats.
    Dense {
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
        /// Their type.
        dtype: DType,
    },
    /// Codes that name entries of a table.
    Table {
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
        /// Inputs that share a scale.
        group: usize,
        /// Whether a code takes half a byte.
        nibbles: bool,
        /// Whether scales are bytes that name them.
        named: bool,
    },
}

impl MatrixLayout {
    /// Outputs and inputs.
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        match *self {
            Self::Affine { rows, cols, .. }
            | Self::Dense { rows, cols, .. }
            | Self::Table { rows, cols, .. } => (rows, cols),
        }
    }

    /// Bytes of an image.
    ///
    /// # Errors
    /// No matrix has such numbers.
    pub fn bytes(&self) -> Result<usize> {
        Ok(self.side()?.1)
    }

    /// Where what follows the matrix begins, and where it ends.
    fn side(&self) -> Result<(usize, usize)> {
        let (rows, cols) = self.shape();
        let refuse = || TensorError::TooLarge { what: "image", shape: vec![rows, cols] };
        // A weight takes at most four bytes, and as much again for padding and scales.
        let limit = rows.checked_next_multiple_of(64).zip(cols.checked_next_multiple_of(64));
        let limit = limit.and_then(|(r, c)| r.checked_mul(c)?.checked_mul(16));
        if rows == 0 || cols == 0 || limit.is_none_or(|n| isize::try_from(n).is_err()) {
            return Err(refuse());
        }
        let (main, side) = match *self {
            Self::Affine { rows, cols, group, nibbles, scales, ordered } => {
                if !AffineFormat::GROUPS.contains(&group) || !cols.is_multiple_of(group) {
                    return Err(TensorError::UnsupportedAffine { bits: 0, group, row: cols });
                }
                let order = if ordered { cols * size_of::<u32>() } else { 0 };
                (PackedWeight::bytes_of((rows, cols), group, nibbles, scales), order)
            }
            Self::Dense { rows, cols, dtype } => (PackedDense::bytes_of((rows, cols), dtype), 0),
            Self::Table { rows, cols, group, nibbles, named } => {
                if group == 0 || group > cols || (nibbles && (group % 2 + cols % 2 > 0)) {
                    let bits = if nibbles { 4 } else { 8 };
                    return Err(TensorError::UnsupportedTable { bits, group, row: cols });
                }
                let tables = if nibbles { 16 } else { 256 } + if named { 256 } else { 0 };
                let main = PackedTable::bytes_of((rows, cols), group, nibbles, named);
                (main, tables * size_of::<f32>())
            }
        };
        let at = main.next_multiple_of(IMAGE_ALIGN);
        Ok(if side == 0 { (main, main) } else { (at, at + side) })
    }
}

impl Matrix {
    /// What [`Self::write_image`] writes; `None` of matrices that have no image: those that are not repacked, and
    /// `bf16` in twelve bits, which [`Self::for_image`] does not give.
    #[must_use]
    pub fn layout(&self) -> Option<MatrixLayout> {
        match self {
            Self::Packed(w, _) => Some(w.layout(false)),
            Self::Dense(w) => w.layout(),
            Self::Table(w) => Some(w.layout()),
            Self::Ordered(w, _) => match &**w {
                Self::Packed(w, _) => Some(w.layout(true)),
                _ => None,
            },
            Self::Stored(_) | Self::Watched(..) => None,
        }
    }

    /// A stored matrix as [`Self::pack`] would have it, for a moment: it has an image wherever its format has one, and
    /// memory that goes back to the system at once.
    #[must_use]
    pub fn for_image(self, precision: Precision) -> Self {
        let allocate = AlignedBytes::zeroed;
        match self {
            Self::Stored(Weight::Dense(w)) => {
                let packed = PackedDense::uncoded(&w, allocate);
                w.release();
                Self::Dense(Arc::new(packed))
            }
            Self::Stored(Weight::Affine(w)) => {
                let packed = PackedWeight::new_in(&w, allocate);
                w.release();
                Self::Packed(Arc::new(packed), precision)
            }
            Self::Stored(Weight::Ordered(w)) => {
                let (inner, order) = w.into_parts();
                let inner = Self::Stored(Weight::Affine(inner)).for_image(precision);
                Self::Ordered(Box::new(inner), order)
            }
            Self::Stored(Weight::Table(w)) => match PackedTable::new_in(&w, allocate) {
                Some(packed) => {
                    w.release();
                    Self::Table(Arc::new(packed))
                }
                None => Self::Stored(Weight::Table(w)),
            },
            other => other,
        }
    }

    /// Writes the matrix for [`Self::from_image`].
    ///
    /// # Errors
    /// It has no image, or `out` has another length than one.
    pub fn write_image(&self, out: &mut [u8]) -> Result<()> {
        let none = TensorError::Device { op: "image", device: "a stored weight".into() };
        let layout = self.layout().ok_or(none)?;
        let (at, end) = layout.side()?;
        if out.len() != end {
            return Err(TensorError::Bytes { what: "image", expected: end, got: out.len() });
        }
        let (main, side) = out.split_at_mut(at);
        match self {
            Self::Packed(w, _) => put(main, w.memory()),
            Self::Dense(w) => put(main, w.memory(0)),
            Self::Table(w) => {
                put(main, w.memory());
                let tables = w.tables();
                for (to, x) in side.as_chunks_mut().0.iter_mut().zip(tables) {
                    *to = x.to_le_bytes();
                }
            }
            Self::Ordered(w, order) => {
                if let Self::Packed(w, _) = &**w {
                    put(main, w.memory());
                }
                for (to, x) in side.as_chunks_mut().0.iter_mut().zip(&**order) {
                    *to = x.to_le_bytes();
                }
            }
            Self::Stored(_) | Self::Watched(..) => {}
        }
        Ok(())
    }

    /// The matrix of an image, over its memory, which begins at a multiple of [`IMAGE_ALIGN`].
    ///
    /// # Errors
    /// The bytes have another length than the layout's, begin elsewhere, or name an input that is not there.
    pub fn from_image(layout: MatrixLayout, precision: Precision, image: &Bytes) -> Result<Self> {
        let (at, end) = layout.side()?;
        let wrong = || TensorError::Bytes { what: "image", expected: end, got: image.len() };
        let aligned = image.as_slice().as_ptr().align_offset(IMAGE_ALIGN) == 0;
        if image.len() != end || !aligned {
            return Err(wrong());
        }
        let main = |bytes: usize| image.slice(0..bytes).ok_or_else(wrong);
        let side = &image.as_slice()[at..];
        Ok(match layout {
            MatrixLayout::Affine { rows, cols, group, nibbles, scales, ordered } => {
                let data = main(PackedWeight::bytes_of((rows, cols), group, nibbles, scales))?;
                let packed = PackedWeight::of((rows, cols), group, nibbles, scales, data);
                let packed = Self::Packed(Arc::new(packed), precision);
                match ordered {
                    true => Self::Ordered(Box::new(packed), order(side, cols)?),
                    false => packed,
                }
            }
            MatrixLayout::Dense { rows, cols, dtype } => {
                Self::Dense(Arc::new(PackedDense::of((rows, cols), dtype, image.clone())))
            }
            MatrixLayout::Table { rows, cols, group, nibbles, named } => {
                let data = main(PackedTable::bytes_of((rows, cols), group, nibbles, named))?;
                let tables: Vec<f32> =
                    side.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
                let packed = PackedTable::of((rows, cols), group, nibbles, named, &tables, data);
                Self::Table(Arc::new(packed.ok_or_else(wrong)?))
            }
        })
    }
}

/// The input of each column.
fn order(side: &[u8], cols: usize) -> Result<Arc<[u32]>> {
    let order: Arc<[u32]> = side.as_chunks().0.iter().map(|x| u32::from_le_bytes(*x)).collect();
    match order.iter().find(|&&input| input as usize >= cols) {
        Some(&input) => {
            let op = "order of columns";
            Err(TensorError::Index { op, index: input as usize, limit: cols })
        }
        None => Ok(order),
    }
}

fn put(to: &mut [u8], from: &[u8]) {
    let (main, rest) = to.split_at_mut(from.len());
    main.copy_from_slice(from);
    rest.fill(0);
}

impl fmt::Display for MatrixLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = |nibbles| if nibbles { 4 } else { 8 };
        match *self {
            Self::Affine { rows, cols, group, nibbles, scales, ordered } => {
                let order = if ordered { " ordered" } else { "" };
                write!(f, "affine {rows} {cols} {group} {} {scales}{order}", bits(nibbles))
            }
            Self::Dense { rows, cols, dtype } => write!(f, "dense {rows} {cols} {dtype}"),
            Self::Table { rows, cols, group, nibbles, named } => {
                let names = if named { "named" } else { "f32" };
                write!(f, "table {rows} {cols} {group} {} {names}", bits(nibbles))
            }
        }
    }
}

/// Reads what `Display` writes.
impl FromStr for MatrixLayout {
    type Err = TensorError;

    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<_> = text.split(' ').collect();
        parse(&words).ok_or_else(|| TensorError::Layout { text: text.to_owned() })
    }
}

fn parse(words: &[&str]) -> Option<MatrixLayout> {
    let number = |word: &str| word.parse::<usize>().ok();
    let nibbles = |word: &str| match word {
        "4" => Some(true),
        "8" => Some(false),
        _ => None,
    };
    let dtype =
        |word: &str| [DType::F32, DType::F16, DType::BF16].into_iter().find(|d| d.as_str() == word);
    Some(match words {
        ["affine", rows, cols, group, bits, scales, order @ ..] => MatrixLayout::Affine {
            rows: number(rows)?,
            cols: number(cols)?,
            group: number(group)?,
            nibbles: nibbles(bits)?,
            scales: dtype(scales)?,
            ordered: match order {
                [] => false,
                ["ordered"] => true,
                _ => return None,
            },
        },
        ["dense", rows, cols, of] => {
            MatrixLayout::Dense { rows: number(rows)?, cols: number(cols)?, dtype: dtype(of)? }
        }
        ["table", rows, cols, group, bits, names] => MatrixLayout::Table {
            rows: number(rows)?,
            cols: number(cols)?,
            group: number(group)?,
            nibbles: nibbles(bits)?,
            named: match *names {
                "named" => true,
                "f32" => false,
                _ => return None,
            },
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
