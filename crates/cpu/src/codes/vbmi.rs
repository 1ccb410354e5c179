//! The code kernels with AVX-512 VBMI and VNNI.

use super::{
    Codes, Int8Queries, Order, RING, Scaling, TILE, TILE_ROWS,
    vbmi_rings::RingWords,
    vbmi_source::{
        ByteElements, ByteRows, Expanded, Nibbles, Packed, Pair, Pairs, Source, prefetch,
        with_source,
    },
    wide,
    windows::{Layout, Plan},
};
use std::arch::x86_64::*;

/// # Safety
/// `codes` are whole tiles of `bytes < 64`, `out` as many of [`TILE`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn expand(plan: &Plan, layout: Layout, codes: Codes<'_>, out: &mut [u8]) {
    // SAFETY: the caller promises that `codes` are whole tiles of `bytes < 64`, `out` as many of
    // [`TILE`].
    unsafe {
        with_source!(plan, layout, codes, |source| expand_from(source, out));
    }
}

#[inline(always)]
unsafe fn expand_from(source: impl Source, out: &mut [u8]) {
    let (codes, next, bytes) = source.place();
    for (i, out) in out.chunks_exact_mut(TILE).enumerate() {
        // SAFETY: the source has as many tiles.
        unsafe {
            prefetch(next, i * bytes, bytes);
            _mm512_storeu_si512(out.as_mut_ptr().cast(), source.tile(codes.add(i * bytes)));
        }
    }
}

/// As [`super::WideWindows::expand`].
///
/// # Safety
/// `table` has 512 entries, `codes` whole groups of `rings` tiles, `out` as many of [`TILE`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
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
    // SAFETY: the caller promises that `table` has 512 entries, `codes` whole groups of `rings`
    // tiles, `out` as many of [`TILE`].
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

/// Scores of `R` query rows from `row` on against `4 G` rows from `j` on.
///
/// # Safety
/// `source` holds `G` groups of `rings` tiles from `first` on, `q` those rows of `rings` rings, `scaling` what
/// belongs to them; `out` has rows `stride` apart.
#[inline(always)]
unsafe fn dot_block<S: Pairs, const R: usize, const G: usize>(
    q: &Int8Queries,
    row: usize,
    rings: usize,
    (source, first): (S, usize),
    (scaling, j): (Scaling<'_>, usize),
    (out, stride): (*mut f32, usize),
) {
    // SAFETY: the caller promises that `source` holds `G` groups of `rings` tiles from `first` on,
    // `q` those rows of `rings` rings, `scaling` what belongs to them; `out` has rows `stride`
    // apart.
    unsafe {
        let (codes, next, bytes) = source.place();
        let (from, next) = (codes.add(first * bytes), next.wrapping_add(first * bytes));
        let group = rings * bytes;
        let mut acc = [[_mm512_setzero_si512(); 4]; R];
        for ring in 0..rings {
            prefetch(next, ring * G * bytes, G * bytes);
            // One address, and an offset of each group.
            let at = from.add(ring * bytes);
            let [x0, x1] = if G > 1 { source.two(at, at.add(group)) } else { source.alone(at) };
            let [x2, x3] = match G {
                4 => source.two(at.add(2 * group), at.add(3 * group)),
                3 => source.alone(at.add(2 * group)),
                _ => [x0, x1],
            };
            for (r, [a0, a1, a2, a3]) in acc.iter_mut().enumerate() {
                let at = ((row + r) * rings + ring) * RING;
                if S::PAIR == Pair::Parity {
                    let q = q.parity.as_ptr().add(at).cast::<i64>();
                    let even = _mm512_set1_epi64(q.read_unaligned());
                    let odd = _mm512_set1_epi64(q.add(1).read_unaligned());
                    let dot = |sum, x, q| _mm512_dpbusd_epi32(sum, x, q);
                    // A sum is five cycles late, which other rows fill; alone, odd elements have their own.
                    if R > 2 {
                        *a0 = dot(dot(*a0, x0, even), x1, odd);
                    } else {
                        (*a0, *a1) = (dot(*a0, x0, even), dot(*a1, x1, odd));
                    }
                    if G > 2 && R > 2 {
                        *a2 = dot(dot(*a2, x2, even), x3, odd);
                    } else if G > 2 {
                        (*a2, *a3) = (dot(*a2, x2, even), dot(*a3, x3, odd));
                    }
                } else {
                    let q = q.codes.as_ptr().add(at);
                    let q = _mm512_broadcast_i32x4(_mm_loadu_si128(q.cast()));
                    *a0 = _mm512_dpbusd_epi32(*a0, x0, q);
                    *a1 = _mm512_dpbusd_epi32(*a1, x1, q);
                    if G > 2 {
                        *a2 = _mm512_dpbusd_epi32(*a2, x2, q);
                        *a3 = _mm512_dpbusd_epi32(*a3, x3, q);
                    }
                }
            }
        }
        let mask = ((1u32 << (4 * G)) - 1) as __mmask16;
        let gamma = _mm512_maskz_loadu_ps(mask, scaling.gamma.as_ptr().add(j));
        for (r, acc) in acc.into_iter().enumerate() {
            let sum = match S::PAIR {
                Pair::Parity => {
                    let [a, b, c, d] = acc;
                    word_sums(_mm512_add_epi32(a, b), _mm512_add_epi32(c, d))
                }
                // Lane 4 r + g is row r of group g.
                Pair::Whole => {
                    let order =
                        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
                    _mm512_permutexvar_epi32(order, part_sums(acc))
                }
                // Lane 4 i + v is part i of vector v: rows 0 and 1 of two groups, or their rows 2 and 3.
                Pair::Halves => {
                    let order =
                        _mm512_setr_epi32(0, 4, 1, 5, 8, 12, 9, 13, 2, 6, 3, 7, 10, 14, 11, 15);
                    _mm512_permutexvar_epi32(order, part_sums(acc))
                }
            };
            let sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(q.offsets[row + r]));
            let s = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(q.scales[row + r]));
            let mut s = _mm512_mul_ps(s, gamma);
            if let Some(offsets) = scaling.offsets {
                s = _mm512_add_ps(s, _mm512_set1_ps(offsets[row + r]));
            }
            _mm512_mask_storeu_ps(out.add((row + r) * stride + j), mask, s);
        }
    }
}

