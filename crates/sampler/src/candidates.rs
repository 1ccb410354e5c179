//! Which tokens can be drawn, and the draw.

use crate::{
    exp::{exp, mass, moment, units},
    scan::{CHUNK, Scanned, by_rank},
};
use multiversion::multiversion;
use std::cmp::Ordering;
use taper_base::{SamplingParams, TokenId};

/// Candidates tried for `top_p` first: peaked distributions, the usual ones, need a handful.
const NUCLEUS_TRY: usize = 64;

/// Of so many tokens one is looked at to guess where the nucleus of another distribution ends.
const SAMPLED: usize = 32;

/// Tokens whose masses are added up together.
const BLOCK: usize = 8 * CHUNK;

/// From this scaled distance on there is no mass.
const MASSLESS: f32 = -28.5;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    id: TokenId,
    /// After bias and penalties; orders candidates.
    logit: f32,
    mass: u64,
}

/// What the filters leave, by ascending id, every one with a mass above 0.
#[derive(Debug)]
pub(crate) enum Candidates<'a> {
    /// No filter: masses are computed from the row as they are needed.
    All {
        row: &'a Scanned<'a>,
        inv_t: f32,
    },
    Some(Vec<Candidate>),
}

/// A share in units of 2^-32, rounded up.
pub(crate) fn share(p: f32) -> u64 {
    (f64::from(p) * (1u64 << 32) as f64).ceil() as u64
}

/// Mass that a filter with parameter `p` must reach: in whole numbers, so that a device without
/// doubles finds the same.
fn target(p: f32, total: u64) -> u64 {
    let target = (u128::from(share(p)) * u128::from(total)).div_ceil(1 << 32);
    (target as u64).clamp(1, total.max(1))
}

fn total(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(|c| c.mass).sum()
}

/// Keeps the shortest prefix, in the order of `cmp`, whose mass reaches `target`; those kept stay in
/// the order in which they came.
///
/// `key` never falls along the order of `cmp`. A histogram of mass over it finds the narrow range
/// in which the prefix ends, and only what lies there is put in order.
fn keep_prefix(
    candidates: &mut Vec<Candidate>,
    mut target: u64,
    key: impl Fn(&Candidate) -> f32,
    cmp: impl Fn(&Candidate, &Candidate) -> Ordering,
) {
    const BUCKETS: usize = 1024;
    // Keys are nats: 32 nats hold every candidate with a mass, and the conversion saturates.
    let bucket = |c: &Candidate| ((key(c) * 32.0) as usize).min(BUCKETS - 1);
    let mut masses = [0u64; BUCKETS];
    for c in candidates.iter() {
        masses[bucket(c)] += c.mass;
    }
    let mut last = 0;
    while last < BUCKETS - 1 && masses[last] < target {
        target -= masses[last];
        last += 1;
    }
    let mut range: Vec<Candidate> =
        candidates.iter().filter(|c| bucket(c) == last).copied().collect();
    if let Some(end) = prefix_end(&mut range, target, &cmp) {
        candidates.retain(|c| match bucket(c).cmp(&last) {
            Ordering::Equal => cmp(c, &end) != Ordering::Greater,
            order => order == Ordering::Less,
        });
    }
}

/// The last candidate of the shortest prefix whose mass reaches `target`. Linear: halves by
/// selection, and follows the half in which the prefix ends.
fn prefix_end(
    candidates: &mut [Candidate],
    mut target: u64,
    cmp: impl Fn(&Candidate, &Candidate) -> Ordering,
) -> Option<Candidate> {
    let mut rest = candidates;
    while rest.len() > 32 {
        let mid = rest.len() / 2;
        rest.select_nth_unstable_by(mid, &cmp);
        let first = total(&rest[..mid]);
        let (lower, upper) = rest.split_at_mut(mid);
        if first >= target {
            rest = lower;
        } else {
            target -= first;
            rest = upper;
        }
    }
    rest.sort_unstable_by(&cmp);
    let mut sum = 0;
    let reaches = |c: &&Candidate| {
        sum += c.mass;
        sum >= target
    };
    rest.iter().find(reaches).or(rest.last()).copied()
}

fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    by_rank((a.logit, a.id), (b.logit, b.id))
}

