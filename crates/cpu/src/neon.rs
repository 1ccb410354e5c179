//! NEON lanes.
#![allow(clippy::undocumented_unsafe_blocks, reason = "each forwards the trait's own contract")]

use super::lanes::Lanes;
use half::{bf16, f16};
use std::arch::aarch64::*;

/// Four lanes; 32 registers.
#[derive(Clone, Copy)]
pub(super) struct Neon(pub(super) float32x4_t);

impl Lanes for Neon {
    const LANES: usize = 4;
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn prefetch<T>(line: *const T) {
        unsafe {
            std::arch::asm!("prfm pldl2keep, [{}]", in(reg) line, options(nostack, readonly));
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(unsafe { vdupq_n_f32(x) })
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Self(unsafe { vld1q_f32(p) })
    }
    #[inline(always)]
    unsafe fn load_part(p: *const f32, n: usize) -> Self {
        let mut part = [0f32; 4];
        unsafe { std::ptr::copy_nonoverlapping(p, part.as_mut_ptr(), n) };
        Self(unsafe { vld1q_f32(part.as_ptr()) })
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        Self(unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p.cast()))) })
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        unsafe {
            let x = vmovl_u16(vld1_u16(p.cast()));
            Self(vreinterpretq_f32_u32(vshlq_n_u32::<16>(x)))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_of_pairs<const SECOND: bool>(p: *const bf16) -> Self {
        unsafe {
            let pairs = vld1q_u32(p.cast());
            Self(vreinterpretq_f32_u32(if SECOND {
                vandq_u32(pairs, vdupq_n_u32(0xffff_0000))
            } else {
                vshlq_n_u32::<16>(pairs)
            }))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { vst1q_f32(p, self.0) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, n: usize) {
        let mut part = [0f32; 4];
        unsafe {
            vst1q_f32(part.as_mut_ptr(), self.0);
            std::ptr::copy_nonoverlapping(part.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut f16) {
        unsafe { vst1_u16(p.cast(), vreinterpret_u16_f16(vcvt_f16_f32(self.0))) }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        Self(unsafe { vaddq_f32(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        Self(unsafe { vsubq_f32(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        Self(unsafe { vmulq_f32(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        Self(unsafe { vdivq_f32(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        Self(unsafe { vmaxq_f32(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        Self(unsafe { vminq_f32(self.0, o.0) })
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Self(unsafe { vfmaq_f32(c.0, self.0, b.0) })
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        Self(unsafe { vrndnq_f32(self.0) })
    }
    #[inline(always)]
    unsafe fn scale_by_pow2(self, n: Self) -> Self {
        // Two steps, so that results below the smallest normal number underflow gradually.
        unsafe {
            let n = vcvtnq_s32_f32(n.0);
            let half = vshrq_n_s32::<1>(n);
            let bias = vdupq_n_s32(127);
            let pow = |e| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(e, bias)));
            let y = vmulq_f32(self.0, pow(half));
            Self(vmulq_f32(y, pow(vsubq_s32(n, half))))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { vaddvq_f32(self.0) }
    }
    #[inline(always)]
    fn summed(i: usize) -> usize {
        i
    }
    #[inline(always)]
    unsafe fn max_lane(self) -> f32 {
        unsafe { vmaxvq_f32(self.0) }
    }
}
