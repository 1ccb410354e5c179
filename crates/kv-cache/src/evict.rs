//! Rows that leave a sequence's cache while it runs.
//!
//! A *token* has a place in its sequence, a *row* is what the cache holds of it. Until rows are evicted both have
//! the same index; afterwards a sequence has fewer rows than tokens, its rows are in another order than its
//! tokens, and each keeps the position that it was rotated to. Rows go in whole units, so that the latest rows
//! lie in blocks as they did: these blocks, like all whose rows stay together, only move in the table. The others
//! are built anew in blocks that nobody else reads.

use crate::{KvCache, KvCacheError, RowRange, SeqRange};
use std::{collections::HashSet, sync::Arc};
use taper_base::{BlockId, SeqId};
use taper_kv_codecs::{KeptBlock, KeptRow, KvCodecError};
use taper_triattention::{Budget, Kept, Moves, TriAttention, TriAttentionError, latest};

/// Which rows stay.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// The first ones and the latest (StreamingLLM).
    Window,
    /// Those that later queries will look at most, by TriAttention's score.
    TriAttention(Arc<TriAttention>),
}

/// An eviction of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction {
    /// Whose rows.
    pub seq: SeqId,
    /// Tokens that are computed: the position of the next one.
    pub tokens: usize,
    /// Rows that go, whole units of [`KvCache::eviction_unit`].
    pub evict: usize,
    /// First tokens whose rows stay, the exact sinks among them.
    pub prefix: usize,
    /// Latest tokens whose rows stay, the exact ones among them.
    pub window: usize,
    /// Rows that there is still to be room for.
    pub room: usize,
}

/// Rows of a sequence that has lost some.
#[derive(Debug, Default)]
pub(crate) struct Evicted {
    /// Rows that are gone.
    pub(crate) rows: usize,
    /// Position of each row, up to the last eviction; rows that came later are in order.
    positions: Vec<u32>,
}

impl Evicted {
    /// Positions of the first `rows` rows.
    fn positions(&self, rows: usize) -> Vec<u32> {
        let later = (self.positions.len()..rows).map(|row| (row + self.rows) as u32);
        self.positions.iter().copied().take(rows).chain(later).collect()
    }
}

/// Where a block's rows come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The block stays as it is; its index in the table before.
    Whole(usize),
    /// Rows of several blocks, and fewer than before.
    Built,
}

impl KvCache {
    /// Rows that leave a sequence come in multiples of this.
    #[must_use]
    pub fn eviction_unit(&self) -> usize {
        self.config.eviction_unit()
    }

    /// Rows that a sequence has of its first `tokens` tokens, all of which are computed, or the last of which are
    /// about to be.
    #[must_use]
    pub fn rows(&self, seq: SeqId, tokens: usize) -> usize {
        tokens.saturating_sub(self.tables.get(&seq).map_or(0, |table| table.evicted.rows))
    }

    /// The rows of a step's tokens.
    pub(crate) fn row_range(&self, range: &SeqRange) -> Result<RowRange, KvCacheError> {
        let SeqRange { seq, start, len } = *range;
        let evicted = self.tables.get(&seq).map_or(0, |table| table.evicted.rows);
        let start = start.checked_sub(evicted);
        let start = start.ok_or(KvCacheError::Evicted { seq, start: range.start, evicted })?;
        Ok(RowRange { seq, start, len })
    }

    /// Evicts rows of a sequence, between two steps. Blocks that others hold, or that may be found as a prefix, stay
    /// as they are; from here on nothing of the sequence is published.
    ///
    /// What stays, and every bit of it, depends on the sequence's own rows alone.
    ///
    /// # Errors
    /// [`KvCacheError::Full`] where too many of its blocks are held by others and no block is free: nothing has
    /// changed then. Rows that cannot go, or scores that are not finite.
    pub fn evict(&mut self, e: Eviction, policy: &EvictionPolicy) -> Result<(), KvCacheError> {
        self.take_watched();
        let rows = self.rows(e.seq, e.tokens);
        let keep = self.check_eviction(e, rows)?;
        let table = self.tables.get(&e.seq).ok_or(KvCacheError::NoSequence { seq: e.seq })?;
        let positions = table.evicted.positions(rows);
        let budget = Budget { keep, every: e.evict, prefix: e.prefix, window: e.window };
        let (kept, in_order) = self.choose(e, &positions, budget, policy)?;
        let moves = kept.filling_gaps_before(in_order);
        let sources = self.sources(&moves, rows);
        if let Some(room) = self.config.exact {
            self.drop_before(e.seq, room.tokens.recent_from(rows));
        }
        let blocks = self.target_blocks(e, &sources, keep)?;
        if let Err(error) = self.build(e.seq, &moves, &sources, &blocks) {
            let old: HashSet<_> = self.blocks(e.seq).iter().copied().collect();
            blocks
                .iter()
                .filter(|b| !old.contains(b))
                .for_each(|&b| self.blocks.put_back(b, false));
            return Err(error);
        }
        self.exchange(e, keep, blocks, moves.apply(&positions)?);
        Ok(())
    }

    /// Rows that stay.
    fn check_eviction(&self, e: Eviction, rows: usize) -> Result<usize, KvCacheError> {
        let exact = self.config.exact.map(|room| room.tokens);
        let (sinks, recent) = exact.map_or((0, 0), |e| (e.sink_tokens, e.recent_tokens));
        let keep = rows.saturating_sub(e.evict);
        let fits = e.evict > 0
            && e.evict.is_multiple_of(self.eviction_unit())
            && e.prefix >= sinks
            && e.window >= recent
            && e.prefix.saturating_add(e.window) <= keep
            && self.states.is_none();
        if fits {
            return Ok(keep);
        }
        Err(KvCacheError::Eviction { evict: e.evict, rows, prefix: e.prefix, window: e.window })
    }

