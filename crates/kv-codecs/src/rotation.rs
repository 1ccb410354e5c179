//! Random rotations that cost `d log d`: Hadamard matrices with random signs.

use crate::KvCodecError;
use taper_tensor::{
    cpu::codes::{CodeLevel, sylvester},
    gpu::coded::Signs,
};

/// `y = H D x / sqrt(d)`, with `D` random signs and `H` a Hadamard matrix; for `d <= 64` twice, as
/// one round leaves short rows less Gaussian.
///
/// `H` is Sylvester's for powers of two, else Paley's of order 12, 20, 28, 36, ... (Kronecker)
/// Sylvester's. Padding to a power of two and cutting off the rest would not be orthogonal. The
/// signs come before `H`, without which a row with a common offset stays in one coordinate.
#[derive(Debug, Clone)]
pub struct Rotation {
    d: usize,
    /// Rows of the Paley matrix, `order x order`; empty for order 1.
    paley: Vec<f32>,
    order: usize,
    /// The signs of each round.
    rounds: Vec<Vec<f32>>,
    /// The signs of each round divided by `sqrt(d)`.
    scaled: Vec<Vec<f32>>,
    ones: Vec<f32>,
    /// `1 / sqrt(d)`.
    norms: Vec<f32>,
}

impl Rotation {
    /// The rotation of rows of `d` elements that `seed` draws; `d <= 64` takes two rounds.
    ///
    /// # Errors
    /// [`KvCodecError::HeadDim`] when no Hadamard matrix of order `d` is known here: it must be a
    /// power of two, or `4 m` times one where Paley's constructions give order `4 m`.
    pub fn new(d: usize, seed: u64) -> Result<Self, KvCodecError> {
        Self::with_rounds(d, seed, if d <= 64 { 2 } else { 1 })
    }

    /// A rotation of `rounds` rounds; see [`Self::new`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_rounds(d: usize, seed: u64, rounds: usize) -> Result<Self, KvCodecError> {
        let odd = d >> d.trailing_zeros().min(63);
        let (order, paley) = match odd {
            _ if d == 0 => return Err(KvCodecError::HeadDim { head_dim: d }),
            1 => (1, Vec::new()),
            _ => {
                let order = 4 * odd;
                let paley = d.is_multiple_of(order).then(|| paley(order)).flatten();
                (order, paley.ok_or(KvCodecError::HeadDim { head_dim: d })?)
            }
        };
        let mut state = seed;
        let mut signs = || -> Vec<f32> {
            let words: Vec<_> = (0..d.div_ceil(64)).map(|_| split_mix(&mut state)).collect();
            (0..d).map(|i| if words[i / 64] >> (i % 64) & 1 == 1 { -1.0 } else { 1.0 }).collect()
        };
        let rounds: Vec<_> = (0..rounds).map(|_| signs()).collect();
        let norm = 1.0 / (d as f32).sqrt();
        let scaled = rounds.iter().map(|signs| signs.iter().map(|s| s * norm).collect()).collect();
        Ok(Self { d, paley, order, rounds, scaled, ones: vec![1.0; d], norms: vec![norm; d] })
    }

    /// Elements of a row that is rotated.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.d
    }

    /// What a GPU needs of it.
    pub(crate) fn signs(&self) -> Signs {
        Signs { rounds: self.rounds.clone(), paley: self.paley.clone(), order: self.order }
    }

    /// Rotates rows in place.
    ///
    /// # Panics
    /// When `x` is not whole rows.
    pub fn apply(&self, x: &mut [f32]) {
        self.check(x);
        for row in x.chunks_exact_mut(self.d) {
            for signs in &self.rounds {
                self.hadamard(row, false, signs, &self.norms);
            }
        }
    }

    /// Rotates rows back in place.
    ///
    /// # Panics
    /// When `x` is not whole rows.
    pub fn undo(&self, x: &mut [f32]) {
        self.check(x);
        for row in x.chunks_exact_mut(self.d) {
            for scaled in self.scaled.iter().rev() {
                self.hadamard(row, true, &self.ones, scaled);
            }
        }
    }

    fn check(&self, x: &[f32]) {
        assert!(x.len().is_multiple_of(self.d), "rows of {}", self.d);
    }

    /// `H x`, or with `H` transposed, of elements that are multiplied before and after.
    fn hadamard(&self, x: &mut [f32], transposed: bool, before: &[f32], after: &[f32]) {
        let (m, level) = (self.order, CodeLevel::detect());
        let width = self.d / m;
        if m == 1 {
            return sylvester(level, x, width, before, after);
        }
        sylvester(level, x, width, before, &self.ones);
        let mut column = vec![0.0; m];
        for i in 0..width {
            for (j, c) in column.iter_mut().enumerate() {
                *c = x[j * width + i];
            }
            for j in 0..m {
                let h = |k: usize| self.paley[if transposed { k * m + j } else { j * m + k }];
                let sum: f32 = column.iter().enumerate().map(|(k, c)| h(k) * c).sum();
                x[j * width + i] = sum * after[j * width + i];
            }
        }
    }
}

