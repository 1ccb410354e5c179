//! Rows of affine codes with NEON: products of 16-bit integers. Integers are those of the portable
//! code, and so is the rounding.

use super::{
    RING,
    affine::{Affine, AffineQueries, AffineScales, AffineWeights, UNIT},
};
use std::arch::aarch64::*;

/// A ring of a row.
///
/// # Safety
/// There is one.
#[inline(always)]
unsafe fn ring(row: *const u8, element: usize, bits: usize) -> uint8x16_t {
    // SAFETY: the caller promises that there is one.
    unsafe {
        if bits == 8 {
            return vld1q_u8(row.add(element));
        }
        let pairs = vld1_u8(row.add(element / 2));
        let (low, high) = (vand_u8(pairs, vdup_n_u8(15)), vshr_n_u8::<4>(pairs));
        vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high))
    }
}

/// As [`Affine::dots`].
///
/// # Safety
/// The lengths are those that it checks, and rows are whole rings.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn dots(
    shape: Affine,
    q: &AffineQueries,
    rows: &[u8],
    scales: &AffineScales,
    out: &mut [f32],
) {
    let (n, units) = (scales.n, shape.units());
    for (j, row) in rows.chunks_exact(shape.row_bytes()).enumerate() {
        for i in 0..q.rows() {
            let query = &q.ints[i * shape.d..][..shape.d];
            let mut total = 0.0;
            for unit in 0..units {
                let first = unit * shape.unit();
                // SAFETY: rows and queries are whole rings.
                let sum = unsafe {
                    let mut sums = [vdupq_n_s32(0); 2];
                    for at in (first..(first + shape.unit()).min(shape.d)).step_by(RING) {
                        let x = ring(row.as_ptr(), at, shape.bits);
                        let parts = [vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x)];
                        for (part, x) in parts.into_iter().enumerate() {
                            let x = vreinterpretq_s16_u16(x);
                            let q = vld1q_s16(query.as_ptr().add(at + part * 8));
                            sums[0] = vmlal_s16(sums[0], vget_low_s16(x), vget_low_s16(q));
                            sums[1] = vmlal_high_s16(sums[1], x, q);
                        }
                    }
                    vaddvq_s32(vaddq_s32(sums[0], sums[1]))
                };
                let at = shape.group_of(unit) * n + j;
                total += sum as f32 * scales.scale[at] + q.sums[i * units + unit] * scales.bias[at];
            }
            out[i * n + j] = total * q.scales[i];
        }
    }
}

/// As [`Affine::add_weighted`].
///
/// # Safety
/// The lengths are those that it checks, and rows are whole rings.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn add_weighted(
    shape: Affine,
    weights: &AffineWeights,
    rows: &[u8],
    scales: &AffineScales,
    acc: &mut [f32],
) {
    let n = scales.n;
    for (i, acc) in acc.chunks_exact_mut(shape.d).enumerate() {
        for (unit, acc) in acc.chunks_mut(shape.unit()).enumerate() {
            let group = shape.group_of(unit);
            let at = i * shape.groups() + group;
            let rings = acc.len() / RING;
            // SAFETY: rows are whole rings.
            unsafe {
                let mut sums = [[vdupq_n_s32(0); 4]; UNIT / RING];
                for (j, row) in rows.chunks_exact(shape.row_bytes()).enumerate() {
                    let w = vdup_n_s16(weights.ints[at * n + j]);
                    let flip = vdupq_n_u8(scales.flip[group * n + j]);
                    for (r, sums) in sums.iter_mut().enumerate().take(rings) {
                        let element = unit * shape.unit() + r * RING;
                        let x = veorq_u8(ring(row.as_ptr(), element, shape.bits), flip);
                        let x = vreinterpretq_s8_u8(x);
                        let (a, b) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
                        sums[0] = vmlal_s16(sums[0], vget_low_s16(a), w);
                        sums[1] = vmlal_s16(sums[1], vget_high_s16(a), w);
                        sums[2] = vmlal_s16(sums[2], vget_low_s16(b), w);
                        sums[3] = vmlal_s16(sums[3], vget_high_s16(b), w);
                    }
                }
                let scale = vdupq_n_f32(weights.scale[at]);
                let bias = vdupq_n_f32(weights.bias[at]);
                let acc = acc.as_chunks_mut::<4>().0;
                for (acc, &sum) in acc.iter_mut().zip(sums.as_flattened()) {
                    let x = vaddq_f32(vmulq_f32(vcvtq_f32_s32(sum), scale), bias);
                    vst1q_f32(acc.as_mut_ptr(), vaddq_f32(vld1q_f32(acc.as_ptr()), x));
                }
            }
        }
    }
}
