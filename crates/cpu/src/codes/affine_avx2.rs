//! Rows of affine codes with AVX2: products of 16-bit integers. Integers are those of the portable
//! code, and so is the rounding.
#![allow(clippy::needless_range_loop, reason = "registers are named by row and number")]

use super::{
    Codes, Order, RING, TILE_ROWS,
    affine::{Affine, AffineQueries, AffineScales, AffineWeights, sum_lanes},
    affine_vbmi::Source,
};
use std::{arch::x86_64::*, array::from_fn};

/// Query rows that are multiplied with what was widened once.
const QUERIES: usize = 2;
/// Rows of weights that are multiplied with what was widened once.
const WEIGHTS: usize = 4;

impl Source {
    /// A ring of a row.
    ///
    /// # Safety
    /// There is one, and the caller is compiled for AVX2.
    #[inline(always)]
    unsafe fn ring<const NIBBLES: bool>(self, row: usize, element: usize) -> __m128i {
        // SAFETY: the caller promises that there is one, and the caller is compiled for AVX2.
        unsafe {
            let row = self.rows.add(row * self.bytes);
            if !NIBBLES {
                return _mm_loadu_si128(row.add(element).cast());
            }
            let pairs = _mm_loadl_epi64(row.add(element / 2).cast());
            let low = _mm_set1_epi8(15);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(pairs), low);
            _mm_unpacklo_epi8(_mm_and_si128(pairs, low), high)
        }
    }

    /// Prefetches the bytes of a unit of the corresponding row of what is read next.
    #[inline(always)]
    fn ahead(self, row: usize, element: usize) {
        let at = row * self.bytes + element * self.shape.bits / 8;
        // SAFETY: a hint reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(self.next.wrapping_add(at).cast()) };
    }

    /// Where the rings of a unit begin.
    #[inline(always)]
    fn rings(self, unit: usize) -> impl Iterator<Item = usize> {
        let first = unit * self.shape.unit();
        (first..(first + self.shape.unit()).min(self.shape.d)).step_by(RING)
    }
}

/// As [`Affine::dots`].
///
/// # Safety
/// The lengths are those that it checks, and rows are whole rings.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dots(
    shape: Affine,
    q: &AffineQueries,
    rows: Codes<'_>,
    scales: &AffineScales,
    out: &mut [f32],
) {
    let source = Source::new(shape, rows);
    for row in (0..q.rows()).step_by(QUERIES) {
        // SAFETY: the caller promises that the lengths are those that it checks, and rows are whole
        // rings.
        unsafe {
            match (shape.bits, q.rows() - row) {
                (8, 1) => dots_of::<false, 1>(source, q, row, scales, out),
                (8, _) => dots_of::<false, QUERIES>(source, q, row, scales, out),
                (_, 1) => dots_of::<true, 1>(source, q, row, scales, out),
                (_, _) => dots_of::<true, QUERIES>(source, q, row, scales, out),
            }
        }
    }
}

/// The products of `R` query rows from `row` on.
#[inline(always)]
unsafe fn dots_of<const NIBBLES: bool, const R: usize>(
    source: Source,
    q: &AffineQueries,
    row: usize,
    scales: &AffineScales,
    out: &mut [f32],
) {
    let (n, units, d) = (scales.n, source.shape.units(), source.shape.d);
    // SAFETY: inside the lengths that the caller has checked.
    unsafe {
        for first in (0..n).step_by(TILE_ROWS) {
            let mut totals = [_mm_setzero_ps(); R];
            for unit in 0..units {
                let mut sums = [[_mm256_setzero_si256(); TILE_ROWS]; R];
                for r in 0..TILE_ROWS {
                    source.ahead(first + r, unit * source.shape.unit());
                }
                for at in source.rings(unit) {
                    let query = |r| q.ints.as_ptr().add((row + r) * d + at);
                    let queries: [_; R] = from_fn(|r| _mm256_loadu_si256(query(r).cast()));
                    for key in 0..TILE_ROWS {
                        let x = _mm256_cvtepu8_epi16(source.ring::<NIBBLES>(first + key, at));
                        for r in 0..R {
                            let products = _mm256_madd_epi16(x, queries[r]);
                            sums[r][key] = _mm256_add_epi32(sums[r][key], products);
                        }
                    }
                }
                let at = source.shape.group_of(unit) * n + first;
                let scale = _mm_loadu_ps(scales.scale.as_ptr().add(at));
                let bias = _mm_loadu_ps(scales.bias.as_ptr().add(at));
                for r in 0..R {
                    let sum = _mm_set1_ps(q.sums[(row + r) * units + unit]);
                    let x = _mm_mul_ps(_mm_cvtepi32_ps(four_sums(sums[r])), scale);
                    let x = _mm_add_ps(x, _mm_mul_ps(sum, bias));
                    totals[r] = _mm_add_ps(totals[r], x);
                }
            }
            for r in 0..R {
                let x = _mm_mul_ps(totals[r], _mm_set1_ps(q.scales[row + r]));
                _mm_storeu_ps(out.as_mut_ptr().add((row + r) * n + first), x);
            }
        }
    }
}

