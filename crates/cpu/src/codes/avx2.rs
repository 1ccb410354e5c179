//! The code kernels with AVX2. Integers are those of the portable code, and so is the rounding.

use super::{Int8Queries, Order, RING, Scaling, TILE, TILE_ROWS, windows::Plan};
use std::arch::x86_64::*;

/// # Safety
/// `codes` are whole tiles of nibbles, `out` as many of [`TILE`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn expand_nibbles(plan: &Plan, codes: &[u8], out: &mut [u8]) {
    // SAFETY: each chunk of `codes` has 32 bytes and each of `out` has `TILE`; the plan's table has
    // 64.
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

/// How windows are cut from a ring: two bytes to a lane of 16 bits, for even and for odd elements, and
/// what brings the window to where it is wanted, the highest six bits of a lane or the lowest of its
/// higher byte.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    bytes: [[u8; RING]; 2],
    factors: [[u16; RING / 2]; 2],
}

impl Words {
    /// For codes of `bits` bits whose window starts `lead` bits early.
    pub(super) fn new(bits: usize, lead: usize) -> Self {
        let mut words = Self { bytes: [[0; RING]; 2], factors: [[0; RING / 2]; 2] };
        let ring = 2 * bits;
        for element in 0..RING {
            let start = (bits * element + 8 * ring - lead) % (8 * ring);
            let (lane, odd) = (element / 2, element % 2);
            words.bytes[odd][2 * lane] = (start / 8) as u8;
            words.bytes[odd][2 * lane + 1] = ((start / 8 + 1) % ring) as u8;
            words.factors[odd][lane] = 1 << (if odd == 1 { 8 } else { 10 } - start % 8);
        }
        words
    }
}

/// Tiles that are expanded together, one a half of a register.
const TOGETHER: usize = 2;
/// The longest packed tile, and what a load of its last ring reads beyond it.
const PADDED: usize = TOGETHER * 5 * TILE / 8 + RING;

/// # Safety
/// `codes` are whole tiles of `bytes`, at most 40; `out` as many of [`TILE`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn expand(
    plan: &Plan,
    order: Order,
    (bytes, window): (usize, usize),
    codes: &[u8],
    out: &mut [u8],
) {
    let safe = codes.len().saturating_sub(RING) / (TOGETHER * bytes);
    // SAFETY: before `safe` there is a ring's load behind each tile, and after it the rest is copied.
    unsafe {
        let kernel = match (order, bytes, window) {
            (Order::Rows, _, ..=4) => expand_of::<false, 1>,
            (Order::Rows, 32, 6) => expand_bytes::<false>,
            (Order::Rows, ..) => expand_of::<false, 4>,
            (Order::Elements, _, ..=4) => expand_of::<true, 1>,
            (Order::Elements, 32, 6) => expand_bytes::<true>,
            (Order::Elements, ..) => expand_of::<true, 4>,
        };
        let (whole, rest) = codes.split_at(safe * TOGETHER * bytes);
        let (expanded, last) = out.split_at_mut(safe * TOGETHER * TILE);
        kernel(plan, bytes, whole.as_ptr(), expanded);
        for (codes, out) in rest.chunks(TOGETHER * bytes).zip(last.chunks_mut(TOGETHER * TILE)) {
            let (mut padded, mut tiles) = ([0; PADDED], [0; TOGETHER * TILE]);
            padded[..codes.len()].copy_from_slice(codes);
            kernel(plan, bytes, padded.as_ptr(), &mut tiles);
            out.copy_from_slice(&tiles[..out.len()]);
        }
    }
}

/// # Safety
/// `out` are pairs of tiles, `codes` as many packed ones and [`RING`] bytes more.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand_of<const ELEMENTS: bool, const TABLES: usize>(
    plan: &Plan,
    bytes: usize,
    mut codes: *const u8,
    out: &mut [u8],
) {
    // SAFETY: `codes` has the packed tiles of `out` and `RING` bytes more, so that whole loads stay
    // inside; the plan's arrays have the lengths that are loaded.
    unsafe {
        let tables = tables::<TABLES>(&plan.table);
        let Words { bytes: places, factors } = &plan.words;
        let [even, odd] = places.each_ref().map(|p| twice(p.as_ptr()));
        let [up, right] = factors.each_ref().map(|f| twice(f.as_ptr().cast()));
        let high = _mm256_set1_epi16(63 << 8);
        for out in out.chunks_exact_mut(TOGETHER * TILE) {
            let mut rows = [_mm256_setzero_si256(); TILE_ROWS];
            for (r, row) in rows.iter_mut().enumerate() {
                let at = codes.add(r * bytes / TILE_ROWS);
                let x = _mm256_loadu2_m128i(at.add(bytes).cast(), at.cast());
                let a = _mm256_mullo_epi16(_mm256_shuffle_epi8(x, even), up);
                let b = _mm256_mullo_epi16(_mm256_shuffle_epi8(x, odd), right);
                let a = _mm256_srli_epi16::<10>(a);
                let windows = _mm256_or_si256(a, _mm256_and_si256(b, high));
                *row = entries(&tables, windows);
            }
            codes = codes.add(TOGETHER * bytes);
            store::<ELEMENTS>(rows, out);
        }
    }
}

