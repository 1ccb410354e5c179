//! Rotary position embedding (Su et al. 2021), the half-split form that Hugging Face checkpoints use.

use crate::{Result, Tensor, TensorError, host};
use rayon::prelude::*;

/// Frequencies of a rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    inv_freq: Vec<f32>,
    scale: f32,
}

impl RopeTable {
    /// `inv_freq[i]` is the angle a position of pair `i` in radians; `scale` multiplies sine and
    /// cosine (yarn's and longrope's attention factor). With fewer than `head_dim / 2` pairs the
    /// rest of the head is not rotated.
    #[must_use]
    pub fn new(inv_freq: Vec<f32>, scale: f32) -> Self {
        Self { inv_freq, scale }
    }

    /// Sines and cosines of `positions`, to be used by every layer of a step.
    #[must_use]
    pub fn angles(&self, positions: &[u32]) -> RopeAngles {
        let pairs = self.inv_freq.len();
        let mut sin_cos = vec![(0.0, 0.0); positions.len() * pairs];
        let row = |(row, &p): (&mut [(f32, f32)], &u32)| {
            for (sc, f) in row.iter_mut().zip(&self.inv_freq) {
                // f32 as the reference implementation multiplies, so that far positions agree.
                let (s, c) = (p as f32 * f).sin_cos();
                *sc = (s * self.scale, c * self.scale);
            }
        };
        if pairs > 0 {
            sin_cos.par_chunks_mut(pairs).with_min_len(64).zip(positions).for_each(row);
        }
        RopeAngles { pairs, sin_cos }
    }
}

/// Sines and cosines of the positions of one step.
#[derive(Debug, Clone)]
pub struct RopeAngles {
    pairs: usize,
    sin_cos: Vec<(f32, f32)>,
}

impl RopeAngles {
    /// Rotates each head of each token.
    ///
    /// # Shapes
    /// `x [t, heads, head_dim]` -> the same; `t` positions were given to [`RopeTable::angles`].
    ///
    /// # Errors
    /// Another shape or type.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let (t, heads, d) = host::dims3("rope", x)?;
        if t * self.pairs != self.sin_cos.len() || 2 * self.pairs > d {
            let expected = format!("[{}, heads, >= {}]", self.sin_cos.len(), 2 * self.pairs);
            return Err(TensorError::shape("rope", expected, x.dims()));
        }
        let mut out = host::read("rope", x, <[f32]>::to_vec)?;
        let token = |(token, angles): (&mut [f32], &[(f32, f32)])| {
            for head in token.chunks_exact_mut(d) {
                let (a, rest) = head.split_at_mut(self.pairs);
                for ((a, b), (sin, cos)) in a.iter_mut().zip(rest).zip(angles) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        };
        if self.pairs > 0 {
            out.par_chunks_mut(heads * d)
                .with_min_len(64)
                .zip(self.sin_cos.par_chunks(self.pairs))
                .for_each(token);
        }
        host::tensor(out, x.dims())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_turn_by_their_angle_and_the_rest_stays() {
        let table = RopeTable::new(vec![1.0, 0.25], 1.0);
        let x: Vec<f32> = (0..12).map(|v| v as f32).collect();
        let x = host::tensor(x, &[2, 1, 6]).unwrap();
        let y = table.angles(&[0, 3]).apply(&x).unwrap().to_vec3::<f32>().unwrap();
        assert_eq!(y[0][0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let (a, b) = (6.0f32, 8.0f32);
        let want = a * 3f32.cos() - b * 3f32.sin();
        assert!((y[1][0][0] - want).abs() < 1e-6);
        let want = 9.0 * 0.75f32.cos() + 7.0 * 0.75f32.sin();
        assert!((y[1][0][3] - want).abs() < 1e-6);
        assert_eq!(y[1][0][4..], [10.0, 11.0]);
    }

    #[test]
    fn another_number_of_positions_is_refused() {
        let x = host::tensor(vec![0.0; 8], &[2, 1, 4]).unwrap();
        let angles = RopeTable::new(vec![1.0], 1.0).angles(&[0]);
        assert!(matches!(angles.apply(&x), Err(TensorError::Shape { op: "rope", .. })));
    }
}
