//! What is known of a layer's queries: for each head and band the mean and the mean modulus, before the
//! rotary embedding.

use crate::{Complex, TriAttentionError};

/// Statistics of one query head.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadStatistics {
    /// `E[q_f]`: the centre of each band.
    pub mean: Vec<Complex>,
    /// `E|q_f|`: mean modulus of each band.
    pub modulus: Vec<f64>,
}

/// How concentrated a head's queries are about their centres.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Concentration {
    /// Mean resultant length `|E q_f| / E|q_f|`, the mean of all bands.
    pub bands: f64,
    /// Mean resultant length, with bands weighted by `E|q_f|`.
    pub weighted: f64,
    /// Resultant length of the band with the largest `E|q_f|`.
    pub dominant: f64,
    /// `sum |E q_f|^2 / sum (E|q_f|)^2`.
    pub energy: f64,
}

impl HeadStatistics {
    /// Checks that both have a number for each of `bands` bands.
    pub(crate) fn check(&self, bands: usize) -> Result<(), TriAttentionError> {
        match [self.mean.len(), self.modulus.len()].into_iter().find(|&n| n != bands) {
            Some(got) => {
                Err(TriAttentionError::Length { what: "statistics", expected: bands, got })
            }
            None => Ok(()),
        }
    }

    /// The mean resultant length of each band, between 0 (any direction) and 1 (one direction).
    #[must_use]
    pub fn resultants(&self) -> Vec<f64> {
        let length =
            |(mean, &all): (&Complex, &f64)| if all > 0.0 { mean.abs() / all } else { 0.0 };
        self.mean.iter().zip(&self.modulus).map(length).collect()
    }

    /// How concentrated the queries are.
    #[must_use]
    pub fn concentration(&self) -> Concentration {
        let lengths = self.resultants();
        let all: f64 = self.modulus.iter().sum();
        let along: f64 = self.mean.iter().map(|m| m.abs()).sum();
        let energy: f64 = self.modulus.iter().map(|m| m * m).sum();
        let of_means: f64 = self.mean.iter().map(|m| m.abs().powi(2)).sum();
        let largest =
            (0..lengths.len()).max_by(|&a, &b| self.modulus[a].total_cmp(&self.modulus[b]));
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        Concentration {
            bands: share(lengths.iter().sum(), lengths.len() as f64),
            weighted: share(along, all),
            dominant: largest.map_or(0.0, |f| lengths[f]),
            energy: share(of_means, energy),
        }
    }
}

/// Gathers the statistics of a layer's queries, a step at a time.
///
/// Queries are those that attention multiplies, but for the rotary embedding: after a norm of q, where
/// the model has one (Qwen3, Gemma), before the rotation and without its scale.
#[derive(Debug, Clone)]
pub struct QueryStatistics {
    heads: usize,
    bands: usize,
    tokens: u64,
    sums: Vec<Complex>,
    moduli: Vec<f64>,
}

impl QueryStatistics {
    /// Empty statistics for `heads` query heads of `head_dim` elements.
    ///
    /// # Errors
    /// No heads, or heads of an odd size or none.
    pub fn new(heads: usize, head_dim: usize) -> Result<Self, TriAttentionError> {
        if heads == 0 || head_dim == 0 || !head_dim.is_multiple_of(2) {
            let what = "heads of pairs";
            return Err(TriAttentionError::Length { what, expected: 2, got: heads * head_dim });
        }
        let (n, bands) = (heads * head_dim / 2, head_dim / 2);
        let (sums, moduli) = (vec![Complex::default(); n], vec![0.0; n]);
        Ok(Self { heads, bands, tokens: 0, sums, moduli })
    }

    /// Takes queries in.
    ///
    /// # Shapes
    /// `q [t, heads, head_dim]`.
    ///
    /// # Errors
    /// No whole tokens, or an element that is not finite: then nothing is taken in.
    pub fn observe(&mut self, q: &[f32]) -> Result<(), TriAttentionError> {
        let token = self.heads * 2 * self.bands;
        if !q.len().is_multiple_of(token) {
            let expected = q.len().next_multiple_of(token);
            return Err(TriAttentionError::Length { what: "queries", expected, got: q.len() });
        }
        if let Some(index) = q.iter().position(|x| !x.is_finite()) {
            return Err(TriAttentionError::NotFinite { what: "element of q", index });
        }
        for (i, head) in q.chunks_exact(2 * self.bands).enumerate() {
            let at = i % self.heads * self.bands;
            let (re, im) = head.split_at(self.bands);
            for (f, (&re, &im)) in re.iter().zip(im).enumerate() {
                let x = Complex { re: f64::from(re), im: f64::from(im) };
                self.sums[at + f] = self.sums[at + f] + x;
                self.moduli[at + f] += x.abs();
            }
        }
        self.tokens += (q.len() / token) as u64;
        Ok(())
    }

    /// Tokens that were counted so far.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The statistics of each query head.
    ///
    /// # Errors
    /// Nothing was observed.
    pub fn finish(&self) -> Result<Vec<HeadStatistics>, TriAttentionError> {
        if self.tokens == 0 {
            return Err(TriAttentionError::NoQueries);
        }
        let each = 1.0 / self.tokens as f64;
        let heads = self.sums.chunks_exact(self.bands).zip(self.moduli.chunks_exact(self.bands));
        let one = |(sums, moduli): (&[Complex], &[f64])| HeadStatistics {
            mean: sums.iter().map(|&s| s * each).collect(),
            modulus: moduli.iter().map(|m| m * each).collect(),
        };
        Ok(heads.map(one).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_each_head_and_band() {
        let mut gathered = QueryStatistics::new(2, 4).unwrap();
        gathered.observe(&[3.0, 0.0, 4.0, 0.0, 1.0, 1.0, 0.0, 0.0]).unwrap();
        gathered.observe(&[-3.0, 0.0, -4.0, 2.0, 1.0, -1.0, 0.0, 0.0]).unwrap();
        let heads = gathered.finish().unwrap();
        assert_eq!(gathered.tokens(), 2);
        // Opposite queries have a modulus and no mean; a constant one has both.
        assert_eq!((heads[0].mean[0].abs(), heads[0].modulus[0]), (0.0, 5.0));
        assert_eq!(heads[0].mean[1], Complex { re: 0.0, im: 1.0 });
        assert_eq!(heads[1].resultants(), [1.0, 0.0]);
        let c = heads[1].concentration();
        assert_eq!((c.bands, c.weighted, c.energy), (0.5, 0.5, 0.5));
    }

    #[test]
    fn nothing_is_made_of_nothing() {
        assert!(matches!(
            QueryStatistics::new(1, 2).unwrap().finish(),
            Err(TriAttentionError::NoQueries)
        ));
        assert!(QueryStatistics::new(1, 3).is_err() && QueryStatistics::new(0, 2).is_err());
        let mut one = QueryStatistics::new(1, 2).unwrap();
        assert!(one.observe(&[1.0]).is_err() && one.observe(&[1.0, f32::NAN]).is_err());
        assert_eq!(one.tokens(), 0);
    }
}
