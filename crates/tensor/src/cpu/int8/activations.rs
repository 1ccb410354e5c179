//! Activations as integers.

use crate::{
    Phase,
    cpu::{Level, dense::DenseLevel, elementwise::norm_row, kernels, shared::Unwritten},
    pool,
};
use bytemuck::{Pod, Zeroable};
use std::{cell::RefCell, ops::Range};

/// What activations are rounded to, group by group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// 8 bits: `x = scale * code`, off by at most a 254th of the group's largest magnitude.
    #[default]
    Int8,
    /// 16 bits: a second row of 8 bits holds what the first leaves, and every product takes two.
    Int16,
}

impl Rounding {
    /// Rows of codes for a row of activations.
    pub(super) fn parts(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Int16 => 2,
        }
    }

    /// Whether tokens of prompts are multiplied with quantized weights as with `bf16` ones: where tile
    /// registers do that.
    #[must_use]
    pub fn widens_prefill(self) -> bool {
        self.widens(Phase::Prefill)
    }

    /// Whether tokens of this phase are.
    pub(crate) fn widens(self, phase: Phase) -> bool {
        phase == Phase::Prefill && self == Self::Int8 && DenseLevel::detect() == DenseLevel::Amx
    }
}

/// Rows of activations, rounded group by group.
#[derive(Debug, Default)]
pub struct Int8Rows {
    pub(super) rounding: Rounding,
    /// Rows of codes; those of one row of activations are neighbours.
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
    /// Both, as tile registers want them, `[rows / 16, cols / group]`; empty where nobody does.
    #[cfg(target_arch = "x86_64")]
    sides: Vec<Side>,
}

/// A line of the cache: tile registers load what crosses two of them half as fast.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([i8; 64]);

// SAFETY: zeros are bytes.
unsafe impl Zeroable for Line {}
// SAFETY: any bytes are a line, and there are no others between.
unsafe impl Pod for Line {}

/// Rows of a tile register.
#[cfg(target_arch = "x86_64")]
pub(super) const BLOCK: usize = 16;
/// Scales and sums of a group of sixteen rows; zeros where there are fewer.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(super) struct Side {
    pub(super) scales: [f32; BLOCK],
    pub(super) sums: [f32; BLOCK],
}

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
    pub fn new(x: &[f32], cols: usize, group: usize, rounding: Rounding) -> Self {
        Self::with(x, None, (cols, group), rounding)
    }

    /// Rounds the rows after an RMS norm with these gains, as [`cpu::rms_norm`](crate::cpu::rms_norm)
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
        assert!(group > 0 && cols.is_multiple_of(group), "whole groups");
        let (groups, level, parts) = (cols / group, Level::detect(), rounding.parts());
        let rows = x.len() / cols * parts;
        let padded = if rows < PAD { rows } else { rows.next_multiple_of(PAD) };
        let (mut codes, mut scales, mut sums) = (
            Unwritten::<Line>::new((padded * cols).div_ceil(64)),
            Unwritten::new(padded * groups),
            Unwritten::new(padded * groups),
        );
        let (c, s, t) = (codes.shared().cast(), scales.shared(), sums.shared());
        let round = |row: *const f32, i: usize| {
            let (codes, scales, sums) = (c.at(i * cols), s.at(i * groups), t.at(i * groups));
            // SAFETY: a row has `cols` elements, and the places of row `i` are inside.
            unsafe { kernels::round_row(level, row, cols, group, codes, scales, sums) }
        };
        pool::ranges(x.len() / cols, (CHUNK / cols).max(1), |range| {
            ROW.with_borrow_mut(|scratch| {
                scratch.resize(cols, 0.0);
                for i in range {
                    let (mut row, first) = (x[i * cols..].as_ptr(), i * parts);
                    let own = scratch.as_mut_ptr();
                    if let Some((gains, eps)) = norm {
                        // SAFETY: all have `cols` elements.
                        unsafe { norm_row(level, row, gains, eps, own) };
                        row = own;
                    }
                    round(row, first);
                    if rounding == Rounding::Int16 {
                        let (codes, scales) = (c.at(first * cols), s.at(first * groups));
                        // SAFETY: as above; codes and scales were written.
                        unsafe { kernels::round_rest(level, row, cols, group, codes, scales, own) };
                        round(own, first + 1);
                    }
                }
            });
        });
        // SAFETY: nobody else uses the padding now, and no row that was rounded.
        unsafe {
            c.at(rows * cols).write_bytes(0, c.len() - rows * cols);
            s.at(rows * groups).write_bytes(0, (padded - rows) * groups);
            t.at(rows * groups).write_bytes(0, (padded - rows) * groups);
        }
        // SAFETY: every row was rounded, and the rest zeroed.
        let (codes, scales, sums) = unsafe { (codes.written(), scales.written(), sums.written()) };
        Self {
            rounding,
            rows,
            cols,
            group,
            #[cfg(target_arch = "x86_64")]
            sides: turned(rows, groups, &scales, &sums),
            codes,
            scales,
            sums,
        }
    }

    /// Of each group the scales and sums of sixteen rows from `first` on, a multiple of 16.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn sides(&self, first: usize) -> &[Side] {
        let groups = self.cols / self.group;
        &self.sides[first / BLOCK * groups..][..groups]
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

    /// `[rows, cols]`, padded.
    pub(super) fn codes(&self) -> &[i8] {
        bytemuck::cast_slice(&self.codes)
    }

    /// Whether it was rounded so, in groups of so many elements.
    #[must_use]
    pub fn is(&self, group: usize, rounding: Rounding) -> bool {
        self.group == group && self.rounding == rounding
    }
}

/// What [`Int8Rows::sides`] reads.
#[cfg(target_arch = "x86_64")]
fn turned(rows: usize, groups: usize, scales: &[f32], sums: &[f32]) -> Vec<Side> {
    if super::Int8Level::detect() != super::Int8Level::Amx || rows < super::amx::FROM {
        return Vec::new();
    }
    let zero = Side { scales: [0.0; BLOCK], sums: [0.0; BLOCK] };
    let mut sides = vec![zero; rows.div_ceil(BLOCK) * groups];
    for row in 0..rows {
        let own = scales[row * groups..].iter().zip(&sums[row * groups..]);
        for (side, (scale, sum)) in sides[row / BLOCK * groups..][..groups].iter_mut().zip(own) {
            (side.scales[row % BLOCK], side.sums[row % BLOCK]) = (*scale, *sum);
        }
    }
    sides
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
