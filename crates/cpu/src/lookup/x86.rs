//! AVX-512 and AVX2: a tile's sixteen rows are one register, or two.

use super::{
    Block, PackedTable,
    rows::{self, Rows},
};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
struct One(__m512);

#[derive(Clone, Copy)]
struct Two([__m256; 2]);

/// Bytes of E4M3 in lanes of 16 bits, as halves: the sign at the top, the rest below it.
#[inline(always)]
unsafe fn as_halves(bytes: __m256i) -> __m256i {
    // SAFETY: the caller is compiled for AVX2.
    unsafe {
        let sign = _mm256_slli_epi16::<8>(_mm256_and_si256(bytes, _mm256_set1_epi16(0x80)));
        let rest = _mm256_slli_epi16::<7>(_mm256_and_si256(bytes, _mm256_set1_epi16(0x7f)));
        _mm256_or_si256(sign, rest)
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "each forwards the trait's own contract")]
impl Rows for One {
    const MOST: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self(unsafe { _mm512_setzero_ps() })
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> Self {
        Self(unsafe { _mm512_set1_ps(*x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(unsafe { _mm512_loadu_ps(p) })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, x: Self, sum: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(self.0, x.0, sum.0) })
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn halves(table: &[f32; 16], codes: *const u8) -> [Self; 2] {
        unsafe {
            let table = _mm512_loadu_ps(table.as_ptr());
            // Only the low four bits of a lane choose.
            let low = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.cast()));
            let high = _mm512_srli_epi32::<4>(low);
            [low, high].map(|codes| Self(_mm512_permutexvar_ps(codes, table)))
        }
    }
    #[inline(always)]
    unsafe fn small(codes: *const u8) -> Self {
        unsafe {
            let bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(codes.cast()));
            Self(_mm512_cvtph_ps(as_halves(bytes)))
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "each forwards the trait's own contract")]
impl Rows for Two {
    const MOST: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([unsafe { _mm256_setzero_ps() }; 2])
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> Self {
        Self([unsafe { _mm256_set1_ps(*x) }; 2])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Self([_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))]) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe {
            _mm256_storeu_ps(p, self.0[0]);
            _mm256_storeu_ps(p.add(8), self.0[1]);
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, x: Self, sum: Self) -> Self {
        unsafe {
            Self([
                _mm256_fmadd_ps(self.0[0], x.0[0], sum.0[0]),
                _mm256_fmadd_ps(self.0[1], x.0[1], sum.0[1]),
            ])
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe {
            Self([_mm256_add_ps(self.0[0], other.0[0]), _mm256_add_ps(self.0[1], other.0[1])])
        }
    }
    #[inline(always)]
    unsafe fn halves(table: &[f32; 16], codes: *const u8) -> [Self; 2] {
        unsafe {
            let lower = _mm256_loadu_ps(table.as_ptr());
            let upper = _mm256_loadu_ps(table.as_ptr().add(8));
            let (first, second) = (eight(codes), eight(codes.add(8)));
            let [a, b] = [entries(lower, upper, first), entries(lower, upper, second)];
            let (first, second) = (_mm256_srli_epi32::<4>(first), _mm256_srli_epi32::<4>(second));
            let [c, d] = [entries(lower, upper, first), entries(lower, upper, second)];
            [Self([a, b]), Self([c, d])]
        }
    }
    #[inline(always)]
    unsafe fn small(codes: *const u8) -> Self {
        unsafe {
            let halves = as_halves(_mm256_cvtepu8_epi16(_mm_loadu_si128(codes.cast())));
            let (low, high) =
                (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
            Self([_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)])
        }
    }
}

/// Eight bytes, each in a lane.
#[inline(always)]
unsafe fn eight(bytes: *const u8) -> __m256i {
    // SAFETY: the caller has eight readable bytes and is compiled for AVX2.
    unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.cast())) }
}

/// The entries that the low four bits of each lane name.
#[inline(always)]
unsafe fn entries(lower: __m256, upper: __m256, codes: __m256i) -> __m256 {
    // SAFETY: the caller is compiled for AVX2.
    unsafe {
        // The fourth bit, moved to the sign, chooses the half of the table.
        let high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes));
        let (a, b) =
            (_mm256_permutevar8x32_ps(lower, codes), _mm256_permutevar8x32_ps(upper, codes));
        _mm256_blendv_ps(a, b, high)
    }
}

/// As [`super::portable::tile`].
///
/// # Safety
/// AVX-512 with what is enabled here; `x` is whole rows of `w`, and `out` has as many.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn tile_avx512(w: &PackedTable, tile: usize, x: &[f32], out: &mut Block) {
    // SAFETY: the caller keeps the contract.
    unsafe { rows::tile::<One>(w, tile, x, out) }
}

/// As [`super::portable::tile`].
///
/// # Safety
/// AVX2 with what is enabled here; `x` is whole rows of `w`, and `out` has as many.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile_avx2(w: &PackedTable, tile: usize, x: &[f32], out: &mut Block) {
    // SAFETY: the caller keeps the contract.
    unsafe { rows::tile::<Two>(w, tile, x, out) }
}
