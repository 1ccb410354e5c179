//! AVX-512 BF16: two products for sixteen outputs an instruction.

use super::{
    pack::{BLOCK, CHUNK, PANEL},
    rounded::{ROWS, TILE},
};
use half::bf16;
use std::arch::x86_64::*;

/// Registers of a panel's outputs.
const WIDTH: usize = PANEL / 16;
/// How far ahead of a few rows' products the weights are fetched, in blocks.
const AHEAD: usize = 16;

/// The products of `rows` rows of activations with a panel; rows of `out` are a panel long.
///
/// An output is one chain over the pairs of inputs, whatever the rows beside it.
///
/// # Safety
/// The machine has AVX-512 F and BF16.
///
/// # Panics
/// When the panel has another number of inputs, or `out` is too short.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn panel(x: &[bf16], rows: usize, w: &[bf16], out: &mut [f32]) {
    let chunks = w.len() / (CHUNK * PANEL);
    let block = chunks * TILE;
    assert!(w.len() == chunks * CHUNK * PANEL, "whole blocks of weights");
    assert!(x.len() == rows.div_ceil(ROWS) * block, "same inputs");
    assert!(out.len() >= rows * PANEL, "room for the outputs");
    let (x, w, out) = (x.as_ptr(), w.as_ptr(), out.as_mut_ptr());
    let mut i = 0;
    // SAFETY: the assertions: row `i` begins a line of its block's first tile.
    unsafe {
        macro_rules! step {
            ($m:literal) => {
                while rows - i >= $m {
                    let mut from = [x; $m];
                    for (m, from) in from.iter_mut().enumerate() {
                        *from = x.add((i + m) / ROWS * block + (i + m) % ROWS * CHUNK);
                    }
                    some::<$m>(from, w, chunks, out.add(i * PANEL));
                    i += $m;
                }
            };
        }
        step!(6);
        step!(3);
        step!(2);
        step!(1);
    }
}

/// `M` rows.
///
/// # Safety
/// Each of `x` is a line of the first of `chunks` tiles, `w` has as many chunks of inputs, and `out`
/// is `M` rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn some<const M: usize>(x: [*const bf16; M], w: *const bf16, chunks: usize, out: *mut f32) {
    let mut acc = [[_mm512_setzero_ps(); WIDTH]; M];
    // SAFETY: the caller's promise. What is only prefetched may lie anywhere.
    unsafe {
        for pair in 0..chunks * CHUNK / 2 {
            let w = w.add(pair * BLOCK);
            let mut ws = [_mm512_setzero_si512(); WIDTH];
            for (v, ws) in ws.iter_mut().enumerate() {
                *ws = _mm512_loadu_si512(w.add(v * 32).cast());
                if M < 6 {
                    let ahead = w.wrapping_add(AHEAD * BLOCK + v * 32);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                }
            }
            let at = pair / (CHUNK / 2) * TILE + pair % (CHUNK / 2) * 2;
            for (m, acc) in acc.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(x[m].add(at).cast::<i32>().read_unaligned());
                for (acc, &w) in acc.iter_mut().zip(&ws) {
                    *acc = _mm512_dpbf16_ps(*acc, bf16s(x), bf16s(w));
                }
            }
        }
        for (m, acc) in acc.iter().enumerate() {
            for (v, acc) in acc.iter().enumerate() {
                _mm512_storeu_ps(out.add(m * PANEL + v * 16), *acc);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn bf16s(x: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes, and any bits are bfloats.
    unsafe { std::mem::transmute(x) }
}
