//! Activations in `bf16`, as the kernels of `bf16` weights read them.

use super::pack::CHUNK;
use crate::{cpu::shared::Unwritten, pool};
use half::bf16;
use std::ops::Range;

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
    cols: usize,
    data: Vec<bf16>,
}

impl Bf16Rows {
    /// # Panics
    /// When `x` is not whole rows of `cols`.
    pub(crate) fn new(x: &[f32], cols: usize) -> Self {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "whole rows");
        let size = cols.div_ceil(CHUNK) * TILE;
        let blocks = x.len().div_ceil(cols * ROWS);
        let mut data = Unwritten::<bf16>::new(blocks * size);
        let shared = data.shared();
        pool::ranges(blocks, 1, |range| {
            for block in range {
                let rows = x[block * ROWS * cols..].chunks_exact(cols).take(ROWS);
                // SAFETY: all of it is written here, and each block by one task.
                let out = unsafe {
                    shared.at(block * size).write_bytes(0, size);
                    shared.slice(block * size, size)
                };
                rows.enumerate().for_each(|(r, row)| put_row(row, r, out));
            }
        });
        // SAFETY: the blocks cover it.
        Self { cols, data: unsafe { data.written() } }
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

fn put_row(row: &[f32], r: usize, out: &mut [bf16]) {
    for (x, tile) in row.chunks(CHUNK).zip(out.as_chunks_mut::<TILE>().0) {
        x.iter().zip(&mut tile[r * CHUNK..]).for_each(|(&x, to)| *to = nearest(x));
    }
}

/// Rounds to nearest, ties to even, without the branch that keeps the payload of a NaN.
fn nearest(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    bf16::from_bits(if x.is_nan() { 0x7fc0 } else { rounded as u16 })
}
