//! Lloyd-Max code books of a coordinate of a random unit vector.
//!
//! A coordinate `x` of a uniformly random unit vector of `R^d` has the density
//! `f(x) = B (1 - x^2)^((d-3)/2)`, `B = Gamma(d/2) / (sqrt(pi) Gamma((d-1)/2))`, which tends to
//! `N(0, 1/d)`. Its partial integrals are closed:
//!
//! ```text
//! S(x) = int_x^1 f   = (1 - I_{x^2}(1/2, (d-1)/2)) / 2
//! M(x) = int_x^1 t f = B (1 - x^2)^((d-1)/2) / (d-1)
//! ```
//! so that the fixed point (each level the mean of its cell, each threshold the middle of its
//! levels) is found to rounding error instead of by sampling.

use crate::special::{half_tail_of_beta, ln_gamma, normal_tail};

/// Levels, thresholds and distortion of a scalar quantizer.
#[derive(Debug, Clone, PartialEq)]
pub struct Codebook {
    /// Levels, ascending.
    pub levels: Vec<f64>,
    /// Thresholds: the middles between neighbouring levels.
    pub thresholds: Vec<f64>,
    /// Mean squared error relative to the variance.
    pub distortion: f64,
}

/// A symmetric distribution by its partial integrals.
struct Distribution {
    /// `int_x f`.
    tail: Box<dyn Fn(f64) -> f64>,
    /// `int_x t f`.
    mean: Box<dyn Fn(f64) -> f64>,
    variance: f64,
}

impl Codebook {
    /// The optimal quantizer of a coordinate of a random unit vector, with `2^bits` levels.
    ///
    /// # Panics
    /// Unless `d >= 4` and `1 <= bits <= 5`.
    #[must_use]
    pub fn sphere(d: usize, bits: usize) -> Self {
        assert!(d >= 4, "a density that falls to zero");
        let half = (d as f64 - 1.0) / 2.0;
        let ln_b = ln_gamma(d as f64 / 2.0) - ln_gamma(half) - std::f64::consts::PI.ln() / 2.0;
        let scale = ln_b.exp() / (2.0 * half);
        Self::of(
            bits,
            &Distribution {
                tail: Box::new(move |x| half_tail_of_beta(x, half)),
                mean: Box::new(move |x| scale * (1.0 - x * x).max(0.0).powf(half)),
                variance: 1.0 / d as f64,
            },
        )
    }

    /// The optimal quantizer of `N(0, 1)`.
    ///
    /// # Panics
    /// Unless `1 <= bits <= 5`.
    #[must_use]
    pub fn gaussian(bits: usize) -> Self {
        let norm = (2.0 * std::f64::consts::PI).sqrt();
        Self::of(
            bits,
            &Distribution {
                tail: Box::new(normal_tail),
                mean: Box::new(move |x| (-x * x / 2.0).exp() / norm),
                variance: 1.0,
            },
        )
    }

    fn of(bits: usize, f: &Distribution) -> Self {
        assert!((1..=5).contains(&bits), "1 to 5 bits");
        let n = 1usize << (bits - 1);
        let sigma = f.variance.sqrt();
        // The positive half: level i lies between edges i and i + 1.
        let mut levels: Vec<f64> =
            (0..n).map(|i| sigma * (i as f64 + 0.5) * 3.0 / n as f64).collect();
        let mut mass = vec![0.0; n];
        loop {
            let edge = |i: usize| if i == 0 { 0.0 } else { (levels[i - 1] + levels[i]) / 2.0 };
            let tails: Vec<_> = (0..n).map(|i| ((f.tail)(edge(i)), (f.mean)(edge(i)))).collect();
            let mut change = 0.0f64;
            for i in 0..n {
                let above = tails.get(i + 1).copied().unwrap_or((0.0, 0.0));
                mass[i] = tails[i].0 - above.0;
                let level = (tails[i].1 - above.1) / mass[i];
                change = change.max((level - levels[i]).abs());
                levels[i] = level;
            }
            // The contraction is slow (0.99 at 16 levels), so the step must be far below the
            // error that may remain.
            if change < 1e-11 * sigma {
                break;
            }
        }
        let captured: f64 = levels.iter().zip(&mass).map(|(c, p)| 2.0 * p * c * c).sum();
        let all: Vec<_> = levels.iter().rev().map(|c| -c).chain(levels.iter().copied()).collect();
        let thresholds = all.windows(2).map(|w| (w[0] + w[1]) / 2.0).collect();
        Self { thresholds, levels: all, distortion: 1.0 - captured / f.variance }
    }
}