/// What logits are multiplied by. A temperature so low that its inverse overflows must still give 0 for
/// the best token.
pub(crate) fn inverse(temperature: f32) -> f32 {
    (1.0 / temperature).min(f32::MAX)
}

impl<'a> Candidates<'a> {
    pub(crate) fn select(row: &'a Scanned<'a>, params: &SamplingParams) -> Self {
        let inv_t = inverse(params.temperature);
        let max = row.max;
        let d = |logit: f32| (logit - max) * inv_t;
        let candidate = |id, logit| Candidate { id, logit, mass: mass(d(logit)) };
        let surprise_over_best = |c: &Candidate| -d(c.logit);
        // min_p * p_best <= p, in logarithms.
        let min_d = params.min_p.ln();
        let k = params.top_k as usize;
        let by_k = k > 0 && k < row.logits.len();
        let (by_p, by_typical) = (params.top_p < 1.0, params.typical_p < 1.0);

        let (mut kept, done_p): (Vec<Candidate>, bool) = if by_k {
            // min_p and top_k both keep a prefix of the same order, so it does not matter which
            // comes first.
            let mut top = row.top(k);
            top.sort_unstable_by_key(|(_, id)| *id);
            let top = top.into_iter().filter(|(x, _)| d(*x) >= min_d);
            (top.map(|(x, id)| candidate(id, x)).collect(), false)
        } else if params.min_p > 0.0 {
            let mut kept = Vec::new();
            // A little below the cut, for the rounding of the way there and back.
            let margin = row.max.abs() * 1e-6;
            let cut = row.max + (min_d * 1.0001 - 0.0001) * params.temperature - margin;
            row.for_each_at_least(cut, |id, x| {
                if d(x) >= min_d {
                    kept.push(candidate(id, x));
                }
            });
            (kept, false)
        } else if by_p {
            (nucleus(row, params.top_p, inv_t, candidate, surprise_over_best), true)
        } else if by_typical {
            ((0..).zip(row.logits).map(|(id, &x)| candidate(id, x)).collect(), true)
        } else {
            return Self::All { row, inv_t };
        };
        kept.retain(|c| c.mass > 0);
        if by_p && !done_p {
            let target = target(params.top_p, total(&kept));
            keep_prefix(&mut kept, target, surprise_over_best, by_likelihood);
        }
        if by_typical {
            keep_typical(&mut kept, params.typical_p, surprise_over_best);
        }
        Self::Some(kept)
    }

