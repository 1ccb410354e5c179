//! AVX-512: two products of `bf16` for sixteen sums.

use super::unit::{BLOCK, Chunk, SIDE, Sums, Unit};
use std::{arch::x86_64::*, marker::PhantomData};

/// The vector registers.
pub(super) struct Vectors<P>(PhantomData<P>);

/// How the products of a pair of inputs are added.
pub(super) trait Pairs {
    /// # Safety
    /// The machine has AVX-512 F and BF16.
    unsafe fn add(sums: __m512, left: __m512i, right: __m512i) -> __m512;
}

/// By the instruction for it.
pub(super) struct Native;

/// By two multiply-adds, in that instruction's order: the bits are the same, but for numbers below the
/// normal ones. Intel's processors begin two of these a cycle, and one of the others in two.
pub(super) struct Fused;

impl Pairs for Native {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn add(sums: __m512, left: __m512i, right: __m512i) -> __m512 {
        _mm512_dpbf16_ps(sums, bf16s(left), bf16s(right))
    }
}

impl Pairs for Fused {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn add(sums: __m512, left: __m512i, right: __m512i) -> __m512 {
        let sums = _mm512_fmadd_ps(second(left), second(right), sums);
        _mm512_fmadd_ps(first(left), first(right), sums)
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
fn first(pairs: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
fn second(pairs: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x1_0000)))
}

/// Lines whose sums are in registers together.
const LINES: usize = 8;

impl<P: Pairs> Unit for Vectors<P> {
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
            // SAFETY: the machine has the instructions; `left`, `right` and `sums` have the shapes
            // that the trait asks of the caller.
            unsafe { lines::<P, ADD>(left, right, chunks, first, sums) };
        }
    }
}

/// [`LINES`] lines of a product.
///
/// # Safety
/// As [`Unit::multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn lines<P: Pairs, const ADD: bool>(
    left: *const Chunk,
    right: *const Chunk,
    chunks: usize,
    first: usize,
    sums: *mut Sums,
) {
    let mut acc = [[_mm512_setzero_ps(); 2]; LINES];
    // SAFETY: the caller keeps the contract of [`Unit::multiply`].
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
                let right = [*columns.add(pair), *columns.add(SIDE + pair)];
                for (line, acc) in acc.iter_mut().enumerate() {
                    let left = _mm512_set1_epi32(*lines.add(line * SIDE + pair));
                    acc[0] = P::add(acc[0], left, right[0]);
                    acc[1] = P::add(acc[1], left, right[1]);
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn load(sums: *const f32, line: usize, half: usize) -> __m512 {
    // SAFETY: the caller promises that `sums` has the line.
    unsafe { _mm512_loadu_ps(sums.add(line * BLOCK + half * SIDE)) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) fn bf16s(x: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes, and any bits are bfloats.
    unsafe { std::mem::transmute(x) }
}
