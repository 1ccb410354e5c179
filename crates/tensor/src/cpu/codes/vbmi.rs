//! The code kernels with AVX-512 VBMI and VNNI.

use super::{
    Codes, Int8Queries, Order, RING, TILE, TILE_ROWS, wide,
    windows::{Layout, Plan},
};
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

/// Where the products get expanded tiles from.
trait Source: Copy {
    /// # Safety
    /// There is such a tile, and the caller is compiled for AVX-512 VBMI.
    unsafe fn tile(self, at: usize) -> __m512i;
}

/// Tiles that are expanded already.
#[derive(Clone, Copy)]
struct Expanded(*const u8);

impl Source for Expanded {
    #[inline(always)]
    unsafe fn tile(self, at: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(self.0.add(at * TILE).cast()) }
    }
}

/// Packed nibbles: [`super::Windows::nibbles`].
#[derive(Clone, Copy)]
struct Nibbles {
    codes: *const u8,
    next: *const u8,
    table: __m512i,
    shift: __m512i,
}

impl Nibbles {
    #[inline(always)]
    unsafe fn new(plan: &Plan, codes: Codes<'_>) -> Self {
        // SAFETY: the caller is compiled for the level; the plan's table has 64 bytes.
        unsafe {
            let table = _mm512_loadu_si512(plan.table.as_ptr().cast());
            let shift = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(4));
            Self { codes: codes.here.as_ptr(), next: codes.next(), table, shift }
        }
    }
}

impl Source for Nibbles {
    #[inline(always)]
    unsafe fn tile(self, at: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(self.next.wrapping_add(at * TILE / 2).cast());
            let x = _mm256_loadu_si256(self.codes.add(at * TILE / 2).cast());
            let x = _mm512_srlv_epi16(_mm512_broadcast_i64x4(x), self.shift);
            // vpermb reads six bits of each index; the table repeats every four.
            _mm512_permutexvar_epi8(x, self.table)
        }
    }
}

/// Packed windows.
#[derive(Clone, Copy)]
struct Packed {
    codes: *const u8,
    next: *const u8,
    bytes: usize,
    mask: __mmask64,
    gather: __m512i,
    shift: __m512i,
    table: __m512i,
}

impl Packed {
    #[inline(always)]
    unsafe fn new(plan: &Plan, bytes: usize, codes: Codes<'_>) -> Self {
        // SAFETY: the caller is compiled for the level; the plan's arrays have 64 bytes.
        unsafe {
            let load = |x: &[u8; 64]| _mm512_loadu_si512(x.as_ptr().cast());
            let (gather, shift, table) = (load(&plan.gather), load(&plan.shift), load(&plan.table));
            let (mask, next) = ((1 << bytes) - 1, codes.next());
            Self { codes: codes.here.as_ptr(), next, bytes, mask, gather, shift, table }
        }
    }
}

impl Source for Packed {
    #[inline(always)]
    unsafe fn tile(self, at: usize) -> __m512i {
        // SAFETY: the caller's promise; the mask keeps the load inside the tile.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(self.next.wrapping_add(at * self.bytes).cast());
            let x = self.codes.add(at * self.bytes).cast();
            let words = _mm512_permutexvar_epi8(self.gather, _mm512_maskz_loadu_epi8(self.mask, x));
            let windows = _mm512_multishift_epi64_epi8(self.shift, words);
            // vpermb reads six bits of each index.
            _mm512_permutexvar_epi8(windows, self.table)
        }
    }
}

/// # Safety
/// `codes` are whole tiles of `bytes < 64`, `out` as many of [`TILE`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(super) unsafe fn expand(plan: &Plan, layout: Layout, codes: Codes<'_>, out: &mut [u8]) {
    // SAFETY: the caller's promise.
    unsafe {
        match layout {
            Layout::Nibbles => expand_from(Nibbles::new(plan, codes), out),
            Layout::Windows { bytes } => expand_from(Packed::new(plan, bytes, codes), out),
        }
    }
}

#[inline(always)]
unsafe fn expand_from(source: impl Source, out: &mut [u8]) {
    for (i, out) in out.chunks_exact_mut(TILE).enumerate() {
        // SAFETY: the source has as many tiles.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), source.tile(i)) };
    }
}

