//! Rows of affine codes with AVX-512: products of bytes, two for each of a query's or a weight's
//! integers. A unit of a row is a register, whatever its bits.
#![allow(clippy::needless_range_loop, reason = "registers are named by row and number")]

use super::{
    Codes, Order, RING, TILE_ROWS,
    affine::{Affine, AffineQueries, AffineScales, AffineWeights, UNIT, sum_lanes},
};
use std::arch::x86_64::*;

/// Query rows that are multiplied with what was loaded once.
const ROWS: usize = 2;
/// Rows of codes whose products become one register.
const KEYS: usize = 16;

/// Rows of codes, and those that are read next.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) shape: Affine,
    pub(super) rows: *const u8,
    pub(super) next: *const u8,
    /// Bytes of a row.
    pub(super) bytes: usize,
}

impl Source {
    pub(super) fn new(shape: Affine, rows: Codes<'_>) -> Self {
        Self { shape, rows: rows.here.as_ptr(), next: rows.next(), bytes: shape.row_bytes() }
    }

    /// A unit of four rows from `row` on, in the order of [`Affine::element`]; what is beyond the row
    /// is 0, or was not there to be multiplied.
    ///
    /// # Safety
    /// There are such rows, and the caller is compiled for AVX-512 BW.
    #[inline(always)]
    unsafe fn units<const NIBBLES: bool>(self, row: usize, unit: usize) -> [__m512i; TILE_ROWS] {
        // SAFETY: the mask keeps loads inside the row's codes.
        unsafe {
            let width = self.shape.unit();
            let elements = (self.shape.d - unit * width).min(width);
            let mut units = [_mm512_setzero_si512(); TILE_ROWS];
            for (r, x) in units.iter_mut().enumerate() {
                let at = (row + r) * self.bytes + unit * width * self.shape.bits / 8;
                _mm_prefetch::<_MM_HINT_T1>(self.next.wrapping_add(at).cast());
                let from = self.rows.add(at);
                *x = if NIBBLES {
                    let mask = u32::MAX >> (UNIT / 2 - elements.div_ceil(2));
                    let pairs = _mm256_maskz_loadu_epi8(mask, from.cast());
                    let high = _mm256_srli_epi16::<4>(pairs);
                    let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(pairs), high);
                    _mm512_and_si512(both, _mm512_set1_epi8(15))
                } else {
                    _mm512_maskz_loadu_epi8(u64::MAX >> (UNIT - elements), from.cast())
                };
            }
            units
        }
    }
}

/// Turns four registers of four blocks of 16 bytes about: block `i` of register `j` becomes block `j` of
/// register `i`.
#[inline(always)]
unsafe fn turn([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the caller is compiled for AVX-512.
    unsafe {
        let (ab, cd) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0x44>(c, d));
        let (ef, gh) = (_mm512_shuffle_i32x4::<0xee>(a, b), _mm512_shuffle_i32x4::<0xee>(c, d));
        [
            _mm512_shuffle_i32x4::<0x88>(ab, cd),
            _mm512_shuffle_i32x4::<0xdd>(ab, cd),
            _mm512_shuffle_i32x4::<0x88>(ef, gh),
            _mm512_shuffle_i32x4::<0xdd>(ef, gh),
        ]
    }
}

/// A ring, for each of four rows.
#[inline(always)]
unsafe fn four_times(x: &[i8]) -> __m512i {
    // SAFETY: the caller has 16 bytes there, and is compiled for AVX-512.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(x.as_ptr().cast())) }
}

/// Bytes of four rows, for every element.
#[inline(always)]
unsafe fn four(x: &[u8]) -> __m512i {
    // SAFETY: the caller has four bytes there, and is compiled for AVX-512.
    unsafe { _mm512_set1_epi32(x.as_ptr().cast::<i32>().read_unaligned()) }
}

