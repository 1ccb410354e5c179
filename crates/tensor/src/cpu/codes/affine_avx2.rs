//! Rows of affine codes with AVX2: products of 16-bit integers. Integers are those of the portable
//! code, and so is the rounding.

use super::{
    RING,
    affine::{Affine, AffineQueries, AffineScales, AffineWeights, UNIT},
};
use std::arch::x86_64::*;

/// A ring of a row.
///
/// # Safety
/// There is one.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn ring(row: *const u8, element: usize, bits: usize) -> __m128i {
    // SAFETY: the caller's promise.
    unsafe {
        if bits == 8 {
            return _mm_loadu_si128(row.add(element).cast());
        }
        let pairs = _mm_loadl_epi64(row.add(element / 2).cast());
        let low = _mm_set1_epi8(15);
        let high = _mm_and_si128(_mm_srli_epi16::<4>(pairs), low);
        _mm_unpacklo_epi8(_mm_and_si128(pairs, low), high)
    }
}

/// As [`Affine::dots`].
///
/// # Safety
/// The lengths are those that it checks, and rows are whole rings.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn dots(
    shape: Affine,
    q: &AffineQueries,
    rows: &[u8],
    scales: &AffineScales,
    out: &mut [f32],
) {
    let (n, units, bytes) = (scales.n, shape.units(), shape.row_bytes());
    for i in 0..q.rows() {
        let query = &q.ints[i * shape.d..][..shape.d];
        for j in 0..n {
            let row = &rows[j * bytes..][..bytes];
            let mut total = 0.0;
            for unit in 0..units {
                let first = unit * shape.unit();
                let mut sum = _mm256_setzero_si256();
                for at in (first..(first + shape.unit()).min(shape.d)).step_by(RING) {
                    // SAFETY: rows and queries are whole rings.
                    unsafe {
                        let x = _mm256_cvtepu8_epi16(ring(row.as_ptr(), at, shape.bits));
                        let q = _mm256_loadu_si256(query.as_ptr().add(at).cast());
                        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, q));
                    }
                }
                let half = _mm256_extracti128_si256::<1>(sum);
                let four = _mm_add_epi32(_mm256_castsi256_si128(sum), half);
                let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
                let one = _mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two));
                let at = shape.group_of(unit) * n + j;
                total += _mm_cvtsi128_si32(one) as f32 * scales.scale[at]
                    + q.sums[i * units + unit] * scales.bias[at];
            }
            out[i * n + j] = total * q.scales[i];
        }
    }
}

/// As [`Affine::add_weighted`].
///
/// # Safety
/// The lengths are those that it checks, and rows are whole rings.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn add_weighted(
    shape: Affine,
    weights: &AffineWeights,
    rows: &[u8],
    scales: &AffineScales,
    acc: &mut [f32],
) {
    let (n, bytes) = (scales.n, shape.row_bytes());
    for (i, acc) in acc.chunks_exact_mut(shape.d).enumerate() {
        for unit in 0..shape.units() {
            let first = unit * shape.unit();
            let group = shape.group_of(unit);
            let at = i * shape.groups() + group;
            let rings = (shape.d - first).min(shape.unit()) / RING;
            // Elements 0..8 and 8..16 of each ring.
            let mut sums = [[_mm256_setzero_si256(); 2]; UNIT / RING];
            for j in (0..n).step_by(2) {
                let pair = weights.int(at * n + j + 1) << 16 | weights.int(at * n + j);
                let pair = _mm256_set1_epi32(pair);
                let flips = &scales.flip[group * n + j..][..2];
                let flips = _mm_set1_epi16(i16::from_le_bytes([flips[0], flips[1]]));
                for (r, sums) in sums.iter_mut().enumerate().take(rings) {
                    let element = first + r * RING;
                    // SAFETY: two rows of whole rings.
                    unsafe {
                        let a = ring(rows.as_ptr().add(j * bytes), element, shape.bits);
                        let b = ring(rows.as_ptr().add((j + 1) * bytes), element, shape.bits);
                        let low = _mm_xor_si128(_mm_unpacklo_epi8(a, b), flips);
                        let high = _mm_xor_si128(_mm_unpackhi_epi8(a, b), flips);
                        for (sum, x) in sums.iter_mut().zip([low, high]) {
                            let x = _mm256_madd_epi16(_mm256_cvtepi8_epi16(x), pair);
                            *sum = _mm256_add_epi32(*sum, x);
                        }
                    }
                }
            }
            let scale = _mm256_set1_ps(weights.scale[at]);
            let bias = _mm256_set1_ps(weights.bias[at]);
            let acc = acc[first..first + rings * RING].as_chunks_mut::<8>().0;
            for (acc, &sum) in acc.iter_mut().zip(sums.as_flattened()) {
                let x = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale), bias);
                // SAFETY: eight elements.
                unsafe {
                    let old = _mm256_loadu_ps(acc.as_ptr());
                    _mm256_storeu_ps(acc.as_mut_ptr(), _mm256_add_ps(old, x));
                }
            }
        }
    }
}
