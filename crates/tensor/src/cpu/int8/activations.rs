//! Activations as integers.

use crate::{
    cpu::{Level, elementwise::norm_row, kernels, shared::Unwritten},
    pool,
};
use bytemuck::{Pod, Zeroable};
use std::cell::RefCell;

/// Rows of activations, rounded group by group to 8 bits: `x = scale * code`.
#[derive(Debug, Default)]
pub struct Int8Rows {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) group: usize,
    /// `[rows, cols]`. This and what follows is padded with rows of zeros to a multiple of [`PAD`],
    /// if there are so many rows.
    codes: Vec<Line>,
    /// `[rows, cols / group]`.
    pub(super) scales: Vec<f32>,
    /// Scale times the sum of the group's codes, `[rows, cols / group]`.
    pub(super) sums: Vec<f32>,
}

/// A line of the cache: tile registers load what crosses two of them half as fast.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([i8; 64]);

// SAFETY: zeros are bytes.
unsafe impl Zeroable for Line {}
// SAFETY: any bytes are a line, and there are no others between.
unsafe impl Pod for Line {}

/// AMX takes rows in fours.
pub(super) const PAD: usize = 4;
/// Elements a task should have at least.
const CHUNK: usize = 1 << 13;

thread_local! {
    /// A row after its norm.
    static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Int8Rows {
    /// Rounds rows of `cols` elements, each group to the nearest multiple of its largest magnitude
    /// over 127. A group with an element that is not finite becomes not a number, so that it shows
    /// in the logits.
    ///
    /// # Panics
    /// When `x` is not whole rows, or a row not whole groups.
    #[must_use]
    pub fn new(x: &[f32], cols: usize, group: usize) -> Self {
        Self::with(x, cols, group, |level, row, codes, scales, sums| {
            // SAFETY: `with` has checked the lengths.
            unsafe { kernels::round_row(level, row, cols, group, codes, scales, sums) }
        })
    }

    /// Rounds the rows after an RMS norm with these gains, as [`cpu::rms_norm`](crate::cpu::rms_norm)
    /// followed by [`Self::new`].
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn normed(x: &[f32], gains: &[f32], eps: f32, group: usize) -> Self {
        let cols = gains.len();
        Self::with(x, cols, group, |level, row, codes, scales, sums| {
            ROW.with_borrow_mut(|normed| {
                normed.resize(cols, 0.0);
                // SAFETY: all have `cols` elements; `with` has checked the rest.
                unsafe {
                    norm_row(level, row, gains, eps, normed.as_mut_ptr());
                    kernels::round_row(level, normed.as_ptr(), cols, group, codes, scales, sums);
                }
            });
        })
    }

    /// Calls `row` with each row's elements and the places of its codes, scales and sums, all of
    /// which it writes.
    fn with(
        x: &[f32],
        cols: usize,
        group: usize,
        row: impl Fn(Level, *const f32, *mut i8, *mut f32, *mut f32) + Sync,
    ) -> Self {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "whole rows");
        assert!(group > 0 && cols.is_multiple_of(group), "whole groups");
        let (rows, groups, level) = (x.len() / cols, cols / group, Level::detect());
        let padded = if rows < PAD { rows } else { rows.next_multiple_of(PAD) };
        let (mut codes, mut scales, mut sums) = (
            Unwritten::<Line>::new((padded * cols).div_ceil(64)),
            Unwritten::new(padded * groups),
            Unwritten::new(padded * groups),
        );
        let (c, s, t) = (codes.shared().cast(), scales.shared(), sums.shared());
        pool::ranges(rows, (CHUNK / cols).max(1), |range| {
            for i in range {
                row(
                    level,
                    x[i * cols..].as_ptr(),
                    c.at(i * cols),
                    s.at(i * groups),
                    t.at(i * groups),
                );
            }
        });
        // SAFETY: nobody else uses the padding now, and no row that was rounded.
        unsafe {
            c.at(rows * cols).write_bytes(0, c.len() - rows * cols);
            s.at(rows * groups).write_bytes(0, (padded - rows) * groups);
            t.at(rows * groups).write_bytes(0, (padded - rows) * groups);
        }
        // SAFETY: every row was rounded, and the rest zeroed.
        let (codes, scales, sums) = unsafe { (codes.written(), scales.written(), sums.written()) };
        Self { rows, cols, group, codes, scales, sums }
    }

    /// `[rows, cols]`, padded.
    pub(super) fn codes(&self) -> &[i8] {
        bytemuck::cast_slice(&self.codes)
    }

    /// Elements that share a scale.
    #[must_use]
    pub fn group(&self) -> usize {
        self.group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_nearest_and_sums_are_theirs() {
        let x: Vec<f32> = (0..128).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37).collect();
        let q = Int8Rows::new(&x, 64, 32);
        for (g, x) in x.chunks(32).enumerate() {
            let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            assert_eq!(q.scales[g], largest / 127.0);
            let codes = &q.codes()[g * 32..][..32];
            for (c, v) in codes.iter().zip(x) {
                assert!((f32::from(*c) * q.scales[g] - v).abs() <= q.scales[g] * 0.5001);
            }
            let sum: i32 = codes.iter().map(|&c| i32::from(c)).sum();
            assert_eq!(q.sums[g], q.scales[g] * sum as f32);
        }
    }

    #[test]
    fn what_is_not_finite_is_not_hidden() {
        let mut x = vec![1.0f32; 64];
        x[3] = f32::INFINITY;
        let q = Int8Rows::new(&x, 64, 32);
        assert!(q.scales[0].is_nan() && !q.scales[1].is_nan());
        x[3] = f32::NAN;
        assert!(Int8Rows::new(&x, 64, 32).scales[0].is_nan());
        let q = Int8Rows::new(&[1e-44; 32], 32, 32);
        assert_eq!((q.scales[0], q.codes()[0]), (0.0, 0));
    }
}