/// As [`expand_of`], of codes of four bits whose windows begin two bits early. A byte holds that of its second
/// code; the first's begins in the byte before.
///
/// # Safety
/// `out` are pairs of tiles, `codes` as many packed ones.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn expand_bytes<const ELEMENTS: bool>(
    plan: &Plan,
    bytes: usize,
    mut codes: *const u8,
    out: &mut [u8],
) {
    // SAFETY: the caller promises that `out` are pairs of tiles, `codes` as many packed ones.
    unsafe {
        let (even, odd) = (tables::<4>(&plan.turned), tables::<4>(&plan.table));
        let before = _mm_setr_epi8(7, 0, 1, 2, 3, 4, 5, 6, 15, 8, 9, 10, 11, 12, 13, 14);
        let (before, low) = (_mm256_broadcastsi128_si256(before), _mm256_set1_epi8(15));
        for out in out.chunks_exact_mut(TOGETHER * TILE) {
            let mut rows = [_mm256_setzero_si256(); TILE_ROWS];
            for (half, rows) in rows.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let at = codes.add(half * bytes / 2);
                let x = _mm256_loadu2_m128i(at.add(bytes).cast(), at.cast());
                let first = _mm256_and_si256(x, low);
                let first = pick(&even, first, _mm256_shuffle_epi8(x, before));
                let second = _mm256_and_si256(_mm256_srli_epi16::<2>(x), low);
                let second = pick(&odd, second, x);
                *rows = [_mm256_unpacklo_epi8(first, second), _mm256_unpackhi_epi8(first, second)];
            }
            codes = codes.add(TOGETHER * bytes);
            store::<ELEMENTS>(rows, out);
        }
    }
}

/// Sixteen bytes in either half.
///
/// # Safety
/// They are readable.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn twice(x: *const u8) -> __m256i {
    // SAFETY: the caller promises that they are readable.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(x.cast())) }
}

/// The first parts of a table, sixteen entries each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn tables<const TABLES: usize>(table: &[u8; 64]) -> [__m256i; TABLES] {
    let mut tables = [_mm256_setzero_si256(); TABLES];
    for (part, entries) in tables.iter_mut().zip(table.as_chunks::<RING>().0) {
        // SAFETY: sixteen bytes.
        *part = unsafe { twice(entries.as_ptr()) };
    }
    tables
}

/// The entries of windows; a table of sixteen repeats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn entries<const TABLES: usize>(tables: &[__m256i; TABLES], windows: __m256i) -> __m256i {
    match tables.first_chunk::<4>() {
        // Bits 4 and 5 become the highest of their bytes.
        Some(tables) => pick(tables, windows, _mm256_slli_epi16::<2>(windows)),
        None => _mm256_shuffle_epi8(tables[0], windows),
    }
}

/// Entries by their numbers' lowest four bits, and by the highest two bits of bytes of `part` their table.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pick(tables: &[__m256i; 4], low: __m256i, part: __m256i) -> __m256i {
    let [a, b, c, d] = tables.map(|table| _mm256_shuffle_epi8(table, low));
    let lower = _mm256_add_epi8(part, part);
    let (a, c) = (_mm256_blendv_epi8(a, b, lower), _mm256_blendv_epi8(c, d, lower));
    _mm256_blendv_epi8(a, c, part)
}

/// Writes four rows of either tile.
///
/// # Safety
/// `out` has room for both tiles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store<const ELEMENTS: bool>(rows: [__m256i; TILE_ROWS], out: &mut [u8]) {
    let rows = if ELEMENTS { turned(rows) } else { rows };
    for (r, row) in rows.into_iter().enumerate() {
        // SAFETY: the caller promises that `out` has room for both tiles.
        unsafe {
            let to = out.as_mut_ptr().add(r * RING);
            _mm256_storeu2_m128i(to.add(TILE).cast(), to.cast(), row);
        }
    }
}

