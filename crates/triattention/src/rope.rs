//! Rotary embeddings as complex numbers.
//!
//! In the half layout elements `f` and `f + d / 2` of a head are real and imaginary part of band `f`,
//! which a position `p` rotates by `p omega_f`.

use crate::TriAttentionError;
use std::ops::{Add, Mul};

/// A complex number.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Complex {
    /// Real part.
    pub re: f64,
    /// Imaginary part.
    pub im: f64,
}

impl Complex {
    /// `e^(i angle)`: a rotation by `angle` radians.
    #[must_use]
    pub fn turn(angle: f64) -> Self {
        Self { re: angle.cos(), im: angle.sin() }
    }

    /// Modulus.
    #[must_use]
    pub fn abs(self) -> f64 {
        self.re.hypot(self.im)
    }

    /// Argument.
    #[must_use]
    pub fn arg(self) -> f64 {
        self.im.atan2(self.re)
    }

    /// The conjugate.
    #[must_use]
    pub fn conj(self) -> Self {
        Self { re: self.re, im: -self.im }
    }
}

impl Add for Complex {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { re: self.re + other.re, im: self.im + other.im }
    }
}

impl Mul for Complex {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let re = self.re * other.re - self.im * other.im;
        Self { re, im: self.re * other.im + self.im * other.re }
    }
}

impl Mul<f64> for Complex {
    type Output = Self;

    fn mul(self, x: f64) -> Self {
        Self { re: self.re * x, im: self.im * x }
    }
}

/// How far ahead of the present the queries are that a score averages over: 1, 2, 4, ... 65536 tokens.
pub const OFFSETS: [u32; 17] = {
    let mut offsets = [1; 17];
    let mut i = 1;
    while i < offsets.len() {
        offsets[i] = 2 * offsets[i - 1];
        i += 1;
    }
    offsets
};

/// A rotary embedding that rotates all elements of a head.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    omega: Vec<f64>,
    scale: f64,
}

impl Rope {
    /// RoPE for heads of `head_dim` elements: `omega_f = theta^(-2 f / head_dim)`.
    ///
    /// # Errors
    /// `head_dim` is odd or 0, or `theta` is no positive number.
    pub fn new(head_dim: usize, theta: f64) -> Result<Self, TriAttentionError> {
        if theta.is_nan() || theta <= 0.0 {
            return Err(TriAttentionError::NotFinite { what: "theta", index: 0 });
        }
        if !head_dim.is_multiple_of(2) {
            let expected = head_dim + 1;
            return Err(TriAttentionError::Length { what: "a head", expected, got: head_dim });
        }
        let omega = |f: usize| theta.powf(-2.0 * f as f64 / head_dim as f64);
        Self::of_frequencies((0..head_dim / 2).map(omega).collect(), 1.0)
    }

    /// RoPE with any frequencies (as llama 3 and YaRN scale them), one for each band; `scale`
    /// multiplies rotated queries and keys (YaRN's attention factor, else 1).
    ///
    /// # Errors
    /// There are none, or a number is not finite.
    pub fn of_frequencies(omega: Vec<f64>, scale: f64) -> Result<Self, TriAttentionError> {
        if omega.is_empty() {
            return Err(TriAttentionError::Length { what: "frequencies", expected: 1, got: 0 });
        }
        let bad = omega.iter().chain([&scale]).position(|x| !x.is_finite());
        match bad {
            Some(index) => Err(TriAttentionError::NotFinite { what: "frequency", index }),
            None => Ok(Self { omega, scale }),
        }
    }

    /// Complex bands of a head: half its elements.
    #[must_use]
    pub fn bands(&self) -> usize {
        self.omega.len()
    }

    /// Frequency of each band, in radians per token.
    #[must_use]
    pub fn frequencies(&self) -> &[f64] {
        &self.omega
    }

    /// Factor of rotated rows, as YaRN has it.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// A head's row as complex bands.
    ///
    /// # Errors
    /// The row has another length.
    pub fn complex(&self, row: &[f64]) -> Result<Vec<Complex>, TriAttentionError> {
        let n = self.bands();
        if row.len() != 2 * n {
            let got = row.len();
            return Err(TriAttentionError::Length { what: "a row", expected: 2 * n, got });
        }
        Ok((0..n).map(|f| Complex { re: row[f], im: row[f + n] }).collect())
    }

    /// Rotates a row to a position, as a model does before it stores a key.
    ///
    /// # Errors
    /// The row has another length.
    pub fn rotate(&self, row: &[f64], position: f64) -> Result<Vec<f64>, TriAttentionError> {
        let bands = self.complex(row)?;
        let turned: Vec<_> = bands
            .iter()
            .zip(&self.omega)
            .map(|(&x, &w)| x * Complex::turn(w * position) * self.scale)
            .collect();
        Ok(turned.iter().map(|x| x.re).chain(turned.iter().map(|x| x.im)).collect())
    }

    /// What the mean over [`OFFSETS`] leaves of each band: the mean of `e^(i omega_f offset)`. Its modulus
    /// is near 1 for bands that rotate slowly and small for others, so the mean is a low-pass.
    #[must_use]
    pub fn ahead(&self) -> Vec<Complex> {
        let mean = |&w: &f64| {
            let turns = OFFSETS.iter().map(|&o| Complex::turn(w * f64::from(o)));
            turns.fold(Complex::default(), Complex::add) * (1.0 / OFFSETS.len() as f64)
        };
        self.omega.iter().map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_powers_of_two() {
        assert_eq!((OFFSETS[0], OFFSETS[5], OFFSETS[16]), (1, 32, 65536));
    }

    #[test]
    fn the_mean_of_offsets_is_a_low_pass() {
        // |g_f| for theta = 1e6 and heads of 128, computed apart.
        let ahead = Rope::new(128, 1e6).unwrap().ahead();
        let got: Vec<_> = (0..8).map(|i| ahead[8 * i].abs()).collect();
        let want = [0.12, 0.26, 0.28, 0.33, 0.49, 0.79, 0.89, 1.0];
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() <= 0.006), "{got:?}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(Rope::new(7, 1e4).is_err() && Rope::new(0, 1e4).is_err());
        assert!(Rope::new(8, 0.0).is_err() && Rope::new(8, f64::NAN).is_err());
        assert!(Rope::of_frequencies(vec![1.0, f64::INFINITY], 1.0).is_err());
        assert!(Rope::of_frequencies(vec![1.0], f64::NAN).is_err());
        assert!(Rope::new(8, 1e4).unwrap().rotate(&[0.0; 6], 1.0).is_err());
    }
}
