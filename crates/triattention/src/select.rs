//! From scores to the tokens that are kept.

use crate::{Kept, TriAttentionError};

/// When keys are evicted, and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Number of tokens to keep.
    pub keep: usize,
    /// Tokens beyond `keep` at which an eviction runs.
    pub every: usize,
    /// First tokens of the text that are always kept, such as a prompt that must not be evicted.
    pub prefix: usize,
    /// Latest tokens that are always kept.
    pub window: usize,
}

impl Budget {
    /// Refuses what cannot be kept.
    ///
    /// # Errors
    /// `keep` or `every` is 0, or more is protected than kept.
    pub fn check(self) -> Result<(), TriAttentionError> {
        let Self { keep, every, prefix, window } = self;
        let protected = prefix.saturating_add(window);
        if keep == 0 || every == 0 || protected > keep {
            return Err(TriAttentionError::Budget { keep, every, protected });
        }
        Ok(())
    }

    /// Whether a cache of so many tokens is to be evicted from.
    #[must_use]
    pub fn is_due(self, tokens: usize) -> bool {
        tokens >= self.keep.saturating_add(self.every)
    }
}

/// Which heads keep the same tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// All: a token counts as much as it does to the head that wants it most. One block table serves
    /// all heads and layers. (The authors' `union`: the tokens with the best maxima are all among some
    /// head's own choice.)
    All,
    /// Each KV head has its own tokens, the same in all layers: the maximum over the query heads that
    /// share it, then the mean over layers. The authors' default.
    KvHead,
    /// Each KV head of each layer has its own: the maximum over the query heads that share it.
    LayerKvHead,
}

/// Scores of a layer's keys, as [`KeyScorer`](taper_tensor::KeyScorer) gives them.
#[derive(Debug, Clone, Copy)]
pub struct LayerScores<'a> {
    /// Scores, `[heads, tokens]`.
    pub scores: &'a [f32],
    /// Number of query heads.
    pub heads: usize,
}

/// Deviations below this are none.
const LEAST_DEVIATION: f64 = 1e-6;

/// Chooses the tokens to keep: those with the **highest** scores, which is what attention is going
/// to look at, beside the protected ones.
///
/// Each query head's scores are first brought to mean 0 and deviation 1 over the tokens that may go
/// (heads differ in scale). Among equal scores the later token is kept.
///
/// `positions[i]` is the position in the text of row `i` of the cache, in any order.
///
/// # Returns
/// One set with [`Sharing::All`], `kv_heads` with [`Sharing::KvHead`], `layers * kv_heads` (layer by
/// layer) with [`Sharing::LayerKvHead`]. Each has `min(budget.keep, tokens)` rows.
///
/// # Errors
/// A budget that cannot be kept, scores of other lengths or that are not finite, or a position twice.
pub fn select(
    layers: &[LayerScores<'_>],
    positions: &[u32],
    kv_heads: usize,
    budget: Budget,
    sharing: Sharing,
) -> Result<Vec<Kept>, TriAttentionError> {
    budget.check()?;
    check(layers, positions, kv_heads)?;
    let tokens = Tokens::new(positions, budget);
    let groups = layers.iter().map(|layer| group_maxima(layer, &tokens, kv_heads));
    let values: Vec<Vec<f64>> = match sharing {
        Sharing::All => {
            let all = groups.flatten().reduce(|a, b| zip(&a, &b, f64::max));
            all.into_iter().collect()
        }
        Sharing::KvHead => {
            let sum = |a: Vec<Vec<f64>>, b: Vec<Vec<f64>>| {
                a.iter().zip(&b).map(|(a, b)| zip(a, b, |x, y| x + y)).collect()
            };
            groups.reduce(sum).unwrap_or_default()
        }
        Sharing::LayerKvHead => groups.flatten().collect(),
    };
    Ok(values.iter().map(|values| tokens.best(values, budget.keep)).collect())
}

/// Keeps the first `prefix` tokens and the latest ones: attention sinks and a window (StreamingLLM; Xiao et al.,
/// arXiv 2309.17453). What anything else is compared with.
///
/// # Errors
/// A budget that cannot be kept, or a position twice.
pub fn latest(positions: &[u32], budget: Budget) -> Result<Kept, TriAttentionError> {
    budget.check()?;
    check_positions(positions)?;
    let tokens = Tokens::new(positions, budget);
    let age: Vec<_> = tokens.candidates.iter().map(|&row| f64::from(positions[row])).collect();
    Ok(tokens.best(&age, budget.keep))
}

fn zip(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
}

fn check(
    layers: &[LayerScores<'_>],
    positions: &[u32],
    kv_heads: usize,
) -> Result<(), TriAttentionError> {
    if layers.is_empty() {
        let (expected, got) = ("those of a layer".into(), "none".into());
        return Err(TriAttentionError::Scores { expected, got });
    }
    for layer in layers {
        let LayerScores { scores, heads } = *layer;
        let shared = kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads);
        if !shared || scores.len() != heads * positions.len() {
            let expected = format!("[heads, {}] of {kv_heads} KV heads", positions.len());
            let got = format!("{} of {heads} heads", scores.len());
            return Err(TriAttentionError::Scores { expected, got });
        }
        if let Some(index) = scores.iter().position(|s| !s.is_finite()) {
            return Err(TriAttentionError::NotFinite { what: "score", index });
        }
    }
    check_positions(positions)
}

fn check_positions(positions: &[u32]) -> Result<(), TriAttentionError> {
    let mut sorted = positions.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|w| w[0] == w[1]) {
        Some(twice) => Err(TriAttentionError::Position { position: twice[0] }),
        None => Ok(()),
    }
}