/// As [`Affine::dots`].
///
/// # Safety
/// The lengths are those that it checks.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn dots(
    shape: Affine,
    q: &AffineQueries,
    rows: Codes<'_>,
    scales: &AffineScales,
    out: &mut [f32],
) {
    let source = Source::new(shape, rows);
    let mut row = 0;
    while row < q.rows() {
        // SAFETY: the caller promises that the lengths are those that it checks.
        unsafe {
            match (shape.bits, q.rows() - row) {
                (8, 1) => dots_of::<false, 1>(source, q, row, scales, out),
                (8, _) => dots_of::<false, ROWS>(source, q, row, scales, out),
                (_, 1) => dots_of::<true, 1>(source, q, row, scales, out),
                (_, _) => dots_of::<true, ROWS>(source, q, row, scales, out),
            }
        }
        row += ROWS;
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
    let (n, units) = (scales.n, source.shape.units());
    // SAFETY: inside the lengths that the caller has checked.
    unsafe {
        for first in (0..n).step_by(KEYS) {
            let mask = u16::MAX >> (KEYS - (n - first).min(KEYS));
            let mut totals = [_mm512_setzero_ps(); R];
            for unit in 0..units {
                let products = unit_of_dots::<NIBBLES, R>(source, q, row, (first, n), unit);
                let at = source.shape.group_of(unit) * n + first;
                let scale = _mm512_maskz_loadu_ps(mask, scales.scale.as_ptr().add(at));
                let bias = _mm512_maskz_loadu_ps(mask, scales.bias.as_ptr().add(at));
                for r in 0..R {
                    let sum = _mm512_set1_ps(q.sums[(row + r) * units + unit]);
                    let x = _mm512_mul_ps(_mm512_cvtepi32_ps(products[r]), scale);
                    let x = _mm512_add_ps(x, _mm512_mul_ps(sum, bias));
                    totals[r] = _mm512_add_ps(totals[r], x);
                }
            }
            for r in 0..R {
                let x = _mm512_mul_ps(totals[r], _mm512_set1_ps(q.scales[row + r]));
                _mm512_mask_storeu_ps(out.as_mut_ptr().add((row + r) * n + first), mask, x);
            }
        }
    }
}

/// One unit's products of integers with up to 16 rows of codes.
#[inline(always)]
unsafe fn unit_of_dots<const NIBBLES: bool, const R: usize>(
    source: Source,
    q: &AffineQueries,
    row: usize,
    (first, n): (usize, usize),
    unit: usize,
) -> [__m512i; R] {
    let units = source.shape.units();
    // SAFETY: the caller has checked the lengths, and is compiled for AVX-512 VNNI.
    unsafe {
        let mut queries = [[[_mm512_setzero_si512(); 2]; 4]; R];
        for r in 0..R {
            for ring in 0..4 {
                let at = ((row + r) * units + unit) * UNIT + ring * RING;
                queries[r][ring] = [four_times(&q.high[at..]), four_times(&q.low[at..])];
            }
        }
        let mut sums = [[_mm512_setzero_si512(); 4]; R];
        for tile in 0..((n - first) / TILE_ROWS).min(4) {
            let x = turn(source.units::<NIBBLES>(first + tile * TILE_ROWS, unit));
            for r in 0..R {
                let (mut high, mut low) = (_mm512_setzero_si512(), _mm512_setzero_si512());
                for ring in 0..4 {
                    high = _mm512_dpbusd_epi32(high, x[ring], queries[r][ring][0]);
                    low = _mm512_dpbusd_epi32(low, x[ring], queries[r][ring][1]);
                }
                sums[r][tile] = _mm512_add_epi32(_mm512_slli_epi32::<7>(high), low);
            }
        }
        // Lane 4 r + g of the transposed sums is row r of tile g.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let mut products = [_mm512_setzero_si512(); R];
        for r in 0..R {
            let [a, b, c, d] = sums[r];
            let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            let low = _mm512_unpacklo_epi64(ab, cd);
            let sum = _mm512_add_epi32(low, _mm512_unpackhi_epi64(ab, cd));
            products[r] = _mm512_permutexvar_epi32(order, sum);
        }
        products
    }
}

/// As [`Affine::add_weighted`].
///
/// # Safety
/// The lengths are those that it checks.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn add_weighted(
    shape: Affine,
    weights: &AffineWeights,
    rows: Codes<'_>,
    scales: &AffineScales,
    acc: &mut [f32],
) {
    let source = Source::new(shape, rows);
    let m = acc.len() / shape.d;
    let mut row = 0;
    while row < m {
        for unit in 0..shape.units() {
            // SAFETY: the caller promises that the lengths are those that it checks.
            unsafe {
                match (shape.bits, m - row) {
                    (8, 1) => add_of::<false, 1>(source, weights, row, scales, unit, acc),
                    (8, _) => add_of::<false, ROWS>(source, weights, row, scales, unit, acc),
                    (_, 1) => add_of::<true, 1>(source, weights, row, scales, unit, acc),
                    (_, _) => add_of::<true, ROWS>(source, weights, row, scales, unit, acc),
                }
            }
        }
        row += ROWS;
    }
}

