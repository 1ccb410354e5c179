//! Checks of drawn tokens and their log probabilities, against the sampler of the host.

use super::{Pair, data::Rng};
use crate::{
    Result, TensorError,
    gpu::{self, Gpu, Sampled},
    ops,
};
use std::fmt;
use taper_base::SamplingParams;
use taper_sampler::{DeviceLogits, Sampler, draw_bits};

/// How logits are spread.
#[derive(Debug, Clone, Copy)]
enum Spread {
    /// As a model's: a normal distribution, of this deviation.
    Normal(f32),
    /// Few different values, so that filters end among equals.
    Steps(f32),
    /// One likeliest token, the first, and all others equal: filters end at an id that follows from sums
    /// of many masses.
    Plateau,
    /// All the same.
    Flat,
}

#[derive(Debug, Clone)]
pub(super) struct Case {
    vocab: usize,
    spread: Spread,
    params: SamplingParams,
}

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let base = SamplingParams::default();
    let filters = [
        base.clone(),
        SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..base.clone() },
        SamplingParams { top_p: 0.9, ..base.clone() },
        SamplingParams { top_p: 1e-3, logprobs: Some(20), ..base.clone() },
        SamplingParams { temperature: 1.7, top_k: 7, ..base.clone() },
        SamplingParams { min_p: 0.4, temperature: 1.05, logprobs: Some(3), ..base.clone() },
        SamplingParams { min_p: 0.01, top_k: 300, top_p: 0.7, ..base.clone() },
        SamplingParams { temperature: 1e-30, top_p: 0.5, ..base.clone() },
        SamplingParams { temperature: 0.0, logprobs: Some(0), ..base.clone() },
        SamplingParams { temperature: 0.0, logprobs: Some(5), top_k: 3, ..base },
    ];
    let rows = [
        (7, Spread::Normal(2.0)),
        (1000, Spread::Steps(0.5)),
        (3001, Spread::Normal(3.0)),
        // More tokens in a bucket than are put in order at once.
        (6000, Spread::Normal(0.02)),
        (900, Spread::Plateau),
        // More equal ones than that, so that the host has to choose, where there is a filter.
        (5000, Spread::Flat),
    ];
    for (i, (vocab, spread)) in rows.into_iter().enumerate() {
        for (j, params) in filters.iter().enumerate() {
            if !quick || (i + j) % 2 == 0 {
                cases.push(Case { vocab, spread, params: params.clone() });
            }
        }
    }
    cases
}

/// Draws of one case: one a row.
const ROWS: usize = 4;

impl Case {
    fn logits(&self, rng: &mut Rng) -> Vec<f32> {
        let mut row: Vec<f32> = match self.spread {
            Spread::Normal(s) => (0..self.vocab).map(|_| rng.normal() * s).collect(),
            Spread::Steps(s) => (0..self.vocab).map(|_| rng.normal().round() * s).collect(),
            Spread::Plateau => (0..self.vocab).map(|i| if i == 0 { 9.0 } else { 8.0 }).collect(),
            Spread::Flat => vec![-3.5; self.vocab],
        };
        row[1 + rng.below(self.vocab - 1)] = f32::NEG_INFINITY;
        row
    }

    /// Whether a filter ends among more equal logits than the kernel puts in order.
    fn is_for_the_host(&self) -> bool {
        let p = &self.params;
        let greedy = p.temperature == 0.0;
        let filtered = !greedy && (p.top_k > 0 || p.top_p < 1.0);
        matches!(self.spread, Spread::Flat) && (filtered || p.logprobs.is_some_and(|n| n > 0))
    }

    pub(super) fn run(&self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        let vocab = self.vocab;
        let mut rows: Vec<Vec<f32>> = (0..ROWS).map(|_| self.logits(rng)).collect();
        let samplers: Vec<_> = (0..ROWS)
            .map(|i| {
                // Two draws are anywhere, and two near the end, where a filter ends.
                let mut seed = rng.bits();
                while i % 2 == 1 && draw_bits(seed, 0) >> 53 != 0x7ff {
                    seed = rng.bits();
                }
                let params = SamplingParams { seed, ..self.params.clone() };
                Sampler::new(&params, &[], vocab as u32)
            })
            .collect();
        let mut want = Vec::new();
        for (sampler, row) in samplers.iter().zip(&rows) {
            let choice = sampler.sample(&mut row.clone(), &[]).ok();
            want.push(choice.map(|choice| {
                let listed = self.params.logprobs;
                let read = listed.and_then(|n| DeviceLogits::read(row, choice.token, n).ok());
                Sampled { token: choice.token, logits: read }
            }));
        }
        // Rows that cannot be chosen from, and one before that nobody asks about.
        for bad in [f32::NAN, f32::INFINITY] {
            rows.push(self.logits(rng));
            rows[want.len()][rng.below(vocab)] = bad;
            want.push(None);
        }
        rows.push(vec![f32::NEG_INFINITY; vocab]);
        want.push(None);
        let refused = TensorError::Device { op: "sample", device: "the host's sampler".into() };
        let draw = samplers[0].on_device(&[]).ok_or(refused)?;
        let draws = (0..rows.len()).map(|i| {
            let own = samplers.get(i).and_then(|sampler| sampler.on_device(&[]));
            (i + 1, own.unwrap_or(draw))
        });
        let draws: Vec<_> = draws.collect();
        let all = [&[1.0; 1][..]].into_iter().flat_map(|x| x.repeat(vocab));
        let data: Vec<f32> = all.chain(rows.into_iter().flatten()).collect();
        let logits = ops::from_host_f32(data, &[draws.len() + 1, vocab])?.to_gpu(gpu)?;
        let got = gpu::sample(&logits, &draws)?;
        let host = self.is_for_the_host();
        let want = want.into_iter().map(|choice| choice.filter(|_| !host));
        let pairs = got.into_iter().zip(want);
        Ok(pairs.map(|(got, want)| Pair { got: numbers(got), want: numbers(want) }).collect())
    }
}

/// A choice as numbers that floats hold exactly.
fn numbers(sampled: Option<Sampled>) -> Vec<f32> {
    let Some(Sampled { token, logits }) = sampled else { return vec![0.0] };
    let mut numbers = vec![1.0, token as f32];
    if let Some(DeviceLogits { logit, max, mass, top }) = logits {
        numbers.extend([logit, max]);
        numbers.extend((0..4).map(|i| (mass >> (16 * i) & 0xffff) as f32));
        numbers.extend(top.into_iter().flat_map(|(logit, id)| [logit, id as f32]));
    }
    numbers
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.params;
        write!(f, "{:?} {} T {}", self.spread, self.vocab, p.temperature)?;
        write!(f, " top_k {} top_p {} min_p {}", p.top_k, p.top_p, p.min_p)?;
        p.logprobs.map_or(Ok(()), |n| write!(f, " logprobs {n}"))
    }
}
