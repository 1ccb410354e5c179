//! Scales, centres and rotations of rows with AVX-512.

use super::{RING, TILE};
use std::{arch::x86_64::*, ops::RangeInclusive};

/// Halves times `factor`: whole vectors of 16. Returns how many it did.
///
/// # Safety
/// `bytes` holds a half for each element of `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn halves(bytes: &[u8], factor: f32, out: &mut [f32]) -> usize {
    let whole = out.len() / 16;
    // SAFETY: the caller promises that `bytes` holds a half for each element of `out`.
    unsafe {
        let factor = _mm512_set1_ps(factor);
        for i in 0..whole {
            let x = _mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().add(32 * i).cast()));
            _mm512_storeu_ps(out.as_mut_ptr().add(16 * i), _mm512_mul_ps(x, factor));
        }
    }
    whole * 16
}

/// How seven-bit codes about 63 become floats, 64 at a time.
struct Centre {
    gather: __m512i,
    shift: __m512i,
    factor: __m512,
}

impl Centre {
    const BYTES: usize = 56;

    /// # Safety
    /// The caller is compiled for the level.
    #[inline(always)]
    unsafe fn new(factor: f32) -> Self {
        let gather: [u8; 64] = std::array::from_fn(|i| (i / 8 * 7 + (i % 8).min(6)) as u8);
        let shift: [u8; 64] = std::array::from_fn(|i| (i % 8 * 7) as u8);
        // SAFETY: both arrays have the 64 bytes of a vector, and the caller is compiled for the
        // level.
        unsafe {
            let load = |x: &[u8; 64]| _mm512_loadu_si512(x.as_ptr().cast());
            Self { gather: load(&gather), shift: load(&shift), factor: _mm512_set1_ps(factor) }
        }
    }

    /// # Safety
    /// `bytes` has 56 bytes, and the caller is compiled for the level.
    #[inline(always)]
    unsafe fn part(&self, bytes: *const u8) -> [__m512; 4] {
        // SAFETY: `bytes` has 56 bytes, to which the mask keeps the load; the caller is compiled
        // for the level.
        unsafe {
            let x = _mm512_maskz_loadu_epi8((1 << Self::BYTES) - 1, bytes.cast());
            let words = _mm512_permutexvar_epi8(self.gather, x);
            let codes = _mm512_multishift_epi64_epi8(self.shift, words);
            let codes = _mm512_and_si512(codes, _mm512_set1_epi8(127));
            let codes = _mm512_sub_epi8(codes, _mm512_set1_epi8(63));
            [
                self.floats(_mm512_extracti32x4_epi32::<0>(codes)),
                self.floats(_mm512_extracti32x4_epi32::<1>(codes)),
                self.floats(_mm512_extracti32x4_epi32::<2>(codes)),
                self.floats(_mm512_extracti32x4_epi32::<3>(codes)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn floats(&self, codes: __m128i) -> __m512 {
        // SAFETY: the caller is compiled for the level.
        unsafe { _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)), self.factor) }
    }
}

/// Seven-bit codes about 63, times `factor`: whole vectors of 64. Returns how many it did.
///
/// # Safety
/// `bytes` holds seven bits for each element of `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn unpack_centre(bytes: &[u8], factor: f32, out: &mut [f32]) -> usize {
    let whole = out.len() / TILE;
    // SAFETY: the caller promises that `bytes` holds seven bits for each element of `out`.
    unsafe {
        let centre = Centre::new(factor);
        for i in 0..whole {
            let parts = centre.part(bytes.as_ptr().add(i * Centre::BYTES));
            for (j, x) in parts.into_iter().enumerate() {
                _mm512_storeu_ps(out.as_mut_ptr().add(i * TILE + j * 16), x);
            }
        }
    }
    whole * TILE
}

/// As [`super::centre_dots`], with the additions in the order of [`super::dot_rows`].
///
/// # Safety
/// `q` has a row of `d` elements, a multiple of 64, for each offset, and `bytes` seven bits an element.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn centre_dots(
    bytes: &[u8],
    factor: f32,
    q: &[f32],
    d: usize,
    offsets: &mut [f32],
) {
    // SAFETY: the caller promises that `q` has a row of `d` elements, a multiple of 64, for each
    // offset, and `bytes` seven bits an element.
    unsafe {
        let centre = Centre::new(factor);
        let (fours, rest) = offsets.as_chunks_mut::<4>();
        let (twos, ones) = rest.as_chunks_mut::<2>();
        let mut q = q.as_ptr();
        for out in fours {
            *out = centre_block::<4>(&centre, bytes, q, d);
            q = q.add(4 * d);
        }
        for out in twos {
            *out = centre_block::<2>(&centre, bytes, q, d);
            q = q.add(2 * d);
        }
        for out in ones {
            [*out] = centre_block::<1>(&centre, bytes, q, d);
        }
    }
}

