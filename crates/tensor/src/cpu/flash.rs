//! Attention with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022), a block of keys
//! and values at a time.

use super::{
    Floats, Level,
    kernels::{self, Rows, RowsMut},
};
use std::ops::Range;

/// A few query rows on their way over the keys.
///
/// Feed the blocks in order; a row's result does not depend on the other rows, and a block that a
/// row may not see leaves the row as it is, bit for bit.
#[derive(Debug, Default)]
pub struct FlashTile {
    level: Option<Level>,
    rows: usize,
    d: usize,
    max: Vec<f32>,
    sum: Vec<f32>,
    acc: Vec<f32>,
    scores: Vec<f32>,
    wide_k: Vec<f32>,
    wide_v: Vec<f32>,
}

/// From so many rows on, halves are widened once instead of by every pass over them. The sums are
/// the same.
const WIDEN_FROM: usize = 8;

impl FlashTile {
    /// Starts `rows` queries with values of `d` elements.
    pub fn reset(&mut self, rows: usize, d: usize) {
        (self.rows, self.d) = (rows, d);
        let fill = |v: &mut Vec<f32>, n: usize, x: f32| {
            v.clear();
            v.resize(n, x);
        };
        fill(&mut self.max, rows, f32::NEG_INFINITY);
        fill(&mut self.sum, rows, 0.0);
        fill(&mut self.acc, rows * d, 0.0);
    }

    /// Uses `level` instead of the best one; for tests.
    pub fn force_level(&mut self, level: Level) {
        self.level = Some(level);
    }

    /// Adds `logit` to each row's softmax as a key without a value (an attention sink).
    pub fn sink(&mut self, row: usize, logit: f32) {
        self.max[row] = logit;
        self.sum[row] = 1.0;
    }

    /// Attends to a block.
    ///
    /// # Shapes
    /// `q [rows, dk]` already scaled; `k [n, dk]`, `v [n, d]`. `visible(row)` is the range of the
    /// block's keys that the row may see, within `0..n`.
    ///
    /// # Panics
    /// When the lengths differ from these.
    pub fn block(
        &mut self,
        q: &[f32],
        k: Floats<'_>,
        v: Floats<'_>,
        soft_cap: Option<f32>,
        visible: impl Fn(usize) -> Range<usize>,
    ) {
        let (rows, d) = (self.rows, self.d);
        let n = v.len() / d;
        let dk = q.len() / rows.max(1);
        assert!(q.len() == rows * dk && k.len() == n * dk && v.len() == n * d, "shapes");
        if rows == 0 || n == 0 {
            return;
        }
        let level = self.level.unwrap_or_else(Level::detect);
        self.scores.clear();
        self.scores.resize(rows * n, 0.0);
        let k = if rows < WIDEN_FROM { k } else { Floats::F32(k.widened(&mut self.wide_k)) };
        let out = RowsMut { ptr: self.scores.as_mut_ptr(), stride: n };
        dots(level, q, rows, k, n, out);
        for row in 0..rows {
            self.soften(level, row, n, soft_cap, visible(row));
        }
        let v = if rows < WIDEN_FROM { v } else { Floats::F32(v.widened(&mut self.wide_v)) };
        let acc = RowsMut { ptr: self.acc.as_mut_ptr(), stride: d };
        add_weighted(level, &self.scores, rows, v, n, acc);
    }

    /// Turns a row of scores into weights relative to the row's new maximum.
    fn soften(
        &mut self,
        level: Level,
        row: usize,
        n: usize,
        soft_cap: Option<f32>,
        seen: Range<usize>,
    ) {
        let scores = &mut self.scores[row * n..][..n];
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
        let live = &mut scores[seen];
        if live.is_empty() {
            return;
        }
        // SAFETY: each call works inside its slice, which is not empty.
        unsafe {
            if let Some(cap) = soft_cap {
                kernels::soft_cap(level, live.as_mut_ptr(), live.len(), cap);
            }
            let max = self.max[row].max(kernels::row_max(level, live.as_ptr(), live.len()));
            let shrink = (self.max[row] - max).exp();
            let sum = kernels::exp_shift(level, live.as_mut_ptr(), live.len(), max);
            self.sum[row] = self.sum[row] * shrink + sum;
            if shrink != 1.0 {
                kernels::scale(level, self.acc[row * self.d..].as_mut_ptr(), self.d, shrink);
            }
            self.max[row] = max;
        }
    }

    /// Writes the attended values of `row`; zeros when it saw nothing.
    ///
    /// # Panics
    /// When `out` is not one value long.
    pub fn finish(&self, row: usize, out: &mut [f32]) {
        let acc = &self.acc[row * self.d..][..self.d];
        let s = if self.sum[row] > 0.0 { 1.0 / self.sum[row] } else { 0.0 };
        assert_eq!(out.len(), self.d, "one value");
        out.iter_mut().zip(acc).for_each(|(o, a)| *o = a * s);
    }
}

