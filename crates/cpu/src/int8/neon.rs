//! NEON, with dot products and matrix products where the processor has them: a tile's sixteen rows
//! are four registers.
//!
//! Stable Rust lacks the dot-product intrinsics, so these few instructions are written as assembly.
//! Signed ones take codes of 8 bits less 128; 128 times the sum of the activations makes up for it.
#![allow(clippy::needless_range_loop, reason = "registers are named by row and number")]

use super::blocks::{Dots, tile_at};
use crate::neon::Neon;
use std::{
    arch::{aarch64::*, asm},
    marker::PhantomData,
};

tile_at!(
    /// As [`super::portable::tile`].
    ///
    /// # Safety
    /// Shapes are those of `w` and `x`.
    tile, Plain, 4, "neon"
);

tile_at!(
    /// As [`super::portable::tile`].
    ///
    /// # Safety
    /// The machine has the dot products. Shapes are those of `w` and `x`.
    tile_dotprod, ByLane<Sdot>, 4, "neon,dotprod"
);

tile_at!(
    /// As [`super::portable::tile`].
    ///
    /// # Safety
    /// The machine has the 8-bit matrix products. Shapes are those of `w` and `x`.
    tile_i8mm, Matrix, 4, "neon,i8mm"
);

/// The four registers of one row of activations.
type Sums = [int32x4_t; 4];

#[inline(always)]
unsafe fn to_floats<const M: usize>(sums: [Sums; M]) -> [[Neon; 4]; M] {
    // SAFETY: inside a function of the level.
    unsafe {
        let mut floats = [[Neon(vdupq_n_f32(0.0)); 4]; M];
        for m in 0..M {
            for r in 0..4 {
                floats[m][r] = Neon(vcvtq_f32_s32(sums[m][r]));
            }
        }
        floats
    }
}

/// Bytes of eight inputs of a tile.
const fn chunk_bytes(nibbles: bool) -> usize {
    if nibbles { 64 } else { 128 }
}

/// The codes of rows `4 r..4 r + 4` of a chunk: inputs 0..4 and inputs 4..8.
#[inline(always)]
unsafe fn codes_of<const NIBBLES: bool>(chunk: *const u8, r: usize) -> (uint8x16_t, uint8x16_t) {
    // SAFETY: a readable chunk.
    unsafe {
        let first = vld1q_u8(chunk.add(r * 16));
        if NIBBLES {
            (vandq_u8(first, vdupq_n_u8(15)), vshrq_n_u8::<4>(first))
        } else {
            (first, vld1q_u8(chunk.add(64 + r * 16)))
        }
    }
}

/// Codes as signed instructions take them.
#[inline(always)]
unsafe fn signed<const NIBBLES: bool>(codes: uint8x16_t) -> int8x16_t {
    // SAFETY: inside a function of the level.
    unsafe {
        let centred = if NIBBLES { codes } else { veorq_u8(codes, vdupq_n_u8(128)) };
        vreinterpretq_s8_u8(centred)
    }
}

/// What sums of signed codes start from.
#[inline(always)]
unsafe fn correction<const NIBBLES: bool, const M: usize>(
    x: [*const i8; M],
    group: usize,
) -> [Sums; M] {
    // SAFETY: each row of `x` has `group` elements, a multiple of 32.
    unsafe {
        let mut start = [[vdupq_n_s32(0); 4]; M];
        if !NIBBLES {
            for m in 0..M {
                let mut sum = vdupq_n_s32(0);
                for k in (0..group).step_by(16) {
                    let x = vld1q_s8(x[m].add(k));
                    sum = vpadalq_s16(sum, vpaddlq_s8(x));
                }
                start[m] = [vdupq_n_s32(vaddvq_s32(sum) * 128); 4];
            }
        }
        start
    }
}

struct Plain;

impl Dots<4> for Plain {
    type Lanes = Neon;

    #[inline(always)]
    unsafe fn dots<const NIBBLES: bool, const M: usize>(
        codes: *const u8,
        x: [*const i8; M],
        group: usize,
    ) -> [[Neon; 4]; M] {
        // A 16-bit lane takes eight products of at most 15 * 127, or two of 128 * 127.
        let chunks = if NIBBLES { 4 } else { 1 };
        // SAFETY: the caller keeps the contract of `Dots::dots`.
        unsafe {
            let mut sums = correction::<NIBBLES, M>(x, group);
            for first in (0..group / 8).step_by(chunks) {
                for r in 0..4 {
                    let mut words = [[vdupq_n_s16(0); 2]; M];
                    for chunk in first..first + chunks {
                        let line = codes.add(chunk * chunk_bytes(NIBBLES));
                        let (w0, w1) = codes_of::<NIBBLES>(line, r);
                        let (w0, w1) = (signed::<NIBBLES>(w0), signed::<NIBBLES>(w1));
                        for m in 0..M {
                            let x = x[m].add(chunk * 8);
                            let (x0, x1) = (four_twice(x), four_twice(x.add(4)));
                            let [low, high] = &mut words[m];
                            *low = vmlal_s8(*low, vget_low_s8(w0), x0);
                            *low = vmlal_s8(*low, vget_low_s8(w1), x1);
                            *high = vmlal_s8(*high, vget_high_s8(w0), x0);
                            *high = vmlal_s8(*high, vget_high_s8(w1), x1);
                        }
                    }
                    for m in 0..M {
                        let [low, high] = words[m];
                        let four = vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
                        sums[m][r] = vaddq_s32(sums[m][r], four);
                    }
                }
            }
            to_floats(sums)
        }
    }
}