/// The products of `R` rows.
///
/// # Safety
/// As [`centre_dots`].
#[inline(always)]
unsafe fn centre_block<const R: usize>(
    centre: &Centre,
    bytes: &[u8],
    q: *const f32,
    d: usize,
) -> [f32; R] {
    // SAFETY: the caller keeps the contract of [`centre_dots`].
    unsafe {
        let mut sums = [_mm512_setzero_ps(); R];
        for i in 0..d / TILE {
            let parts = centre.part(bytes.as_ptr().add(i * Centre::BYTES));
            for (j, &x) in parts.iter().enumerate() {
                for (r, sum) in sums.iter_mut().enumerate() {
                    let q = _mm512_loadu_ps(q.add(r * d + i * TILE + j * 16));
                    *sum = _mm512_fmadd_ps(q, x, *sum);
                }
            }
        }
        let mut out = [0.0; R];
        if R == 4 {
            // As four times the other, with both last additions of all at once.
            let (a, b) = (quarter_sum(sums[0]), quarter_sum(sums[1 % R]));
            let (c, d) = (quarter_sum(sums[2 % R]), quarter_sum(sums[3 % R]));
            let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
            let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
            let sums = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            return out;
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = _mm512_reduce_add_ps(sum);
        }
        out
    }
}

/// As [`super::powers`], with the roots of an octave and all steps: whole vectors of 16. Returns how many
/// it did.
///
/// # Safety
/// There is a code for each element of `out`, and 32 roots.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn powers(
    codes: &[u8],
    roots: &[f32],
    (base, steps): (i32, RangeInclusive<i32>),
    factor: f32,
    out: &mut [f32],
) -> usize {
    let whole = out.len() / 16;
    // SAFETY: the caller promises that there is a code for each element of `out`, and 32 roots.
    unsafe {
        // Steps are counted from the first, whose octave has exponent 1; a root has that of 1.
        let exponent = _mm512_set1_epi32(126 << 23);
        let low = _mm512_sub_epi32(_mm512_loadu_si512(roots.as_ptr().cast()), exponent);
        let high = _mm512_loadu_si512(roots.as_ptr().add(16).cast());
        let high = _mm512_sub_epi32(high, exponent);
        let (base, last) = (base - steps.start(), steps.end() - steps.start());
        let beyond = base < 0 || base + i32::from(u8::MAX) > last;
        let (base, most) = (_mm512_set1_epi32(base), _mm512_set1_epi32(last));
        let factor = _mm512_set1_ps(factor);
        for i in 0..whole {
            let code = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes.as_ptr().add(16 * i).cast()));
            let mut step = _mm512_add_epi32(base, code);
            if beyond {
                step = _mm512_min_epi32(_mm512_max_epi32(step, _mm512_setzero_si512()), most);
            }
            // 2731 / 65536 is 1 / 24 for the octaves of all steps.
            let octave = _mm512_srli_epi32::<16>(_mm512_madd_epi16(step, _mm512_set1_epi32(2731)));
            let step = _mm512_sub_epi32(step, _mm512_madd_epi16(octave, _mm512_set1_epi32(24)));
            let root = _mm512_permutex2var_epi32(low, step, high);
            let power = _mm512_add_epi32(root, _mm512_slli_epi32::<23>(octave));
            let some = _mm512_test_epi32_mask(code, code);
            let x = _mm512_maskz_mul_ps(some, _mm512_castsi512_ps(power), factor);
            _mm512_storeu_ps(out.as_mut_ptr().add(16 * i), x);
        }
    }
    whole * 16
}

/// # Safety
/// `x` is whole rows of `len`, a power of two from 16 on, and there are as many factors of either kind.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn sylvester(x: &mut [f32], len: usize, before: &[f32], after: &[f32]) {
    // SAFETY: `x` is whole rows of `len` elements, a multiple of 16, with as many factors; each arm
    // takes rows or parts of that many vectors.
    unsafe {
        match len / 16 {
            1 => in_registers::<1>(x, before, after),
            2 => in_registers::<2>(x, before, after),
            4 => in_registers::<4>(x, before, after),
            8 => in_registers::<8>(x, before, after),
            16 => in_registers::<16>(x, before, after),
            _ => {
                let (parts, befores) = (x.chunks_exact_mut(256), before.chunks_exact(256));
                for (x, before) in parts.zip(befores) {
                    in_registers::<16>(x, before, &[1.0; 256]);
                }
                super::scales::butterflies(x, 256, len);
                super::scales::multiply(x, after);
            }
        }
    }
}