/// The sums of four vectors' parts of 128 bits: lane `4 i + v` is part `i` of vector `v`.
#[inline(always)]
unsafe fn part_sums([a, b, c, d]: [__m512i; 4]) -> __m512i {
    // SAFETY: the caller is compiled for AVX-512.
    unsafe {
        let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
    }
}

/// The sums of two vectors' parts of 64 bits, one after the other.
#[inline(always)]
unsafe fn word_sums(a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the caller is compiled for AVX-512.
    unsafe {
        let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
        let even = _mm512_castps_si512(_mm512_shuffle_ps::<0b10_00_10_00>(a, b));
        let odd = _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(a, b));
        let order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
        _mm512_permutexvar_epi32(order, _mm512_add_epi32(even, odd))
    }
}

/// # Safety
/// The lengths are those of [`super::dots`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn dots(
    q: &Int8Queries,
    tiles: &[u8],
    scaling: Scaling<'_>,
    out: (&mut [f32], usize),
) {
    // SAFETY: the caller promises that the lengths are those of [`super::dots`].
    unsafe { dots_from(q, Expanded(tiles.as_ptr()), scaling, out) }
}

/// [`dots`] over packed codes.
///
/// # Safety
/// As [`dots`], with as many packed tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn dots_packed(
    q: &Int8Queries,
    (plan, layout, codes): (&Plan, Layout, Codes<'_>),
    scaling: Scaling<'_>,
    out: (&mut [f32], usize),
) {
    // SAFETY: the caller keeps the contract of [`dots`], with as many packed tiles.
    unsafe {
        match layout {
            Layout::Windows { bytes: 32, lead: 2 } => {
                dots_from(q, ByteRows::new(plan, codes), scaling, out);
            }
            Layout::Windows { bytes: 24, lead } => {
                dots_from(q, RingWords::<24>::new(plan, lead, codes), scaling, out);
            }
            Layout::Windows { bytes: 16, lead } => {
                dots_from(q, RingWords::<16>::new(plan, lead, codes), scaling, out);
            }
            _ => with_source!(plan, layout, codes, |source| dots_from(q, source, scaling, out)),
        }
    }
}

