//! ggml's blocks of codes as MLX's affine format: `w = scale * code + bias` in groups of 32.
//!
//! Q4_0 to Q8_0 are exactly that, with 4, 5 or 8 bits. Q4_K and Q5_K are, but for scales that are
//! products of two numbers, here rounded to halves. Q2_K, Q3_K and Q6_K have a scale for 16 weights;
//! their groups become 8 bits with one scale of their own. IQ4_NL, IQ4_XS and MXFP4 name the entries of a table
//! ([`super::tables`]); where they have to be affine, those are their codes.

use super::{names::Changes, tables};
use half::f16;
use taper_tensor::{
    AffineFormat, AffineParts, AffineWeight, Bytes, DType, TensorError,
    cpu::{E2M1, e8m0},
    pool,
};

/// Weights of a group.
pub(super) const GROUP: usize = 32;

/// Weights `32 j` to `32 j + 31` of a block.
type Fine = fn(&[u8], usize) -> [f32; GROUP];

/// Types of blocks that are read, by ggml's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "ggml's names")]
pub(crate) enum BlockType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
}

/// Codes with one scale and one bias.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Group {
    codes: [u8; GROUP],
    scale: f32,
    bias: f32,
}

impl BlockType {
    /// By ggml's number.
    pub(crate) fn of(kind: u32) -> Option<Self> {
        Some(match kind {
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2_K,
            11 => Self::Q3_K,
            12 => Self::Q4_K,
            13 => Self::Q5_K,
            14 => Self::Q6_K,
            20 => Self::IQ4_NL,
            23 => Self::IQ4_XS,
            39 => Self::MXFP4,
            _ => return None,
        })
    }

    /// ggml's number.
    pub(crate) fn number(self) -> u32 {
        (0..64).find(|&kind| Self::of(kind) == Some(self)).unwrap_or(u32::MAX)
    }

    /// Weights and bytes of a block.
    pub(crate) fn block(self) -> (usize, usize) {
        match self {
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q2_K => (256, 84),
            Self::Q3_K => (256, 110),
            Self::Q4_K => (256, 144),
            Self::Q5_K => (256, 176),
            Self::Q6_K => (256, 210),
            Self::IQ4_NL => (32, 18),
            Self::IQ4_XS => (256, 136),
            Self::MXFP4 => (32, 17),
        }
    }

    /// The affine format that it becomes.
    pub(crate) fn format(self) -> AffineFormat {
        let bits = match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q4_K => 4,
            Self::Q5_0 | Self::Q5_1 | Self::Q5_K | Self::MXFP4 => 5,
            Self::Q8_0 | Self::Q2_K | Self::Q3_K | Self::Q6_K | Self::IQ4_NL | Self::IQ4_XS => 8,
        };
        AffineFormat { bits, group: GROUP }
    }

    /// What reads weights `32 j` to `32 j + 31` of a block, where they are not those of [`Self::groups`].
    fn fine(self) -> Option<Fine> {
        match self {
            Self::Q2_K => Some(seconds),
            Self::Q3_K => Some(thirds),
            Self::Q6_K => Some(sixths),
            Self::IQ4_NL => Some(tables::uneven),
            Self::IQ4_XS => Some(tables::uneven_scaled),
            Self::MXFP4 => Some(tables::tiny),
            _ => None,
        }
    }

    /// The values of whole blocks, as ggml has them.
    pub(crate) fn decode(self, blocks: &[u8], out: &mut [f32]) {
        let (weights, bytes) = self.block();
        for (b, out) in blocks.chunks_exact(bytes).zip(out.chunks_exact_mut(weights)) {
            let mut out = out.chunks_exact_mut(GROUP);
            if let Some(values) = self.fine() {
                out.enumerate().for_each(|(j, out)| out.copy_from_slice(&values(b, j)));
                continue;
            }
            self.groups(b, |group| {
                let Some(out) = out.next() else { return };
                for (out, code) in out.iter_mut().zip(group.codes) {
                    *out = group.scale * f32::from(code) + group.bias;
                }
            });
        }
    }

    /// Reads a block; `each` gets its groups in order. The drawings are in ggml's `ggml-quants.c`.
    fn groups(self, b: &[u8], mut each: impl FnMut(Group)) {
        match self {
            Self::Q2_K => (0..8).for_each(|j| each(eighths(seconds(b, j)))),
            Self::Q3_K => (0..8).for_each(|j| each(eighths(thirds(b, j)))),
            Self::Q4_0 => each(centred(nibbles(&b[2..]), half(b, 0), 8.0)),
            Self::Q4_1 => {
                each(Group { codes: nibbles(&b[4..]), scale: half(b, 0), bias: half(b, 2) });
            }
            Self::Q5_0 => each(centred(fifths(&b[2..6], &b[6..]), half(b, 0), 16.0)),
            Self::Q5_1 => {
                let codes = fifths(&b[4..8], &b[8..]);
                each(Group { codes, scale: half(b, 0), bias: half(b, 2) });
            }
            Self::Q8_0 => {
                // From signed to unsigned: 128 more.
                each(centred(std::array::from_fn(|i| b[2 + i] ^ 0x80), half(b, 0), 128.0));
            }
            Self::Q4_K => {
                for j in 0..8 {
                    let codes = half_bytes(&b[16 + j / 2 * 32..], j % 2);
                    each(scaled(b, j, codes));
                }
            }
            Self::Q5_K => {
                for j in 0..8 {
                    let mut codes = half_bytes(&b[48 + j / 2 * 32..], j % 2);
                    for (code, high) in codes.iter_mut().zip(&b[16..48]) {
                        *code |= (high >> j & 1) << 4;
                    }
                    each(scaled(b, j, codes));
                }
            }
            Self::Q6_K => (0..8).for_each(|j| each(eighths(sixths(b, j)))),
            Self::IQ4_NL => each(named(nibbles(&b[2..]), tables::UNEVEN, half(b, 0))),
            Self::IQ4_XS => (0..8).for_each(|j| {
                let codes = nibbles(&b[8 + 16 * j..]);
                each(named(codes, tables::UNEVEN, tables::scale_of(b, j)));
            }),
            // Twice the numbers are integers.
            Self::MXFP4 => {
                let twice = E2M1.map(|n| (2.0 * n) as i8);
                each(named(nibbles(&b[1..]), twice, e8m0(b[0]) * 0.5));
            }
        }
    }
}

