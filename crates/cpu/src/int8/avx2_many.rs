//! AVX2, many rows: a group's codes become bytes once for all of them, and four rows at a time are
//! multiplied with those.
//!
//! The products are assembly. On Zen 3 they come to three operations a cycle of the four that it could begin,
//! and what a compiler makes of the same intrinsics is a fifth slower: it reads weights again for every row
//! and keeps sums in memory.

use super::{
    Int8Rows, PackedWeight,
    avx2::{self, AHEAD},
    blocks::LINE,
    pack::TILE,
};
use crate::{
    DType,
    {
        lanes::{Element, Lanes},
        x86::Avx2,
    },
};
use half::{bf16, f16};
use std::{arch::asm, arch::x86_64::*, ops::Range};

/// From so many rows on, in all.
const FROM: usize = 8;
/// Rows that are multiplied together: their sums, two registers each, leave room for the weights.
const TOGETHER: usize = 4;
/// Inputs whose products fit 16 bits: sixteen of at most 15 * 127 in a lane, 30,480.
const PART: usize = 32;

/// A group of a tile, a byte a code: parts of [`PART`] inputs.
#[repr(align(64))]
struct Unpacked<const PARTS: usize>([[u8; PART * TILE]; PARTS]);

/// Whether [`tile`] is for these.
pub(super) fn takes(w: &PackedWeight, x: &Int8Rows) -> bool {
    w.nibbles && x.rows >= FROM
}

/// As [`super::portable::tile`], for codes of four bits.
///
/// # Safety
/// The machine has AVX2, FMA and F16C. Shapes are those of `w` and `x`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn tile(
    w: &PackedWeight,
    tile: usize,
    x: &Int8Rows,
    rows: Range<usize>,
    out: &mut [f32],
) {
    assert!(w.nibbles && out.len() >= rows.len() * TILE);
    assert!(rows.end <= x.rows && x.cols == w.cols && x.group == w.group);
    let end = rows.end - rows.len() % TOGETHER;
    let (whole, rest) = out.split_at_mut((end - rows.start) * TILE);
    // SAFETY: the machine has the level, by this function's contract, and shapes were checked.
    unsafe {
        match w.group / PART {
            1 => fours::<1>(w, tile, x, rows.start, whole),
            2 => fours::<2>(w, tile, x, rows.start, whole),
            4 => fours::<4>(w, tile, x, rows.start, whole),
            _ => return avx2::tile(w, tile, x, rows, out),
        }
        avx2::tile(w, tile, x, end..rows.end, rest);
    }
}

/// The rows from `first` on that `out` has room for, a multiple of [`TOGETHER`].
///
/// # Safety
/// As [`tile`], which has checked the shapes; groups have so many parts.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn fours<const PARTS: usize>(
    w: &PackedWeight,
    tile: usize,
    x: &Int8Rows,
    first: usize,
    out: &mut [f32],
) {
    let (groups, cols, group) = (w.groups(), w.cols, w.group);
    let (codes, scales, sums) = (x.codes().as_ptr(), x.scales.as_ptr(), x.sums.as_ptr());
    let (record_bytes, code_bytes) = (w.record_bytes(), w.code_bytes());
    let mut unpacked = Unpacked([[0; PART * TILE]; PARTS]);
    out.fill(0.0);
    for (g, record) in w.tile(tile).chunks_exact(record_bytes).enumerate() {
        for line in (0..record_bytes).step_by(LINE) {
            // SAFETY: a hint.
            unsafe { Avx2::prefetch(record.as_ptr().wrapping_add(AHEAD + line)) };
        }
        let (packed, floats) = record.split_at(code_bytes);
        unpack(packed, &mut unpacked);
        // SAFETY: the scales and biases of a tile follow its codes.
        let [s, b] = unsafe {
            match w.scale_type {
                DType::BF16 => sides::<bf16>(floats),
                DType::F16 => sides::<f16>(floats),
                _ => sides::<f32>(floats),
            }
        };
        for (i, out) in out.chunks_exact_mut(TOGETHER * TILE).enumerate() {
            let at = (first + i * TOGETHER) * groups + g;
            // SAFETY: each row has the group's codes, their scale and their sum, and `out` has a tile's
            // outputs for each.
            unsafe {
                let dots = dots(&unpacked, codes.add(at * group), cols);
                for (m, dots) in dots.iter().enumerate() {
                    let t = Avx2::splat(*scales.add(at + m * groups));
                    let sum = Avx2::splat(*sums.add(at + m * groups));
                    for n in 0..2 {
                        let out = out.as_mut_ptr().add(m * TILE + n * Avx2::LANES);
                        let dot = Avx2(_mm256_cvtepi32_ps(dots[n]));
                        let acc = dot.mul_add(s[n].mul(t), Avx2::load(out));
                        b[n].mul_add(sum, acc).store(out);
                    }
                }
            }
        }
    }
}

/// The scales and the biases of a record.
///
/// # Safety
/// AVX2 and F16C, and that many elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn sides<E: Element>(floats: &[u8]) -> [[Avx2; 2]; 2] {
    let p: *const E = floats.as_ptr().cast();
    let at = |n: usize| p.wrapping_add(n * Avx2::LANES);
    // SAFETY: the caller promises AVX2 and F16C, and that many elements.
    unsafe { [[E::load(at(0)), E::load(at(1))], [E::load(at(2)), E::load(at(3))]] }
}