#[inline(always)]
unsafe fn dots_from<S: Pairs>(
    q: &Int8Queries,
    source: S,
    scaling: Scaling<'_>,
    (out, stride): (&mut [f32], usize),
) {
    let (rows, n) = (q.rows(), scaling.gamma.len());
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
                let (s, o) = ((scaling, j), (out.as_mut_ptr(), stride));
                match (many, groups) {
                    (4, 4) => dot_block::<S, 4, 4>(q, row, rings, x, s, o),
                    (3, 4) => dot_block::<S, 3, 4>(q, row, rings, x, s, o),
                    (2, 4) => dot_block::<S, 2, 4>(q, row, rings, x, s, o),
                    (1, 4) => dot_block::<S, 1, 4>(q, row, rings, x, s, o),
                    (_, groups) => {
                        for r in 0..many {
                            match groups {
                                3 => dot_block::<S, 1, 3>(q, row + r, rings, x, s, o),
                                2 => dot_block::<S, 1, 2>(q, row + r, rings, x, s, o),
                                _ => dot_block::<S, 1, 1>(q, row + r, rings, x, s, o),
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

/// Sums of `R` weight rows over `n` rows, for `E` rings of elements: one, or pairs.
///
/// # Safety
/// `weights` has `R` rows of `n`; `source` `n / 4` groups of `rings` tiles, of which `E` from
/// `first` on are used; `acc` `R` rows `stride` apart.
#[inline(always)]
unsafe fn add_block<S: Source, const R: usize, const E: usize>(
    weights: *const u8,
    n: usize,
    scale: *const f32,
    (source, first): (S, usize),
    rings: usize,
    acc: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller promises that `weights` has `R` rows of `n`; `source` `n / 4` groups of
    // `rings` tiles, of which `E` from `first` on are used; `acc` `R` rows `stride` apart.
    unsafe {
        let (codes, next, bytes) = source.place();
        let mut sums = [[_mm512_setzero_si512(); E]; R];
        for group in 0..n / TILE_ROWS {
            let from = (first + group * rings) * bytes;
            prefetch(next, from, E * bytes);
            let at = codes.add(from);
            let mut x = [_mm512_setzero_si512(); E];
            if E == 1 {
                x[0] = source.tile(at);
            }
            for (pair, x) in x.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let at = at.add(2 * pair * bytes);
                *x = source.two(at, at.add(bytes));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let w = weights.add(r * n + group * TILE_ROWS).cast::<i32>().read_unaligned();
                let w = _mm512_set1_epi32(w);
                for (s, &x) in sums.iter_mut().zip(&x) {
                    *s = _mm512_dpbusd_epi32(*s, w, x);
                }
            }
        }
        for (r, mut sums) in sums.into_iter().enumerate() {
            if S::PAIR == Pair::Halves {
                for [a, b] in sums.as_chunks_mut::<2>().0 {
                    (*a, *b) = (
                        _mm512_shuffle_i64x2::<0b01_00_01_00>(*a, *b),
                        _mm512_shuffle_i64x2::<0b11_10_11_10>(*a, *b),
                    );
                }
            }
            if S::PAIR == Pair::Parity {
                for [a, b] in sums.as_chunks_mut::<2>().0 {
                    (*a, *b) = (_mm512_unpacklo_epi32(*a, *b), _mm512_unpackhi_epi32(*a, *b));
                }
            }
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn add_weighted(weights: &[u8], scale: &[f32], tiles: &[u8], acc: &mut [f32]) {
    // SAFETY: the caller promises that the lengths are those of [`super::add_weighted`].
    unsafe { add_from(weights, scale, Expanded(tiles.as_ptr()), acc) }
}

/// [`add_weighted`] over packed codes.
///
/// # Safety
/// As [`add_weighted`], with as many packed tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn add_packed(
    weights: &[u8],
    scale: &[f32],
    (plan, layout, codes): (&Plan, Layout, Codes<'_>),
    acc: &mut [f32],
) {
    // SAFETY: the caller keeps the contract of [`add_weighted`], with as many packed tiles.
    unsafe {
        with_source!(plan, layout, codes, |source| add_from(weights, scale, source, acc));
    }
}

#[inline(always)]
unsafe fn add_from<S: Source>(weights: &[u8], scale: &[f32], source: S, acc: &mut [f32]) {
    let rows = scale.len();
    let (n, padded) = (weights.len() / rows, acc.len() / rows);
    let rings = padded / RING;
    let mut row = 0;
    while row < rows {
        // Eight rows share what a tile takes to expand, and leave registers for two rings.
        let many = if rows - row >= 8 { 8 } else { (rows - row).min(4) };
        let most = if many == 8 { 2 } else { 4 };
        let mut ring = 0;
        while ring < rings {
            let wide = if rings - ring >= most { most } else { 1 };
            // SAFETY: inside the checked lengths.
            unsafe {
                let w = weights.as_ptr().add(row * n);
                let s = scale.as_ptr().add(row);
                let x = (source, ring);
                let a = acc.as_mut_ptr().add(row * padded + ring * RING);
                match (many, wide) {
                    (8, 2) => add_block::<S, 8, 2>(w, n, s, x, rings, a, padded),
                    (8, _) => add_block::<S, 8, 1>(w, n, s, x, rings, a, padded),
                    (4, 4) => add_block::<S, 4, 4>(w, n, s, x, rings, a, padded),
                    (3, 4) => add_block::<S, 3, 4>(w, n, s, x, rings, a, padded),
                    (2, 4) => add_block::<S, 2, 4>(w, n, s, x, rings, a, padded),
                    (1, 4) => add_block::<S, 1, 4>(w, n, s, x, rings, a, padded),
                    (4, _) => add_block::<S, 4, 1>(w, n, s, x, rings, a, padded),
                    (3, _) => add_block::<S, 3, 1>(w, n, s, x, rings, a, padded),
                    (2, _) => add_block::<S, 2, 1>(w, n, s, x, rings, a, padded),
                    _ => add_block::<S, 1, 1>(w, n, s, x, rings, a, padded),
                }
            }
            ring += wide;
        }
        row += many;
    }
}