/// Integers of a table as codes from its least on.
fn named(codes: [u8; GROUP], table: [i8; 16], scale: f32) -> Group {
    let least = table.into_iter().min().unwrap_or(0);
    let code = |c: u8| table[usize::from(c)].abs_diff(least);
    Group { codes: codes.map(code), scale, bias: f32::from(least) * scale }
}

pub(super) fn half(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// `scale * (code - zero)`.
fn centred(codes: [u8; GROUP], scale: f32, zero: f32) -> Group {
    Group { codes, scale, bias: -zero * scale }
}

/// The low halves of 16 bytes, and then the high ones.
pub(super) fn nibbles(b: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|i| if i < 16 { b[i] & 15 } else { b[i - 16] >> 4 })
}

/// The low or the high halves of 32 bytes.
fn half_bytes(b: &[u8], high: usize) -> [u8; GROUP] {
    std::array::from_fn(|i| b[i] >> (4 * high) & 15)
}

/// Halves of bytes with a fifth bit each.
fn fifths(high: &[u8], low: &[u8]) -> [u8; GROUP] {
    let low = nibbles(low);
    std::array::from_fn(|i| low[i] | (high[i / 8] >> (i % 8) & 1) << 4)
}

/// Group `j` of Q4_K and Q5_K: `d * scale[j] * code - dmin * min[j]`, both with 6 bits.
fn scaled(b: &[u8], j: usize, codes: [u8; GROUP]) -> Group {
    let s = &b[4..16];
    let (scale, min) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        (s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4)
    };
    let (d, dmin) = (half(b, 0), half(b, 2));
    Group { codes, scale: d * f32::from(scale), bias: -dmin * f32::from(min) }
}

/// Weights `32 j` to `32 j + 31` of a block of Q2_K: `d * scale * code - dmin * min`, both with 4
/// bits.
fn seconds(b: &[u8], j: usize) -> [f32; GROUP] {
    let (h, s, d, dmin) = (j / 4, j % 4, half(b, 80), half(b, 82));
    std::array::from_fn(|l| {
        let both = b[2 * j + l / 16];
        let code = b[16 + 32 * h + l] >> (2 * s) & 3;
        d * f32::from(both & 15) * f32::from(code) - dmin * f32::from(both >> 4)
    })
}

