//! The code kernels with AVX-512 VBMI and VNNI.

use super::{Int8Queries, RING, TILE, TILE_ROWS, windows::Plan};
use std::arch::x86_64::*;

/// # Safety
/// `codes` are whole tiles of `tile_bytes <= 64`, `out` as many of [`TILE`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(super) unsafe fn expand(plan: &Plan, tile_bytes: usize, codes: &[u8], out: &mut [u8]) {
    let mask = if tile_bytes == 64 { !0 } else { (1u64 << tile_bytes) - 1 };
    // SAFETY: the plan's arrays have 64 bytes; the mask keeps loads inside a tile.
    unsafe {
        let load = |x: &[u8; 64]| _mm512_loadu_si512(x.as_ptr().cast());
        let (gather, shift, table) = (load(&plan.gather), load(&plan.shift), load(&plan.table));
        for i in 0..out.len() / TILE {
            let x = _mm512_maskz_loadu_epi8(mask, codes.as_ptr().add(i * tile_bytes).cast());
            let words = _mm512_permutexvar_epi8(gather, x);
            let windows = _mm512_multishift_epi64_epi8(shift, words);
            // vpermb reads six bits of each index.
            let entries = _mm512_permutexvar_epi8(windows, table);
            _mm512_storeu_si512(out.as_mut_ptr().add(i * TILE).cast(), entries);
        }
    }
}

/// Nibbles, which stand in the order of the expanded bytes: see [`super::Windows::nibbles`].
///
/// # Safety
/// `codes` are whole tiles of 32 bytes, `out` as many of [`TILE`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn expand_nibbles(plan: &Plan, codes: &[u8], out: &mut [u8]) {
    // SAFETY: the plan's table has 64 bytes; loads are whole tiles.
    unsafe {
        let table = _mm512_broadcast_i32x4(_mm_loadu_si128(plan.table.as_ptr().cast()));
        let shift = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(4));
        let low = _mm512_set1_epi8(15);
        for i in 0..out.len() / TILE {
            let x = _mm256_loadu_si256(codes.as_ptr().add(i * TILE / 2).cast());
            let x = _mm512_srlv_epi16(_mm512_broadcast_i64x4(x), shift);
            let entries = _mm512_shuffle_epi8(table, _mm512_and_si512(x, low));
            _mm512_storeu_si512(out.as_mut_ptr().add(i * TILE).cast(), entries);
        }
    }
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
/// The lengths are those of [`super::weigh`], and `p` is whole vectors of 16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn weigh(p: &[f32], gamma: &[f32], threshold: f32, weights: &mut [u8]) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut likely, mut most) = (_mm512_setzero_ps(), _mm512_setzero_ps());
        let at =
            |i: usize| (_mm512_loadu_ps(p.as_ptr().add(i)), _mm512_loadu_ps(gamma.as_ptr().add(i)));
        for i in (0..p.len()).step_by(16) {
            let (p, g) = at(i);
            likely = _mm512_max_ps(likely, p);
            most = _mm512_max_ps(most, _mm512_mul_ps(p, g));
        }
        let most = _mm512_reduce_max_ps(most);
        if _mm512_reduce_max_ps(likely) < threshold || most <= 0.0 {
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

/// Scores of `R` query rows against `4 G` rows.
///
/// # Safety
/// `tiles` holds `G` groups of `rings` tiles, `q` `R` rows of `rings` rings; `out` has `R` rows
/// `stride` apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512dq")]
unsafe fn dot_block<const R: usize, const G: usize>(
    q: &Int8Queries,
    row: usize,
    rings: usize,
    tiles: *const u8,
    gamma: *const f32,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = [[_mm512_setzero_si512(); 4]; R];
        let codes = q.codes.as_ptr().add(row * rings * RING);
        for ring in 0..rings {
            let mut x = [_mm512_setzero_si512(); 4];
            for (g, x) in x.iter_mut().enumerate().take(G) {
                *x = _mm512_loadu_si512(tiles.add((g * rings + ring) * TILE).cast());
            }
            for (r, acc) in acc.iter_mut().enumerate() {
                let c = _mm_loadu_si128(codes.add((r * rings + ring) * RING).cast());
                let c = _mm512_broadcast_i32x4(c);
                for (a, &x) in acc.iter_mut().zip(&x).take(G) {
                    *a = _mm512_dpbusd_epi32(*a, x, c);
                }
            }
        }
        // Lane 4 r + g of the transposed sums is row r of group g.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let mask = ((1u32 << (4 * G)) - 1) as __mmask16;
        let gamma = _mm512_maskz_loadu_ps(mask, gamma);
        for (r, [a, b, c, d]) in acc.into_iter().enumerate() {
            let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            let sum =
                _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
            let sum = _mm512_permutexvar_epi32(order, sum);
            let sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(q.offsets[row + r]));
            let s = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(q.scales[row + r]));
            _mm512_mask_storeu_ps(out.add(r * stride), mask, _mm512_mul_ps(s, gamma));
        }
    }
}

