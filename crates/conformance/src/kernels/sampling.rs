//! Checks of drawn tokens and their log probabilities, against the sampler of the host.

use super::{Pair, data::Rng};
use std::fmt;
use taper_base::{Alone, DeviceDraw, DeviceLogits, SamplingParams, TokenMask};
use taper_sampler::{Sampler, draw_bits, read_logits};
use taper_tensor::{
    Result, Tensor, TensorError,
    gpu::{self, Gpu, Sampled},
};

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
    /// Tokens of a row that were seen before.
    seen: usize,
    /// Tokens that are banned.
    banned: usize,
    /// Only tokens of a mask may be chosen, about one of so many.
    one_of: Option<usize>,
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
        SamplingParams { typical_p: 0.3, temperature: 1.3, ..base.clone() },
        SamplingParams { typical_p: 0.9, top_p: 0.8, logprobs: Some(2), ..base.clone() },
        SamplingParams { typical_p: 0.6, top_k: 40, min_p: 1e-3, temperature: 0.8, ..base.clone() },
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
        // More equal ones than that, so that the host has to choose, where a filter's end has to be known.
        (5000, Spread::Flat),
    ];
    for (i, (vocab, spread)) in rows.into_iter().enumerate() {
        for (j, params) in filters.iter().enumerate() {
            if !quick || (i + j) % 2 == 0 {
                cases.push(Case {
                    vocab,
                    spread,
                    params: params.clone(),
                    seen: 0,
                    banned: 0,
                    one_of: None,
                });
            }
        }
    }
    cases.extend(edited(quick));
    cases.extend(masked(quick));
    cases
}

/// Rows with bias, penalties and bans: more of them than threads, and around the ranges that are copied.
fn edited(quick: bool) -> Vec<Case> {
    let base = SamplingParams::default();
    let all = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.7,
        frequency_penalty: 0.31,
        logit_bias: vec![(0, 3.3), (6, -100.0), (3, 1e-3)],
        ..base.clone()
    };
    let kinds = [
        (all.clone(), 40, 2),
        (SamplingParams { temperature: 0.0, ..all.clone() }, 900, 3),
        (SamplingParams { logprobs: Some(20), top_p: 0.9, ..all.clone() }, 40, 1),
        (SamplingParams { logprobs: Some(0), temperature: 0.0, ..all.clone() }, 7, 2),
        (SamplingParams { top_k: 20, top_p: 0.95, ..all.clone() }, 300, 0),
        (SamplingParams { presence_penalty: -2.0, ..base.clone() }, 5, 0),
        (SamplingParams { frequency_penalty: 0.1, top_k: 4, ..base.clone() }, 60, 1),
        (SamplingParams { repetition_penalty: 0.7, temperature: 0.0, ..base.clone() }, 60, 0),
        (SamplingParams { logit_bias: vec![(2, 100.0)], top_p: 0.5, ..base.clone() }, 0, 0),
        (base, 0, 5),
    ];
    let rows = [(7, Spread::Normal(2.0)), (2500, Spread::Steps(0.5)), (9001, Spread::Normal(3.0))];
    let params = SamplingParams { typical_p: 0.7, logprobs: Some(1), ..all };
    let [vocab, seen, banned] = [5000, 30, 2];
    let spread = Spread::Normal(2.0);
    let mut cases = vec![Case { vocab, spread, params, seen, banned, one_of: None }];
    for (i, (vocab, spread)) in rows.into_iter().enumerate() {
        for (j, (params, seen, banned)) in kinds.iter().enumerate() {
            if !quick || (i + j) % 2 == 0 {
                let (params, seen, banned) = (params.clone(), *seen, *banned);
                cases.push(Case { vocab, spread, params, seen, banned, one_of: None });
            }
        }
    }
    cases
}