/// The rows of a cache, those that may go apart from the others.
struct Tokens<'a> {
    positions: &'a [u32],
    protected: Vec<usize>,
    candidates: Vec<usize>,
}

impl<'a> Tokens<'a> {
    fn new(positions: &'a [u32], budget: Budget) -> Self {
        let newest = positions.iter().copied().max().unwrap_or(0) as usize;
        let stays = |&row: &usize| {
            let position = positions[row] as usize;
            position < budget.prefix || position + budget.window > newest
        };
        let (protected, candidates) = (0..positions.len()).partition(stays);
        Self { positions, protected, candidates }
    }

    /// A head's scores of the candidates, with mean 0 and deviation 1.
    fn z_scores(&self, scores: &[f32]) -> Vec<f64> {
        let own: Vec<_> = self.candidates.iter().map(|&row| f64::from(scores[row])).collect();
        let n = own.len().max(1) as f64;
        let mean = own.iter().sum::<f64>() / n;
        let variance = own.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / n;
        let deviation = variance.sqrt().max(LEAST_DEVIATION);
        own.iter().map(|s| (s - mean) / deviation).collect()
    }

    /// The protected rows and the best candidates.
    fn best(&self, values: &[f64], keep: usize) -> Kept {
        let mut order: Vec<_> = (0..self.candidates.len()).collect();
        order.sort_unstable_by(|&a, &b| {
            let later = |i: usize| self.positions[self.candidates[i]];
            values[b].total_cmp(&values[a]).then_with(|| later(b).cmp(&later(a)))
        });
        let room = keep.saturating_sub(self.protected.len());
        let chosen = order.into_iter().take(room).map(|i| self.candidates[i]);
        Kept::new(self.protected.iter().copied().chain(chosen).collect(), self.positions.len())
    }
}

