//! What cached keys are worth to queries: the arithmetic of an eviction policy's choice.

use crate::{Result, TensorError};

/// Scores keys for each of some query heads:
///
/// ```text
/// score(head, key) = <vector, key> + sum over f of weight_f |(key_f, key_{f + head_dim / 2})|
/// ```
///
/// A product, as a query has it with a key, and a weighted sum of the moduli of the pairs that a rotary
/// embedding rotates. `taper-triattention` makes such a scorer; a cache's codec runs it over its pages.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyScorer {
    heads: usize,
    head_dim: usize,
    vectors: Vec<f32>,
    weights: Vec<f32>,
}

impl KeyScorer {
    /// # Shapes
    /// `vectors [heads, head_dim]`, `weights [heads, head_dim / 2]`.
    ///
    /// # Errors
    /// Other lengths, no heads, or a `head_dim` that is odd or 0.
    pub fn new(
        (heads, head_dim): (usize, usize),
        vectors: Vec<f32>,
        weights: Vec<f32>,
    ) -> Result<Self> {
        let fits = heads > 0
            && head_dim > 0
            && head_dim.is_multiple_of(2)
            && vectors.len() == heads * head_dim
            && weights.len() == heads * head_dim / 2;
        if !fits {
            let expected = format!("vectors [{heads}, {head_dim}] and a weight for each pair");
            let got = [vectors.len(), weights.len()];
            return Err(TensorError::shape("key scorer", expected, &got));
        }
        Ok(Self { heads, head_dim, vectors, weights })
    }

    /// Number of query heads.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Elements of a head.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Vectors of the products, `[heads, head_dim]`.
    #[must_use]
    pub fn vectors(&self) -> &[f32] {
        &self.vectors
    }

    /// Weights of the moduli, `[heads, head_dim / 2]`.
    #[must_use]
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Refuses a cache whose keys these heads cannot share.
    ///
    /// # Errors
    /// Another size of heads, or KV heads that do not divide the query heads.
    pub fn check(&self, kv_heads: usize, head_dim: usize) -> Result<()> {
        if head_dim == self.head_dim && kv_heads > 0 && self.heads.is_multiple_of(kv_heads) {
            return Ok(());
        }
        let expected = format!("heads of {} that divide {}", self.head_dim, self.heads);
        Err(TensorError::shape("key scores", expected, &[kv_heads, head_dim]))
    }

    /// Scores of the keys of some tokens, into columns `first ..` of `out`. The `heads / kv_heads` query
    /// heads of a KV head follow each other.
    ///
    /// # Shapes
    /// `keys [t, kv_heads, head_dim]`, `out [heads, tokens]` with `tokens >= first + t`.
    ///
    /// # Errors
    /// Other shapes.
    pub fn score(
        &self,
        keys: &[f32],
        kv_heads: usize,
        out: &mut [f32],
        first: usize,
    ) -> Result<()> {
        self.check(kv_heads, self.head_dim)?;
        let (d, tokens) = (self.head_dim, out.len() / self.heads);
        let rows = keys.len() / (kv_heads * d);
        if keys.len() != rows * kv_heads * d
            || out.len() != tokens * self.heads
            || first + rows > tokens
        {
            let expected = format!("whole rows of [{kv_heads}, {d}], inside {tokens} tokens");
            return Err(TensorError::shape("key scores", expected, &[keys.len(), first]));
        }
        let group = self.heads / kv_heads;
        let mut moduli = vec![0.0; d / 2];
        for (i, key) in keys.chunks_exact(d).enumerate() {
            let (token, kv_head) = (first + i / kv_heads, i % kv_heads);
            let (re, im) = key.split_at(d / 2);
            for ((modulus, x), y) in moduli.iter_mut().zip(re).zip(im) {
                *modulus = (x * x + y * y).sqrt();
            }
            for head in kv_head * group..(kv_head + 1) * group {
                let vector = &self.vectors[head * d..(head + 1) * d];
                let weights = &self.weights[head * d / 2..(head + 1) * d / 2];
                out[head * tokens + token] = dot(vector, key) + dot(weights, &moduli);
            }
        }
        Ok(())
    }
}

/// In eight sums, which a vector unit takes at once.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..8 {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_heads_share_keys_in_order() {
        // Two query heads over each of two KV heads, of one band.
        let vectors = vec![1.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0];
        let scorer = KeyScorer::new((4, 2), vectors, vec![0.0, 1.0, 0.0, 10.0]).unwrap();
        let mut out = vec![-1.0; 12];
        scorer.score(&[3.0, 4.0, 6.0, 8.0, 0.0, 1.0, 5.0, 0.0], 2, &mut out, 1).unwrap();
        assert_eq!(out, [-1., 3., 0., -1., 9., 2., -1., 12., 10., -1., 100., 50.]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(KeyScorer::new((1, 3), vec![0.0; 3], vec![0.0]).is_err(), "odd");
        assert!(KeyScorer::new((2, 4), vec![0.0; 8], vec![0.0; 3]).is_err());
        assert!(KeyScorer::new((0, 4), vec![], vec![]).is_err());
        let scorer = KeyScorer::new((4, 2), vec![0.0; 8], vec![0.0; 4]).unwrap();
        let mut out = [0.0; 8];
        assert!(scorer.check(3, 2).is_err() && scorer.check(0, 2).is_err());
        assert!(scorer.check(2, 4).is_err() && scorer.check(2, 2).is_ok());
        assert!(scorer.score(&[0.0; 8], 2, &mut out, 1).is_err(), "past the end");
        assert!(scorer.score(&[0.0; 3], 2, &mut out, 0).is_err(), "half a row");
        assert!(scorer.score(&[0.0; 8], 2, &mut out, 0).is_ok());
    }
}