/// Paley's Hadamard matrix of this order, when one of his two constructions gives it over a prime.
fn paley(order: usize) -> Option<Vec<f32>> {
    let prime = |q: usize| q > 2 && (2..q).take_while(|i| i * i <= q).all(|i| !q.is_multiple_of(i));
    let first = order.checked_sub(1).filter(|&q| q % 4 == 3 && prime(q));
    let second = (order / 2).checked_sub(1).filter(|&q| q % 4 == 1 && prime(q));
    let q = first.or(second)?;
    let n = q + 1;
    let square = |x: usize| (1..q).any(|i| i * i % q == x);
    let residues: Vec<f32> = (0..q)
        .map(|x| {
            if x == 0 {
                0.0
            } else if square(x) {
                1.0
            } else {
                -1.0
            }
        })
        .collect();
    // The conference matrix: skew for the first construction, symmetric for the second.
    let border = if first.is_some() { -1.0 } else { 1.0 };
    let c = |i: usize, j: usize| match (i, j) {
        (0, 0) => 0.0,
        (0, _) => 1.0,
        (_, 0) => border,
        _ => residues[(q + i - j) % q],
    };
    let one = |same: bool| if same { 1.0 } else { 0.0 };
    let entry = |i: usize, j: usize| {
        if first.is_some() {
            return c(i, j) + one(i == j);
        }
        let (same, last) = (one(i / 2 == j / 2), i % 2 == 1 && j % 2 == 1);
        let in_block = if last { -1.0 } else { 1.0 };
        let on_diagonal = if (i | j) & 1 == 0 { 1.0 } else { -1.0 };
        c(i / 2, j / 2) * in_block + same * on_diagonal
    };
    let size = if first.is_some() { n } else { 2 * n };
    Some((0..size * size).map(|at| entry(at / size, at % size)).collect())
}

/// Vigna's `splitmix64`: the next word.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_that_head_sizes_use_is_orthogonal() {
        let sizes = [8, 12, 16, 20, 28, 36, 40, 44, 56, 64, 72, 80, 96, 112, 128, 144, 160, 192];
        for d in sizes.into_iter().chain([224, 256, 288, 320, 384, 448, 512, 576, 640]) {
            let rotation = Rotation::new(d, 7).unwrap();
            for i in [0, 1, d / 2, d - 1] {
                let mut x = vec![0.0; d];
                x[i] = 1.0;
                rotation.apply(&mut x);
                // Both rounds leave unit rows; one round has entries of one size.
                assert!((x.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5, "{d}");
                rotation.undo(&mut x);
                for (j, x) in x.iter().enumerate() {
                    assert!((x - f32::from(i == j)).abs() < 1e-5, "{d}: {i} {j} {x}");
                }
            }
        }
    }

    #[test]
    fn sizes_without_a_matrix_are_an_error() {
        for d in [0, 3, 10, 24 / 4, 52] {
            let error = Rotation::new(d, 1).unwrap_err();
            assert!(matches!(error, KvCodecError::HeadDim { head_dim } if head_dim == d));
        }
    }
}
