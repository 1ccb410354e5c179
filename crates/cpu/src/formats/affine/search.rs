//! Scales that are searched for the least squared error, where `mx.quantize` takes those of a group's range.

use super::quantize::{code, rounding, scale_and_bias};
use crate::DType;

/// Parts of the range that are tried: outliers are cut off where the rest gains more.
const SHRUNK: [f32; 14] =
    [1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79, 0.76, 0.73, 0.7, 0.65, 0.6, 0.5];
/// How often codes and what they stand for are fitted to each other.
const ROUNDS: usize = 3;

/// A scale and a bias, as they are stored, and the sum of squared errors with them.
#[derive(Clone, Copy)]
struct Fit {
    scale: f32,
    bias: f32,
    error: f64,
}

/// The best scale and bias found for a group, where each squared error counts as much as its weight says. Both are
/// numbers of `dtype`; the error is never larger than with those of [`scale_and_bias`], rounded to it.
pub(super) fn fitted(values: &[f32], weights: &[f32], steps: f32, dtype: DType) -> (f32, f32) {
    let round = rounding(dtype);
    let measure = |scale: f32, bias: f32| {
        let (scale, bias) = (round(scale), round(bias));
        let error = |(&v, &weight): (&f32, &f32)| {
            let q = f32::from(code(v, scale, bias, steps));
            f64::from(weight) * f64::from(q * scale + bias - v).powi(2)
        };
        Fit { scale, bias, error: values.iter().zip(weights).map(error).sum() }
    };
    let (scale, bias) = scale_and_bias(values, steps);
    let mut best = measure(scale, bias);
    let far = [0.0, steps].map(|q| q.mul_add(scale, bias));
    let (low, high) = (far[0].min(far[1]), far[0].max(far[1]));
    for shrunk in SHRUNK {
        let mut now = measure((high - low) * shrunk / steps, low * shrunk);
        for _ in 0..ROUNDS {
            if now.error < best.error {
                best = now;
            }
            let Some((scale, bias)) = regression(values, weights, now, steps) else { break };
            now = measure(scale, bias);
        }
        if now.error < best.error {
            best = now;
        }
    }
    (best.scale, best.bias)
}

/// The scale and the bias of least squared error for the codes of a fit; `None` where all codes are one.
fn regression(values: &[f32], weights: &[f32], fit: Fit, steps: f32) -> Option<(f32, f32)> {
    let (mut n, mut q1, mut q2, mut v1, mut qv) = (0.0f64, 0.0, 0.0, 0.0, 0.0);
    for (&v, &weight) in values.iter().zip(weights) {
        let (q, v) = (f64::from(code(v, fit.scale, fit.bias, steps)), f64::from(v));
        let w = f64::from(weight);
        (n, q1, q2) = (n + w, q1 + w * q, q2 + w * q * q);
        (v1, qv) = (v1 + w * v, qv + w * q * v);
    }
    let spread = n * q2 - q1 * q1;
    let scale = (n * qv - q1 * v1) / spread;
    let bias = (v1 - scale * q1) / n;
    (spread > 0.0 && scale != 0.0 && scale.is_finite()).then_some((scale as f32, bias as f32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_smaller_than_those_of_the_range() {
        let mut state = 7u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let error = |values: &[f32], (scale, bias): (f32, f32), steps: f32| -> f64 {
            let one = |&v: &f32| {
                let q = f32::from(code(v, scale, bias, steps));
                f64::from(q * scale + bias - v).powi(2)
            };
            values.iter().map(one).sum()
        };
        for steps in [3.0, 7.0, 15.0, 255.0] {
            let (mut searched, mut plain) = (0.0, 0.0);
            for _ in 0..50 {
                // Sums of uniform numbers have the tails of weights.
                let values: Vec<f32> = (0..64).map(|_| noise() + noise() + noise()).collect();
                let round = rounding(DType::F16);
                let (scale, bias) = scale_and_bias(&values, steps);
                let range = error(&values, (round(scale), round(bias)), steps);
                let least = error(&values, fitted(&values, &[1.0; 64], steps, DType::F16), steps);
                assert!(least <= range);
                (searched, plain) = (searched + least, plain + range);
            }
            assert!(searched < 0.9 * plain || steps > 15.0, "{steps}: {searched} of {plain}");
        }
    }

    #[test]
    fn groups_without_a_range_stay_what_they_are() {
        for x in [0.0f32, 0.7, -3.0] {
            let (scale, bias) = fitted(&[x; 32], &[1.0; 32], 15.0, DType::F32);
            let q = f32::from(code(x, scale, bias, 15.0));
            assert!((q.mul_add(scale, bias) - x).abs() < 1e-6);
        }
        let (scale, bias) = fitted(&[f32::NAN; 32], &[1.0; 32], 15.0, DType::F16);
        assert!(code(f32::NAN, scale, bias, 15.0) <= 15);
    }
}
