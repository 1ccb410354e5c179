//! AVX-512 BF16: two products for sixteen sums an instruction.

use super::unit::{BLOCK, Chunk, SIDE, Sums, Unit};
use std::arch::x86_64::*;

/// The vector registers.
pub(super) struct Vectors;

/// Lines whose sums are in registers together.
const LINES: usize = 8;

impl Unit for Vectors {
    type Ready = ();

    unsafe fn ready() {}

    #[inline]
    unsafe fn multiply<const ADD: bool>(
        left: *const Chunk,
        right: *const Chunk,
        chunks: usize,
        sums: *mut Sums,
    ) {
        for first in (0..BLOCK).step_by(LINES) {
            // SAFETY: the machine has the instructions; the rest is the caller's promise.
            unsafe { lines::<ADD>(left, right, chunks, first, sums) };
        }
    }
}

/// [`LINES`] lines of a product.
///
/// # Safety
/// As [`Unit::multiply`].
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn lines<const ADD: bool>(
    left: *const Chunk,
    right: *const Chunk,
    chunks: usize,
    first: usize,
    sums: *mut Sums,
) {
    let mut acc = [[_mm512_setzero_ps(); 2]; LINES];
    // SAFETY: the caller's promise.
    unsafe {
        let out = sums.cast::<f32>().add(first * BLOCK);
        if ADD {
            for (line, acc) in acc.iter_mut().enumerate() {
                *acc = [load(out, line, 0), load(out, line, 1)];
            }
        }
        for chunk in 0..chunks {
            let lines = left.add(chunk).cast::<i32>().add(first * SIDE);
            let columns = right.add(chunk).cast::<__m512i>();
            for pair in 0..SIDE {
                let right = [bf16s(*columns.add(pair)), bf16s(*columns.add(SIDE + pair))];
                for (line, acc) in acc.iter_mut().enumerate() {
                    let left = bf16s(_mm512_set1_epi32(*lines.add(line * SIDE + pair)));
                    acc[0] = _mm512_dpbf16_ps(acc[0], left, right[0]);
                    acc[1] = _mm512_dpbf16_ps(acc[1], left, right[1]);
                }
            }
        }
        for (line, acc) in acc.iter().enumerate() {
            _mm512_storeu_ps(out.add(line * BLOCK), acc[0]);
            _mm512_storeu_ps(out.add(line * BLOCK + SIDE), acc[1]);
        }
    }
}

/// # Safety
/// `sums` has the line.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(sums: *const f32, line: usize, half: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_loadu_ps(sums.add(line * BLOCK + half * SIDE)) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn bf16s(x: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes, and any bits are bfloats.
    unsafe { std::mem::transmute(x) }
}