/// As [`super::WideWindows::expand`].
///
/// # Safety
/// `table` has 512 entries, `codes` whole groups of `rings` tiles, `out` as many of [`TILE`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi")]
pub(super) unsafe fn expand_wide(
    table: &[u8],
    order: Order,
    rings: usize,
    codes: &[u8],
    out: &mut [u8],
) {
    const GROUP: usize = TILE_ROWS * wide::RING_BYTES;
    let shift: [u8; 64] = std::array::from_fn(|i| (i % RING * 3) as u8);
    let turn: [u8; 64] = std::array::from_fn(|i| match order {
        Order::Rows => i as u8,
        Order::Elements => (i % TILE_ROWS * RING + i / TILE_ROWS) as u8,
    });
    // SAFETY: the caller's promise.
    unsafe {
        let load = |x: *const u8| _mm512_loadu_si512(x.cast());
        let (shift, turn) = (load(shift.as_ptr()), load(turn.as_ptr()));
        let ninth = _mm512_add_epi8(shift, _mm512_set1_epi8(8));
        let mut tables = [_mm512_setzero_si512(); 8];
        for (i, t) in tables.iter_mut().enumerate() {
            *t = _mm512_loadu_si512(table.as_ptr().add(64 * i).cast());
        }
        let [a, b, c, d, e, f, g, h] = tables;
        let groups = codes.chunks_exact(rings * GROUP).zip(out.chunks_exact_mut(rings * TILE));
        for (group, out) in groups {
            for (ring, out) in out.chunks_exact_mut(TILE).enumerate() {
                let mut words = [0u64; 8];
                for (row, pair) in words.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                    let (here, before) = wide::ring_starts(rings, ring, row);
                    *pair = [wide::ring_word(&group[here..], &group[before..]); 2];
                }
                let words = _mm512_loadu_si512(words.as_ptr().cast());
                let low = _mm512_multishift_epi64_epi8(shift, words);
                let high = _mm512_multishift_epi64_epi8(ninth, words);
                // vpermi2b reads seven bits of each index; the other two choose among four.
                let eighth = _mm512_movepi8_mask(low);
                let ninth = _mm512_test_epi8_mask(high, _mm512_set1_epi8(1));
                let first = _mm512_permutex2var_epi8(a, low, b);
                let second = _mm512_permutex2var_epi8(c, low, d);
                let third = _mm512_permutex2var_epi8(e, low, f);
                let fourth = _mm512_permutex2var_epi8(g, low, h);
                let x = _mm512_mask_blend_epi8(eighth, first, second);
                let y = _mm512_mask_blend_epi8(eighth, third, fourth);
                let entries = _mm512_mask_blend_epi8(ninth, x, y);
                let entries = _mm512_permutexvar_epi8(turn, entries);
                _mm512_storeu_si512(out.as_mut_ptr().cast(), entries);
            }
        }
    }
}

/// Scores of `R` query rows against `4 G` rows.
///
/// # Safety
/// `source` holds `G` groups of `rings` tiles from `first` on, `q` `R` rows of `rings` rings; `out` has `R` rows
/// `stride` apart.
#[inline(always)]
unsafe fn dot_block<const R: usize, const G: usize>(
    q: &Int8Queries,
    row: usize,
    rings: usize,
    (source, first): (impl Source, usize),
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
                *x = source.tile(first + g * rings + ring);
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512dq")]
pub(super) unsafe fn dots(q: &Int8Queries, tiles: &[u8], gamma: &[f32], out: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { dots_from(q, Expanded(tiles.as_ptr()), gamma, out) }
}

/// The same over packed codes.
///
/// # Safety
/// As [`dots`], with as many packed tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512dq")]
pub(super) unsafe fn dots_packed(
    q: &Int8Queries,
    (plan, layout, codes): (&Plan, Layout, Codes<'_>),
    gamma: &[f32],
    out: &mut [f32],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match layout {
            Layout::Nibbles => dots_from(q, Nibbles::new(plan, codes), gamma, out),
            Layout::Windows { bytes } => dots_from(q, Packed::new(plan, bytes, codes), gamma, out),
        }
    }
}

#[inline(always)]
unsafe fn dots_from(q: &Int8Queries, source: impl Source, gamma: &[f32], out: &mut [f32]) {
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
                let x = (source, j / TILE_ROWS * rings);
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
/// `weights` has `R` rows of `n`; `source` `n / 4` groups of `rings` tiles, of which `E` from
/// `first` on are used; `acc` `R` rows `stride` apart.
#[inline(always)]
unsafe fn add_block<const R: usize, const E: usize>(
    weights: *const u8,
    n: usize,
    scale: *const f32,
    (source, first): (impl Source, usize),
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
                *x = source.tile(first + group * rings + e);
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
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
pub(super) unsafe fn add_weighted(weights: &[u8], scale: &[f32], tiles: &[u8], acc: &mut [f32]) {
    // SAFETY: the caller's promise.
    unsafe { add_from(weights, scale, Expanded(tiles.as_ptr()), acc) }
}

/// The same over packed codes.
///
/// # Safety
/// As [`add_weighted`], with as many packed tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
pub(super) unsafe fn add_packed(
    weights: &[u8],
    scale: &[f32],
    (plan, layout, codes): (&Plan, Layout, Codes<'_>),
    acc: &mut [f32],
) {
    // SAFETY: the caller's promise.
    unsafe {
        match layout {
            Layout::Nibbles => add_from(weights, scale, Nibbles::new(plan, codes), acc),
            Layout::Windows { bytes } => {
                add_from(weights, scale, Packed::new(plan, bytes, codes), acc);
            }
        }
    }
}

#[inline(always)]
unsafe fn add_from(weights: &[u8], scale: &[f32], source: impl Source, acc: &mut [f32]) {
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
                let x = (source, ring);
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