    /// The rows that stay, and how many of the last of them are to keep their order.
    fn choose(
        &self,
        e: Eviction,
        positions: &[u32],
        budget: Budget,
        policy: &EvictionPolicy,
    ) -> Result<(Kept, usize), KvCacheError> {
        match policy {
            EvictionPolicy::Window => Ok((latest(positions, budget)?, budget.keep - e.prefix)),
            EvictionPolicy::TriAttention(scores) => {
                let scorers = scores.scorers(u32::try_from(e.tokens).unwrap_or(u32::MAX))?;
                let tokens = (self.blocks(e.seq), positions.len());
                let score = |(layer, scorer)| {
                    let (codec, g) =
                        (self.config.scheme.codec(layer), self.config.geometry_of(layer));
                    codec.key_scores(g, scorer, &self.pages[layer], tokens)
                };
                let layers = scorers.iter().enumerate().take(self.config.layers);
                let scored = layers.map(score).collect::<Result<Vec<_>, KvCodecError>>()?;
                let kept = scores.choose(&scored, positions, budget)?.into_iter().next();
                let kept = kept.ok_or(TriAttentionError::NoQueries)?;
                Ok((kept, e.window))
            }
        }
    }

    /// For each block of the moved rows whether it is one of the blocks before.
    fn sources(&self, moves: &Moves, before: usize) -> Vec<Source> {
        let size = self.config.geometry.block_tokens;
        let blocks = moves.rows().chunks(size);
        let source = |rows: &[usize]| {
            let first = rows[0];
            let whole = first.is_multiple_of(size)
                && rows.len() == size.min(before - first)
                && rows.iter().copied().eq(first..first + rows.len());
            if whole { Source::Whole(first / size) } else { Source::Built }
        };
        blocks.map(source).collect()
    }

    /// Blocks of the sequence after the eviction: those that stay, and for the others, and for what is to come, blocks
    /// that may be written. Nothing changes where these are too few.
    fn target_blocks(
        &mut self,
        e: Eviction,
        sources: &[Source],
        keep: usize,
    ) -> Result<Vec<BlockId>, KvCacheError> {
        let size = self.config.geometry.block_tokens;
        let old = self.blocks(e.seq).to_vec();
        let target = (keep + e.room).div_ceil(size).max(sources.len());
        let whole = |source: &Source| match *source {
            Source::Whole(index) => Some(old[index]),
            Source::Built => None,
        };
        let stay: HashSet<_> = sources.iter().filter_map(whole).collect();
        let needed = target - stay.len();
        let leave = || old.iter().copied().filter(|block| !stay.contains(block));
        let own = |block: &BlockId| self.blocks.holders(*block) == 1;
        let published = |block: &BlockId| self.blocks.index.is_published(*block);
        let mut writable: Vec<_> = leave().filter(|b| own(b) && !published(b)).collect();
        let mut known: Vec<_> = leave().filter(|b| own(b) && published(b)).collect();
        let free = writable.len() + known.len() + self.blocks.available();
        if needed > free {
            return Err(KvCacheError::Full { needed, free });
        }
        writable.truncate(needed);
        // A prefix that is known stays known while there are other blocks.
        let taken = needed - writable.len();
        for _ in 0..taken {
            match self.blocks.take() {
                Some(block) => writable.push(block),
                None => writable.extend(known.pop().inspect(|&block| self.blocks.unpublish(block))),
            }
        }
        let mut writable = writable.into_iter();
        let blocks = sources.iter().map(|source| whole(source).or_else(|| writable.next()));
        let mut blocks: Vec<_> = blocks.flatten().collect();
        blocks.extend(writable);
        Ok(blocks)
    }

    /// Writes the rows of blocks that are built anew.
    fn build(
        &mut self,
        seq: SeqId,
        moves: &Moves,
        sources: &[Source],
        blocks: &[BlockId],
    ) -> Result<(), KvCacheError> {
        let size = self.config.geometry.block_tokens;
        let old = self.blocks(seq);
        let (mut rows, mut into) = (Vec::new(), Vec::new());
        let parts = moves.rows().chunks(size).zip(sources).zip(blocks);
        for ((part, _), &block) in parts.filter(|((_, source), _)| **source == Source::Built) {
            // Exact rows are in blocks that stay.
            into.push(KeptBlock { block, exact: None });
            let slot = |&row: &usize| old[row / size].0 as usize * size + row % size;
            rows.extend(part.iter().map(|row| KeptRow { slot: slot(row), exact: None }));
        }
        if into.is_empty() {
            return Ok(());
        }
        for layer in 0..self.config.layers {
            let (codec, g) = (self.config.scheme.codec(layer), self.config.geometry_of(layer));
            codec.compact(g, &rows, &into, &mut self.pages[layer])?;
        }
        Ok(())
    }

    /// Gives the sequence its new table.
    fn exchange(&mut self, e: Eviction, keep: usize, blocks: Vec<BlockId>, positions: Vec<u32>) {
        let size = self.config.geometry.block_tokens;
        let recent = self.config.exact.map_or(0, |room| room.tokens.recent_from(keep) / size);
        let Some(table) = self.tables.get_mut(&e.seq) else { return };
        let stay: HashSet<_> = blocks.iter().copied().collect();
        let old = std::mem::replace(&mut table.blocks, blocks);
        (table.nodes, table.units, table.before) = (Vec::new(), Vec::new(), None);
        (table.recent, table.computed) = (recent, keep);
        table.evicted = Evicted { rows: table.evicted.rows + e.evict, positions };
        for block in old.into_iter().rev().filter(|block| !stay.contains(block)) {
            self.blocks.put_back(block, false);
        }
    }
}