/// Sums of a unit of columns under `R` rows of weights from `row` on.
#[inline(always)]
unsafe fn add_of<const NIBBLES: bool, const R: usize>(
    source: Source,
    weights: &AffineWeights,
    row: usize,
    scales: &AffineScales,
    unit: usize,
    acc: &mut [f32],
) {
    let (shape, n) = (source.shape, scales.n);
    let group = shape.group_of(unit);
    // SAFETY: inside the lengths that the caller has checked.
    unsafe {
        // Of the high and of the low bytes.
        let mut sums = [[[_mm512_setzero_si512(); 4]; 2]; R];
        for first in (0..n).step_by(TILE_ROWS) {
            let [a, b, c, d] = source.units::<NIBBLES>(first, unit);
            // Dword m of block l of register k: element 16 l + 4 k + m of the four rows.
            let (ab, cd) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
            let (ef, gh) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
            let flip = four(&scales.flip[group * n + first..]);
            let x = [
                _mm512_xor_si512(_mm512_unpacklo_epi16(ab, cd), flip),
                _mm512_xor_si512(_mm512_unpackhi_epi16(ab, cd), flip),
                _mm512_xor_si512(_mm512_unpacklo_epi16(ef, gh), flip),
                _mm512_xor_si512(_mm512_unpackhi_epi16(ef, gh), flip),
            ];
            for r in 0..R {
                let at = ((row + r) * shape.groups() + group) * n + first;
                let high = four(&weights.high[at..]);
                let low = four(&weights.low[at..]);
                for k in 0..4 {
                    sums[r][0][k] = _mm512_dpbusd_epi32(sums[r][0][k], high, x[k]);
                    sums[r][1][k] = _mm512_dpbusd_epi32(sums[r][1][k], low, x[k]);
                }
            }
        }
        let elements = (shape.d - unit * shape.unit()).min(shape.unit());
        for r in 0..R {
            let at = (row + r) * shape.groups() + group;
            let (scale, bias) =
                (_mm512_set1_ps(weights.scale[at]), _mm512_set1_ps(weights.bias[at]));
            let [high, low] = sums[r];
            let mut whole = [_mm512_setzero_si512(); 4];
            for k in 0..4 {
                whole[k] = _mm512_add_epi32(_mm512_slli_epi32::<8>(high[k]), low[k]);
            }
            let mut found = [0.0f32; UNIT];
            for (l, x) in turn(whole).into_iter().enumerate() {
                let x = _mm512_mul_ps(_mm512_cvtepi32_ps(x), scale);
                _mm512_storeu_ps(found.as_mut_ptr().add(l * 16), _mm512_add_ps(x, bias));
            }
            let acc = &mut acc[(row + r) * shape.d + unit * shape.unit()..][..elements];
            if NIBBLES {
                let (even, odd) = found.split_at(UNIT / 2);
                for (e, acc) in acc.iter_mut().enumerate() {
                    *acc += if e % 2 == 0 { even[e / 2] } else { odd[e / 2] };
                }
            } else {
                for (acc, x) in acc.iter_mut().zip(found) {
                    *acc += x;
                }
            }
        }
    }
}