/// The product of parts of `N` vectors.
///
/// # Safety
/// `x` is whole parts, `N` a power of two, there are as many factors, and the caller is compiled for AVX-512.
#[inline(always)]
unsafe fn in_registers<const N: usize>(x: &mut [f32], before: &[f32], after: &[f32]) {
    // SAFETY: whole vectors.
    unsafe {
        for (part, x) in x.chunks_exact_mut(16 * N).enumerate() {
            let before = before.as_ptr().add(part * 16 * N);
            let after = after.as_ptr().add(part * 16 * N);
            let mut v = [_mm512_setzero_ps(); N];
            for (i, v) in v.iter_mut().enumerate() {
                let x = _mm512_loadu_ps(x.as_ptr().add(16 * i));
                *v = in_lanes(_mm512_mul_ps(x, _mm512_loadu_ps(before.add(16 * i))));
            }
            let mut half = 1;
            while half < N {
                for i in 0..N {
                    if i & half == 0 {
                        let (a, b) = (v[i], v[i + half]);
                        v[i] = _mm512_add_ps(a, b);
                        v[i + half] = _mm512_sub_ps(a, b);
                    }
                }
                half *= 2;
            }
            for (i, v) in v.into_iter().enumerate() {
                let v = _mm512_mul_ps(v, _mm512_loadu_ps(after.add(16 * i)));
                _mm512_storeu_ps(x.as_mut_ptr().add(16 * i), v);
            }
        }
    }
}

/// The product of sixteen elements.
#[inline(always)]
unsafe fn in_lanes(v: __m512) -> __m512 {
    // SAFETY: the caller is compiled for AVX-512.
    unsafe {
        let v = mix::<0xaaaa>(v, _mm512_permute_ps::<0b10_11_00_01>(v));
        let v = mix::<0xcccc>(v, _mm512_permute_ps::<0b01_00_11_10>(v));
        let v = mix::<0xf0f0>(v, _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v));
        mix::<0xff00>(v, _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v))
    }
}

/// Adds partners; those lanes that are `NEGATIVE` are added to their partner's.
#[inline(always)]
unsafe fn mix<const NEGATIVE: __mmask16>(v: __m512, partner: __m512) -> __m512 {
    // SAFETY: the caller is compiled for AVX-512.
    unsafe {
        let one = _mm512_set1_ps(1.0);
        let sign = _mm512_mask_blend_ps(NEGATIVE, one, _mm512_set1_ps(-1.0));
        // One rounding, as products with a sign are exact.
        _mm512_fmadd_ps(v, sign, partner)
    }
}

/// Rounds a row's whole vectors, at most the codes of all; see [`super::scales::round_row`].
///
/// # Safety
/// `x` is whole vectors of 16, and there are as many codes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn round_row(x: &[f32], codes: &mut [i8]) -> (f32, i32) {
    // SAFETY: the caller promises that `x` is whole vectors of 16, and there are as many codes.
    unsafe {
        let at = |i: usize| x.as_ptr().add(i);
        let mut most = _mm512_setzero_ps();
        for i in (0..x.len()).step_by(16) {
            // The second operand stays where one is no number.
            most = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(at(i))), most);
        }
        let max = _mm512_reduce_max_ps(most);
        let (scale, inverse) = super::scales::int8_scale(max);
        let (mut sum, inverse) = (_mm512_setzero_si512(), _mm512_set1_ps(inverse));
        let round = _mm512_set1_ps(super::scales::ROUND);
        for i in (0..x.len()).step_by(16) {
            let code = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(at(i)), inverse), round);
            let code = _mm512_cvtepi32_epi8(_mm512_castps_si512(code));
            _mm_storeu_si128(codes.as_mut_ptr().add(i).cast(), code);
            sum = _mm512_add_epi32(sum, _mm512_cvtepi8_epi32(code));
        }
        (scale, _mm512_reduce_add_epi32(sum))
    }
}

/// Puts the even elements of each ring first.
///
/// # Safety
/// `codes` are whole rings, and `out` as many.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn by_parity(codes: &[i8], out: &mut [i8]) {
    // SAFETY: the caller promises that `codes` are whole rings, and `out` as many.
    unsafe {
        let order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        for (codes, out) in codes.chunks_exact(RING).zip(out.chunks_exact_mut(RING)) {
            let x = _mm_shuffle_epi8(_mm_loadu_si128(codes.as_ptr().cast()), order);
            _mm_storeu_si128(out.as_mut_ptr().cast(), x);
        }
    }
}

/// The sums of the lanes that are a multiple of four apart, halves first.
#[inline(always)]
unsafe fn quarter_sum(x: __m512) -> __m128 {
    // SAFETY: the caller is compiled for AVX-512.
    unsafe {
        let high = _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0b11_10_11_10>(x, x));
        let x = _mm256_add_ps(_mm512_castps512_ps256(x), high);
        _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x))
    }
}
