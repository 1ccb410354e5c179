//! A matrix made in parallel.

use super::run;
use crate::{
    shared::{SharedOut, Unwritten},
    soon,
};
use std::{marker::PhantomData, ops::Range};

/// Rows that are prefetched before they are written: they lie apart, and hardware does not foresee
/// them.
const AHEAD: usize = 2;
/// Elements of a cache line.
const LINE: usize = 16;

/// Some rows of one column part of a matrix, written from the first row on.
///
/// Its lifetime is its own: it cannot change places with another matrix's.
#[derive(Debug)]
pub struct GridCell<'a> {
    out: SharedOut,
    own: PhantomData<fn(&'a ()) -> &'a ()>,
    /// Elements of a row of the matrix, and of the cell.
    stride: usize,
    width: usize,
    /// First element of the next row.
    at: usize,
    left: usize,
}

impl GridCell<'_> {
    /// Writes the next row.
    ///
    /// # Panics
    /// When all rows are written, or `values` is not as wide as the cell.
    pub fn push(&mut self, values: &[f32]) {
        assert!(self.left > 0 && values.len() == self.width, "a row of the cell");
        // SAFETY: cells do not overlap.
        unsafe { self.out.write(self.at, values) };
        self.at += self.stride;
        self.left -= 1;
        if self.left > AHEAD {
            let next = self.at + AHEAD * self.stride;
            for at in (next..next + self.width).step_by(LINE) {
                soon::near(self.out.at(at));
            }
        }
    }
}

/// Makes a matrix `[rows, parts * width]`: `cell(i, part, out)` writes the rows of `ranges[i]` in
/// one of `parts` column parts; rows that it leaves out become zeros. The last ranges start first.
///
/// # Panics
/// When `ranges` do not follow each other from row 0 on.
pub fn grid(
    ranges: &[Range<usize>],
    parts: usize,
    width: usize,
    cell: impl Fn(usize, usize, &mut GridCell<'_>) + Sync,
) -> Vec<f32> {
    let mut rows = 0;
    for range in ranges {
        assert!(range.start == rows && range.end >= rows, "ranges follow each other");
        rows = range.end;
    }
    let stride = parts * width;
    let mut buffer = Unwritten::new(rows * stride);
    let out = buffer.shared();
    run(ranges.len() * parts, |task| {
        let (range, part) = (ranges.len() - 1 - task / parts, task % parts);
        let Range { start, end } = ranges[range];
        let (at, left) = (start * stride + part * width, end - start);
        let mut own = GridCell { out, own: PhantomData, stride, width, at, left };
        cell(range, part, &mut own);
        let zeros = if own.left > 0 { vec![0.0; width] } else { Vec::new() };
        while own.left > 0 {
            own.push(&zeros);
        }
    });
    // SAFETY: the cells cover the matrix, and each is full.
    unsafe { buffer.written() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cover_the_matrix() {
        let m = grid(&[0..2, 2..2, 2..5], 3, 2, |range, part, cell| {
            if range == 0 {
                cell.push(&[1.0, part as f32]);
            } else {
                (0..cell.left).for_each(|i| cell.push(&[i as f32, 9.0]));
            }
        });
        assert_eq!(m[..6], [1.0, 0.0, 1.0, 1.0, 1.0, 2.0]);
        assert_eq!(m[6..12], [0.0; 6]);
        assert_eq!(m[24..], [2.0, 9.0, 2.0, 9.0, 2.0, 9.0]);
    }
}