/// For each KV head the largest z-score of each candidate among its query heads.
fn group_maxima(layer: &LayerScores<'_>, tokens: &Tokens<'_>, kv_heads: usize) -> Vec<Vec<f64>> {
    let n = tokens.positions.len();
    let head = |head: usize| tokens.z_scores(&layer.scores[head * n..(head + 1) * n]);
    let group = layer.heads / kv_heads;
    let maxima = |kv_head: usize| {
        let heads = kv_head * group..(kv_head + 1) * group;
        heads.map(head).reduce(|a, b| zip(&a, &b, f64::max)).unwrap_or_default()
    };
    (0..kv_heads).map(maxima).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget { keep: 3, every: 1, prefix: 1, window: 1 };

    fn kept(scores: &[f32], heads: usize, sharing: Sharing) -> Vec<Vec<usize>> {
        let n = scores.len() / heads;
        let positions: Vec<_> = (0..n as u32).collect();
        let layer = LayerScores { scores, heads };
        let sets = select(&[layer], &positions, 2.min(heads), BUDGET, sharing).unwrap();
        sets.iter().map(|k| k.rows().to_vec()).collect()
    }

    #[test]
    fn the_highest_scores_stay_beside_what_is_protected() {
        assert_eq!(kept(&[-9.0, 1.0, 5.0, 2.0, -9.0], 1, Sharing::All), [[0, 2, 4]]);
        // Equal ones: the later one.
        assert_eq!(kept(&[0.0, 5.0, 5.0, 2.0, 0.0], 1, Sharing::All), [[0, 2, 4]]);
    }

    #[test]
    fn a_window_keeps_the_first_and_the_latest() {
        let rows = |positions: &[u32]| latest(positions, BUDGET).unwrap().rows().to_vec();
        assert_eq!(rows(&[0, 1, 2, 3, 4]), [0, 3, 4]);
        assert_eq!(rows(&[0, 9, 2, 5, 4]), [0, 1, 3]);
        let twice = latest(&[3, 3], BUDGET);
        assert!(matches!(twice, Err(TriAttentionError::Position { position: 3 })));
        let none = Budget { keep: 0, ..BUDGET };
        assert!(matches!(latest(&[0], none), Err(TriAttentionError::Budget { .. })));
    }

    #[test]
    fn a_head_of_larger_numbers_counts_no_more_than_others() {
        // The second head is surer of row 1 than the first one is of row 3, whatever their scales.
        let scores = [0., 0., 10., 100., 0., 0., 1., 0., 0., 0.];
        let sets = kept(&scores, 2, Sharing::All);
        assert_eq!(sets, [[0, 1, 4]]);
        assert_eq!(kept(&scores, 2, Sharing::LayerKvHead), [[0, 3, 4], [0, 1, 4]]);
    }

    #[test]
    fn kv_heads_take_the_mean_over_layers() {
        let positions: Vec<_> = (0..5).collect();
        let (a, b) = ([0., 9., 0., 8., 0.], [0., 0., 9., 8., 0.]);
        let layers = [a, b].map(|s: [f32; 5]| s);
        let layers: Vec<_> = layers.iter().map(|s| LayerScores { scores: s, heads: 1 }).collect();
        let sets = select(&layers, &positions, 1, BUDGET, Sharing::KvHead).unwrap();
        assert_eq!(sets[0].rows(), [0, 3, 4], "second best in both layers");
    }

    #[test]
    fn refusals_are_typed() {
        use TriAttentionError as E;
        let layer = LayerScores { scores: &[0.0; 4], heads: 2 };
        let run = |layers: &[LayerScores<'_>], positions: &[u32], kv_heads, budget| {
            select(layers, positions, kv_heads, budget, Sharing::All)
        };
        assert!(matches!(run(&[], &[0, 1], 1, BUDGET), Err(E::Scores { .. })));
        assert!(matches!(run(&[layer], &[0, 1, 2], 1, BUDGET), Err(E::Scores { .. })));
        assert!(matches!(run(&[layer], &[0, 1], 3, BUDGET), Err(E::Scores { .. })));
        assert!(matches!(run(&[layer], &[7, 7], 1, BUDGET), Err(E::Position { position: 7 })));
        let bad = LayerScores { scores: &[0.0, f32::NAN], heads: 1 };
        assert!(matches!(run(&[bad], &[0, 1], 1, BUDGET), Err(E::NotFinite { index: 1, .. })));
        for budget in [
            Budget { keep: 1, ..BUDGET },
            Budget { every: 0, ..BUDGET },
            Budget { keep: 0, every: 1, prefix: 0, window: 0 },
            Budget { prefix: usize::MAX, ..BUDGET },
        ] {
            assert!(matches!(run(&[layer], &[0, 1], 1, budget), Err(E::Budget { .. })));
        }
    }
}