/// Weights `32 j` to `32 j + 31` of a block of Q3_K: `d * (scale - 32) * code`, whose third bit is
/// apart and takes away 4 where it is not set.
fn thirds(b: &[u8], j: usize) -> [f32; GROUP] {
    let (h, s, d) = (j / 4, j % 4, half(b, 108));
    let scales = &b[96..108];
    std::array::from_fn(|l| {
        let i = 2 * j + l / 16;
        let low = if i < 8 { scales[i] & 15 } else { scales[i - 8] >> 4 };
        let scale = low | (scales[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
        let code = b[32 + 32 * h + l] >> (2 * s) & 3 | (b[l] >> j & 1) << 2;
        d * (f32::from(scale) - 32.0) * (f32::from(code) - 4.0)
    })
}

/// Weights `32 j` to `32 j + 31` of a block of Q6_K.
fn sixths(b: &[u8], j: usize) -> [f32; GROUP] {
    let (h, g, d) = (j / 4, j % 4, half(b, 208));
    std::array::from_fn(|l| {
        let low = b[64 * h + 32 * (g % 2) + l] >> (4 * (g / 2)) & 15;
        let high = b[128 + 32 * h + l] >> (2 * g) & 3;
        let scale = b[192 + 8 * h + 2 * g + l / 16].cast_signed();
        d * f32::from(scale) * (f32::from(low | high << 4) - 32.0)
    })
}

/// The nearest codes of 8 bits.
fn eighths(values: [f32; GROUP]) -> Group {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // As they will be stored, so that codes make up for what rounding does to them.
    let bias = f16::from_f32(low).to_f32();
    let scale = f16::from_f32((high - bias) / 255.0).to_f32();
    let code =
        |v: f32| if scale > 0.0 { ((v - bias) / scale).round().clamp(0.0, 255.0) } else { 0.0 };
    Group { codes: values.map(|v| code(v) as u8), scale, bias }
}

/// A stream of codes, the low bits first.
fn pack(codes: &[u8; GROUP], bits: u8, out: &mut [u8]) {
    for (eight, out) in codes.chunks_exact(8).zip(out.chunks_exact_mut(bits.into())) {
        let word = eight.iter().rev().fold(0u64, |word, &code| word << bits | u64::from(code));
        out.copy_from_slice(&word.to_le_bytes()[..bits.into()]);
    }
}

/// A matrix of blocks in the affine format. Rows and groups of 32 columns go where `changes` has them.
///
/// # Errors
/// The shape is too large, or does not fit the bytes.
pub(crate) fn repack(
    kind: BlockType,
    (rows, cols): (usize, usize),
    blocks: &Bytes,
    changes: Changes,
) -> Result<AffineWeight, TensorError> {
    let parts = parts(kind, (rows, cols), blocks, changes)?;
    let side = |bytes| (DType::F16, Bytes::from_vec(bytes));
    let (scales, biases) = (side(parts.scales), side(parts.biases));
    AffineWeight::new(kind.format(), (rows, cols), Bytes::from_vec(parts.codes), scales, biases)
}

/// What [`repack`] makes a matrix of: codes, and scales and biases in f16.
///
/// # Errors
/// The shape is too large, or does not fit the bytes.
pub(crate) fn parts(
    kind: BlockType,
    (rows, cols): (usize, usize),
    blocks: &Bytes,
    changes: Changes,
) -> Result<AffineParts, TensorError> {
    let format = kind.format();
    let (weights, bytes) = kind.block();
    let expected = rows.checked_mul(cols / weights).and_then(|n| n.checked_mul(bytes));
    if !cols.is_multiple_of(weights) || expected != Some(blocks.len()) {
        let (what, got) = ("blocks of a GGUF file", blocks.len());
        return Err(TensorError::Bytes { what, expected: expected.unwrap_or(usize::MAX), got });
    }
    let (row_in, row_out) = (cols / weights * bytes, format.row_bytes(cols));
    let row_sides = cols / GROUP * size_of::<f16>();
    let mut codes = vec![0; rows * row_out];
    let (mut scales, mut biases) = (vec![0; rows * row_sides], vec![0; rows * row_sides]);
    let out = codes.chunks_exact_mut(row_out.max(1));
    let sides = scales.chunks_exact_mut(row_sides.max(1));
    let sides = sides.zip(biases.chunks_exact_mut(row_sides.max(1)));
    let mut all: Vec<_> = out.zip(sides).collect();
    pool::for_each(&mut all, |r, (codes, (scales, biases))| {
        let row = &blocks.as_slice()[changes.source(r) * row_in..][..row_in];
        let (codes, _) = codes.as_chunks_mut::<{ GROUP / 8 }>();
        let (scales, biases) = (scales.as_chunks_mut::<2>().0, biases.as_chunks_mut::<2>().0);
        let mut groups = 0..;
        for block in row.chunks_exact(bytes) {
            kind.groups(block, |group| {
                let at = groups.next().map_or(0, |g| changes.group(g, GROUP));
                let own = at * usize::from(format.bits)..(at + 1) * usize::from(format.bits);
                pack(&group.codes, format.bits, codes[own].as_flattened_mut());
                scales[at] = f16::from_f32(group.scale).to_le_bytes();
                biases[at] = f16::from_f32(group.bias).to_le_bytes();
            });
        }
    });
    Ok(AffineParts { codes, scales, biases })
}
