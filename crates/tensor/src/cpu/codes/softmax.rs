//! The online softmax between scores and weighted sums, and weights as bytes.

use super::CodeLevel;
use crate::cpu::{Level, kernels};
use std::ops::Range;

/// A query row on its way over the keys.
#[derive(Debug)]
pub struct Row<'a> {
    /// Its largest score so far; starts at minus infinity.
    pub max: &'a mut f32,
    /// Sum of its weights so far, relative to `max`.
    pub sum: &'a mut f32,
    /// Weighted sum of the values so far, relative to `max`.
    pub acc: &'a mut [f32],
}

/// Turns a block's scores into weights relative to the row's new maximum, and brings the row up to
/// it. Scores outside `seen` become 0; a row that sees nothing stays as it is.
///
/// # Panics
/// When `seen` is not inside `scores`.
pub fn soften(scores: &mut [f32], seen: Range<usize>, soft_cap: Option<f32>, row: &mut Row<'_>) {
    scores[..seen.start].fill(0.0);
    scores[seen.end..].fill(0.0);
    let live = &mut scores[seen];
    if live.is_empty() {
        return;
    }
    let level = Level::detect();
    // SAFETY: each call works inside its slice; `live` is not empty.
    unsafe {
        if let Some(cap) = soft_cap {
            kernels::soft_cap(level, live.as_mut_ptr(), live.len(), cap);
        }
        let max = row.max.max(kernels::row_max(level, live.as_ptr(), live.len()));
        if max > *row.max {
            let shrink = (*row.max - max).exp();
            *row.sum *= shrink;
            kernels::scale(level, row.acc.as_mut_ptr(), row.acc.len(), shrink);
            *row.max = max;
        }
        *row.sum += kernels::exp_shift(level, live.as_mut_ptr(), live.len(), max);
    }
}

/// Weights times the scales of their values, as bytes: `p[j] * gamma[j] = scale * weight[j]`.
/// Returns `scale`; it and all weights are 0 when every `p` is below `threshold`.
///
/// # Panics
/// When the lengths differ.
pub fn weigh(
    level: CodeLevel,
    p: &[f32],
    gamma: &[f32],
    threshold: f32,
    weights: &mut [u8],
) -> f32 {
    assert!(p.len() == gamma.len() && p.len() == weights.len(), "lengths");
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, and vectors are whole.
        CodeLevel::Vbmi if p.len().is_multiple_of(16) => unsafe {
            super::vbmi::weigh(p, gamma, threshold, weights)
        },
        _ => weigh_body(p, gamma, threshold, weights),
    }
}

fn weigh_body(p: &[f32], gamma: &[f32], threshold: f32, weights: &mut [u8]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let likely = p.iter().copied().fold(0.0, larger);
    let most = p.iter().zip(gamma).map(|(p, g)| p * g).fold(0.0, larger);
    if likely < threshold || most <= 0.0 {
        weights.fill(0);
        return 0.0;
    }
    let inverse = 255.0 / most;
    for ((w, &p), &g) in weights.iter_mut().zip(p).zip(gamma) {
        // Adding 1.5 * 2^23 leaves the rounded integer in the lowest bits.
        *w = (p * g * inverse + 12_582_912.0).to_bits() as u8;
    }
    most / 255.0
}
