//! AVX2 and AVX-512 lanes.
#![allow(clippy::undocumented_unsafe_blocks, reason = "each forwards the trait's own contract")]

use super::lanes::Lanes;
use half::{bf16, f16};
use std::arch::x86_64::*;

/// Eight lanes.
#[derive(Clone, Copy)]
pub(super) struct Avx2(pub(super) __m256);

/// Sixteen lanes.
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

static PART_MASK: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
unsafe fn avx2_mask(n: usize) -> __m256i {
    debug_assert!(n <= 8);
    unsafe { _mm256_loadu_si256(PART_MASK.as_ptr().add(8 - n).cast()) }
}

// Functions and no closures: those would not be compiled for the level.

/// To the nearest, ties to even.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;

/// Both halves added.
#[inline(always)]
unsafe fn half(x: __m256) -> __m128 {
    unsafe { _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)) }
}

/// Both halves added, twice.
#[inline(always)]
unsafe fn quarter(x: __m512) -> __m128 {
    unsafe {
        let high = _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0xee>(x, x));
        half(_mm256_add_ps(_mm512_castps512_ps256(x), high))
    }
}

/// The sums of four vectors of four: elements 0 and 2, 1 and 3, then those two.
#[inline(always)]
unsafe fn sum4_of_4([a, b, c, d]: [__m128; 4]) -> __m128 {
    unsafe {
        let ab = _mm_add_ps(_mm_shuffle_ps::<0x44>(a, b), _mm_shuffle_ps::<0xee>(a, b));
        let cd = _mm_add_ps(_mm_shuffle_ps::<0x44>(c, d), _mm_shuffle_ps::<0xee>(c, d));
        _mm_add_ps(_mm_shuffle_ps::<0x88>(ab, cd), _mm_shuffle_ps::<0xdd>(ab, cd))
    }
}

impl Lanes for Avx2 {
    const LANES: usize = 8;
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn prefetch<T>(line: *const T) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(unsafe { _mm256_set1_ps(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(unsafe { _mm256_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        Self(unsafe { _mm256_maskload_ps(p, avx2_mask(n)) })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        unsafe {
            let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(x)))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_of_pairs<const SECOND: bool>(p: *const bf16) -> Self {
        unsafe {
            let pairs = _mm256_loadu_si256(p.cast());
            Self(_mm256_castsi256_ps(if SECOND {
                _mm256_and_si256(pairs, _mm256_set1_epi32(-0x1_0000))
            } else {
                _mm256_slli_epi32::<16>(pairs)
            }))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm256_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        unsafe { _mm256_maskstore_ps(p, avx2_mask(n), self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        unsafe { _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<NEAREST>(self.0)) }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        Self(unsafe { _mm256_add_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        Self(unsafe { _mm256_sub_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        Self(unsafe { _mm256_mul_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        Self(unsafe { _mm256_div_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        Self(unsafe { _mm256_max_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        Self(unsafe { _mm256_min_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Self(unsafe {
            _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)
        })
    }
    #[inline(always)]
    unsafe fn scale_by_pow2(self, n: Self) -> Self {
        // Two steps, so that results below the smallest normal number underflow gradually.
        unsafe {
            let n = _mm256_cvtps_epi32(n.0);
            let half = _mm256_srai_epi32::<1>(n);
            let bias = _mm256_set1_epi32(127);
            let pow = |e| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(e, bias)));
            let y = _mm256_mul_ps(self.0, pow(half));
            Self(_mm256_mul_ps(y, pow(_mm256_sub_epi32(n, half))))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let x = half(self.0);
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        }
    }
    #[inline(always)]
    unsafe fn sum4(x: [Self; 4], out: *mut f32) {
        unsafe {
            let [a, b, c, d] = x;
            _mm_storeu_ps(out, sum4_of_4([half(a.0), half(b.0), half(c.0), half(d.0)]));
        }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        unsafe {
            let x = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps::<1>(x, x)))
        }
    }
}

impl Lanes for Avx512 {
    const LANES: usize = 16;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn prefetch<T>(line: *const T) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_near<T>(line: *const T) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        Self(unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, p) })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) })
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        unsafe {
            let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(x)))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_of_pairs<const SECOND: bool>(p: *const bf16) -> Self {
        unsafe {
            let pairs = _mm512_loadu_si512(p.cast());
            Self(_mm512_castsi512_ps(if SECOND {
                _mm512_and_si512(pairs, _mm512_set1_epi32(-0x1_0000))
            } else {
                _mm512_slli_epi32::<16>(pairs)
            }))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, ((1u32 << n) - 1) as __mmask16, self.0) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<NEAREST>(self.0)) }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        Self(unsafe { _mm512_add_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        Self(unsafe { _mm512_sub_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        Self(unsafe { _mm512_mul_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        Self(unsafe { _mm512_div_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        Self(unsafe { _mm512_max_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        Self(unsafe { _mm512_min_ps(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(self.0, b.0, c.0) })
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Self(unsafe {
            _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0)
        })
    }
    #[inline(always)]
    unsafe fn scale_by_pow2(self, n: Self) -> Self {
        Self(unsafe { _mm512_scalef_ps(self.0, n.0) })
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn sum4(x: [Self; 4], out: *mut f32) {
        unsafe {
            let [a, b, c, d] = x;
            let quarters = [quarter(a.0), quarter(b.0), quarter(c.0), quarter(d.0)];
            _mm_storeu_ps(out, sum4_of_4(quarters));
        }
    }
    #[inline(always)]
    unsafe fn turn(x: *const f32, x_stride: usize, out: *mut f32, out_stride: usize) {
        unsafe {
            let zero = _mm512_setzero_ps();
            let (mut rows, mut twos, mut fours) = ([zero; 16], [zero; 16], [zero; 16]);
            for (i, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_ps(x.add(i * x_stride));
            }
            for i in (0..16).step_by(2) {
                twos[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
                twos[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
            }
            // Vector `c` of each four: column `c` of every quarter, of four rows.
            for i in (0..16).step_by(4) {
                for j in 0..2 {
                    let a = _mm512_castps_pd(twos[i + j]);
                    let b = _mm512_castps_pd(twos[i + j + 2]);
                    fours[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
                    fours[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
                }
            }
            for c in 0..4 {
                let [a, b, d, e] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
                let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(d, e)];
                let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(d, e)];
                for (i, [low, high]) in [even, odd].into_iter().enumerate() {
                    let first = _mm512_shuffle_f32x4::<0x88>(low, high);
                    let third = _mm512_shuffle_f32x4::<0xdd>(low, high);
                    _mm512_storeu_ps(out.add((4 * i + c) * out_stride), first);
                    _mm512_storeu_ps(out.add((4 * i + c + 8) * out_stride), third);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
}