/// Four rows of 16 elements as 16 elements of four rows, in either half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn turned([a, b, c, d]: [__m256i; TILE_ROWS]) -> [__m256i; TILE_ROWS] {
    let (ab, cd) = (_mm256_unpacklo_epi8(a, b), _mm256_unpacklo_epi8(c, d));
    let (more_ab, more_cd) = (_mm256_unpackhi_epi8(a, b), _mm256_unpackhi_epi8(c, d));
    [
        _mm256_unpacklo_epi16(ab, cd),
        _mm256_unpackhi_epi16(ab, cd),
        _mm256_unpacklo_epi16(more_ab, more_cd),
        _mm256_unpackhi_epi16(more_ab, more_cd),
    ]
}

/// Query rows that go by a tile together: as many sums as there are registers for.
const ROWS: usize = 4;

/// Calls a function of so many rows, a constant.
macro_rules! by_rows {
    ($rows:expr, $f:ident($($arg:expr),*)) => {
        match $rows {
            1 => $f::<1>($($arg),*),
            2 => $f::<2>($($arg),*),
            3 => $f::<3>($($arg),*),
            _ => $f::<ROWS>($($arg),*),
        }
    };
}

/// # Safety
/// The lengths are those of [`super::dots`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dots(
    q: &Int8Queries,
    tiles: &[u8],
    scaling: Scaling<'_>,
    (out, stride): (&mut [f32], usize),
) {
    for first in (0..q.rows()).step_by(ROWS) {
        let out = &mut out[first * stride..];
        // SAFETY: `q`, `tiles` and `out` have the lengths of `super::dots`; from row `first` on
        // there are as many rows as the macro takes.
        unsafe { by_rows!(q.rows() - first, dots_of(q, first, tiles, scaling, (out, stride))) }
    }
}

/// # Safety
/// As [`dots`]; there are `R` query rows from `first` on, and `out` begins with theirs.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots_of<const R: usize>(
    q: &Int8Queries,
    first: usize,
    tiles: &[u8],
    scaling: Scaling<'_>,
    (out, stride): (&mut [f32], usize),
) {
    let padded = q.width();
    let codes: [&[i8]; R] = std::array::from_fn(|r| &q.codes[(first + r) * padded..][..padded]);
    for (group, tiles) in tiles.chunks_exact(padded * TILE_ROWS).enumerate() {
        // SAFETY: tiles are whole, and so are rings; a row has four scores of each group.
        unsafe {
            for (r, sums) in dot_group(&codes, tiles).into_iter().enumerate() {
                let at = group * TILE_ROWS;
                let x = _mm_mul_ps(_mm_cvtepi32_ps(sums), _mm_set1_ps(q.scales[first + r]));
                let mut x = _mm_mul_ps(x, _mm_loadu_ps(scaling.gamma.as_ptr().add(at)));
                if let Some(offsets) = scaling.offsets {
                    x = _mm_add_ps(x, _mm_set1_ps(offsets[first + r]));
                }
                _mm_storeu_ps(out[r * stride + at..].as_mut_ptr(), x);
            }
        }
    }
}

/// Query rows' products with the four rows of a group.
///
/// # Safety
/// `tiles` has a tile for each ring of `codes`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_group<const R: usize>(codes: &[&[i8]; R], tiles: &[u8]) -> [__m128i; R] {
    // SAFETY: the caller promises that `tiles` has a tile for each ring of `codes`.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let offset = _mm256_set1_epi8(-128);
        let mut sums = [[_mm256_setzero_si256(); 2]; R];
        for (ring, tile) in tiles.chunks_exact(TILE).enumerate() {
            for half in 0..2 {
                let x = _mm256_loadu_si256(tile.as_ptr().add(half * TILE / 2).cast());
                let x = _mm256_xor_si256(x, offset);
                // |x| is at most 128 and |q| 127: pairs of products fit 16 bits.
                let size = _mm256_abs_epi8(x);
                for (codes, sums) in codes.iter().zip(&mut sums) {
                    let q = _mm_loadu_si128(codes.as_ptr().add(ring * RING).cast());
                    let q = _mm256_sign_epi8(_mm256_broadcastsi128_si256(q), x);
                    let products = _mm256_madd_epi16(_mm256_maddubs_epi16(size, q), ones);
                    sums[half] = _mm256_add_epi32(sums[half], products);
                }
            }
        }
        sums.map(|[a, b]| {
            // Each sum has two rows of four lanes.
            let pairs = _mm256_hadd_epi32(a, b);
            let all = _mm256_hadd_epi32(pairs, pairs);
            _mm_unpacklo_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256::<1>(all))
        })
    }
}

