//! Sides of affine codes.
//!
//! ```text
//! row:  codes bits * d / 8 | per group: scale f16, bias f16
//! ```
//! Affine codes are MLX's (`x = scale * code + bias` per group of a row), the `kv_bits` of mlx-lm.

use crate::{
    KvGeometry,
    rows::FloatRows,
    side::{half_at, padded_tokens, put_half},
};
use half::f16;
use taper_tensor::cpu::{Floats, codes::CodeLevel};

/// Affine codes of 4 or 8 bits.
#[derive(Debug)]
pub(crate) struct AffineSide {
    d: usize,
    bits: usize,
    group: usize,
}

impl AffineSide {
    pub(crate) fn new(g: KvGeometry, bits: usize, group: usize) -> Self {
        Self { d: g.head_dim, bits, group }
    }

    pub(crate) fn head_bytes(g: KvGeometry, bits: usize, group: usize) -> usize {
        padded_tokens(g) * Self::new(g, bits, group).row_bytes()
    }

    fn code_bytes(&self) -> usize {
        (self.d * self.bits).div_ceil(8).next_multiple_of(2)
    }

    fn widen_row(&self, row: &[u8], out: &mut [f32]) {
        for (i, out) in out.chunks_mut(self.group).enumerate() {
            let at = self.code_bytes() + 4 * i;
            let (scale, bias) = (half_at(row, at), half_at(row, at + 2));
            let first = i * self.group * self.bits / 8;
            if self.bits == 8 {
                for (x, &c) in out.iter_mut().zip(&row[first..]) {
                    *x = f32::from(c) * scale + bias;
                }
            } else {
                for (x, &c) in out.chunks_mut(2).zip(&row[first..]) {
                    x[0] = f32::from(c & 15) * scale + bias;
                    if let Some(x) = x.get_mut(1) {
                        *x = f32::from(c >> 4) * scale + bias;
                    }
                }
            }
        }
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

impl FloatRows for AffineSide {
    fn dim(&self) -> usize {
        self.d
    }

    fn row_bytes(&self) -> usize {
        self.code_bytes() + self.d.div_ceil(self.group) * 4
    }

    fn put(&self, row: &[f32], out: &mut [u8]) {
        out.fill(0);
        let most = ((1u32 << self.bits) - 1) as f32;
        for (i, x) in row.chunks(self.group).enumerate() {
            let (scale, bias) = affine(x, self.bits);
            put_half(out, self.code_bytes() + 4 * i, scale);
            put_half(out, self.code_bytes() + 4 * i + 2, bias);
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            for (j, &x) in x.iter().enumerate() {
                let code = ((x - bias) * inverse).round().clamp(0.0, most) as u8;
                let bit = (i * self.group + j) * self.bits;
                out[bit / 8] |= code << (bit % 8);
            }
        }
    }

    fn get(&self, row: &[u8], out: &mut [f32]) {
        self.widen_row(row, out);
    }

    fn floats<'a>(&self, rows: &'a [u8], _: CodeLevel, out: &'a mut Vec<f32>) -> Floats<'a> {
        let rows = rows.chunks_exact(self.row_bytes());
        out.resize(rows.len() * self.d, 0.0);
        for (row, out) in rows.zip(out.chunks_exact_mut(self.d)) {
            self.widen_row(row, out);
        }
        Floats::F32(out)
    }
}
