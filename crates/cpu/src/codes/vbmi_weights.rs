//! Attention weights as bytes, with AVX-512.

use super::TILE;
use std::arch::x86_64::*;

/// # Safety
/// The lengths are those of [`super::weigh`], with whole vectors of 16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn weigh(
    p: (&[f32], usize),
    gamma: &[f32],
    threshold: f32,
    weights: &mut [u8],
    scales: &mut [f32],
) {
    // SAFETY: the caller promises that the lengths are those of [`super::weigh`], with whole
    // vectors of 16.
    unsafe {
        match gamma.len() / 16 {
            2 => weigh_short::<2>(p, gamma, threshold, weights, scales),
            4 => weigh_short::<4>(p, gamma, threshold, weights, scales),
            _ => {
                let rows = p.0.chunks(p.1).zip(weights.chunks_exact_mut(gamma.len()));
                for ((p, weights), scale) in rows.zip(scales) {
                    *scale = weigh_any(&p[..gamma.len()], gamma, threshold, weights);
                }
            }
        }
    }
}

/// Weights of rows of `N` vectors, which fit registers: four rows at a time.
///
/// # Safety
/// As [`weigh`].
#[inline(always)]
unsafe fn weigh_short<const N: usize>(
    (p, stride): (&[f32], usize),
    gamma: &[f32],
    threshold: f32,
    weights: &mut [u8],
    scales: &mut [f32],
) {
    let (mut p, mut weights) = (p.as_ptr(), weights.as_mut_ptr());
    let (fours, rest) = scales.as_chunks_mut::<4>();
    let (twos, ones) = rest.as_chunks_mut::<2>();
    // SAFETY: the lengths are those of `super::weigh`, with `N` whole vectors a row; an address
    // past the last row is made but never used.
    unsafe {
        for scales in fours {
            *scales = weigh_rows::<4, N>((p, stride), gamma, threshold, weights);
            (p, weights) = (p.wrapping_add(4 * stride), weights.wrapping_add(4 * 16 * N));
        }
        for scales in twos {
            *scales = weigh_rows::<2, N>((p, stride), gamma, threshold, weights);
            (p, weights) = (p.wrapping_add(2 * stride), weights.wrapping_add(2 * 16 * N));
        }
        for scale in ones {
            [*scale] = weigh_rows::<1, N>((p, stride), gamma, threshold, weights);
        }
    }
}

/// Weights of `R` rows, at most four.
///
/// # Safety
/// As [`weigh_short`].
#[inline(always)]
unsafe fn weigh_rows<const R: usize, const N: usize>(
    (p, stride): (*const f32, usize),
    gamma: &[f32],
    threshold: f32,
    weights: *mut u8,
) -> [f32; R] {
    // SAFETY: the caller keeps the contract of [`weigh_short`].
    unsafe {
        let zero = _mm512_setzero_ps();
        let (mut likely, mut most, mut products) = ([zero; 4], [zero; 4], [[zero; N]; R]);
        for i in 0..N {
            let gamma = _mm512_loadu_ps(gamma.as_ptr().add(16 * i));
            for (r, products) in products.iter_mut().enumerate() {
                let p = _mm512_loadu_ps(p.add(r * stride + 16 * i));
                likely[r] = _mm512_max_ps(p, likely[r]);
                // What has no weight may be anything.
                let some = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(p, zero);
                products[i] = _mm512_maskz_mul_ps(some, p, gamma);
                most[r] = _mm512_max_ps(products[i], most[r]);
            }
        }
        let (likely, most) = (maxima(likely), maxima(most));
        let live = _mm_cmp_ps_mask::<_CMP_GE_OQ>(likely, _mm_set1_ps(threshold))
            & _mm_cmp_ps_mask::<_CMP_NLE_UQ>(most, _mm_setzero_ps());
        let all = _mm_set1_ps(255.0);
        // Rows that count for nothing are multiplied by zero.
        let inverse = _mm512_castps128_ps512(_mm_maskz_div_ps(live, all, most));
        let mut scales = [0.0; 4];
        _mm_storeu_ps(scales.as_mut_ptr(), _mm_maskz_div_ps(live, most, all));
        for (r, products) in products.into_iter().enumerate() {
            let inverse = _mm512_permutexvar_ps(_mm512_set1_epi32(r as i32), inverse);
            let at = weights.add(r * N * 16);
            let (fours, rest) = products.as_chunks::<4>();
            for (i, fours) in fours.iter().enumerate() {
                store_four(*fours, inverse, at.add(i * TILE));
            }
            for (i, &product) in rest.iter().enumerate() {
                let at = at.add(fours.len() * TILE + i * 16);
                store_weights(_mm512_mul_ps(product, inverse), at);
            }
        }
        let mut out = [0.0; R];
        out.copy_from_slice(&scales[..R]);
        out
    }
}

