//! Products with fused multiply-adds, for any vector level.

use super::pack::{BLOCK, PANEL, tile_line};
use crate::{
    Level,
    kernels::{Rows, RowsMut, kernel},
    lanes::{Element, Lanes, Portable},
};
use half::{bf16, f16};

kernel! {
    /// `out[i][j] = x[i] . w[j]` for the outputs of a panel over `k` inputs.
    panel_f32 = panel_body[f32](x: Rows, w: *const f32, k: usize, out: RowsMut)
}
kernel! {
    /// `panel_f32` over `f16` weights.
    panel_f16 = panel_body[f16](x: Rows, w: *const f16, k: usize, out: RowsMut)
}
kernel! {
    /// `panel_f32` over `bf16` weights.
    panel_bf16 = panel_body[bf16](x: Rows, w: *const bf16, k: usize, out: RowsMut)
}

/// How far ahead of one row's products the weights are fetched, in blocks.
const AHEAD: usize = 16;

/// How weights of a type lie in a panel.
trait PairElement: Element {
    /// Where the first line stands that holds an element of a pair's block.
    fn place(pair: usize, i: usize) -> usize;

    /// The first or second input of a pair, of as many outputs, from `output` on.
    ///
    /// # Safety
    /// As [`Lanes::load`].
    unsafe fn load_of_pair<L: Lanes, const SECOND: bool>(
        panel: *const Self,
        pair: usize,
        output: usize,
    ) -> L;
}

macro_rules! rows {
    ($($element:ty),*) => {$(
        impl PairElement for $element {
            #[inline(always)]
            fn place(pair: usize, i: usize) -> usize {
                pair * BLOCK + i
            }

            #[inline(always)]
            unsafe fn load_of_pair<L: Lanes, const SECOND: bool>(
                panel: *const Self,
                pair: usize,
                output: usize,
            ) -> L {
                let row = 2 * pair + usize::from(SECOND);
                // SAFETY: a pair of vectors is readable, as `load_of_pair` demands.
                unsafe { Self::load(panel.add(row * PANEL + output)) }
            }
        }
    )*};
}
rows!(f32, f16);

impl PairElement for bf16 {
    #[inline(always)]
    fn place(pair: usize, i: usize) -> usize {
        tile_line(pair, i / 2)
    }

    #[inline(always)]
    unsafe fn load_of_pair<L: Lanes, const SECOND: bool>(
        panel: *const Self,
        pair: usize,
        output: usize,
    ) -> L {
        // SAFETY: the caller keeps the contract of `PairElement::load_of_pair`.
        unsafe { L::load_bf16_of_pairs::<SECOND>(panel.add(tile_line(pair, output))) }
    }
}

#[inline(always)]
unsafe fn panel_body<L: Lanes, E: PairElement>(x: Rows, w: *const E, k: usize, out: RowsMut) {
    // SAFETY: `x` has `k` elements a row, `w` a panel of `k` inputs, and `out` room for a panel a
    // row.
    unsafe {
        // A row that is left alone takes more outputs at a time, for there is room.
        let alone = matches!(x.rows % 6, 1 | 4);
        let many = x.rows - usize::from(alone);
        let last = x.ptr.add(many * x.stride);
        let last_out = RowsMut { ptr: out.ptr.add(many * out.stride), ..out };
        let x = Rows { rows: many, ..x };
        if L::WIDE {
            columns::<L, E, 4>(x, w, k, out);
        } else {
            columns::<L, E, 2>(x, w, k, out);
        }
        if alone {
            let width = if L::LANES == 16 { 4 } else { 8 } * L::LANES;
            for first in (0..PANEL).step_by(width) {
                if L::LANES == 16 {
                    block::<L, E, 1, 4>(last, 0, w, k, first, last_out);
                } else {
                    block::<L, E, 1, 8>(last, 0, w, k, first, last_out);
                }
            }
        }
    }
}

/// `V` registers of outputs at a time, for a number of rows that is a sum of sixes, threes and twos.
#[inline(always)]
unsafe fn columns<L: Lanes, E: PairElement, const V: usize>(
    x: Rows,
    w: *const E,
    k: usize,
    out: RowsMut,
) {
    const { assert!(PANEL.is_multiple_of(V * L::LANES)) };
    let mut first = 0;
    while first < PANEL {
        let mut i = 0;
        // SAFETY: `x` has `k` elements a row, `w` a panel of `k` inputs, and `out` room for a panel
        // a row.
        unsafe {
            macro_rules! step {
                ($m:literal) => {
                    while x.rows - i >= $m {
                        let to = RowsMut { ptr: out.ptr.add(i * out.stride), ..out };
                        block::<L, E, $m, V>(x.ptr.add(i * x.stride), x.stride, w, k, first, to);
                        i += $m;
                    }
                };
            }
            step!(6);
            step!(3);
            step!(2);
        }
        first += V * L::LANES;
    }
}

/// `M` rows against the outputs from `first` on.
#[inline(always)]
unsafe fn block<L: Lanes, E: PairElement, const M: usize, const V: usize>(
    x: *const f32,
    stride: usize,
    w: *const E,
    k: usize,
    first: usize,
    out: RowsMut,
) {
    // SAFETY: the caller's rows hold `k` elements and the panel the blocks of as many.
    unsafe {
        let mut acc = [[L::splat(0.0); V]; M];
        for pair in 0..k / 2 {
            if M == 1 {
                prefetch::<L, E, V>(w, pair, first);
            }
            input::<L, E, M, V, false>(x.add(2 * pair), stride, w, pair, first, &mut acc);
            input::<L, E, M, V, true>(x.add(2 * pair + 1), stride, w, pair, first, &mut acc);
        }
        if !k.is_multiple_of(2) {
            input::<L, E, M, V, false>(x.add(k - 1), stride, w, k / 2, first, &mut acc);
        }
        for (i, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                acc.store(out.ptr.add(i * out.stride + first + v * L::LANES));
            }
        }
    }
}

/// One input of each row.
#[inline(always)]
unsafe fn input<L: Lanes, E: PairElement, const M: usize, const V: usize, const SECOND: bool>(
    x: *const f32,
    stride: usize,
    w: *const E,
    pair: usize,
    first: usize,
    acc: &mut [[L; V]; M],
) {
    // SAFETY: `block` passes `M` rows that have this input, and a panel that has the pair.
    unsafe {
        let mut ws = [L::splat(0.0); V];
        for (v, to) in ws.iter_mut().enumerate() {
            *to = E::load_of_pair::<L, SECOND>(w, pair, first + v * L::LANES);
        }
        for (i, acc) in acc.iter_mut().enumerate() {
            let x = L::splat(*x.add(i * stride));
            for (acc, &w) in acc.iter_mut().zip(&ws) {
                *acc = x.mul_add(w, *acc);
            }
        }
    }
}

/// Fetches the lines of a block further on that hold these outputs.
#[inline(always)]
unsafe fn prefetch<L: Lanes, E: PairElement, const V: usize>(
    w: *const E,
    pair: usize,
    first: usize,
) {
    let line = 64 / size_of::<E>();
    let mut at = 0;
    while at < V * L::LANES * 2 {
        // SAFETY: a hint; the address is not read.
        unsafe { L::prefetch(w.wrapping_add(E::place(pair + AHEAD, first * 2 + at))) };
        at += line;
    }
}
