//! What levels have in common: some rows of activations against a tile, group by group.

use super::{Int8Rows, PackedWeight, pack::TILE};
use crate::lanes::{Element, Lanes};
use std::{array::from_fn, ops::Range};

/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// The integer products of a level whose registers hold a tile's outputs in `N`.
///
/// # Safety
/// The method may use the instructions of its level, so it must run inside a function compiled for
/// that level.
pub(super) trait Dots<const N: usize> {
    type Lanes: Lanes;
    /// How far ahead of its use a line of weights is prefetched, in bytes, where the hardware does
    /// not look far enough. It may lie in the next tile, or past the last.
    const AHEAD: Option<usize> = None;

    /// `sum q c` of one group for each of `M` rows of activations.
    ///
    /// # Safety
    /// `codes` has the group's codes for the whole tile, and each of `x` points to `group` more.
    unsafe fn dots<const NIBBLES: bool, const M: usize>(
        codes: *const u8,
        x: [*const i8; M],
        group: usize,
    ) -> [[Self::Lanes; N]; M];
}

/// Defines a function like [`super::portable::tile`] from the products of a level: its name, the
/// products, the registers of a tile, the instructions. Each way to store a weight is a function
/// of its own, which the compiler can keep in registers.
macro_rules! tile_at {
    ($(#[$doc:meta])* $name:ident, $dots:ty, $n:literal, $features:literal) => {
        $(#[$doc])*
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(
            w: &$crate::int8::PackedWeight,
            tile: usize,
            x: &$crate::int8::Int8Rows,
            rows: std::ops::Range<usize>,
            out: &mut [f32],
        ) {
            #[target_feature(enable = $features)]
            unsafe fn stored<E: $crate::lanes::Element, const NIBBLES: bool>(
                w: &$crate::int8::PackedWeight,
                tile: usize,
                x: &$crate::int8::Int8Rows,
                rows: std::ops::Range<usize>,
                out: &mut [f32],
            ) {
                // SAFETY: the shapes are those of `w` and `x`, and this is compiled for the
                // products.
                unsafe { super::blocks::blocks::<$dots, $n, E, NIBBLES>(w, tile, x, rows, out) }
            }
            use $crate::DType;
            // SAFETY: the caller promises that `codes` has the group's codes for the whole tile,
            // and each of `x` points to `group` more.
            unsafe {
                match (w.scale_type, w.nibbles) {
                    (DType::BF16, true) => stored::<half::bf16, true>(w, tile, x, rows, out),
                    (DType::BF16, false) => stored::<half::bf16, false>(w, tile, x, rows, out),
                    (DType::F16, true) => stored::<half::f16, true>(w, tile, x, rows, out),
                    (DType::F16, false) => stored::<half::f16, false>(w, tile, x, rows, out),
                    (_, true) => stored::<f32, true>(w, tile, x, rows, out),
                    (_, false) => stored::<f32, false>(w, tile, x, rows, out),
                }
            }
        }
    };
}
pub(super) use tile_at;

/// Some rows of activations against one tile; `tile_at` says for what.
///
/// # Safety
/// The machine has what `D` uses, and so has the function this is compiled into.
#[inline(always)]
pub(super) unsafe fn blocks<D: Dots<N>, const N: usize, E: Element, const NIBBLES: bool>(
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
        let codes = x.codes().as_ptr().add(first * cols);
        let scales = x.scales.as_ptr().add(first * groups);
        let sums = x.sums.as_ptr().add(first * groups);
        let mut acc = [[D::Lanes::splat(0.0); N]; M];
        for g in 0..groups {
            let record = records.add(g * record_bytes);
            if let Some(ahead) = D::AHEAD {
                for line in (0..record_bytes).step_by(LINE) {
                    D::Lanes::prefetch(record.wrapping_add(ahead + line));
                }
            }
            let x = from_fn(|m| codes.wrapping_add(m * cols + g * group));
            let dots = D::dots::<NIBBLES, M>(record, x, group);
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
