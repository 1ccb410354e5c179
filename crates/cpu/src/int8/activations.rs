//! Activations as integers.

#[cfg(target_arch = "x86_64")]
use super::tile_rows::{Side, TileRows};
use crate::{
    Rounding, pool,
    {
        Level,
        elementwise::norm_row,
        kernels,
        shared::{SharedOut, Unwritten},
    },
};
use bytemuck::{Pod, Zeroable};
use std::{cell::RefCell, ops::Range};

/// Rows of activations, rounded group by group.
#[derive(Debug, Default)]
pub struct Int8Rows {
    pub(super) rounding: Rounding,
    /// Rows of codes; those of one row of activations are neighbours.
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) group: usize,
    /// `[rows, cols]`
    codes: Vec<Line>,
    /// `[rows, cols / group]`.
    pub(super) scales: Vec<f32>,
    /// Scale times the sum of the group's codes, `[rows, cols / group]`.
    pub(super) sums: Vec<f32>,
    /// All of it, for tile registers; empty where there are none.
    #[cfg(target_arch = "x86_64")]
    turned: TileRows,
}

/// A line of the cache: what crosses two of them is loaded half as fast.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([i8; 64]);

// SAFETY: zeros are bytes.
unsafe impl Zeroable for Line {}
// SAFETY: any bytes are a line, and there are no others between.
unsafe impl Pod for Line {}

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
    pub fn new(x: &[f32], cols: usize, group: usize, rounding: Rounding) -> Self {
        Self::with(x, None, (cols, group), rounding)
    }

    /// Rounds the rows after an RMS norm with these gains, as [`crate::rms_norm`](crate::rms_norm)
    /// followed by [`Self::new`].
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    pub fn normed(x: &[f32], gains: &[f32], eps: f32, group: usize, rounding: Rounding) -> Self {
        Self::with(x, Some((gains, eps)), (gains.len(), group), rounding)
    }

    fn with(
        x: &[f32],
        norm: Option<(&[f32], f32)>,
        (cols, group): (usize, usize),
        rounding: Rounding,
    ) -> Self {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "whole rows");
        let (level, rows) = (Level::detect(), x.len() / cols);
        Self::filled((rows, cols), group, rounding, |to| {
            pool::ranges(rows, (CHUNK / cols).max(1), |range| {
                ROW.with_borrow_mut(|scratch| {
                    scratch.resize(cols, 0.0);
                    let own = scratch.as_mut_ptr();
                    for i in range {
                        let mut row = x[i * cols..].as_ptr();
                        // SAFETY: all have `cols` elements, and a row is one task's.
                        unsafe {
                            if let Some((gains, eps)) = norm {
                                norm_row(level, row, gains, eps, own);
                                row = own;
                            }
                            to.put(level, i, 0..cols / group, (row, own));
                        }
                    }
                });
            });
        })
    }

    /// Rows that `fill` rounds, all of them.
    pub(super) fn filled(
        (rows, cols): (usize, usize),
        group: usize,
        rounding: Rounding,
        fill: impl FnOnce(Int8Out),
    ) -> Self {
        assert!(group > 0 && cols.is_multiple_of(group), "whole groups");
        let (groups, rows) = (cols / group, rows * rounding.parts());
        let (mut codes, mut scales, mut sums) = (
            Unwritten::<Line>::new((rows * cols).div_ceil(64)),
            Unwritten::new(rows * groups),
            Unwritten::new(rows * groups),
        );
        let out = Int8Out {
            rounding,
            cols,
            group,
            codes: codes.shared().cast(),
            scales: scales.shared(),
            sums: sums.shared(),
        };
        fill(out);
        let behind = out.codes.len() - rows * cols;
        // SAFETY: nobody else uses what the last line has behind the last row.
        unsafe { out.codes.at(rows * cols).write_bytes(0, behind) };
        // SAFETY: every row was rounded, and the rest zeroed.
        let (codes, scales, sums) = unsafe { (codes.written(), scales.written(), sums.written()) };
        Self {
            rounding,
            rows,
            cols,
            group,
            #[cfg(target_arch = "x86_64")]
            turned: turned(rows, (cols, group), &codes, &scales, &sums),
            codes,
            scales,
            sums,
        }
    }

    /// The codes of sixteen rows, and their scales and sums; there are at least [`super::amx::FROM`] in all.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn block(&self, block: usize) -> (&[i8], &[Side]) {
        self.turned.block(block, self.cols, self.group)
    }

    /// Rows of activations.
    pub(super) fn len(&self) -> usize {
        self.rows / self.rounding.parts()
    }

    /// The rows of activations that some rows of codes are.
    pub(super) fn outputs(&self, rows: Range<usize>) -> Range<usize> {
        let parts = self.rounding.parts();
        rows.start / parts..rows.end / parts
    }

    /// `[rows, cols]`
    pub(super) fn codes(&self) -> &[i8] {
        &bytemuck::cast_slice(&self.codes)[..self.rows * self.cols]
    }

    /// Whether the rows were rounded by `rounding` in groups of `group` elements.
    #[must_use]
    pub fn is(&self, group: usize, rounding: Rounding) -> bool {
        self.group == group && self.rounding == rounding
    }
}

