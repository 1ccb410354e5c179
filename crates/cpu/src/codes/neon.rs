//! The code kernels with NEON and its dot products. Integers are those of the portable code, and so is
//! the rounding.
//!
//! Stable Rust lacks the dot-product intrinsics, so that instruction is written as assembly.

use super::{Int8Queries, RING, Scaling, TILE, TILE_ROWS, windows::Plan};
use std::arch::{aarch64::*, asm};

/// Where the two bytes of each window of a tile are, and by how much they are shifted.
#[derive(Debug, Clone)]
pub(super) struct Pairs {
    bytes: [[u8; TILE]; 2],
    shifts: [[i8; TILE]; 2],
}

impl Pairs {
    /// From a word of eight bytes for every eight windows, and where each starts in its word.
    pub(super) fn new(gather: &[u8; TILE], shift: &[u8; TILE]) -> Self {
        let mut pairs = Self { bytes: [[0; TILE]; 2], shifts: [[0; TILE]; 2] };
        for (i, &shift) in shift.iter().enumerate() {
            let byte = |n: usize| gather[i / 8 * 8 + (usize::from(shift) / 8 + n) % 8];
            let right = (shift % 8) as i8;
            (pairs.bytes[0][i], pairs.bytes[1][i]) = (byte(0), byte(1));
            (pairs.shifts[0][i], pairs.shifts[1][i]) = (-right, 8 - right);
        }
        pairs
    }
}

/// Adds products of four bytes to each lane.
///
/// # Safety
/// The machine has the dot products.
#[inline(always)]
unsafe fn sdot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller checked that the machine has the dot products; the instruction uses
    // registers alone.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
            sum = inout(vreg) sum,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// # Safety
/// `codes` are whole tiles of `bytes`, at most 48; `out` as many of [`TILE`].
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn expand(plan: &Plan, bytes: usize, codes: &[u8], out: &mut [u8]) {
    // SAFETY: a tile is copied to an array before it is loaded, `out` is whole tiles, and the
    // plan's arrays have 64 bytes.
    unsafe {
        let table = vld1q_u8_x4(plan.table.as_ptr());
        for (codes, out) in codes.chunks_exact(bytes).zip(out.chunks_exact_mut(TILE)) {
            let mut tile = [0; 3 * RING];
            tile[..bytes].copy_from_slice(codes);
            let tile = vld1q_u8_x3(tile.as_ptr());
            for at in (0..TILE).step_by(RING) {
                let mut window = vdupq_n_u8(0);
                for (bytes, shifts) in plan.pairs.bytes.iter().zip(&plan.pairs.shifts) {
                    let byte = vqtbl3q_u8(tile, vld1q_u8(bytes.as_ptr().add(at)));
                    let part = vshlq_u8(byte, vld1q_s8(shifts.as_ptr().add(at)));
                    window = vorrq_u8(window, part);
                }
                let entries = vqtbl4q_u8(table, vandq_u8(window, vdupq_n_u8(63)));
                vst1q_u8(out.as_mut_ptr().add(at), entries);
            }
        }
    }
}

/// # Safety
/// `codes` are whole tiles of nibbles, `out` as many of [`TILE`].
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn expand_nibbles(plan: &Plan, codes: &[u8], out: &mut [u8]) {
    // SAFETY: each chunk of `codes` has 16 bytes, as have both halves of `out`; the plan's table
    // has 64.
    unsafe {
        let table = vld1q_u8(plan.table.as_ptr());
        for (codes, out) in
            codes.chunks_exact(RING).zip(out.chunks_exact_mut(TILE).flat_map(halves))
        {
            let x = vld1q_u8(codes.as_ptr());
            vst1q_u8(out[0].as_mut_ptr(), vqtbl1q_u8(table, vandq_u8(x, vdupq_n_u8(15))));
            vst1q_u8(out[1].as_mut_ptr(), vqtbl1q_u8(table, vshrq_n_u8::<4>(x)));
        }
    }
}

