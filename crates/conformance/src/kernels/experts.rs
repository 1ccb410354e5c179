//! Checks of mixtures of experts.

use super::{Pair, data::Rng};
use std::fmt;
use taper_tensor::{
    AffineFormat, DType, Linear, LinearGroup, Phase, Result, Tensor, Weight,
    gpu::{Gpu, Routing, StackedExperts},
    ops::{self, Activation, WeightedRows},
};

#[derive(Debug, Clone, Copy)]
enum Stored {
    Dense(DType),
    Affine(AffineFormat, DType),
}

#[derive(Debug, Clone)]
pub(super) struct Case {
    stored: Stored,
    tokens: usize,
    hidden: usize,
    inner: usize,
    experts: usize,
    routing: Routing,
    exact: bool,
}

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let affine = |bits, group, scales| Stored::Affine(AffineFormat { bits, group }, scales);
    let formats = [
        affine(4, 32, DType::BF16),
        Stored::Dense(DType::BF16),
        affine(2, 32, DType::F16),
        affine(3, 64, DType::F32),
        affine(4, 64, DType::F16),
        affine(5, 32, DType::BF16),
        affine(6, 64, DType::F16),
        affine(8, 32, DType::BF16),
        Stored::Dense(DType::F32),
        Stored::Dense(DType::F16),
    ];
    // Rows of one chunk, of more than a simdgroup's lanes, and tokens that are multiplied by expert.
    let shapes =
        [(1, 64, 192, 8, 2), (5, 128, 1088, 3, 3), (3, 1152, 64, 130, 7), (130, 64, 128, 5, 2)];
    let mut cases = Vec::new();
    for (i, stored) in formats.into_iter().enumerate() {
        for (j, &(tokens, hidden, inner, experts, chosen)) in shapes.iter().enumerate() {
            if quick && i > 1 && (i + j) % 3 > 0 {
                continue;
            }
            let routing = Routing { chosen, normalise: (i + j) % 2 == 0 };
            for exact in [true, false] {
                if exact || tokens > 128 {
                    cases.push(Case { stored, tokens, hidden, inner, experts, routing, exact });
                }
            }
        }
    }
    cases
}

impl Case {
    pub(super) fn tolerance(&self) -> f64 {
        if self.exact { 2e-5 } else { 4e-3 }
    }

    fn linear(&self, rng: &mut Rng, rows: usize, cols: usize) -> Result<Linear> {
        let weight: Weight = match self.stored {
            Stored::Dense(dtype) => rng.dense(dtype, rows, cols)?,
            Stored::Affine(format, scales) => rng.affine(format, scales, rows, cols)?,
        };
        Ok(Linear::new(weight))
    }

    pub(super) fn run(&self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        let (t, hidden, inner) = (self.tokens, self.hidden, self.inner);
        let mut experts = Vec::new();
        for _ in 0..self.experts {
            let gate_up = [self.linear(rng, inner, hidden)?, self.linear(rng, inner, hidden)?];
            experts.push((LinearGroup::new(gate_up)?, self.linear(rng, hidden, inner)?));
        }
        let x = rng.tensor(&[t, hidden])?;
        let normed = Tensor::from_vec(rng.vector(t * hidden), &[t, hidden])?;
        // Quarters, so that there are equal ones.
        let logits = (0..t * self.experts).map(|_| (rng.normal() * 4.0).round() / 4.0);
        let logits: Vec<f32> = logits.collect();
        let mut parts = Vec::new();
        for ((gate_up, down), chosen) in experts.iter().zip(self.choose(&logits)) {
            let (rows, weights): (Vec<u32>, Vec<f32>) = chosen.into_iter().unzip();
            if rows.is_empty() {
                continue;
            }
            let own = ops::take_rows(&normed, &rows)?;
            let [gate, up] = gate_up.parts();
            let gated = ops::gated(
                Activation::Silu,
                &gate.forward(&own, Phase::Decode)?,
                &up.forward(&own, Phase::Decode)?,
            )?;
            parts.push(WeightedRows { x: down.forward(&gated, Phase::Decode)?, rows, weights });
        }
        let want = ops::add_weighted_rows(&x, &parts)?;
        let maps: Vec<_> = experts.iter().map(|(gate_up, down)| (gate_up, down)).collect();
        let stacked = StackedExperts::new(gpu, &maps, self.exact)?;
        let logits = Tensor::from_vec(logits, &[t, self.experts])?;
        let (x, normed, logits) = (x.to_gpu(gpu)?, normed.to_gpu(gpu)?, logits.to_gpu(gpu)?);
        let got = stacked.forward_add(&x, &normed, &logits, self.routing, Activation::Silu)?;
        Ok(vec![Pair::of(&got, &want)?])
    }

    /// Each expert's tokens and their weights.
    fn choose(&self, logits: &[f32]) -> Vec<Vec<(u32, f32)>> {
        let mut of_expert = vec![Vec::new(); self.experts];
        for (token, row) in (0u32..).zip(logits.chunks(self.experts)) {
            let mut order: Vec<_> = (0..row.len()).collect();
            // Stable: of equals the first stays first.
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            let chosen = &order[..self.routing.chosen];
            let counted = if self.routing.normalise { chosen } else { &order };
            let total: f32 = counted.iter().map(|&e| row[e].exp()).sum();
            for &e in chosen {
                of_expert[e].push((token, row[e].exp() / total));
            }
        }
        of_expert
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stored {
            Stored::Dense(dtype) => write!(f, "{}", dtype.as_str())?,
            Stored::Affine(a, s) => write!(f, "{}-bit g{} {}", a.bits, a.group, s.as_str())?,
        }
        let (rounded, r) = (if self.exact { "" } else { " f16" }, self.routing);
        let sum = if r.normalise { "normalised " } else { "" };
        write!(f, "{rounded} {}x{}x{}", self.tokens, self.hidden, self.inner)?;
        write!(f, ", {sum}{} of {}", r.chosen, self.experts)
    }
}
