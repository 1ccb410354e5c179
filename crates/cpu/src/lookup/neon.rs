//! NEON: a tile's sixteen rows are four registers.

use super::{
    Block, PackedTable,
    rows::{self, Rows},
};
use std::arch::aarch64::*;

#[derive(Clone, Copy)]
struct Four([float32x4_t; 4]);

/// Which byte of four codes each byte of four lanes comes from.
const SPREAD: [u8; 16] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];
/// Which byte of a float it is.
const BYTES: [u8; 16] = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3];

/// The entries that sixteen codes of four bits name.
#[inline(always)]
unsafe fn entries(table: uint8x16x4_t, codes: uint8x16_t) -> Four {
    // SAFETY: constants of sixteen bytes.
    unsafe {
        let (spread, bytes) = (vld1q_u8(SPREAD.as_ptr()), vld1q_u8(BYTES.as_ptr()));
        // Where an entry begins in the table's 64 bytes.
        let starts = vshlq_n_u8::<2>(codes);
        let four = |of: u8| {
            let own = vqtbl1q_u8(starts, vaddq_u8(spread, vdupq_n_u8(4 * of)));
            vreinterpretq_f32_u8(vqtbl4q_u8(table, vaddq_u8(own, bytes)))
        };
        Four([four(0), four(1), four(2), four(3)])
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "each forwards the trait's own contract")]
impl Rows for Four {
    const MOST: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([unsafe { vdupq_n_f32(0.0) }; 4])
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> Self {
        Self([unsafe { vld1q_dup_f32(x) }; 4])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe {
            let at = |i: usize| vld1q_f32(p.add(4 * i));
            Self([at(0), at(1), at(2), at(3)])
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        for (i, four) in self.0.into_iter().enumerate() {
            unsafe { vst1q_f32(p.add(4 * i), four) };
        }
    }
    #[inline(always)]
    unsafe fn mul_add(self, x: Self, sum: Self) -> Self {
        let at = |i: usize| unsafe { vfmaq_f32(sum.0[i], self.0[i], x.0[i]) };
        Self([at(0), at(1), at(2), at(3)])
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        let at = |i: usize| unsafe { vaddq_f32(self.0[i], other.0[i]) };
        Self([at(0), at(1), at(2), at(3)])
    }
    #[inline(always)]
    unsafe fn halves(table: &[f32; 16], codes: *const u8) -> [Self; 2] {
        unsafe {
            let table = vld1q_u8_x4(table.as_ptr().cast());
            let both = vld1q_u8(codes);
            let (low, high) = (vandq_u8(both, vdupq_n_u8(15)), vshrq_n_u8::<4>(both));
            [entries(table, low), entries(table, high)]
        }
    }
    #[inline(always)]
    unsafe fn small(codes: *const u8) -> Self {
        unsafe {
            let bytes = vld1q_u8(codes);
            let [a, b] = [vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes)].map(|bytes| {
                // As halves: the sign at the top, the rest below it.
                let sign = vshlq_n_u16::<8>(vandq_u16(bytes, vdupq_n_u16(0x80)));
                vorrq_u16(sign, vshlq_n_u16::<7>(vandq_u16(bytes, vdupq_n_u16(0x7f))))
            });
            let wide = |half: uint16x4_t| vcvt_f32_f16(vreinterpret_f16_u16(half));
            let [c, d] = [wide(vget_low_u16(b)), wide(vget_high_u16(b))];
            Self([wide(vget_low_u16(a)), wide(vget_high_u16(a)), c, d])
        }
    }
}

/// As [`super::portable::tile`].
///
/// # Safety
/// NEON; `x` is whole rows of `w`, and `out` has as many.
#[target_feature(enable = "neon")]
pub(super) unsafe fn tile_neon(w: &PackedTable, tile: usize, x: &[f32], out: &mut Block) {
    // SAFETY: the caller keeps the contract.
    unsafe { rows::tile::<Four>(w, tile, x, out) }
}
