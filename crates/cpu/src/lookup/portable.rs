//! The definition of the products.

use super::{Block, PackedTable, pack::TILE};

/// A tile's outputs for each row of `x`.
pub(super) fn tile(w: &PackedTable, tile: usize, x: &[f32], out: &mut Block) {
    for (x, out) in x.chunks_exact(w.cols()).zip(out) {
        for (first, codes, sides) in w.records(tile) {
            for (r, total) in out.iter_mut().enumerate() {
                let mut sums = [0.0f32; 2];
                let inputs = inputs(w, codes);
                for (k, x) in x[first..][..inputs].iter().enumerate() {
                    sums[k % 2] = w.entry(codes, r, k).mul_add(*x, sums[k % 2]);
                }
                *total = (sums[0] + sums[1]).mul_add(w.scale(sides, r), *total);
            }
        }
    }
}

/// Inputs of a record.
pub(super) fn inputs(w: &PackedTable, codes: &[u8]) -> usize {
    codes.len() / TILE * if matches!(w.kind, super::pack::Kind::Halves(_)) { 2 } else { 1 }
}