/// The sum of each of four registers.
#[inline(always)]
unsafe fn four_sums([a, b, c, d]: [__m256i; 4]) -> __m128i {
    // SAFETY: the caller is compiled for AVX2.
    unsafe {
        let ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        let sums = _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
        _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums))
    }
}

/// As [`Affine::add_weighted`].
///
/// # Safety
/// The lengths are those that it checks, and rows are whole rings.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn add_weighted(
    shape: Affine,
    weights: &AffineWeights,
    rows: Codes<'_>,
    scales: &AffineScales,
    acc: &mut [f32],
) {
    let source = Source::new(shape, rows);
    let m = acc.len() / shape.d;
    for row in (0..m).step_by(WEIGHTS) {
        // SAFETY: the caller promises that the lengths are those that it checks, and rows are whole
        // rings.
        unsafe {
            macro_rules! add {
                ($m:expr) => {
                    match shape.bits {
                        8 => add_of::<false, $m>(source, weights, row, scales, acc),
                        _ => add_of::<true, $m>(source, weights, row, scales, acc),
                    }
                };
            }
            match m - row {
                1 => add!(1),
                2 => add!(2),
                3 => add!(3),
                _ => add!(WEIGHTS),
            }
        }
    }
}

/// Sums of the columns under `R` rows of weights from `row` on.
#[inline(always)]
unsafe fn add_of<const NIBBLES: bool, const R: usize>(
    source: Source,
    weights: &AffineWeights,
    row: usize,
    scales: &AffineScales,
    acc: &mut [f32],
) {
    let (shape, n) = (source.shape, scales.n);
    // SAFETY: inside the lengths that the caller has checked.
    unsafe {
        for unit in 0..shape.units() {
            let group = shape.group_of(unit);
            let flips = scales.flip.as_ptr().add(group * n);
            let ints: [_; R] =
                from_fn(|r| weights.ints.as_ptr().add(((row + r) * shape.groups() + group) * n));
            for j in 0..n {
                source.ahead(j, unit * shape.unit());
            }
            for at in source.rings(unit) {
                // Elements 0..8 and 8..16.
                let mut sums = [[_mm256_setzero_si256(); 2]; R];
                for j in (0..n).step_by(2) {
                    let a = source.ring::<NIBBLES>(j, at);
                    let b = source.ring::<NIBBLES>(j + 1, at);
                    let flip = _mm_set1_epi16(flips.add(j).cast::<i16>().read_unaligned());
                    let low = _mm_xor_si128(_mm_unpacklo_epi8(a, b), flip);
                    let high = _mm_xor_si128(_mm_unpackhi_epi8(a, b), flip);
                    let x = [_mm256_cvtepi8_epi16(low), _mm256_cvtepi8_epi16(high)];
                    for r in 0..R {
                        let pair = ints[r].add(j).cast::<i32>().read_unaligned();
                        let pair = _mm256_set1_epi32(pair);
                        for half in 0..2 {
                            let products = _mm256_madd_epi16(x[half], pair);
                            sums[r][half] = _mm256_add_epi32(sums[r][half], products);
                        }
                    }
                }
                for r in 0..R {
                    let of = (row + r) * shape.groups() + group;
                    let scale = _mm256_set1_ps(weights.scale[of]);
                    let bias = _mm256_set1_ps(weights.bias[of]);
                    for half in 0..2 {
                        let x = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[r][half]), scale);
                        let to = acc.as_mut_ptr().add((row + r) * shape.d + at + half * 8);
                        let sum = _mm256_add_ps(_mm256_loadu_ps(to), _mm256_add_ps(x, bias));
                        _mm256_storeu_ps(to, sum);
                    }
                }
            }
        }
    }
}

