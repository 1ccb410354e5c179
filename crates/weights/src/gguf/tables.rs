//! Blocks whose codes name the entries of a table.
//!
//! ```text
//! IQ4_NL 32  d: f16 | 16 bytes                        w = d T[q]
//! IQ4_XS 256 d: f16 | sh: u16 | sl[4] | 8 x 16 bytes  w = d (scale[j] - 32) T[q]
//! MXFP4  32  e: u8 | 16 bytes                         w = 2^(e - 127) F[q]
//! ```
//! The low halves of 16 bytes are elements 0 to 15, and the high ones 16 to 31. Bits `4 (j % 2)` of byte `j / 2`
//! of `sl` and bits `2 j` of `sh` are `scale[j]`.

use super::{
    blocks::{BlockType, GROUP, half, nibbles},
    names::Changes,
};
use std::sync::Arc;
use taper_tensor::{
    Bytes, DType, TableFormat, TableScales, TableWeight, TensorError,
    cpu::{E2M1, e8m0},
    pool,
};

/// What the codes of IQ4_NL and IQ4_XS stand for.
pub(super) const UNEVEN: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The scale of weights `32 j` to `32 j + 31` of a block of IQ4_XS.
pub(super) fn scale_of(b: &[u8], j: usize) -> f32 {
    let high = u16::from_le_bytes([b[2], b[3]]);
    let low = b[4 + j / 2] >> (4 * (j % 2)) & 15;
    let scale = u16::from(low) | (high >> (2 * j) & 3) << 4;
    half(b, 0) * (f32::from(scale) - 32.0)
}

/// A block of IQ4_NL.
pub(super) fn uneven(b: &[u8], _: usize) -> [f32; GROUP] {
    let d = half(b, 0);
    nibbles(&b[2..]).map(|code| d * f32::from(UNEVEN[usize::from(code)]))
}

/// Weights `32 j` to `32 j + 31` of a block of IQ4_XS.
pub(super) fn uneven_scaled(b: &[u8], j: usize) -> [f32; GROUP] {
    let d = scale_of(b, j);
    nibbles(&b[8 + 16 * j..]).map(|code| d * f32::from(UNEVEN[usize::from(code)]))
}

/// A block of MXFP4.
pub(super) fn tiny(b: &[u8], _: usize) -> [f32; GROUP] {
    let scale = e8m0(b[0]);
    nibbles(&b[1..]).map(|code| scale * E2M1[usize::from(code)])
}

/// Where a block has what, for its groups of 32.
struct Layout {
    format: TableFormat,
    /// Before the codes.
    head: usize,
    /// Bytes of a scale as it is kept.
    scale: usize,
}

fn layout(kind: BlockType) -> Option<Layout> {
    let (name, head, scale) = match kind {
        BlockType::IQ4_NL => ("iq4_nl", 2, 2),
        BlockType::IQ4_XS => ("iq4_xs", 8, 4),
        BlockType::MXFP4 => ("mxfp4", 1, 1),
        _ => return None,
    };
    Some(Layout { format: TableFormat { name, bits: 4, group: GROUP }, head, scale })
}

/// A matrix of such blocks; `None` for others. Rows and groups of 32 columns go where `changes` has them.
///
/// # Errors
/// The shape is too large, or does not fit the bytes.
pub(super) fn read(
    kind: BlockType,
    (rows, cols): (usize, usize),
    blocks: &Bytes,
    changes: Changes,
) -> Result<Option<TableWeight>, TensorError> {
    let Some(Layout { format, head, scale }) = layout(kind) else { return Ok(None) };
    let (weights, bytes) = kind.block();
    let expected = rows.checked_mul(cols / weights).and_then(|n| n.checked_mul(bytes));
    if cols == 0 || !cols.is_multiple_of(weights) || expected != Some(blocks.len()) {
        let (what, got) = ("blocks of a GGUF file", blocks.len());
        return Err(TensorError::Bytes { what, expected: expected.unwrap_or(usize::MAX), got });
    }
    let (row_in, groups) = (cols / weights * bytes, cols / GROUP);
    let (mut codes, mut scales) = (vec![0; rows * cols / 2], vec![0; rows * groups * scale]);
    let out = codes.chunks_exact_mut(cols / 2).zip(scales.chunks_exact_mut(groups * scale));
    let mut all: Vec<_> = out.collect();
    pool::for_each(&mut all, |r, (codes, scales)| {
        let row = &blocks.as_slice()[changes.source(r) * row_in..][..row_in];
        let blocks = row.chunks_exact(bytes);
        let all = blocks.flat_map(|block| {
            let groups = block[head..].chunks_exact(GROUP / 2).enumerate();
            groups.map(move |(j, own)| (block, j, own))
        });
        for (g, (block, j, own)) in all.enumerate() {
            let at = changes.group(g, GROUP);
            neighbours(own, &mut codes[at * GROUP / 2..][..GROUP / 2]);
            let scale = &mut scales[at * scale..][..scale];
            match kind {
                BlockType::IQ4_XS => scale.copy_from_slice(&scale_of(block, j).to_le_bytes()),
                _ => scale.copy_from_slice(&block[..head]),
            }
        }
    });
    let (codes, scales) = (Bytes::from_vec(codes), Bytes::from_vec(scales));
    let (table, scales): (Arc<[f32]>, _) = match kind {
        BlockType::MXFP4 => {
            let powers = std::array::from_fn(|b| e8m0(b as u8));
            (E2M1.into(), TableScales::Named(scales, Arc::new(powers)))
        }
        BlockType::IQ4_XS => (numbers(), TableScales::Floats(DType::F32, scales)),
        _ => (numbers(), TableScales::Floats(DType::F16, scales)),
    };
    TableWeight::new(format, (rows, cols), codes, table, scales).map(Some)
}

fn numbers() -> Arc<[f32]> {
    UNEVEN.map(f32::from).into()
}

/// The codes of 16 bytes with two neighbours a byte, the first low.
fn neighbours(halves: &[u8], out: &mut [u8]) {
    let codes = nibbles(halves);
    for (out, pair) in out.iter_mut().zip(codes.as_chunks::<2>().0) {
        *out = pair[0] | pair[1] << 4;
    }
}
