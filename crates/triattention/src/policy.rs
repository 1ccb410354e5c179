//! Statistics, budget and choice together.

use crate::{
    Budget, HeadStatistics, Kept, LayerScores, Rope, Sharing, TriAttentionError, key_scorer, select,
};
use taper_tensor::KeyScorer;

/// What was evicted so far. An experiment in which this is nothing has measured no eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evictions {
    /// Times that keys were evicted.
    pub rounds: u64,
    /// Tokens that went; with several sets, those of the set that lost most.
    pub tokens: u64,
}

/// The policy for a model: what to score keys with, when to evict, and which tokens to keep.
#[derive(Debug, Clone)]
pub struct TriAttention {
    rope: Rope,
    layers: Vec<Vec<HeadStatistics>>,
    kv_heads: usize,
    budget: Budget,
    sharing: Sharing,
    evictions: Evictions,
}

impl TriAttention {
    /// For a model with these statistics of each layer's query heads.
    ///
    /// # Errors
    /// A budget that cannot be kept, no layers, statistics of other lengths than the embedding's, or
    /// KV heads that do not divide the query heads.
    pub fn new(
        rope: Rope,
        layers: Vec<Vec<HeadStatistics>>,
        kv_heads: usize,
        budget: Budget,
        sharing: Sharing,
    ) -> Result<Self, TriAttentionError> {
        budget.check()?;
        layers.iter().flatten().try_for_each(|head| head.check(rope.bands()))?;
        let heads = layers.first().map_or(0, Vec::len);
        let fits = kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads);
        if !fits || layers.iter().any(|layer| layer.len() != heads) {
            let expected = format!("layers of as many heads, over {kv_heads} KV heads");
            let got = format!("{heads} in the first of {} layers", layers.len());
            return Err(TriAttentionError::Scores { expected, got });
        }
        let evictions = Evictions::default();
        Ok(Self { rope, layers, kv_heads, budget, sharing, evictions })
    }

    /// Whether a cache of so many tokens is to be evicted from.
    #[must_use]
    pub fn is_due(&self, tokens: usize) -> bool {
        self.budget.is_due(tokens)
    }

    /// For each layer what scores its keys, when the next token has position `now`.
    ///
    /// # Errors
    /// None that [`Self::new`] did not report.
    pub fn scorers(&self, now: u32) -> Result<Vec<KeyScorer>, TriAttentionError> {
        self.layers.iter().map(|heads| key_scorer(&self.rope, heads, now)).collect()
    }

    /// Number of layers whose keys are scored.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Chooses, from each layer's scores `[heads, tokens]`, within another budget, and counts nothing: what serves
    /// many sequences, each with a protected prompt of its own.
    ///
    /// # Errors
    /// As [`Self::select`].
    pub fn choose<S: AsRef<[f32]>>(
        &self,
        scores: &[S],
        positions: &[u32],
        budget: Budget,
    ) -> Result<Vec<Kept>, TriAttentionError> {
        if scores.len() != self.layers.len() {
            let (expected, got) = (self.layers.len(), scores.len());
            return Err(TriAttentionError::Length { what: "layers", expected, got });
        }
        let layers = scores.iter().zip(&self.layers);
        let layers: Vec<_> = layers
            .map(|(scores, heads)| LayerScores { scores: scores.as_ref(), heads: heads.len() })
            .collect();
        select(&layers, positions, self.kv_heads, budget, self.sharing)
    }

    /// Chooses, from each layer's scores `[heads, tokens]`: see [`select`].
    ///
    /// # Errors
    /// As [`select`]; or scores of more or fewer layers.
    pub fn select<S: AsRef<[f32]>>(
        &mut self,
        scores: &[S],
        positions: &[u32],
    ) -> Result<Vec<Kept>, TriAttentionError> {
        let kept = self.choose(scores, positions, self.budget)?;
        let evicted = kept.iter().map(Kept::evicted).max().unwrap_or(0);
        self.evictions.rounds += u64::from(evicted > 0);
        self.evictions.tokens += evicted as u64;
        Ok(kept)
    }

    /// What was evicted so far.
    #[must_use]
    pub fn evictions(&self) -> Evictions {
        self.evictions
    }
}