    /// The candidate in whose mass the fraction `bits / 2^64` of the total falls, by ascending id.
    pub(crate) fn draw(&self, bits: u64) -> TokenId {
        let point = |total: u64| ((u128::from(bits) * u128::from(total)) >> 64) as u64;
        match self {
            Self::Some(kept) => {
                let mut left = point(total(kept));
                for c in kept {
                    if left < c.mass {
                        return c.id;
                    }
                    left -= c.mass;
                }
                kept.last().map_or(0, |c| c.id)
            }
            Self::All { row, inv_t } => {
                let of = |x: f32| mass((x - row.max) * inv_t);
                let sums = block_masses(row, *inv_t);
                let mut left = point(sums.iter().sum());
                let mut first = 0;
                for sum in sums {
                    if left < sum {
                        break;
                    }
                    left -= sum;
                    first += BLOCK;
                }
                let mut id = first;
                for &x in &row.logits[first.min(row.logits.len())..] {
                    let m = of(x);
                    if left < m {
                        break;
                    }
                    left -= m;
                    id += 1;
                }
                id.min(row.logits.len() - 1) as TokenId
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn ids(&self) -> Vec<TokenId> {
        match self {
            Self::Some(kept) => kept.iter().map(|c| c.id).collect(),
            Self::All { row, inv_t } => (0..)
                .zip(row.logits)
                .filter(|(_, x)| mass((*x - row.max) * inv_t) > 0)
                .map(|(id, _)| id)
                .collect(),
        }
    }
}

/// `top_p` over the whole row.
fn nucleus(
    row: &Scanned<'_>,
    top_p: f32,
    inv_t: f32,
    candidate: impl Fn(TokenId, f32) -> Candidate,
    surprise_over_best: impl Fn(&Candidate) -> f32,
) -> Vec<Candidate> {
    let total_of_row = block_masses(row, inv_t).iter().sum();
    let target = target(top_p, total_of_row);
    let rest = total_of_row - target;
    let guesses = [rest / 5 * 4, rest / 4].into_iter().map(|rest| likely_cut(row, inv_t, rest));
    let mut kept = Vec::new();
    for cut in row.loose_cut(NUCLEUS_TRY).into_iter().chain(guesses).chain([f32::MIN]) {
        kept.clear();
        row.for_each_at_least(cut, |id, x| kept.push(candidate(id, x)));
        // All tokens down to the cut are here: they begin the order of the whole row.
        if total(&kept) >= target {
            break;
        }
    }
    keep_prefix(&mut kept, target, surprise_over_best, by_likelihood);
    kept
}

/// A logit below which lies at most the mass `rest`, as far as a part of the row tells.
fn likely_cut(row: &Scanned<'_>, inv_t: f32, rest: u64) -> f32 {
    // A bucket is a part of a nat; the last one that matters is the last with a mass.
    const PARTS: f32 = 32.0;
    let mut masses = [0u64; (-MASSLESS * PARTS) as usize];
    for &x in row.logits.iter().step_by(SAMPLED) {
        let d = (x - row.max) * inv_t;
        if let Some(bucket) = masses.get_mut((-d * PARTS) as usize) {
            *bucket += mass(d);
        }
    }
    let mut left = rest / SAMPLED as u64;
    let mut kept = masses.len();
    while let Some(less) = kept.checked_sub(1).and_then(|last| left.checked_sub(masses[last])) {
        (left, kept) = (less, kept - 1);
    }
    (row.max - kept as f32 / PARTS / inv_t).max(f32::MIN)
}

/// Mass of every [`BLOCK`] tokens.
pub(crate) fn block_masses(row: &Scanned<'_>, inv_t: f32) -> Vec<u64> {
    let any = |best: &f32| (best - row.max) * inv_t >= MASSLESS;
    let blocks = row.logits.chunks(BLOCK).zip(row.chunk_max.chunks(BLOCK / CHUNK));
    let mass = |(block, best): (&[f32], &[f32])| match best.iter().any(any) {
        true => total_mass(block, row.max, inv_t),
        false => 0,
    };
    blocks.map(mass).collect()
}

/// Mass of some tokens.
#[multiversion(targets("x86_64+avx512f+avx512dq+avx512vl", "x86_64+avx2"))]
fn total_mass(logits: &[f32], max: f32, inv_t: f32) -> u64 {
    // Floats first: vectors have twice as many of them as of masses.
    let mut shares = [0.0; BLOCK];
    let shares = &mut shares[..logits.len()];
    for (share, &x) in shares.iter_mut().zip(logits) {
        *share = exp((x - max) * inv_t);
    }
    let mut sum = 0;
    for &share in shares.iter() {
        sum += units(share);
    }
    sum
}

/// Locally typical sampling, as `TypicalLogitsWarper` of Hugging Face transformers: tokens by how
/// far their surprise is from the entropy, the nearest first, until their mass reaches `p`.
///
/// A surprise is the token's distance from the likeliest one and what that one's is, and the entropy is
/// the mean surprise. So the distance from the entropy is that of two distances, and needs no logarithm.
fn keep_typical(
    candidates: &mut Vec<Candidate>,
    p: f32,
    surprise_over_best: impl Fn(&Candidate) -> f32,
) {
    let total = total(candidates);
    let moments = candidates.iter().map(|c| moment(-surprise_over_best(c))).sum();
    let mean = mean(moments, total);
    let distance = |c: &Candidate| (surprise_over_best(c) - mean).abs();
    keep_prefix(candidates, target(p, total), distance, |a, b| {
        distance(a).total_cmp(&distance(b)).then(a.id.cmp(&b.id))
    });
}

/// The mean distance from the likeliest token in nats, rounded down to a multiple of 2^-24 and then to
/// a float: in whole numbers, as [`target`].
fn mean(moments: u64, total: u64) -> f32 {
    let steps = (u128::from(moments) << 24) / u128::from(total.max(1));
    steps as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests;