/// A byte for each code of a group: four inputs of sixteen outputs a line.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unpack<const PARTS: usize>(codes: &[u8], to: &mut Unpacked<PARTS>) {
    let (lines, _) = codes.as_chunks::<LINE>();
    let (pairs, _) = to.0.as_flattened_mut().as_chunks_mut::<{ 2 * LINE }>();
    for (line, to) in lines.iter().zip(pairs) {
        for half in [0, LINE / 2] {
            // SAFETY: half a line is read, and half of either line written.
            unsafe {
                let (low, high) = avx2::nibbles(line[half..].as_ptr());
                _mm256_storeu_si256(to[half..].as_mut_ptr().cast(), low);
                _mm256_storeu_si256(to[LINE + half..].as_mut_ptr().cast(), high);
            }
        }
    }
}

/// `sum q c` of a group for [`TOGETHER`] rows of activations, which are `stride` apart.
///
/// # Safety
/// AVX2. Each row has [`PART`] codes for each of the parts.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<const PARTS: usize>(
    weights: &Unpacked<PARTS>,
    x: *const i8,
    stride: usize,
) -> [[__m256i; 2]; TOGETHER] {
    let ones = _mm256_set1_epi16(1);
    let mut sums = [[_mm256_setzero_si256(); 2]; TOGETHER];
    for (part, weights) in weights.0.iter().enumerate() {
        // SAFETY: the machine has AVX2, and each row has `PART` codes for each part; a part is a
        // multiple of the buffer's alignment.
        let words = unsafe { part_words(weights.as_ptr(), x.add(part * PART), stride) };
        for m in 0..TOGETHER {
            for n in 0..2 {
                let pairs = _mm256_madd_epi16(words[m][n], ones);
                sums[m][n] = _mm256_add_epi32(sums[m][n], pairs);
            }
        }
    }
    sums
}

/// Four inputs of four rows: where their line of weights is, where they are in the rows, and how products
/// and sums come together.
macro_rules! four_inputs {
    ($weights:literal, $inputs:literal, $how:ident) => {
        concat!(
            concat!("vmovdqa {w0}, [{w} + ", $weights, "]\n"),
            concat!("vmovdqa {w1}, [{w} + ", $weights, " + 32]\n"),
            $how!("{x}", $inputs, "{a0}", "{a1}"),
            $how!("{x} + {s}", $inputs, "{b0}", "{b1}"),
            $how!("{x} + 2 * {s}", $inputs, "{c0}", "{c1}"),
            $how!("{x} + {s3}", $inputs, "{d0}", "{d1}"),
        )
    };
}

/// Products of a row become sums.
macro_rules! begin {
    ($row:literal, $inputs:literal, $sum0:literal, $sum1:literal) => {
        concat!(
            concat!("vpbroadcastd {x0}, [", $row, " + ", $inputs, "]\n"),
            concat!("vpmaddubsw ", $sum0, ", {w0}, {x0}\n"),
            concat!("vpmaddubsw ", $sum1, ", {w1}, {x0}\n"),
        )
    };
}

/// Products of a row are added to its sums.
macro_rules! add {
    ($row:literal, $inputs:literal, $sum0:literal, $sum1:literal) => {
        concat!(
            concat!("vpbroadcastd {x0}, [", $row, " + ", $inputs, "]\n"),
            "vpmaddubsw {x1}, {w0}, {x0}\n",
            "vpmaddubsw {x0}, {w1}, {x0}\n",
            concat!("vpaddw ", $sum0, ", ", $sum0, ", {x1}\n"),
            concat!("vpaddw ", $sum1, ", ", $sum1, ", {x0}\n"),
        )
    };
}

/// Sums of the products of [`PART`] inputs, of some pairs in each lane of 16 bits.
///
/// # Safety
/// AVX2. `weights` are aligned to 32 bytes, a byte a code, and each row has `PART` codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn part_words(weights: *const u8, x: *const i8, stride: usize) -> [[__m256i; 2]; TOGETHER] {
    let (a0, a1, b0, b1, c0, c1, d0, d1);
    // SAFETY: reads what the caller promises.
    unsafe {
        asm!(
            four_inputs!("0", "0", begin),
            four_inputs!("64", "4", add),
            four_inputs!("128", "8", add),
            four_inputs!("192", "12", add),
            four_inputs!("256", "16", add),
            four_inputs!("320", "20", add),
            four_inputs!("384", "24", add),
            four_inputs!("448", "28", add),
            w = in(reg) weights,
            x = in(reg) x,
            s = in(reg) stride,
            s3 = in(reg) 3 * stride,
            a0 = out(ymm_reg) a0,
            a1 = out(ymm_reg) a1,
            b0 = out(ymm_reg) b0,
            b1 = out(ymm_reg) b1,
            c0 = out(ymm_reg) c0,
            c1 = out(ymm_reg) c1,
            d0 = out(ymm_reg) d0,
            d1 = out(ymm_reg) d1,
            w0 = out(ymm_reg) _,
            w1 = out(ymm_reg) _,
            x0 = out(ymm_reg) _,
            x1 = out(ymm_reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    [[a0, a1], [b0, b1], [c0, c1], [d0, d1]]
}