/// Scores of `rows` queries against `n` keys.
fn dots(level: Level, q: &[f32], rows: usize, k: Floats<'_>, n: usize, out: RowsMut) {
    let dk = q.len() / rows;
    let q = Rows { ptr: q.as_ptr(), rows, stride: dk };
    // SAFETY: `FlashTile::block` has checked the lengths; `out` is rows x n.
    unsafe {
        match k {
            Floats::F32(k) => {
                let k = Rows { ptr: k.as_ptr(), rows: n, stride: dk };
                kernels::dot_block(level, q, k, dk, out);
            }
            Floats::F16(k) => {
                let k = Rows { ptr: k.as_ptr(), rows: n, stride: dk };
                kernels::dot_block_f16(level, q, k, dk, out);
            }
            Floats::Bf16(k) => {
                let k = Rows { ptr: k.as_ptr(), rows: n, stride: dk };
                kernels::dot_block_bf16(level, q, k, dk, out);
            }
        }
    }
}

/// Adds `n` values, weighted by each row's scores.
fn add_weighted(level: Level, p: &[f32], rows: usize, v: Floats<'_>, n: usize, acc: RowsMut) {
    let d = v.len() / n;
    let p = Rows { ptr: p.as_ptr(), rows, stride: n };
    // SAFETY: `FlashTile::block` has checked the lengths; `acc` is rows x d.
    unsafe {
        match v {
            Floats::F32(v) => {
                let v = Rows { ptr: v.as_ptr(), rows: n, stride: d };
                kernels::weighted_rows(level, p, v, d, acc);
            }
            Floats::F16(v) => {
                let v = Rows { ptr: v.as_ptr(), rows: n, stride: d };
                kernels::weighted_rows_f16(level, p, v, d, acc);
            }
            Floats::Bf16(v) => {
                let v = Rows { ptr: v.as_ptr(), rows: n, stride: d };
                kernels::weighted_rows_bf16(level, p, v, d, acc);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<f32> {
        let f = |i: usize| ((i as f64 + 1.3) * (seed as f64 + 0.7) * 12.9898).sin() * 43_758.545;
        (0..n).map(|i| (f(i) - f(i).floor()) as f32 * 4.0 - 2.0).collect()
    }

    /// Softmax attention of one row in f64.
    fn dense(q: &[f32], k: &[f32], v: &[f32], d: usize, seen: Range<usize>) -> Vec<f64> {
        let dk = q.len();
        let dot =
            |j: usize| -> f64 { (0..dk).map(|p| f64::from(q[p]) * f64::from(k[j * dk + p])).sum() };
        let logits: Vec<_> = seen.clone().map(dot).collect();
        let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = logits.iter().map(|l| (l - max).exp()).sum();
        let mut out = vec![0.0; d];
        for (l, j) in logits.iter().zip(seen) {
            for (e, o) in out.iter_mut().enumerate() {
                *o += (l - max).exp() / total * f64::from(v[j * d + e]);
            }
        }
        out
    }

    #[test]
    fn blocks_add_up_to_softmax_attention_on_every_level() {
        let (rows, n, dk, d, block) = (6, 75, 24, 20, 32);
        let (q, k, v) = (noise(rows * dk, 1), noise(n * dk, 2), noise(n * d, 3));
        let seen = |row: usize| (row * 9).saturating_sub(20)..(row * 13 + 5).min(n);
        for level in Level::available() {
            let mut tile = FlashTile::default();
            tile.force_level(level);
            tile.reset(rows, d);
            for start in (0..n).step_by(block) {
                let end = (start + block).min(n);
                let keys = Floats::F32(&k[start * dk..end * dk]);
                let values = Floats::F32(&v[start * d..end * d]);
                tile.block(&q, keys, values, None, |row| {
                    let clamp = |x: usize| x.clamp(start, end) - start;
                    clamp(seen(row).start)..clamp(seen(row).end)
                });
            }
            for row in 0..rows {
                let mut got = vec![0.0; d];
                tile.finish(row, &mut got);
                let want = dense(&q[row * dk..][..dk], &k, &v, d, seen(row));
                for (g, w) in got.iter().zip(want) {
                    assert!((f64::from(*g) - w).abs() < 2e-5, "{level:?} row {row}: {g} {w}");
                }
            }
        }
    }

    #[test]
    fn a_row_alone_and_a_row_in_company_agree_to_the_bit() {
        let (rows, n, d) = (11, 64, 40);
        let (q, k, v) = (noise(rows * d, 4), noise(n * d, 5), noise(n * d, 6));
        let half = |x: &[f32]| x.iter().copied().map(half::f16::from_f32).collect::<Vec<_>>();
        let (k16, v16) = (half(&k), half(&v));
        let (k, v) = (Floats::F32(&k), Floats::F16(&v16));
        let k2 = Floats::F16(&k16);
        let mut all = FlashTile::default();
        all.reset(rows, d);
        all.block(&q, k, v, None, |row| 0..row * 3);
        all.block(&q, k2, v, Some(3.0), |row| row..n - row);
        for row in 0..rows {
            let mut one = FlashTile::default();
            one.reset(1, d);
            let qr = &q[row * d..][..d];
            one.block(qr, k, v, None, |_| 0..row * 3);
            one.block(qr, k2, v, Some(3.0), |_| row..n - row);
            let (mut a, mut b) = (vec![0.0; d], vec![0.0; d]);
            all.finish(row, &mut a);
            one.finish(0, &mut b);
            assert_eq!(a, b);
        }
    }
}
