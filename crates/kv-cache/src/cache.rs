//! Blocks and who holds them.

use crate::{KvCacheError, PagedSession, SeqRange};
use std::{collections::HashMap, sync::Arc};
use taper_base::{BlockId, SeqId};
use taper_kv_codecs::{KvCodec, KvGeometry, LayerPages};

/// Shape of a cache.
#[derive(Debug, Clone)]
pub struct KvConfig {
    /// Encodes rows and attends over them.
    pub codec: Arc<dyn KvCodec>,
    /// Layers with keys and values.
    pub layers: usize,
    /// Shape of each layer's rows, and tokens a block.
    pub geometry: KvGeometry,
    /// Blocks there are, shared by all sequences.
    pub blocks: usize,
}

impl KvConfig {
    /// Tokens of a block that serves best: a multiple of every kernel's tile.
    pub const BLOCK_TOKENS: usize = 32;

    /// Bytes of one block over all layers, keys and values.
    #[must_use]
    pub fn bytes_per_block(&self) -> u64 {
        let block = self.codec.block_bytes(self.geometry);
        (block.k + block.v) as u64 * self.layers as u64
    }
}

/// Blocks in use and what they weigh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvUsage {
    /// Blocks held by sequences.
    pub used_blocks: usize,
    /// Blocks there are.
    pub total_blocks: usize,
    /// Bytes of one block over all layers.
    pub bytes_per_block: u64,
}

/// The cache of one engine.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) config: KvConfig,
    pub(crate) pages: Vec<LayerPages>,
    tables: HashMap<SeqId, Vec<BlockId>>,
    /// Last freed is next used: its memory is warm.
    free: Vec<BlockId>,
}

impl KvCache {
    /// Reserves the address space; memory is taken block by block as sequences grow.
    #[must_use]
    pub fn new(config: KvConfig) -> Self {
        let bytes = config.codec.block_bytes(config.geometry);
        let pages = (0..config.layers).map(|_| LayerPages::zeroed(bytes, config.blocks)).collect();
        let blocks = u32::try_from(config.blocks).unwrap_or(u32::MAX);
        let free = (0..blocks).rev().map(BlockId).collect();
        Self { config, pages, tables: HashMap::new(), free }
    }

    /// The shape it was made with.
    #[must_use]
    pub fn config(&self) -> &KvConfig {
        &self.config
    }

    /// Blocks in use.
    #[must_use]
    pub fn usage(&self) -> KvUsage {
        KvUsage {
            used_blocks: self.config.blocks - self.free.len(),
            total_blocks: self.config.blocks,
            bytes_per_block: self.config.bytes_per_block(),
        }
    }

    /// Makes room for `tokens` tokens in all; blocks that are there stay. On failure nothing
    /// changes.
    ///
    /// # Errors
    /// [`KvCacheError::Full`].
    pub fn grow(&mut self, seq: SeqId, tokens: usize) -> Result<(), KvCacheError> {
        let held = self.tables.get(&seq).map_or(0, Vec::len);
        let needed = tokens.div_ceil(self.config.geometry.block_tokens).saturating_sub(held);
        let free = self.free.len();
        if needed > free {
            return Err(KvCacheError::Full { needed, free });
        }
        let taken = self.free.drain(free - needed..).rev();
        self.tables.entry(seq).or_default().extend(taken);
        Ok(())
    }

    /// Gives a sequence's blocks back.
    pub fn release(&mut self, seq: SeqId) {
        if let Some(blocks) = self.tables.remove(&seq) {
            self.free.extend(blocks.into_iter().rev());
        }
    }

    /// Blocks of a sequence, in the order of its tokens.
    #[must_use]
    pub fn blocks(&self, seq: SeqId) -> &[BlockId] {
        self.tables.get(&seq).map_or(&[], Vec::as_slice)
    }

    /// Opens a step in which these sequences compute these tokens.
    ///
    /// # Errors
    /// A sequence has no room for its tokens.
    pub fn session(&mut self, ranges: &[SeqRange]) -> Result<PagedSession<'_>, KvCacheError> {
        PagedSession::new(self, ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(blocks: usize) -> KvCache {
        let geometry = KvGeometry { kv_heads: 2, head_dim: 8, block_tokens: 4 };
        let codec = taper_kv_codecs::parse("f32").unwrap();
        KvCache::new(KvConfig { codec, layers: 3, geometry, blocks })
    }

    #[test]
    fn blocks_come_and_go_and_bytes_are_exact() {
        let mut c = cache(5);
        assert_eq!(c.usage().bytes_per_block, 3 * 2 * 2 * 4 * 8 * 4);
        c.grow(SeqId(1), 5).unwrap();
        c.grow(SeqId(1), 8).unwrap();
        assert_eq!(c.blocks(SeqId(1)), [BlockId(0), BlockId(1)]);
        c.grow(SeqId(2), 1).unwrap();
        let full = c.grow(SeqId(1), 21).unwrap_err();
        assert!(matches!(full, KvCacheError::Full { needed: 4, free: 2 }));
        assert_eq!(c.blocks(SeqId(1)).len(), 2, "a failed growth changes nothing");
        assert_eq!(c.usage().used_blocks, 3);
        c.release(SeqId(1));
        c.release(SeqId(1));
        c.release(SeqId(2));
        assert_eq!(c.usage().used_blocks, 0);
        c.grow(SeqId(3), 20).unwrap();
    }

    #[test]
    fn a_step_beyond_the_room_is_refused() {
        let mut c = cache(2);
        c.grow(SeqId(1), 4).unwrap();
        let range = SeqRange { seq: SeqId(1), start: 3, len: 2 };
        assert!(matches!(c.session(&[range]), Err(KvCacheError::NoRoom { end: 5, room: 4, .. })));
    }
}