/// As [`AffineScales::set`].
///
/// # Safety
/// The vectors have room for the scales of `rows`, which are whole tiles.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn scales(rows: &[u8], shape: Affine, order: Order, out: &mut AffineScales) {
    let (n, bytes) = (out.n, shape.row_bytes());
    let [plus, minus] = shape.flips();
    let apart = _mm_mullo_epi32(_mm_setr_epi32(0, 1, 2, 3), _mm_set1_epi32(bytes as i32));
    // Scales first, then biases.
    let order_of = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    for first in (0..n).step_by(TILE_ROWS) {
        for group in 0..shape.groups() {
            // SAFETY: reads four bytes of each of four rows, which are whole tiles; the vectors of
            // `out` have room for the scales of all rows.
            unsafe {
                let from = rows.as_ptr().add(first * bytes + shape.code_bytes() + 4 * group);
                let pairs = _mm_i32gather_epi32::<1>(from.cast(), apart);
                let both = _mm256_cvtph_ps(_mm_shuffle_epi8(pairs, order_of));
                let mut scale = _mm256_castps256_ps128(both);
                let mut bias = _mm256_extractf128_ps::<1>(both);
                let at = group * n + first;
                if order == Order::Elements {
                    let negative = _mm_cmplt_ps(scale, _mm_setzero_ps());
                    let lacks = _mm_blendv_ps(_mm_set1_ps(plus.1), _mm_set1_ps(minus.1), negative);
                    bias = _mm_add_ps(bias, _mm_mul_ps(scale, lacks));
                    scale = _mm_andnot_ps(_mm_set1_ps(-0.0), scale);
                    let bits = _mm_movemask_ps(negative);
                    let flip = |r: usize| if bits >> r & 1 == 0 { plus.0 } else { minus.0 };
                    out.flip[at..at + TILE_ROWS].copy_from_slice(&from_fn::<_, TILE_ROWS, _>(flip));
                }
                _mm_storeu_ps(out.scale.as_mut_ptr().add(at), scale);
                _mm_storeu_ps(out.bias.as_mut_ptr().add(at), bias);
            }
        }
    }
}

/// As the portable `weigh_body`.
///
/// # Safety
/// All slices have the length of `p`, a multiple of four.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn weigh(
    p: &[f32],
    (scale, bias): (&[f32], &[f32]),
    largest: f32,
    ints: &mut [i16],
) -> (f32, f32) {
    let n = p.len();
    // SAFETY: all slices have `n` elements, a multiple of four; the last four are loaded and stored
    // as four, not eight.
    unsafe {
        let load = |x: &[f32], first: usize| {
            if n - first < 8 {
                return _mm256_zextps128_ps256(_mm_loadu_ps(x.as_ptr().add(first)));
            }
            _mm256_loadu_ps(x.as_ptr().add(first))
        };
        let (mut most, mut sums) = (_mm256_setzero_ps(), [_mm256_setzero_ps(); 2]);
        for first in (0..n).step_by(8) {
            let p = load(p, first);
            // What has no weight may be anything.
            let some = _mm256_cmp_ps::<_CMP_GT_OQ>(p, _mm256_setzero_ps());
            let w = _mm256_and_ps(_mm256_mul_ps(p, load(scale, first)), some);
            let b = _mm256_and_ps(_mm256_mul_ps(p, load(bias, first)), some);
            most = _mm256_max_ps(w, most);
            let sum = &mut sums[first / 8 % 2];
            *sum = _mm256_add_ps(*sum, b);
        }
        let mut lanes = [0.0; 16];
        _mm256_storeu_ps(lanes.as_mut_ptr(), most);
        let most = lanes[..8].iter().fold(0.0, |most, &w| if w > most { w } else { most });
        let inverse = _mm256_set1_ps(if most > 0.0 { largest / most } else { 0.0 });
        for first in (0..n).step_by(8) {
            let p = load(p, first);
            let some = _mm256_cmp_ps::<_CMP_GT_OQ>(p, _mm256_setzero_ps());
            let w = _mm256_and_ps(_mm256_mul_ps(p, load(scale, first)), some);
            let int = _mm256_cvtps_epi32(_mm256_mul_ps(w, inverse));
            let high = _mm256_extracti128_si256::<1>(int);
            let int = _mm_packs_epi32(_mm256_castsi256_si128(int), high);
            let to = ints.as_mut_ptr().add(first);
            if n - first < 8 {
                _mm_storel_epi64(to.cast(), int);
            } else {
                _mm_storeu_si128(to.cast(), int);
            }
        }
        for (lanes, sum) in lanes.as_chunks_mut::<8>().0.iter_mut().zip(sums) {
            _mm256_storeu_ps(lanes.as_mut_ptr(), sum);
        }
        (most / largest, sum_lanes(lanes))
    }
}
