//! The code kernels with AVX2. Integers are those of the portable code, and so is the rounding.

use super::{Int8Queries, RING, Scaling, TILE, TILE_ROWS, windows::Plan};
use std::arch::x86_64::*;

/// # Safety
/// `codes` are whole tiles of nibbles, `out` as many of [`TILE`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn expand_nibbles(plan: &Plan, codes: &[u8], out: &mut [u8]) {
    // SAFETY: the caller's promise; the plan's table has 64 bytes.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(plan.table.as_ptr().cast()));
        let low = _mm256_set1_epi8(15);
        for (codes, out) in codes.chunks_exact(TILE / 2).zip(out.chunks_exact_mut(TILE)) {
            let x = _mm256_loadu_si256(codes.as_ptr().cast());
            let high = _mm256_and_si256(_mm256_srli_epi16::<4>(x), low);
            let first = _mm256_shuffle_epi8(table, _mm256_and_si256(x, low));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), first);
            let second = _mm256_shuffle_epi8(table, high);
            _mm256_storeu_si256(out.as_mut_ptr().add(TILE / 2).cast(), second);
        }
    }
}

/// # Safety
/// The lengths are those of [`super::dots`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn dots(
    q: &Int8Queries,
    tiles: &[u8],
    scaling: Scaling<'_>,
    (out, stride): (&mut [f32], usize),
) {
    let (rows, padded) = (q.rows(), q.width());
    for row in 0..rows {
        let codes = &q.codes[row * padded..][..padded];
        for (group, tiles) in tiles.chunks_exact(padded * TILE_ROWS).enumerate() {
            // SAFETY: tiles are whole, and so are rings.
            let sums = unsafe { dot_group(codes, tiles) };
            for (r, sum) in sums.into_iter().enumerate() {
                let j = group * TILE_ROWS + r;
                out[row * stride + j] = scaling.score(row, j, sum as f32 * q.scales[row]);
            }
        }
    }
}

/// A query row's products with the four rows of a group.
///
/// # Safety
/// `tiles` has a tile for each ring of `codes`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dot_group(codes: &[i8], tiles: &[u8]) -> [i32; TILE_ROWS] {
    // SAFETY: the caller's promise.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let offset = _mm256_set1_epi8(-128);
        let mut sums = [_mm256_setzero_si256(); 2];
        for (tile, ring) in tiles.chunks_exact(TILE).zip(codes.chunks_exact(RING)) {
            let q = _mm256_broadcastsi128_si256(_mm_loadu_si128(ring.as_ptr().cast()));
            for (half, sum) in sums.iter_mut().enumerate() {
                let x = _mm256_loadu_si256(tile.as_ptr().add(half * TILE / 2).cast());
                let x = _mm256_xor_si256(x, offset);
                // |x| is at most 128 and |q| 127: pairs of products fit 16 bits.
                let products = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(q, x));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(products, ones));
            }
        }
        // Each sum has two rows of four lanes.
        let pairs = _mm256_hadd_epi32(sums[0], sums[1]);
        let all = _mm256_hadd_epi32(pairs, pairs);
        let (low, high) = (_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all));
        [
            _mm_extract_epi32::<0>(low),
            _mm_extract_epi32::<0>(high),
            _mm_extract_epi32::<1>(low),
            _mm_extract_epi32::<1>(high),
        ]
    }
}

/// # Safety
/// The lengths are those of [`super::add_weighted`].
#[target_feature(enable = "avx2")]
pub(super) unsafe fn add_weighted(weights: &[u8], scale: &[f32], tiles: &[u8], acc: &mut [f32]) {
    let (n, padded) = (weights.len() / scale.len(), acc.len() / scale.len());
    let rows = weights.chunks_exact(n).zip(scale).zip(acc.chunks_exact_mut(padded));
    for ((weights, &scale), acc) in rows {
        for (ring, acc) in acc.chunks_exact_mut(RING).enumerate() {
            // SAFETY: there is a tile of each ring for every four weights.
            unsafe {
                // Pairs of elements: 4 times 4 sums of two products each.
                let mut sums = [_mm256_setzero_si256(); 4];
                for (group, w) in weights.as_chunks::<TILE_ROWS>().0.iter().enumerate() {
                    let w = _mm_set1_epi32(i32::from_le_bytes(*w));
                    let w = _mm256_cvtepu8_epi16(w);
                    let tile = tiles.as_ptr().add((group * padded / RING + ring) * TILE);
                    for (part, sum) in sums.iter_mut().enumerate() {
                        let x = _mm256_cvtepi8_epi16(_mm_loadu_si128(tile.add(part * 16).cast()));
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(x, w));
                    }
                }
                let scale = _mm256_set1_ps(scale);
                for (pair, acc) in acc.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let sum = _mm256_hadd_epi32(sums[2 * pair], sums[2 * pair + 1]);
                    // Elements 0, 1, 4, 5, 2, 3, 6, 7 by pairs.
                    let sum = _mm256_permute4x64_epi64::<0b11_01_10_00>(sum);
                    let add = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale);
                    let old = _mm256_loadu_ps(acc.as_ptr());
                    _mm256_storeu_ps(acc.as_mut_ptr(), _mm256_add_ps(old, add));
                }
            }
        }
    }
}
