//! What levels have in common: some rows of activations against a tile, group by group.

use super::{Int8Rows, PackedWeight, pack::TILE};
use crate::{
    DType,
    cpu::lanes::{Element, Lanes},
};
use half::{bf16, f16};
use std::ops::Range;

/// The integer products of a level whose registers hold a tile's outputs in `N`.
///
/// # Safety
/// The method may use the instructions of its level, so it must run inside a function compiled for
/// that level.
pub(super) trait Dots<const N: usize> {
    type Lanes: Lanes;

    /// `sum q c` of one group for each of `M` rows of `x`, which are `cols` apart.
    ///
    /// # Safety
    /// `codes` has the group's codes for the whole tile, and each row of `x` has `group` more.
    unsafe fn dots<const NIBBLES: bool, const M: usize>(
        codes: *const u8,
        x: *const i8,
        cols: usize,
        group: usize,
    ) -> [[Self::Lanes; N]; M];
}

/// As [`super::portable::tile`].
///
/// # Safety
/// The machine has what `D` uses, and so has the function this is compiled into.
#[inline(always)]
pub(super) unsafe fn tile<D: Dots<N>, const N: usize>(
    w: &PackedWeight,
    tile: usize,
    x: &Int8Rows,
    rows: Range<usize>,
    out: &mut [f32],
) {
    // SAFETY: forwarded.
    unsafe {
        match (w.scale_type, w.nibbles) {
            (DType::BF16, true) => blocks::<D, N, bf16, true>(w, tile, x, rows, out),
            (DType::BF16, false) => blocks::<D, N, bf16, false>(w, tile, x, rows, out),
            (DType::F16, true) => blocks::<D, N, f16, true>(w, tile, x, rows, out),
            (DType::F16, false) => blocks::<D, N, f16, false>(w, tile, x, rows, out),
            (_, true) => blocks::<D, N, f32, true>(w, tile, x, rows, out),
            (_, false) => blocks::<D, N, f32, false>(w, tile, x, rows, out),
        }
    }
}

#[inline(always)]
unsafe fn blocks<D: Dots<N>, const N: usize, E: Element, const NIBBLES: bool>(
    w: &PackedWeight,
    tile: usize,
    x: &Int8Rows,
    rows: Range<usize>,
    out: &mut [f32],
) {
    const { assert!(N * D::Lanes::LANES == TILE) };
    assert!(out.len() >= rows.len() * TILE && rows.end <= x.rows && x.cols == w.cols);
    let records = w.tile(tile).as_ptr();
    let mut i = rows.start;
    let mut out = out.as_mut_ptr();
    // SAFETY: the assertion, and `out` moves by the rows that were written.
    unsafe {
        macro_rules! step {
            ($m:literal) => {
                while rows.end - i >= $m {
                    block::<D, N, E, NIBBLES, $m>(w, records, x, i, out);
                    i += $m;
                    out = out.add($m * TILE);
                }
            };
        }
        step!(4);
        step!(2);
        step!(1);
    }
}

/// `M` rows of activations against one tile.
#[inline(always)]
unsafe fn block<D: Dots<N>, const N: usize, E: Element, const NIBBLES: bool, const M: usize>(
    w: &PackedWeight,
    records: *const u8,
    x: &Int8Rows,
    first: usize,
    out: *mut f32,
) {
    let (groups, cols, group) = (w.groups(), w.cols, w.group);
    let (record_bytes, code_bytes) = (w.record_bytes(), w.code_bytes());
    // SAFETY: `blocks` has checked the shapes.
    unsafe {
        let codes = x.codes.as_ptr().add(first * cols);
        let scales = x.scales.as_ptr().add(first * groups);
        let sums = x.sums.as_ptr().add(first * groups);
        let mut acc = [[D::Lanes::splat(0.0); N]; M];
        for g in 0..groups {
            let record = records.add(g * record_bytes);
            let dots = D::dots::<NIBBLES, M>(record, codes.add(g * group), cols, group);
            let floats: *const E = record.add(code_bytes).cast();
            for n in 0..N {
                let s = E::load::<D::Lanes>(floats.add(n * D::Lanes::LANES));
                let b = E::load::<D::Lanes>(floats.add(TILE + n * D::Lanes::LANES));
                for m in 0..M {
                    let t = D::Lanes::splat(*scales.add(m * groups + g));
                    let sum = D::Lanes::splat(*sums.add(m * groups + g));
                    acc[m][n] = b.mul_add(sum, dots[m][n].mul_add(s.mul(t), acc[m][n]));
                }
            }
        }
        for (m, acc) in acc.iter().enumerate() {
            for (n, acc) in acc.iter().enumerate() {
                acc.store(out.add(m * TILE + n * D::Lanes::LANES));
            }
        }
    }
}