/// The largest lane of each of four vectors.
#[inline(always)]
unsafe fn maxima([a, b, c, d]: [__m512; 4]) -> __m128 {
    // SAFETY: the caller is compiled for AVX-512.
    unsafe {
        let (a, b, c, d) = (quarter_max(a), quarter_max(b), quarter_max(c), quarter_max(d));
        let ab = _mm_max_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
        let cd = _mm_max_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
        _mm_max_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab))
    }
}

/// The largest of the lanes that are a multiple of four apart.
#[inline(always)]
unsafe fn quarter_max(x: __m512) -> __m128 {
    // SAFETY: the caller is compiled for AVX-512.
    unsafe {
        let high = _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0b11_10_11_10>(x, x));
        let x = _mm256_max_ps(_mm512_castps512_ps256(x), high);
        _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x))
    }
}

/// # Safety
/// There is room for sixteen, and the caller is compiled for AVX-512.
#[inline(always)]
unsafe fn store_weights(w: __m512, at: *mut u8) {
    // SAFETY: the caller promises that there is room for sixteen, and the caller is compiled for
    // AVX-512.
    unsafe { _mm_storeu_si128(at.cast(), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(w))) };
}

/// Multiplies four vectors by `inverse`, limits them to 255 and stores them as bytes.
///
/// # Safety
/// There is room for 64, and the caller is compiled for AVX-512.
#[inline(always)]
unsafe fn store_four([a, b, c, d]: [__m512; 4], inverse: __m512, at: *mut u8) {
    // SAFETY: the caller promises that there is room for 64, and the caller is compiled for
    // AVX-512.
    unsafe {
        let (a, b) = (_mm512_mul_ps(a, inverse), _mm512_mul_ps(b, inverse));
        let (c, d) = (_mm512_mul_ps(c, inverse), _mm512_mul_ps(d, inverse));
        let ab = _mm512_packus_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
        let cd = _mm512_packus_epi32(_mm512_cvtps_epi32(c), _mm512_cvtps_epi32(d));
        // Four of each vector in each part of 128 bits.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let w = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(ab, cd));
        _mm512_storeu_si512(at.cast(), w);
    }
}

/// Weights of a row of any number of vectors, and its scale.
///
/// # Safety
/// As [`weigh`], with one row.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
unsafe fn weigh_any(p: &[f32], gamma: &[f32], threshold: f32, weights: &mut [u8]) -> f32 {
    // SAFETY: the caller keeps the contract of [`weigh`], with one row.
    unsafe {
        let (mut likely, mut most) = (0, _mm512_setzero_ps());
        let least = _mm512_set1_ps(threshold);
        // What has no weight may be anything.
        let at = |i: usize| {
            let p = _mm512_loadu_ps(p.as_ptr().add(i));
            let some = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(p, _mm512_setzero_ps());
            (p, _mm512_maskz_mul_ps(some, p, _mm512_loadu_ps(gamma.as_ptr().add(i))))
        };
        for i in (0..p.len()).step_by(16) {
            let (p, product) = at(i);
            likely |= _mm512_cmp_ps_mask::<_CMP_GE_OQ>(p, least);
            most = _mm512_max_ps(product, most);
        }
        let most = _mm512_reduce_max_ps(most);
        if likely == 0 || most <= 0.0 {
            weights.fill(0);
            return 0.0;
        }
        let inverse = _mm512_set1_ps(255.0 / most);
        for i in (0..p.len()).step_by(16) {
            let w = _mm512_mul_ps(at(i).1, inverse);
            store_weights(w, weights.as_mut_ptr().add(i));
        }
        most / 255.0
    }
}
