//! Rows of codes as floats.

#[cfg(target_arch = "x86_64")]
use crate::features::{Avx2, Avx512};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Codes that the vector kernels read at a time.
#[cfg(target_arch = "x86_64")]
const STEP: usize = 32;

/// `out[i] = table[code i] * scales[i / group]`: one rounding an element, whatever computes it.
///
/// # Shapes
/// A code for each of `out`, two a byte where `table` has 16 entries, and one where it has 256; a scale for each
/// group.
pub(super) fn row(codes: &[u8], table: &[f32], (scales, group): (&[f32], usize), out: &mut [f32]) {
    if let Ok(table) = <&[f32; 16]>::try_from(table) {
        return halves(codes, table, (scales, group), out);
    }
    for ((out, codes), scale) in out.chunks_mut(group).zip(codes.chunks(group)).zip(scales) {
        for (o, &code) in out.iter_mut().zip(codes) {
            *o = table.get(usize::from(code)).copied().unwrap_or(f32::NAN) * scale;
        }
    }
}

fn halves(codes: &[u8], table: &[f32; 16], (scales, group): (&[f32], usize), out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if group.is_multiple_of(STEP) && out.len().is_multiple_of(STEP) {
        let enough = codes.len() * 2 >= out.len() && scales.len() * group >= out.len();
        assert!(enough, "a code an element, and a scale a group");
        if Avx512::detect().is_some() {
            // SAFETY: the machine has the instructions, and the lengths were checked.
            return unsafe { halves_avx512(codes, table, (scales, group), out) };
        }
        if Avx2::detect().is_some() {
            // SAFETY: the machine has the instructions, and the lengths were checked.
            return unsafe { halves_avx2(codes, table, (scales, group), out) };
        }
    }
    halves_portable(codes, table, (scales, group), out);
}

/// The definition of the vector kernels.
pub(super) fn halves_portable(
    codes: &[u8],
    table: &[f32; 16],
    (scales, group): (&[f32], usize),
    out: &mut [f32],
) {
    for (i, o) in out.iter_mut().enumerate() {
        let code = codes[i / 2] >> (i % 2 * 4) & 15;
        *o = table[usize::from(code)] * scales[i / group];
    }
}

/// # Safety
/// AVX-512 with what is enabled here; `out` and `group` are multiples of [`STEP`] long, and there is a code an
/// element and a scale a group.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn halves_avx512(
    codes: &[u8],
    table: &[f32; 16],
    (scales, group): (&[f32], usize),
    out: &mut [f32],
) {
    // SAFETY: a table of sixteen floats; a step has sixteen bytes of codes and 32 of `out`.
    unsafe {
        let table = _mm512_loadu_ps(table.as_ptr());
        for (i, out) in out.chunks_exact_mut(STEP).enumerate() {
            let scale = _mm512_set1_ps(*scales.get_unchecked(i * STEP / group));
            let both = _mm_loadu_si128(codes.as_ptr().add(i * STEP / 2).cast());
            for (half, sixteen) in in_order(both).into_iter().enumerate() {
                let values = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(sixteen), table);
                let at = out.as_mut_ptr().add(half * 16);
                _mm512_storeu_ps(at, _mm512_mul_ps(values, scale));
            }
        }
    }
}

/// # Safety
/// As [`halves_avx512`], with AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn halves_avx2(
    codes: &[u8],
    table: &[f32; 16],
    (scales, group): (&[f32], usize),
    out: &mut [f32],
) {
    // SAFETY: a table of sixteen floats; a step has sixteen bytes of codes and 32 of `out`.
    unsafe {
        let low = _mm256_loadu_ps(table.as_ptr());
        let high = _mm256_loadu_ps(table.as_ptr().add(8));
        for (i, out) in out.chunks_exact_mut(STEP).enumerate() {
            let scale = _mm256_set1_ps(*scales.get_unchecked(i * STEP / group));
            let both = _mm_loadu_si128(codes.as_ptr().add(i * STEP / 2).cast());
            for (half, sixteen) in in_order(both).into_iter().enumerate() {
                let eights = [sixteen, _mm_unpackhi_epi64(sixteen, sixteen)];
                for (quarter, eight) in eights.into_iter().enumerate() {
                    let index = _mm256_cvtepu8_epi32(eight);
                    // The fourth bit of a code, moved to the sign, chooses the half of the table.
                    let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
                    let a = _mm256_permutevar8x32_ps(low, index);
                    let b = _mm256_permutevar8x32_ps(high, index);
                    let values = _mm256_blendv_ps(a, b, upper);
                    let at = out.as_mut_ptr().add(half * 16 + quarter * 8);
                    _mm256_storeu_ps(at, _mm256_mul_ps(values, scale));
                }
            }
        }
    }
}

/// 32 codes of sixteen bytes, low halves first, a byte each.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn in_order(both: __m128i) -> [__m128i; 2] {
    let mask = _mm_set1_epi8(15);
    let low = _mm_and_si128(both, mask);
    let high = _mm_and_si128(_mm_srli_epi16::<4>(both), mask);
    [_mm_unpacklo_epi8(low, high), _mm_unpackhi_epi8(low, high)]
}
