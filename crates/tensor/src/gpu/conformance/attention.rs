//! Checks of attention against a plain softmax in f64.

use super::{Pair, data::Rng};
use crate::{
    DType, Result, Tensor,
    gpu::{
        Gpu,
        attention::{self, BLOCK_TOKENS, KvShape, Plan, Scoring, Sequence},
    },
};
use half::{bf16, f16};
use std::fmt;

#[derive(Debug, Clone)]
pub(super) struct Case {
    shape: KvShape,
    group: usize,
    /// Query tokens and tokens of each sequence.
    seqs: Vec<(usize, usize)>,
    scoring: Scoring,
    /// On the matrix units.
    tiled: bool,
}

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let shape = |kv_heads, head_dim, dtype| KvShape { kv_heads, head_dim, dtype };
    let plain = Scoring { scale: 0.2, window: None, soft_cap: None };
    let mut cases = Vec::new();
    let mut add = |shape: KvShape, group, seqs: &[(usize, usize)], scoring| {
        for tiled in [false, true].into_iter().take(1 + usize::from(shape.is_typed())) {
            cases.push(Case { shape, group, seqs: seqs.to_vec(), scoring, tiled });
        }
    };
    // Each kernel once, with lengths around a block and around a span.
    for (head_dim, dtype) in [
        (64, DType::F16),
        (128, DType::F16),
        (256, DType::F16),
        (24, DType::F16),
        (8, DType::F32),
        (72, DType::BF16),
    ] {
        add(shape(2, head_dim, dtype), 2, &[(1, 1), (1, 33), (1, 64)], plain);
        add(shape(1, head_dim, dtype), 4, &[(5, 5), (1, 40), (3, 70)], plain);
    }
    let long: &[_] = if quick { &[(1, 513)] } else { &[(1, 513), (2, 1100), (1, 512), (1, 3)] };
    add(shape(1, 64, DType::F16), 2, long, plain);
    add(shape(1, 16, DType::F32), 3, long, plain);
    add(shape(1, 32, DType::F32), 1, &[(17, 50)], plain);
    // More heads than a tile has rows.
    add(shape(2, 64, DType::F16), 20, &[(2, 37)], plain);
    add(shape(1, 40, DType::BF16), 6, &[(2, 37)], plain);
    let window = Scoring { window: Some(33), ..plain };
    add(shape(1, 64, DType::F16), 3, &[(1, 100), (7, 90), (1, 20), (40, 40)], window);
    add(shape(1, 16, DType::F32), 2, &[(1, 1030), (9, 64)], window);
    add(shape(1, 64, DType::F16), 1, &[(4, 70)], Scoring { window: Some(1), ..plain });
    let capped = Scoring { soft_cap: Some(2.5), ..plain };
    add(shape(1, 64, DType::F16), 2, &[(3, 40)], capped);
    cases
}

