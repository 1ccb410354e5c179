//! A text through the model, over one cache after the other.

use anyhow::{Result, ensure};
use taper_base::{Phase, SeqId, TokenId};
use taper_kv_cache::{ExactRoom, KvCache, KvConfig, KvScheme, SeqRange};
use taper_kv_codecs::Exact;
use taper_models::{Batch, Model};
use taper_tensor::{ops, pool};

/// Tokens of a block of the cache.
pub(super) const BLOCK: usize = KvConfig::BLOCK_TOKENS;
/// Tokens of a step: Ctrl-C waits for one.
const STEP: usize = 256;
/// Bytes of the reference's logits that are kept; longer texts are scored at fewer positions.
const TRUTH_BYTES: usize = 256 << 20;

/// A text, the model that reads it, and how its tokens are kept.
pub(super) struct Prefill<'a> {
    pub(super) model: &'a dyn Model,
    pub(super) ids: &'a [TokenId],
    pub(super) exact: Option<Exact>,
    /// Hears of tokens that have run; its error ends the run.
    pub(super) step: &'a dyn Fn(usize) -> Result<()>,
}

/// The reference's logits at some positions.
pub(super) struct Truth {
    /// Ascending.
    pub(super) places: Vec<usize>,
    /// One row per position.
    logits: Vec<Vec<f32>>,
}

/// How far a cache is from the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Loss {
    /// Mean Kullback-Leibler divergence of the next token's distribution, in nats.
    pub(super) mean_kl: f64,
    /// Largest divergence at a position, in nats.
    pub(super) max_kl: f64,
    /// Share of positions where the likeliest token is the same.
    pub(super) same: f64,
}

impl Prefill<'_> {
    fn config(&self, scheme: &KvScheme) -> KvConfig {
        let info = self.model.info();
        let blocks = self.ids.len().div_ceil(BLOCK);
        let room = |tokens| ExactRoom::for_sequences(tokens, 1, STEP, KvConfig::BLOCK_TOKENS);
        KvConfig {
            exact: self.exact.map(room),
            recurrent: info.states(1, 0),
            ..info.cache(scheme.clone(), BLOCK, blocks)
        }
    }

    /// Bytes of a token's keys and values over all layers, without what is kept exactly.
    pub(super) fn bytes_a_token(&self, scheme: &KvScheme) -> f64 {
        self.config(scheme).bytes_per_block() as f64 / BLOCK as f64
    }

    /// Runs over the reference and keeps its logits from the token `first` on.
    pub(super) fn truth(&self, scheme: &KvScheme, first: usize) -> Result<Truth> {
        let most = (TRUTH_BYTES / 4 / self.model.info().vocab.max(1)).max(1);
        let stride = (self.ids.len() - first).div_ceil(most);
        let places: Vec<_> = (first..self.ids.len()).step_by(stride).collect();
        let mut logits = Vec::with_capacity(places.len());
        self.run(scheme, &places, |rows| logits.extend(rows.iter().map(|row| row.to_vec())))?;
        Ok(Truth { places, logits })
    }

    /// Runs over a cache and compares.
    pub(super) fn loss(&self, scheme: &KvScheme, truth: &Truth) -> Result<Loss> {
        let mut losses: Vec<(f64, bool)> = Vec::with_capacity(truth.places.len());
        self.run(scheme, &truth.places, |rows| {
            let base = losses.len();
            losses.extend(pool::map(rows.len(), |i| compare(&truth.logits[base + i], rows[i])));
        })?;
        let n = losses.len() as f64;
        Ok(Loss {
            mean_kl: losses.iter().map(|l| l.0).sum::<f64>() / n,
            max_kl: losses.iter().map(|l| l.0).fold(0.0, f64::max),
            same: losses.iter().filter(|l| l.1).count() as f64 / n,
        })
    }

    fn run(
        &self,
        scheme: &KvScheme,
        places: &[usize],
        mut take: impl FnMut(&[&[f32]]),
    ) -> Result<()> {
        let mut cache = KvCache::new(self.config(scheme));
        let (seq, vocab) = (SeqId(0), self.model.info().vocab);
        for (start, tokens) in (0..).step_by(STEP).zip(self.ids.chunks(STEP)) {
            let end = start + tokens.len();
            cache.grow(seq, end)?;
            let positions: Vec<u32> = (start as u32..end as u32).collect();
            let wanted = places.iter().filter(|p| (start..end).contains(p));
            let logits_at: Vec<u32> = wanted.map(|p| (p - start) as u32).collect();
            let mut session = cache.session(&[SeqRange { seq, start, len: tokens.len() }])?;
            let phase = self.model.info().phase(Phase::Prefill);
            let batch = Batch {
                tokens,
                positions: &positions,
                logits_at: &logits_at,
                phase,
                ..Batch::default()
            };
            let logits = self.model.forward(&batch, &mut session)?;
            ops::with_host_f32(&logits, |logits| {
                let rows: Vec<_> = logits.chunks_exact(vocab).collect();
                ensure!(rows.len() == logits_at.len(), "one row of logits a token asked for");
                take(&rows);
                Ok(())
            })??;
            (self.step)(tokens.len())?;
        }
        Ok(())
    }
}

/// Divergence of `q` from `p`, both logits, and whether their largest is the same.
fn compare(p: &[f32], q: &[f32]) -> (f64, bool) {
    let normal = |logits: &[f32]| {
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        max + logits.iter().map(|&l| (f64::from(l) - max).exp()).sum::<f64>().ln()
    };
    let (np, nq) = (normal(p), normal(q));
    let kl = p.iter().zip(q).map(|(&p, &q)| {
        let (p, q) = (f64::from(p) - np, f64::from(q) - nq);
        p.exp() * (p - q)
    });
    let first = |row: &[f32]| (0..row.len()).reduce(|a, b| if row[b] > row[a] { b } else { a });
    (kl.sum(), first(p) == first(q))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_that_of_the_distributions() {
        let same = compare(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0]);
        assert!(same.0.abs() < 1e-12 && same.1, "a constant changes nothing: {same:?}");
        // 0.5 ln(0.5 / 0.9) + 0.5 ln(0.5 / 0.1)
        let (kl, first) = compare(&[0.0, 0.0], &[9f32.ln(), 0.0]);
        assert!((kl - 0.510_825_6).abs() < 1e-6, "{kl}");
        assert!(first, "the first of equals");
        assert!(!compare(&[0.0, 1.0], &[1.0, 0.0]).1);
    }
}
