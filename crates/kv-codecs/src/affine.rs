//! Sides of affine codes.
//!
//! ```text
//! row:  codes bits * d / 8 | per group: scale f16, bias f16
//! ```
//! Affine codes are MLX's (`x = scale * code + bias` per group of a row), the `kv_bits` of mlx-lm.

use crate::{
    KvGeometry,
    rows::RowFormat,
    side::{AffineScratch, Precision, Products, Queries, padded_tokens, put_half},
};
use half::f16;
use taper_tensor::cpu::codes::{Affine, Codes, Order};

/// Affine codes of 4 or 8 bits.
#[derive(Debug)]
pub(crate) struct AffineSide(Affine);

impl AffineSide {
    pub(crate) fn new(g: KvGeometry, bits: usize, group: usize) -> Self {
        Self(Affine { d: g.head_dim, bits, group })
    }

    pub(crate) fn head_bytes(g: KvGeometry, bits: usize, group: usize) -> usize {
        padded_tokens(g) * Self::new(g, bits, group).0.row_bytes()
    }
}

/// Scale and bias of a group, rounded to halves: MLX's rule, in which the end of the range with
/// the larger magnitude is met exactly.
fn affine(x: &[f32], bits: usize) -> (f32, f32) {
    let most = ((1u32 << bits) - 1) as f32;
    let low = x.iter().copied().fold(f32::INFINITY, f32::min);
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let half = |x: f32| f16::from_f32(x.clamp(-65_504.0, 65_504.0)).to_f32();
    let negative = low.abs() > high.abs();
    let edge = if negative { low } else { high };
    let step = ((high - low) / most).max(1e-7);
    let scale = if negative { step } else { -step };
    let at_zero = (edge / scale).round();
    let scale = if at_zero == 0.0 { scale } else { edge / at_zero };
    (half(scale), if at_zero == 0.0 { 0.0 } else { half(edge) })
}

impl RowFormat for AffineSide {
    fn dim(&self) -> usize {
        self.0.d
    }

    fn row_bytes(&self) -> usize {
        self.0.row_bytes()
    }

    fn put(&self, row: &[f32], out: &mut [u8]) {
        let Affine { bits, group, .. } = self.0;
        let codes = self.0.code_bytes();
        out.fill(0);
        let most = ((1u32 << bits) - 1) as f32;
        for (i, x) in row.chunks(group).enumerate() {
            let (scale, bias) = affine(x, bits);
            put_half(out, codes + 4 * i, scale);
            put_half(out, codes + 4 * i + 2, bias);
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            for (j, &x) in x.iter().enumerate() {
                let code = ((x - bias) * inverse).round().clamp(0.0, most) as u8;
                let bit = (i * group + j) * bits;
                out[bit / 8] |= code << (bit % 8);
            }
        }
    }

    fn get(&self, row: &[u8], out: &mut [f32]) {
        self.0.read(row, out);
    }

    fn round(&self, q: &mut Queries) {
        q.affine.set(&q.floats, self.0);
    }

    fn dots(
        &self,
        rows: Codes<'_>,
        q: &Queries,
        precision: Precision,
        scratch: &mut Products,
        out: &mut [f32],
    ) {
        let scales = &mut scratch.affine.scales;
        scales.set(precision.level, rows.here, self.0, Order::Rows);
        self.0.dots(precision.level, &q.affine, rows, scales, out);
    }

    fn add_weighted(
        &self,
        rows: Codes<'_>,
        p: &[f32],
        precision: Precision,
        scratch: &mut Products,
        acc: &mut [f32],
    ) {
        let AffineScratch { scales, weights } = &mut scratch.affine;
        let Precision { level, sparse_v } = precision;
        scales.set(level, rows.here, self.0, Order::Elements);
        self.0.add_weighted(level, p, rows, scales, sparse_v, weights, acc);
    }
}