/// Four codes of a row of activations, twice.
#[inline(always)]
unsafe fn four_twice(x: *const i8) -> int8x8_t {
    // SAFETY: four readable bytes.
    unsafe { vreinterpret_s8_s32(vdup_n_s32(x.cast::<i32>().read_unaligned())) }
}

/// An instruction that adds four products to each 32-bit lane.
trait LaneDot {
    /// It takes codes as they are.
    const UNSIGNED: bool;

    /// Adds four rows of codes times lane `LANE` of `x`.
    ///
    /// # Safety
    /// The machine has it, and so has the function this is compiled into.
    unsafe fn dot<const LANE: i32>(sum: int32x4_t, w: uint8x16_t, x: int8x8_t) -> int32x4_t;
}

/// The instruction of `dotprod`.
struct Sdot;
/// The instruction of `i8mm`.
struct Usdot;

macro_rules! lane_dot {
    ($name:ident, $instruction:literal, $unsigned:literal) => {
        impl LaneDot for $name {
            const UNSIGNED: bool = $unsigned;

            #[inline(always)]
            unsafe fn dot<const LANE: i32>(
                mut sum: int32x4_t,
                w: uint8x16_t,
                x: int8x8_t,
            ) -> int32x4_t {
                // SAFETY: the caller checked that the machine has the instruction; it uses
                // registers alone.
                unsafe {
                    asm!(
                        concat!($instruction, " {sum:v}.4s, {w:v}.16b, {x:v}.4b[{lane}]"),
                        sum = inout(vreg) sum,
                        w = in(vreg) w,
                        x = in(vreg) x,
                        lane = const LANE,
                        options(pure, nomem, nostack, preserves_flags)
                    );
                }
                sum
            }
        }
    };
}
lane_dot!(Sdot, "sdot", false);
lane_dot!(Usdot, "usdot", true);

struct ByLane<I>(PhantomData<I>);

impl<I: LaneDot> Dots<4> for ByLane<I> {
    type Lanes = Neon;

    #[inline(always)]
    unsafe fn dots<const NIBBLES: bool, const M: usize>(
        codes: *const u8,
        x: [*const i8; M],
        group: usize,
    ) -> [[Neon; 4]; M] {
        // SAFETY: the caller keeps the contract of `Dots::dots`.
        unsafe {
            let mut sums = if I::UNSIGNED {
                [[vdupq_n_s32(0); 4]; M]
            } else {
                correction::<NIBBLES, M>(x, group)
            };
            for chunk in 0..group / 8 {
                let line = codes.add(chunk * chunk_bytes(NIBBLES));
                for r in 0..4 {
                    let (mut w0, mut w1) = codes_of::<NIBBLES>(line, r);
                    if !I::UNSIGNED {
                        w0 = vreinterpretq_u8_s8(signed::<NIBBLES>(w0));
                        w1 = vreinterpretq_u8_s8(signed::<NIBBLES>(w1));
                    }
                    for m in 0..M {
                        let x = vld1_s8(x[m].add(chunk * 8));
                        sums[m][r] = I::dot::<0>(sums[m][r], w0, x);
                        sums[m][r] = I::dot::<1>(sums[m][r], w1, x);
                    }
                }
            }
            to_floats(sums)
        }
    }
}

struct Matrix;

impl Dots<4> for Matrix {
    type Lanes = Neon;

    #[inline(always)]
    unsafe fn dots<const NIBBLES: bool, const M: usize>(
        codes: *const u8,
        x: [*const i8; M],
        group: usize,
    ) -> [[Neon; 4]; M] {
        // SAFETY: the caller keeps the contract of `Dots::dots`.
        unsafe {
            if M == 1 {
                return ByLane::<Usdot>::dots::<NIBBLES, M>(codes, x, group);
            }
            // Of each pair of rows of `x`, the first has the products of weight rows 4 r and
            // 4 r + 1 with both, the second those of 4 r + 2 and 4 r + 3.
            let mut sums = [[vdupq_n_s32(0); 4]; M];
            for chunk in 0..group / 8 {
                let line = codes.add(chunk * chunk_bytes(NIBBLES));
                for r in 0..4 {
                    let (w0, w1) = codes_of::<NIBBLES>(line, r);
                    let (w0, w1) = (vreinterpretq_u32_u8(w0), vreinterpretq_u32_u8(w1));
                    let first = vreinterpretq_u8_u32(vzip1q_u32(w0, w1));
                    let second = vreinterpretq_u8_u32(vzip2q_u32(w0, w1));
                    for m in (0..M).step_by(2) {
                        let (x0, x1) = (x[m].add(chunk * 8), x[m + 1].add(chunk * 8));
                        let x = vcombine_s8(vld1_s8(x0), vld1_s8(x1));
                        sums[m][r] = usmmla(sums[m][r], first, x);
                        sums[m + 1][r] = usmmla(sums[m + 1][r], second, x);
                    }
                }
            }
            for m in (0..M).step_by(2) {
                for r in 0..4 {
                    let (first, second) = (sums[m][r], sums[m + 1][r]);
                    sums[m][r] = vuzp1q_s32(first, second);
                    sums[m + 1][r] = vuzp2q_s32(first, second);
                }
            }
            to_floats(sums)
        }
    }
}

/// Adds the products of two rows of eight codes with two of activations.
#[inline(always)]
unsafe fn usmmla(mut sum: int32x4_t, w: uint8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's function has the instruction; registers alone.
    unsafe {
        asm!(
            "usmmla {sum:v}.4s, {w:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum,
            w = in(vreg) w,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}