/// As [`AffineScales::set`].
///
/// # Safety
/// The vectors have room for the scales of `rows`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn scales(rows: &[u8], shape: Affine, order: Order, out: &mut AffineScales) {
    let (n, bytes) = (out.n, shape.row_bytes());
    let [plus, minus] = shape.flips();
    // SAFETY: reads four bytes of each row that the mask names; the vectors of `out` have room for
    // the scales of all rows.
    unsafe {
        let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let apart = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(bytes as i32));
        for first in (0..n).step_by(KEYS) {
            let mask = u16::MAX >> (KEYS - (n - first).min(KEYS));
            for group in 0..shape.groups() {
                let from = rows.as_ptr().add(first * bytes + shape.code_bytes() + 4 * group);
                let none = _mm512_setzero_si512();
                let pairs = _mm512_mask_i32gather_epi32::<1>(none, mask, apart, from.cast());
                let mut scale = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
                let bias = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pairs));
                let mut bias = _mm512_cvtph_ps(bias);
                let at = group * n + first;
                if order == Order::Elements {
                    let negative = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(scale, _mm512_setzero_ps());
                    let (a, b) = (_mm512_set1_ps(plus.1), _mm512_set1_ps(minus.1));
                    let lacks = _mm512_mask_blend_ps(negative, a, b);
                    bias = _mm512_add_ps(bias, _mm512_mul_ps(scale, lacks));
                    scale = _mm512_abs_ps(scale);
                    let (a, b) = (_mm_set1_epi8(plus.0 as i8), _mm_set1_epi8(minus.0 as i8));
                    let flip = _mm_mask_blend_epi8(negative, a, b);
                    _mm_mask_storeu_epi8(out.flip.as_mut_ptr().add(at).cast(), mask, flip);
                }
                _mm512_mask_storeu_ps(out.scale.as_mut_ptr().add(at), mask, scale);
                _mm512_mask_storeu_ps(out.bias.as_mut_ptr().add(at), mask, bias);
            }
        }
    }
}

/// As the portable `weigh_body`.
///
/// # Safety
/// All slices have the length of `p`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn weigh(
    p: &[f32],
    (scale, bias): (&[f32], &[f32]),
    largest: f32,
    high: &mut [u8],
    low: &mut [u8],
) -> (f32, f32) {
    let n = p.len();
    // SAFETY: all slices have `n` elements; masks keep the last loads and stores inside.
    unsafe {
        let (mut most, mut sum) = (_mm512_setzero_ps(), _mm512_setzero_ps());
        for first in (0..n).step_by(KEYS) {
            let mask = u16::MAX >> (KEYS - (n - first).min(KEYS));
            let x = _mm512_maskz_loadu_ps(mask, p.as_ptr().add(first));
            // What has no weight may be anything.
            let mask = _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(mask, x, _mm512_setzero_ps());
            let scale = _mm512_maskz_loadu_ps(mask, scale.as_ptr().add(first));
            let bias = _mm512_maskz_loadu_ps(mask, bias.as_ptr().add(first));
            most = _mm512_max_ps(_mm512_mul_ps(x, scale), most);
            sum = _mm512_add_ps(sum, _mm512_mul_ps(x, bias));
        }
        let most = _mm512_reduce_max_ps(most);
        let inverse = _mm512_set1_ps(if most > 0.0 { largest / most } else { 0.0 });
        for first in (0..n).step_by(KEYS) {
            let mask = u16::MAX >> (KEYS - (n - first).min(KEYS));
            let x = _mm512_maskz_loadu_ps(mask, p.as_ptr().add(first));
            let scale = _mm512_maskz_loadu_ps(mask, scale.as_ptr().add(first));
            let w = _mm512_mul_ps(_mm512_mul_ps(x, scale), inverse);
            let int = _mm512_cvtps_epi32(w);
            let bytes = _mm512_cvtepi32_epi8(_mm512_srli_epi32::<8>(int));
            _mm_mask_storeu_epi8(high.as_mut_ptr().add(first).cast(), mask, bytes);
            let bytes = _mm512_cvtepi32_epi8(int);
            _mm_mask_storeu_epi8(low.as_mut_ptr().add(first).cast(), mask, bytes);
        }
        let mut sums = [0.0; 16];
        _mm512_storeu_ps(sums.as_mut_ptr(), sum);
        (most / largest, sum_lanes(sums))
    }
}