/// Rows of which only some tokens may be chosen: few, most, and with all else that changes rows.
fn masked(quick: bool) -> Vec<Case> {
    let base = SamplingParams::default();
    let edited = SamplingParams {
        repetition_penalty: 1.3,
        logit_bias: vec![(0, 3.3), (6, -100.0)],
        logprobs: Some(3),
        ..base.clone()
    };
    let kinds = [
        (base.clone(), 0, 0),
        (SamplingParams { temperature: 0.0, ..base.clone() }, 0, 1),
        (SamplingParams { top_k: 20, top_p: 0.9, ..base }, 0, 0),
        (edited, 30, 2),
    ];
    let rows = [(7, Spread::Normal(2.0)), (4097, Spread::Steps(0.5)), (9001, Spread::Normal(3.0))];
    let mut cases = Vec::new();
    for (i, (vocab, spread)) in rows.into_iter().enumerate() {
        for (j, (params, seen, banned)) in kinds.iter().enumerate() {
            if !quick || (i + j) % 2 == 0 {
                let (params, seen, banned) = (params.clone(), *seen, *banned);
                let one_of = Some(if j % 2 == 0 { 2 } else { 50 });
                cases.push(Case { vocab, spread, params, seen, banned, one_of });
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
        let filtered = !greedy && (p.top_k > 0 || (p.top_p < 1.0 && p.typical_p < 1.0));
        matches!(self.spread, Spread::Flat) && (filtered || p.logprobs.is_some_and(|n| n > 0))
    }

    fn is_edited(&self) -> bool {
        self.seen + self.banned + self.params.logit_bias.len() > 0 || self.one_of.is_some()
    }

    /// The last token is always in it, as in small ones there might be none.
    fn mask(&self, rng: &mut Rng) -> Option<TokenMask> {
        let (one_of, last) = (self.one_of?, self.vocab as u32 - 1);
        let tokens: Vec<_> = (0..last).filter(|_| rng.below(one_of) == 0).collect();
        Some(tokens.into_iter().chain([last]).collect())
    }

    /// Where log probabilities are wanted, both the row and its copy are looked at.
    pub(super) fn family(&self) -> &'static str {
        match (self.is_edited(), self.one_of) {
            _ if self.params.logprobs.is_some() => "sample",
            (_, Some(_)) => "mask",
            (true, None) => "edit",
            (false, None) => "sample",
        }
    }

    /// A sampler with a prompt, and after it an output with repetitions, up to the ends of the
    /// vocabulary.
    fn sampler(&self, params: &SamplingParams, rng: &mut Rng) -> Sampler {
        let prompt: Vec<_> = (0..self.seen).map(|_| rng.below(self.vocab) as u32).collect();
        let mut sampler = Sampler::new(params, &prompt, self.vocab as u32);
        for i in 0..self.seen {
            let token = [rng.below(self.vocab), rng.below(5), self.vocab - 1][i % 3];
            sampler.accept(token as u32);
        }
        sampler
    }

    pub(super) fn run(&self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        let vocab = self.vocab;
        let banned: Vec<_> = (0..self.banned).map(|i| (i * i) as u32).collect();
        // One row among the edited ones stays as it is.
        let banned_of = |i: usize| if i == 1 { &[][..] } else { &banned };
        let masks: Vec<_> = (0..ROWS).map(|i| self.mask(rng).filter(|_| i != 2)).collect();
        let mask_of = |i: usize| masks.get(i).and_then(Option::as_ref);
        let mut rows: Vec<Vec<f32>> = (0..ROWS).map(|_| self.logits(rng)).collect();
        let samplers: Vec<_> = (0..ROWS)
            .map(|i| {
                // Two draws are anywhere, and two near the end, where a filter ends.
                let mut seed = rng.bits();
                while i % 2 == 1 && draw_bits(seed, self.seen as u64) >> 53 != 0x7ff {
                    seed = rng.bits();
                }
                let own = SamplingParams { seed, ..self.params.clone() };
                let plain = SamplingParams {
                    repetition_penalty: 1.0,
                    presence_penalty: 0.0,
                    frequency_penalty: 0.0,
                    logit_bias: vec![],
                    ..own.clone()
                };
                self.sampler(if i == 1 { &plain } else { &own }, rng)
            })
            .collect();
        let (mut want, host_rows) = (Vec::new(), rows.clone());
        for (i, (sampler, row)) in samplers.iter().zip(&rows).enumerate() {
            let choice = sampler.sample_on(&Alone, &mut row.clone(), banned_of(i), mask_of(i)).ok();
            want.push(choice.map(|choice| {
                let listed = self.params.logprobs;
                let read = listed.and_then(|n| read_logits(row, choice.token, n).ok());
                Sampled { token: choice.token, logits: read }
            }));
        }
        // Rows that cannot be chosen from, and one before that nobody asks about.
        for bad in [f32::NAN, f32::INFINITY] {
            rows.push(self.logits(rng));
            let at = banned.first().map_or_else(|| rng.below(vocab), |&token| token as usize);
            rows[want.len()][at] = bad;
            want.push(None);
        }
        rows.push(vec![f32::NEG_INFINITY; vocab]);
        want.push(None);
        let refused = TensorError::Device { op: "sample", device: "the host's sampler".into() };
        let draw = samplers[0].on_device(&banned, mask_of(0)).ok_or(refused)?;
        let draws = (0..rows.len()).map(|i| {
            let own =
                samplers.get(i).and_then(|sampler| sampler.on_device(banned_of(i), mask_of(i)));
            (i + 1, own.unwrap_or_else(|| draw.clone()))
        });
        let draws: Vec<_> = draws.collect();
        let all = [&[1.0; 1][..]].into_iter().flat_map(|x| x.repeat(vocab));
        let data: Vec<f32> = all.chain(rows.into_iter().flatten()).collect();
        let logits = Tensor::from_vec(data, &[draws.len() + 1, vocab])?.to_gpu(gpu)?;
        let got = gpu::sample(&logits, &draws)?;
        let edited = edited_rows(&logits, (&samplers, &draws), &host_rows, &banned)?;
        let host = self.is_for_the_host();
        // As many as were asked for, or some would not be compared.
        let choices = Pair { got: vec![got.len() as f32], want: vec![want.len() as f32] };
        let want = want.into_iter().map(|choice| choice.filter(|_| !host));
        let pairs = got.into_iter().zip(want);
        let pairs = pairs.map(|(got, want)| Pair { got: numbers(got), want: numbers(want) });
        Ok(pairs.chain(edited).chain([choices]).collect())
    }
}

/// Every bit of the rows that are edited.
fn edited_rows(
    logits: &Tensor,
    (samplers, draws): (&[Sampler], &[(usize, DeviceDraw)]),
    rows: &[Vec<f32>],
    banned: &[u32],
) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    let all = samplers.iter().zip(draws).zip(rows);
    for ((sampler, draw), row) in all.filter(|((_, d), _)| !d.1.edits.is_empty()) {
        let mut want = row.clone();
        // The row is left as it was edited, even if nothing in it can be chosen.
        let _ = sampler.sample_on(&Alone, &mut want, banned, draw.1.edits.mask.as_ref());
        let got = gpu::edit(logits, &[draw])?.to_vec()?;
        pairs.push(Pair { got: halves(&got), want: halves(&want) });
    }
    Ok(pairs)
}

/// The upper and the lower half of each number's bits.
fn halves(x: &[f32]) -> Vec<f32> {
    let both = |x: &f32| [x.to_bits() >> 16, x.to_bits() & 0xffff].map(|half| half as f32);
    x.iter().flat_map(both).collect()
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
        write!(f, " typical_p {}", p.typical_p)?;
        if self.is_edited() {
            write!(f, " edited: {} seen, {} banned", self.seen, self.banned)?;
        }
        if let Some(n) = self.one_of {
            write!(f, ", one of {n} allowed")?;
        }
        p.logprobs.map_or(Ok(()), |n| write!(f, " logprobs {n}"))
    }
}