/// What the low and the high nibbles of each 16 bytes of a packed tile become.
fn halves(tile: &mut [u8]) -> [[&mut [u8]; 2]; 2] {
    let (low, high) = tile.split_at_mut(TILE / 2);
    let ((a, b), (c, d)) = (low.split_at_mut(RING), high.split_at_mut(RING));
    [[a, c], [b, d]]
}

/// # Safety
/// The machine has the dot products. The lengths are those of [`super::dots`].
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn dots(
    q: &Int8Queries,
    tiles: &[u8],
    scaling: Scaling<'_>,
    (out, stride): (&mut [f32], usize),
) {
    let (rows, padded) = (q.rows(), q.width());
    for (group, tiles) in tiles.chunks_exact(padded * TILE_ROWS).enumerate() {
        for row in 0..rows {
            let codes = &q.codes[row * padded..][..padded];
            // SAFETY: tiles are whole, and so are rings; four scores of a row.
            unsafe {
                let mut sums = [vdupq_n_s32(0); TILE_ROWS];
                for (tile, ring) in tiles.chunks_exact(TILE).zip(codes.chunks_exact(RING)) {
                    let ring = vld1q_s8(ring.as_ptr());
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let x = veorq_u8(vld1q_u8(tile.as_ptr().add(r * RING)), vdupq_n_u8(128));
                        *sum = sdot(*sum, vreinterpretq_s8_u8(x), ring);
                    }
                }
                let [a, b, c, d] = sums;
                let sum = vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d));
                let at = group * TILE_ROWS;
                let x = vmulq_f32(vcvtq_f32_s32(sum), vdupq_n_f32(q.scales[row]));
                let mut x = vmulq_f32(x, vld1q_f32(scaling.gamma.as_ptr().add(at)));
                if let Some(offsets) = scaling.offsets {
                    x = vaddq_f32(x, vdupq_n_f32(offsets[row]));
                }
                vst1q_f32(out.as_mut_ptr().add(row * stride + at), x);
            }
        }
    }
}

/// # Safety
/// The machine has the dot products. The lengths are those of [`super::add_weighted`].
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn add_weighted(weights: &[u8], scale: &[f32], tiles: &[u8], acc: &mut [f32]) {
    let (n, padded) = (weights.len() / scale.len(), acc.len() / scale.len());
    let rows = weights.chunks_exact(n).zip(scale).zip(acc.chunks_exact_mut(padded));
    for ((weights, &scale), acc) in rows {
        for (ring, acc) in acc.chunks_exact_mut(RING).enumerate() {
            // SAFETY: there is a tile of each ring for every four weights.
            unsafe {
                // Weights less 128, which a multiple of the plain sums makes up for.
                let mut sums = [vdupq_n_s32(0); 4];
                let mut plain = [vdupq_n_s32(0); 4];
                for (group, w) in weights.as_chunks::<TILE_ROWS>().0.iter().enumerate() {
                    let w = vreinterpretq_u8_u32(vdupq_n_u32(u32::from_le_bytes(*w)));
                    let w = vreinterpretq_s8_u8(veorq_u8(w, vdupq_n_u8(128)));
                    let tile = tiles.as_ptr().add((group * padded / RING + ring) * TILE);
                    for (part, (sum, plain)) in sums.iter_mut().zip(&mut plain).enumerate() {
                        let x = vld1q_s8(tile.add(part * RING).cast());
                        *sum = sdot(*sum, x, w);
                        *plain = sdot(*plain, x, vdupq_n_s8(1));
                    }
                }
                for (part, (sum, plain)) in sums.into_iter().zip(plain).enumerate() {
                    let sum = vaddq_s32(sum, vshlq_n_s32::<7>(plain));
                    let at = acc.as_mut_ptr().add(part * 4);
                    let add = vmulq_f32(vcvtq_f32_s32(sum), vdupq_n_f32(scale));
                    vst1q_f32(at, vaddq_f32(vld1q_f32(at), add));
                }
            }
        }
    }
}