impl Case {
    pub(super) fn family(&self) -> &'static str {
        if self.tiled { "attend_tile" } else { "attend" }
    }

    pub(super) fn run(&self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        let KvShape { kv_heads, head_dim, dtype } = self.shape;
        let heads = kv_heads * self.group;
        let row = kv_heads * head_dim;
        // Blocks of all sequences, in a random order, with some between that nobody wrote.
        let needed = |kv: usize| kv.div_ceil(BLOCK_TOKENS);
        let total: usize = self.seqs.iter().map(|s| needed(s.1)).sum::<usize>() + 3;
        let mut free: Vec<u32> = (0..total as u32).collect();
        for i in (1..total).rev() {
            free.swap(i, rng.below(i + 1));
        }
        let page = total * BLOCK_TOKENS * row * dtype.size_in_bytes();
        let pages = (gpu.allocate(page)?, gpu.allocate(page)?);
        let mut tables = Vec::new();
        let (mut want, mut queries) = (Vec::new(), Vec::new());
        for &(q_len, kv_len) in &self.seqs {
            let blocks: Vec<u32> = free.drain(..needed(kv_len)).collect();
            let slots: Vec<u32> = (0..kv_len)
                .map(|i| blocks[i / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (i % BLOCK_TOKENS) as u32)
                .collect();
            let (k, v) = (rng.vector(kv_len * row), rng.vector(kv_len * row));
            let there = |x: &[f32]| {
                let dims = [kv_len, kv_heads, head_dim];
                Tensor::from_vec(x.to_vec(), dims.as_slice(), &crate::Device::Cpu)?.to_gpu(gpu)
            };
            let slots = gpu.upload(&slots)?;
            attention::write(self.shape, &there(&k)?, &there(&v)?, &slots, (&pages.0, &pages.1))?;
            let q = rng.vector(q_len * heads * head_dim);
            let side = |x: &[f32]| x.iter().map(|&x| stored(dtype, x)).collect::<Vec<_>>();
            want.extend(self.reference(&q, &side(&k), &side(&v), (q_len, kv_len)));
            queries.extend(q);
            tables.push(blocks);
        }
        let tokens = self.seqs.iter().map(|s| s.0).sum();
        let dims = [tokens, heads, head_dim];
        let q = Tensor::from_vec(queries, dims.as_slice(), &crate::Device::Cpu)?.to_gpu(gpu)?;
        let seqs: Vec<_> = self
            .seqs
            .iter()
            .zip(&tables)
            .map(|(&(q_len, kv_len), blocks)| Sequence { q_len, kv_len, blocks })
            .collect();
        let plan = Plan::with(gpu, self.shape, &seqs, self.group, self.tiled)?;
        let out = attention::attend(self.shape, &q, (&pages.0, &pages.1), &plan, &self.scoring)?;
        Ok(vec![Pair { got: out.flatten_all()?.to_vec1()?, want }])
    }

    fn reference(
        &self,
        q: &[f32],
        k: &[f64],
        v: &[f64],
        (q_len, kv_len): (usize, usize),
    ) -> Vec<f32> {
        let KvShape { kv_heads, head_dim: d, .. } = self.shape;
        let heads = kv_heads * self.group;
        let mut out = Vec::with_capacity(q.len());
        for (i, q) in q.chunks(d).enumerate() {
            let (token, head) = (i / heads, i % heads / self.group);
            let end = kv_len - q_len + token + 1;
            let start = self.scoring.window.map_or(0, |w| end.saturating_sub(w));
            let at = |t: usize| (t * kv_heads + head) * d;
            let score = |t: usize| {
                let dot: f64 = q.iter().zip(&k[at(t)..]).map(|(&q, &k)| f64::from(q) * k).sum();
                let s = dot * f64::from(self.scoring.scale);
                self.scoring.soft_cap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
            };
            let scores: Vec<f64> = (start..end).map(score).collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let total: f64 = weights.iter().sum();
            out.extend((0..d).map(|e| {
                let sum: f64 = weights.iter().zip(start..end).map(|(w, t)| w * v[at(t) + e]).sum();
                (sum / total) as f32
            }));
        }
        out
    }
}

/// What the cache keeps of a number.
fn stored(dtype: DType, x: f32) -> f64 {
    match dtype {
        DType::F16 => f16::from_f32(x).to_f64(),
        DType::BF16 => bf16::from_f32(x).to_f64(),
        _ => f64::from(x),
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KvShape { kv_heads, head_dim, dtype } = self.shape;
        let (units, group) = (if self.tiled { "tiles " } else { "" }, self.group);
        write!(f, "{units}{} {kv_heads}x{group}x{head_dim} {:?}", dtype.as_str(), self.seqs)?;
        if let Some(window) = self.scoring.window {
            write!(f, " window {window}")?;
        }
        match self.scoring.soft_cap {
            Some(cap) => write!(f, " cap {cap}"),
            None => Ok(()),
        }
    }
}
