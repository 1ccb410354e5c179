//! Scales, centres, weights and rotations of rows with AVX-512.

use super::TILE;
use std::arch::x86_64::*;

/// Halves times `factor`: whole vectors of 16. Returns how many it did.
///
/// # Safety
/// `bytes` holds a half for each element of `out`.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn halves(bytes: &[u8], factor: f32, out: &mut [f32]) -> usize {
    let whole = out.len() / 16;
    // SAFETY: the caller's promise.
    unsafe {
        let factor = _mm512_set1_ps(factor);
        for i in 0..whole {
            let x = _mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().add(32 * i).cast()));
            _mm512_storeu_ps(out.as_mut_ptr().add(16 * i), _mm512_mul_ps(x, factor));
        }
    }
    whole * 16
}

/// Seven-bit codes about 63, times `factor`: whole vectors of 64. Returns how many it did.
///
/// # Safety
/// `bytes` holds seven bits for each element of `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(super) unsafe fn unpack_centre(bytes: &[u8], factor: f32, out: &mut [f32]) -> usize {
    const BYTES: usize = 56;
    let gather: [u8; 64] = std::array::from_fn(|i| (i / 8 * 7 + (i % 8).min(6)) as u8);
    let shift: [u8; 64] = std::array::from_fn(|i| (i % 8 * 7) as u8);
    let whole = out.len() / TILE;
    // SAFETY: the caller's promise; the mask keeps loads inside.
    unsafe {
        let load = |x: &[u8; 64]| _mm512_loadu_si512(x.as_ptr().cast());
        let (gather, shift) = (load(&gather), load(&shift));
        let (seven, middle) = (_mm512_set1_epi8(127), _mm512_set1_epi8(63));
        let factor = _mm512_set1_ps(factor);
        for i in 0..whole {
            let x = _mm512_maskz_loadu_epi8((1 << BYTES) - 1, bytes.as_ptr().add(i * BYTES).cast());
            let words = _mm512_permutexvar_epi8(gather, x);
            let codes = _mm512_and_si512(_mm512_multishift_epi64_epi8(shift, words), seven);
            let codes = _mm512_sub_epi8(codes, middle);
            let parts = [
                _mm512_extracti32x4_epi32::<0>(codes),
                _mm512_extracti32x4_epi32::<1>(codes),
                _mm512_extracti32x4_epi32::<2>(codes),
                _mm512_extracti32x4_epi32::<3>(codes),
            ];
            for (j, part) in parts.into_iter().enumerate() {
                let x = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(part));
                let at = out.as_mut_ptr().add(i * TILE + j * 16);
                _mm512_storeu_ps(at, _mm512_mul_ps(x, factor));
            }
        }
    }
    whole * TILE
}

/// # Safety
/// `x` is whole rows of `len`, a power of two from 16 on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn sylvester(x: &mut [f32], len: usize) {
    // Lanes whose partner is added to their negative.
    const NEGATIVE: [__mmask16; 4] = [0xaaaa, 0xcccc, 0xf0f0, 0xff00];
    for x in x.as_chunks_mut::<16>().0 {
        // SAFETY: whole vectors.
        unsafe {
            let mut v = _mm512_loadu_ps(x.as_ptr());
            let mix =
                |v, partner, mask| _mm512_mask_sub_ps(_mm512_add_ps(v, partner), mask, partner, v);
            v = mix(v, _mm512_permute_ps::<0b10_11_00_01>(v), NEGATIVE[0]);
            v = mix(v, _mm512_permute_ps::<0b01_00_11_10>(v), NEGATIVE[1]);
            v = mix(v, _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v), NEGATIVE[2]);
            v = mix(v, _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v), NEGATIVE[3]);
            _mm512_storeu_ps(x.as_mut_ptr(), v);
        }
    }
    super::scales::butterflies(x, 16, len);
}

/// # Safety
/// The lengths are those of [`super::weigh`], and `p` is whole vectors of 16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn weigh(p: &[f32], gamma: &[f32], threshold: f32, weights: &mut [u8]) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut likely, mut most) = (0, _mm512_setzero_ps());
        let least = _mm512_set1_ps(threshold);
        let at =
            |i: usize| (_mm512_loadu_ps(p.as_ptr().add(i)), _mm512_loadu_ps(gamma.as_ptr().add(i)));
        for i in (0..p.len()).step_by(16) {
            let (p, g) = at(i);
            likely |= _mm512_cmp_ps_mask::<_CMP_GE_OQ>(p, least);
            most = _mm512_max_ps(most, _mm512_mul_ps(p, g));
        }
        let most = _mm512_reduce_max_ps(most);
        if likely == 0 || most <= 0.0 {
            weights.fill(0);
            return 0.0;
        }
        let inverse = _mm512_set1_ps(255.0 / most);
        for i in (0..p.len()).step_by(16) {
            let (p, g) = at(i);
            let w = _mm512_mul_ps(_mm512_mul_ps(p, g), inverse);
            let bytes = _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(w));
            _mm_storeu_si128(weights.as_mut_ptr().add(i).cast(), bytes);
        }
        most / 255.0
    }
}