/// # Safety
/// The lengths are those of [`super::add_weighted`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn add_weighted(weights: &[u8], scale: &[f32], tiles: &[u8], acc: &mut [f32]) {
    let (n, padded) = (weights.len() / scale.len(), acc.len() / scale.len());
    let wide: Vec<u16> = weights.iter().copied().map(u16::from).collect();
    let rows = wide.chunks(ROWS * n).zip(scale.chunks(ROWS)).zip(acc.chunks_mut(ROWS * padded));
    for ((weights, scale), acc) in rows {
        // SAFETY: the lengths are those of `super::add_weighted`, and the chunks cut them by whole
        // rows.
        unsafe { by_rows!(scale.len(), add_of(weights, scale, tiles, acc)) }
    }
}

/// # Safety
/// As [`add_weighted`], of `R` rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_of<const R: usize>(weights: &[u16], scale: &[f32], tiles: &[u8], acc: &mut [f32]) {
    let (n, padded) = (weights.len() / R, acc.len() / R);
    for eight in (0..padded).step_by(8) {
        // Where these elements begin in the tiles of their ring.
        let (step, mut at) = (padded * TILE_ROWS, eight * TILE_ROWS);
        // SAFETY: there is a tile of each ring for every four weights.
        unsafe {
            // Pairs of elements: twice 4 times 4 sums of two products each.
            let mut sums = [[_mm256_setzero_si256(); 2]; R];
            for group in (0..n).step_by(TILE_ROWS) {
                let part = |i: usize| _mm_loadu_si128(tiles.as_ptr().add(at + 16 * i).cast());
                let x = [_mm256_cvtepi8_epi16(part(0)), _mm256_cvtepi8_epi16(part(1))];
                for (r, sums) in sums.iter_mut().enumerate() {
                    let w = weights.as_ptr().add(r * n + group).cast::<i64>().read_unaligned();
                    let w = _mm256_set1_epi64x(w);
                    for (x, sum) in x.into_iter().zip(sums) {
                        *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(x, w));
                    }
                }
                at += step;
            }
            for (r, [a, b]) in sums.into_iter().enumerate() {
                // Elements 0, 1, 4, 5, 2, 3, 6, 7 by pairs.
                let sum = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_hadd_epi32(a, b));
                let add = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(scale[r]));
                let acc = acc[r * padded + eight..].as_mut_ptr();
                _mm256_storeu_ps(acc, _mm256_add_ps(_mm256_loadu_ps(acc), add));
            }
        }
    }
}

/// As [`super::halves`], of whole eights; returns how many are done.
///
/// # Safety
/// There are two bytes an element.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn halves(bytes: &[u8], factor: f32, out: &mut [f32]) -> usize {
    let eights = out.as_chunks_mut::<8>().0;
    for (x, out) in bytes.as_chunks::<16>().0.iter().zip(&mut *eights) {
        // SAFETY: eight halves, eight floats.
        unsafe {
            let x = _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast()));
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(x, _mm256_set1_ps(factor)));
        }
    }
    8 * eights.len()
}

/// As [`super::unpack_centre`], of whole eights behind whose bytes there is another; returns how many are
/// done.
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn unpack_centre(bytes: &[u8], factor: f32, out: &mut [f32]) -> usize {
    let whole = (out.len() / 8).min(bytes.len().saturating_sub(1) / 7);
    // Each code in a lane of 64 bits, in the order in which the lower halves are put together.
    let (first, second) = (_mm256_setr_epi64x(0, 7, 28, 35), _mm256_setr_epi64x(14, 21, 42, 49));
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().take(whole).enumerate() {
        // SAFETY: eight bytes, eight floats.
        unsafe {
            let word = bytes.as_ptr().add(7 * i).cast::<i64>().read_unaligned();
            let word = _mm256_set1_epi64x(i64::from_le(word));
            let [a, b] = [_mm256_srlv_epi64(word, first), _mm256_srlv_epi64(word, second)];
            let codes = _mm256_shuffle_ps::<0x88>(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
            let codes = _mm256_and_si256(_mm256_castps_si256(codes), _mm256_set1_epi32(127));
            let codes = _mm256_cvtepi32_ps(_mm256_sub_epi32(codes, _mm256_set1_epi32(63)));
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(codes, _mm256_set1_ps(factor)));
        }
    }
    8 * whole
}
