//! How much of a cache may be in memory at a time, where the rest may lie on disk.
//!
//! What a step reads is in memory while it runs, and so is what no file has. A sequence that attends to all of its pages
//! has all of them in memory; one that leaves pages out has those that its steps read, and its answer, which is in no
//! file. A sequence is counted with what it may come to need, so that steps do not find memory full.

use crate::{KvCache, KvCacheError, KvConfig, PAGE_BLOCKS, Recall};
use taper_base::SeqId;
use taper_recall::RECENT_TOKENS;

/// What may be in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResidentRoom {
    /// Blocks of sequences, those that stay unread beside them ([`KvCache::with_hot_tokens`]) left out.
    pub blocks: usize,
    /// Tokens of a step, at most.
    pub step_tokens: usize,
}

/// Layers of a prompt that are in memory while it is read from disk layer by layer: that of the step, and the next one.
const STREAMED_LAYERS: usize = 2;
/// Pages that are no whole ones or whose choice is due, beside the recent ones that a step reads.
const OPEN_PAGES: usize = 3;

impl ResidentRoom {
    /// Blocks of a sequence of so many rows that are in memory at a time, at most. Near tokens of layers with a window
    /// are not counted: the model's shape does not say how many they are.
    #[must_use]
    pub fn needed(&self, config: &KvConfig, recall: Option<Recall>, rows: usize) -> usize {
        let all = rows.div_ceil(config.geometry.block_tokens);
        let Some(recall) = recall else { return all };
        let answer = all.saturating_sub(recall.prompt_tokens / config.geometry.block_tokens);
        all.min(self.read(config, recall) + answer)
    }

    /// Rows of the longest sequence that [needs](Self::needed) no more than there is.
    #[must_use]
    pub fn longest(&self, config: &KvConfig, recall: Option<Recall>) -> usize {
        let size = config.geometry.block_tokens;
        let prompt = |recall: Recall| {
            let answer = self.blocks.checked_sub(self.read(config, recall))?;
            Some(answer + recall.prompt_tokens / size)
        };
        self.blocks.max(recall.and_then(prompt).unwrap_or(0)).saturating_mul(size)
    }

    /// Blocks that a step reads of a prompt that leaves pages out, at most.
    fn read(&self, config: &KvConfig, recall: Recall) -> usize {
        let size = config.geometry.block_tokens;
        let exact = config.exact.map(|room| room.tokens);
        let (sinks, recent) = exact.map_or((0, 0), |e| (e.sink_tokens, e.recent_tokens));
        let unit = recent.max(size);
        // Its own blocks and those of the step before, which may be no whole unit of a file yet.
        let own = (sinks + 2 * (self.step_tokens + unit)).div_ceil(size) + PAGE_BLOCKS;
        let streamed = STREAMED_LAYERS * recall.prompt_tokens.div_ceil(size);
        let computed = own + streamed.div_ceil(config.layers.max(1));
        let beside = sinks + RECENT_TOKENS.max(recent) + unit;
        let pages = recall.pages.saturating_add(OPEN_PAGES).saturating_mul(PAGE_BLOCKS);
        computed.max(beside.div_ceil(size).saturating_add(pages))
    }
}

impl KvCache {
    /// Limits what is in memory at a time. A sequence that needs more than there is beside the others has to wait; one
    /// that is alone does not.
    #[must_use]
    pub fn with_resident(mut self, room: ResidentRoom) -> Self {
        self.resident = Some(room);
        self
    }

    /// Blocks in memory that a sequence may come to need once it has so many rows.
    pub(crate) fn check_resident(&self, seq: SeqId, rows: usize) -> Result<usize, KvCacheError> {
        let Some(room) = self.resident else { return Ok(0) };
        let before = self.tables.get(&seq).map_or(0, |table| table.resident);
        let recall = self.recalling.get(&seq).map(|recall| recall.asked);
        let needed = room.needed(&self.config, recall, rows).max(before);
        let others = self.promised_resident - before;
        // Whoever starts leaves some for those that grow, or would have to give its own up at once.
        let spare = if before == 0 { room.blocks.div_ceil(100) } else { 0 };
        let free = room.blocks.saturating_sub(others + spare);
        // Nobody makes room for a sequence that is alone.
        if others > 0 && needed > before && needed > free {
            return Err(KvCacheError::NoMemory { needed, free });
        }
        Ok(needed)
    }

    pub(crate) fn promise_resident(&mut self, seq: SeqId, needed: usize) {
        let table = self.tables.entry(seq).or_default();
        self.promised_resident = self.promised_resident - table.resident + needed;
        table.resident = needed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_kv_codecs::KvGeometry;

    const SIZE: usize = 32;

    fn config() -> KvConfig {
        let geometry = KvGeometry { kv_heads: 1, head_dim: 32, block_tokens: SIZE };
        KvConfig::new(taper_kv_codecs::parse("f16").unwrap(), 20, geometry, 4096)
    }

    #[test]
    fn the_longest_sequence_is_the_last_that_fits() {
        let config = config();
        for blocks in [0, 5, 40, 200, 900] {
            for (pages, prompt_tokens) in [(0, 5), (8, 700), (8, 60_000), (500, 9000)] {
                let room = ResidentRoom { blocks, step_tokens: 96 };
                for recall in [None, Some(Recall { pages, prompt_tokens })] {
                    let rows = room.longest(&config, recall);
                    assert!(room.needed(&config, recall, rows) <= blocks, "{room:?} {recall:?}");
                    assert!(room.needed(&config, recall, rows + 1) > blocks, "{room:?} {recall:?}");
                }
            }
        }
    }

    /// Whoever attends to all pages is counted with all of them, and waits while others have the memory.
    #[test]
    fn sequences_wait_for_memory() {
        let recall = Recall { pages: 4, prompt_tokens: 1000 * SIZE };
        // Most of it can be on disk: a tenth is two layers of twenty.
        let room = ResidentRoom { blocks: 200, step_tokens: 64 };
        let mut cache = KvCache::new(config()).with_resident(room);
        cache.set_recall(SeqId(1), Some(recall)).unwrap();
        cache.grow(SeqId(1), 1000 * SIZE).unwrap();
        let free = 200 - cache.promised_resident;
        assert!((50..100).contains(&free), "{free}");
        let error = cache.grow(SeqId(2), free * SIZE).unwrap_err();
        assert!(matches!(error, KvCacheError::NoMemory { .. }), "{error}");
        cache.grow(SeqId(2), (free - 2) * SIZE).unwrap();
        // Those that run may have the last ones, and then nobody.
        cache.grow(SeqId(1), 1002 * SIZE).unwrap();
        assert!(matches!(cache.grow(SeqId(1), 1003 * SIZE), Err(KvCacheError::NoMemory { .. })));
        cache.release(SeqId(2));
        cache.grow(SeqId(1), 1003 * SIZE).unwrap();
        cache.release(SeqId(1));
        assert_eq!(cache.promised_resident, 0);
        // Alone it goes on whatever it takes.
        cache.grow(SeqId(3), 900 * SIZE).unwrap();
    }
}
