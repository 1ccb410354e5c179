//! Activations in `bf16`, as the kernels of `bf16` weights read them.

use super::pack::CHUNK;
use crate::{
    pool,
    {
        Level,
        elementwise::norm_row,
        shared::{SharedOut, Unwritten},
        soon,
    },
};
use half::bf16;
use std::{cell::RefCell, ops::Range};

/// Rows of a tile register.
pub(super) const ROWS: usize = 16;
/// Elements of a tile register.
pub(super) const TILE: usize = ROWS * CHUNK;

/// Rows of activations, each element rounded to the nearest `bf16`, ties to even.
///
/// ```text
/// [block of 16 rows][32 inputs] tiles     tile: [16 rows][32 inputs]
/// ```
/// Rows are padded to whole blocks and inputs to whole tiles, with zeros.
#[derive(Debug)]
pub(crate) struct Bf16Rows {
    rows: usize,
    cols: usize,
    data: Vec<bf16>,
}

thread_local! {
    /// A row after its norm.
    static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Rows that are being written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bf16Out {
    cols: usize,
    data: SharedOut<bf16>,
}

impl Bf16Rows {
    /// # Panics
    /// When `x` is not whole rows of `cols`.
    pub(crate) fn new(x: &[f32], cols: usize) -> Self {
        Self::with(x, cols, None)
    }

    /// The rows after an RMS norm with these gains, as [`crate::rms_norm`](crate::rms_norm) followed by
    /// [`Self::new`].
    ///
    /// # Panics
    /// As [`Self::new`].
    pub(crate) fn normed(x: &[f32], gains: &[f32], eps: f32) -> Self {
        Self::with(x, gains.len(), Some((gains, eps)))
    }

    fn with(x: &[f32], cols: usize, norm: Option<(&[f32], f32)>) -> Self {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "whole rows");
        let (level, rows) = (Level::detect(), x.len() / cols);
        Self::filled(rows, cols, |out| {
            pool::ranges(rows, ROWS, |range| {
                ROW.with_borrow_mut(|scratch: &mut Vec<f32>| {
                    scratch.resize(cols, 0.0);
                    for (i, row) in range.clone().zip(x[range.start * cols..].chunks_exact(cols)) {
                        let row = match norm {
                            None => row,
                            Some((gains, eps)) => {
                                // SAFETY: all have `cols` elements.
                                unsafe {
                                    norm_row(level, row.as_ptr(), gains, eps, scratch.as_mut_ptr());
                                }
                                &*scratch
                            }
                        };
                        // SAFETY: a row is one task's.
                        unsafe { out.put(i, 0, row) };
                    }
                });
            });
        })
    }

    /// Rows that `fill` writes, all of them.
    pub(super) fn filled(rows: usize, cols: usize, fill: impl FnOnce(Bf16Out)) -> Self {
        let blocks = rows.div_ceil(ROWS);
        let mut data = Unwritten::<bf16>::new(blocks * cols.div_ceil(CHUNK) * TILE);
        let out = Bf16Out { cols, data: data.shared() };
        if !rows.is_multiple_of(ROWS) || !cols.is_multiple_of(CHUNK) {
            // SAFETY: the whole buffer, which nobody else knows yet.
            unsafe { out.data.at(0).write_bytes(0, out.data.len()) };
        }
        fill(out);
        // SAFETY: rows were written, and the padding where there is any.
        Self { rows, cols, data: unsafe { data.written() } }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    /// The tiles of the blocks that hold some rows; the first begins a block.
    pub(super) fn blocks(&self, rows: Range<usize>) -> &[bf16] {
        debug_assert!(rows.start.is_multiple_of(ROWS));
        let size = self.cols.div_ceil(CHUNK) * TILE;
        &self.data[rows.start / ROWS * size..rows.end.div_ceil(ROWS) * size]
    }
}

impl Bf16Out {
    /// Writes elements of a row, rounded, from the element `first` on, which begins a tile.
    ///
    /// # Safety
    /// No other task writes there.
    ///
    /// # Panics
    /// When they are not inside.
    pub(super) unsafe fn put(self, row: usize, first: usize, values: &[f32]) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn avx512(out: Bf16Out, row: usize, first: usize, values: &[f32]) {
            // SAFETY: no other task writes there, as the caller of `put` promises.
            unsafe { out.put_all(row, first, values) }
        }
        // SAFETY: AVX-512 was detected where it is used, and no other task writes these elements.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if crate::features::Avx512::detect().is_some() {
                return avx512(self, row, first, values);
            }
            self.put_all(row, first, values);
        }
    }

    /// [`Self::put`], compiled for the instructions of whoever calls it.
    ///
    /// # Safety
    /// As [`Self::put`].
    ///
    /// # Panics
    /// As [`Self::put`].
    #[inline(always)]
    pub(super) unsafe fn put_all(self, row: usize, first: usize, values: &[f32]) {
        assert!(first.is_multiple_of(CHUNK) && first + values.len() <= self.cols, "inside the row");
        let mut at = self.place(row, first);
        let (whole, rest) = values.as_chunks::<CHUNK>();
        for values in whole {
            // SAFETY: a line of the row, where no other task writes.
            unsafe { self.data.write_array(at, &rounded(values)) };
            at += TILE;
        }
        if !rest.is_empty() {
            let mut padded = [0.0; CHUNK];
            padded[..rest.len()].copy_from_slice(rest);
            // SAFETY: a line of the row, where no other task writes.
            unsafe { self.data.write_array(at, &rounded(&padded)) };
        }
    }

    /// Prefetches the tile's line of a row that has the element.
    #[inline(always)]
    pub(super) fn ask(self, row: usize, element: usize) {
        soon::near(self.data.at(0).wrapping_add(self.place(row, element)));
    }

    /// Where the tile's line of a row is that has the element.
    #[inline(always)]
    fn place(self, row: usize, element: usize) -> usize {
        let size = self.cols.div_ceil(CHUNK) * TILE;
        row / ROWS * size + element / CHUNK * TILE + row % ROWS * CHUNK
    }
}

/// What a tile has of a row.
#[inline(always)]
fn rounded(values: &[f32; CHUNK]) -> [bf16; CHUNK] {
    let mut line = [bf16::ZERO; CHUNK];
    for (to, &x) in line.iter_mut().zip(values) {
        *to = nearest(x);
    }
    line
}

/// Rounds to nearest, ties to even, without the branch that keeps the payload of a NaN.
#[inline(always)]
fn nearest(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    bf16::from_bits(if x.is_nan() { 0x7fc0 } else { rounded as u16 })
}