/// # Safety
/// The lengths are those of [`super::dots`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512dq")]
pub(super) unsafe fn dots(q: &Int8Queries, tiles: &[u8], gamma: &[f32], out: &mut [f32]) {
    let (rows, n) = (q.rows(), gamma.len());
    let rings = q.codes.len() / rows / RING;
    let mut row = 0;
    while row < rows {
        let many = (rows - row).min(4);
        let mut j = 0;
        while j < n {
            let groups = ((n - j) / TILE_ROWS).min(4);
            // SAFETY: inside the checked lengths.
            unsafe {
                let x = tiles.as_ptr().add(j * rings * RING);
                let (g, o) = (gamma.as_ptr().add(j), out.as_mut_ptr().add(row * n + j));
                match (many, groups) {
                    (4, 4) => dot_block::<4, 4>(q, row, rings, x, g, o, n),
                    (3, 4) => dot_block::<3, 4>(q, row, rings, x, g, o, n),
                    (2, 4) => dot_block::<2, 4>(q, row, rings, x, g, o, n),
                    (1, 4) => dot_block::<1, 4>(q, row, rings, x, g, o, n),
                    (_, groups) => {
                        for r in 0..many {
                            let o = o.add(r * n);
                            match groups {
                                3 => dot_block::<1, 3>(q, row + r, rings, x, g, o, n),
                                2 => dot_block::<1, 2>(q, row + r, rings, x, g, o, n),
                                _ => dot_block::<1, 1>(q, row + r, rings, x, g, o, n),
                            }
                        }
                    }
                }
            }
            j += groups * TILE_ROWS;
        }
        row += many;
    }
}

/// Sums of `R` weight rows over `n` rows, for `E` rings of elements.
///
/// # Safety
/// `weights` has `R` rows of `n`; `tiles` `n / 4` groups of `rings` tiles, of which the first `E`
/// are used; `acc` `R` rows `stride` apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
unsafe fn add_block<const R: usize, const E: usize>(
    weights: *const u8,
    n: usize,
    scale: *const f32,
    tiles: *const u8,
    rings: usize,
    acc: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[_mm512_setzero_si512(); E]; R];
        for group in 0..n / TILE_ROWS {
            let mut x = [_mm512_setzero_si512(); E];
            for (e, x) in x.iter_mut().enumerate() {
                *x = _mm512_loadu_si512(tiles.add((group * rings + e) * TILE).cast());
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let w = weights.add(r * n + group * TILE_ROWS).cast::<i32>().read_unaligned();
                let w = _mm512_set1_epi32(w);
                for (s, &x) in sums.iter_mut().zip(&x) {
                    *s = _mm512_dpbusd_epi32(*s, w, x);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            let scale = _mm512_set1_ps(*scale.add(r));
            for (e, s) in sums.into_iter().enumerate() {
                let at = acc.add(r * stride + e * RING);
                let s = _mm512_mul_ps(_mm512_cvtepi32_ps(s), scale);
                _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), s));
            }
        }
    }
}

/// # Safety
/// The lengths are those of [`super::add_weighted`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn add_weighted(weights: &[u8], scale: &[f32], tiles: &[u8], acc: &mut [f32]) {
    let rows = scale.len();
    let (n, padded) = (weights.len() / rows, acc.len() / rows);
    let rings = padded / RING;
    let mut row = 0;
    while row < rows {
        let many = (rows - row).min(4);
        let mut ring = 0;
        while ring < rings {
            let wide = if rings - ring >= 4 { 4 } else { 1 };
            // SAFETY: inside the checked lengths.
            unsafe {
                let w = weights.as_ptr().add(row * n);
                let s = scale.as_ptr().add(row);
                let x = tiles.as_ptr().add(ring * TILE);
                let a = acc.as_mut_ptr().add(row * padded + ring * RING);
                match (many, wide) {
                    (4, 4) => add_block::<4, 4>(w, n, s, x, rings, a, padded),
                    (3, 4) => add_block::<3, 4>(w, n, s, x, rings, a, padded),
                    (2, 4) => add_block::<2, 4>(w, n, s, x, rings, a, padded),
                    (1, 4) => add_block::<1, 4>(w, n, s, x, rings, a, padded),
                    (4, _) => add_block::<4, 1>(w, n, s, x, rings, a, padded),
                    (3, _) => add_block::<3, 1>(w, n, s, x, rings, a, padded),
                    (2, _) => add_block::<2, 1>(w, n, s, x, rings, a, padded),
                    _ => add_block::<1, 1>(w, n, s, x, rings, a, padded),
                }
            }
            ring += wide;
        }
        row += many;
    }
}
