//! Which tokens can be drawn, and the draw.

use crate::{
    exp::{UNIT, mass},
    scan::{CHUNK, Scanned, by_rank},
};
use std::cmp::Ordering;
use taper_base::{SamplingParams, TokenId};

/// Candidates tried for `top_p` before the whole row is gathered: peaked distributions, the usual
/// ones, need a handful.
const NUCLEUS_TRIES: [usize; 2] = [64, 1024];

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) id: TokenId,
    /// After bias and penalties; orders candidates.
    logit: f32,
    /// Scaled by the temperature, relative to the best: at most 0.
    d: f32,
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

/// Mass that a filter with parameter `p` must reach.
fn target(p: f32, total: u64) -> u64 {
    ((f64::from(p) * total as f64).ceil() as u64).clamp(1, total.max(1))
}

fn total(candidates: &[Candidate]) -> u64 {
    candidates.iter().map(|c| c.mass).sum()
}

/// Keeps the shortest prefix, in the order of `cmp`, whose mass reaches `target`, in any order.
/// Linear: halves by selection, and follows the half in which the prefix ends.
fn keep_prefix(
    candidates: &mut Vec<Candidate>,
    mut target: u64,
    cmp: impl Fn(&Candidate, &Candidate) -> Ordering,
) {
    let (mut lo, mut hi) = (0, candidates.len());
    while hi - lo > 32 {
        let mid = (hi - lo) / 2;
        let part = &mut candidates[lo..hi];
        part.select_nth_unstable_by(mid, &cmp);
        let first = total(&part[..mid]);
        if first >= target {
            hi = lo + mid;
        } else {
            target -= first;
            lo += mid;
        }
    }
    candidates[lo..hi].sort_unstable_by(&cmp);
    let mut end = lo;
    while end < hi && target > 0 {
        target = target.saturating_sub(candidates[end].mass);
        end += 1;
    }
    candidates.truncate(end);
}

fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    by_rank((a.logit, a.id), (b.logit, b.id))
}

impl<'a> Candidates<'a> {
    pub(crate) fn select(row: &'a Scanned<'a>, params: &SamplingParams) -> Self {
        // A temperature so low that its inverse overflows must still give 0 for the best token.
        let inv_t = (1.0 / params.temperature).min(f32::MAX);
        let candidate = |id, logit| {
            let d = (logit - row.max) * inv_t;
            Candidate { id, logit, d, mass: mass(d) }
        };
        // min_p * p_best <= p, in logarithms.
        let min_d = params.min_p.ln();
        let k = params.top_k as usize;
        let by_k = k > 0 && k < row.logits.len();
        let (by_p, by_typical) = (params.top_p < 1.0, params.typical_p < 1.0);

        let (mut kept, done_p): (Vec<Candidate>, bool) = if by_k {
            // min_p and top_k both keep a prefix of the same order, so it does not matter which
            // comes first.
            let top = row.top(k).into_iter().map(|(x, id)| candidate(id, x));
            (top.filter(|c| c.d >= min_d).collect(), false)
        } else if params.min_p > 0.0 {
            let mut kept = Vec::new();
            // A little below the cut, for the rounding of the way there and back.
            let margin = row.max.abs() * 1e-6;
            let cut = row.max + (min_d * 1.0001 - 0.0001) * params.temperature - margin;
            row.for_each_at_least(cut, |id, x| kept.push(candidate(id, x)));
            kept.retain(|c| c.d >= min_d);
            (kept, false)
        } else if by_p {
            (nucleus(row, params.top_p, inv_t, candidate), true)
        } else if by_typical {
            ((0..).zip(row.logits).map(|(id, &x)| candidate(id, x)).collect(), true)
        } else {
            return Self::All { row, inv_t };
        };
        kept.retain(|c| c.mass > 0);
        if by_p && !done_p {
            let target = target(params.top_p, total(&kept));
            keep_prefix(&mut kept, target, by_likelihood);
        }
        kept.sort_unstable_by_key(|c| c.id);
        if by_typical {
            keep_typical(&mut kept, params.typical_p);
            kept.sort_unstable_by_key(|c| c.id);
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
                let sums = chunk_masses(row, *inv_t);
                let mut left = point(sums.iter().sum());
                let mut first = 0;
                for sum in sums {
                    if left < sum {
                        break;
                    }
                    left -= sum;
                    first += CHUNK;
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
) -> Vec<Candidate> {
    let target = target(top_p, chunk_masses(row, inv_t).iter().sum());
    let mut kept = Vec::new();
    for cut in NUCLEUS_TRIES.into_iter().filter_map(|k| row.loose_cut(k)).chain([f32::MIN]) {
        kept.clear();
        row.for_each_at_least(cut, |id, x| kept.push(candidate(id, x)));
        // All tokens down to the cut are here: they begin the order of the whole row.
        if total(&kept) >= target {
            break;
        }
    }
    keep_prefix(&mut kept, target, by_likelihood);
    kept
}

/// Mass of every [`CHUNK`] tokens.
fn chunk_masses(row: &Scanned<'_>, inv_t: f32) -> Vec<u64> {
    let of = |x: f32| mass((x - row.max) * inv_t);
    row.logits.chunks(CHUNK).map(|c| c.iter().map(|&x| of(x)).sum()).collect()
}

/// Locally typical sampling, as `TypicalLogitsWarper` of Hugging Face transformers: tokens by how
/// far their surprise is from the entropy, the nearest first, until their mass reaches `p`.
fn keep_typical(candidates: &mut Vec<Candidate>, p: f32) {
    let total = total(candidates);
    let ln_total = (total as f64 / UNIT as f64).ln();
    let surprise = |c: &Candidate| ln_total - f64::from(c.d);
    // By ascending id, as the candidates come: a sum of floats depends on the order.
    let entropy: f64 = candidates.iter().map(|c| c.mass as f64 / total as f64 * surprise(c)).sum();
    let distance = |c: &Candidate| (surprise(c) - entropy).abs();
    keep_prefix(candidates, target(p, total), |a, b| {
        distance(a).total_cmp(&distance(b)).then(a.id.cmp(&b.id))
    });
}

#[cfg(test)]
mod tests;