/// Where tasks put rows that they round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Int8Out {
    rounding: Rounding,
    cols: usize,
    group: usize,
    codes: SharedOut<i8>,
    scales: SharedOut,
    sums: SharedOut,
}

impl Int8Out {
    /// Elements of a group.
    pub(super) fn group(self) -> usize {
        self.group
    }

    /// Rounds some groups of a row, whose elements are at `x`; at `rest` is room for as many, which may be
    /// themselves.
    ///
    /// # Safety
    /// The level is available, the row and its groups are inside, and no other task has them.
    pub(super) unsafe fn put(
        self,
        level: Level,
        row: usize,
        groups: Range<usize>,
        (x, rest): (*const f32, *mut f32),
    ) {
        let (parts, group, n) = (self.rounding.parts(), self.group, groups.len() * self.group);
        let places = |part: usize| {
            let row = row * parts + part;
            let at = row * (self.cols / group) + groups.start;
            (self.codes.at(at * group), self.scales.at(at), self.sums.at(at))
        };
        let (codes, scales, sums) = places(0);
        // SAFETY: the caller promises that the level is available, the row and its groups are
        // inside, and no other task has them.
        unsafe {
            kernels::round_row(level, x, n, group, codes, scales, sums);
            if parts > 1 {
                kernels::round_rest(level, x, n, group, codes, scales, rest);
                let (codes, scales, sums) = places(1);
                kernels::round_row(level, rest, n, group, codes, scales, sums);
            }
        }
    }
}

/// What [`Int8Rows::block`] reads.
#[cfg(target_arch = "x86_64")]
fn turned(
    rows: usize,
    shape: (usize, usize),
    codes: &[Line],
    scales: &[f32],
    sums: &[f32],
) -> TileRows {
    if !matches!(super::Int8Level::detect(), super::Int8Level::Amx(_)) || rows < super::amx::FROM {
        return TileRows::default();
    }
    let codes: &[i8] = bytemuck::cast_slice(codes);
    TileRows::new(shape, &codes[..rows * shape.0], scales, sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_nearest_and_sums_are_theirs() {
        let x: Vec<f32> = (0..128).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37).collect();
        let q = Int8Rows::new(&x, 64, 32, Rounding::Int8);
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
        let q = Int8Rows::new(&x, 64, 32, Rounding::Int8);
        assert!(q.scales[0].is_nan() && !q.scales[1].is_nan());
        x[3] = f32::NAN;
        assert!(Int8Rows::new(&x, 64, 32, Rounding::Int8).scales[0].is_nan());
        let q = Int8Rows::new(&[1e-44; 32], 32, 32, Rounding::Int8);
        assert_eq!((q.scales[0], q.codes()[0]), (0.0, 0));
    }
    #[test]
    fn two_parts_leave_a_254th_of_what_one_leaves() {
        let x: Vec<f32> = (0..192).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37).collect();
        let (one, two) =
            (Int8Rows::new(&x, 64, 32, Rounding::Int8), Int8Rows::new(&x, 64, 32, Rounding::Int16));
        assert_eq!((one.len(), one.rows, two.len(), two.rows), (3, 3, 3, 6));
        let value = |q: &Int8Rows, row: usize, k: usize| {
            f32::from(q.codes()[row * 64 + k]) * q.scales[row * 2 + k / 32]
        };
        for (i, &x) in x.iter().enumerate() {
            let (row, k) = (i / 64, i % 64);
            assert_eq!(value(&two, 2 * row, k), value(&one, row, k));
            let error = (x - value(&two, 2 * row, k) - value(&two, 2 * row + 1, k)).abs();
            assert!(error <= one.scales[row * 2 + k / 32] * 0.51 / 254.0 + 1e-6, "{error}");
        }
    }
}
