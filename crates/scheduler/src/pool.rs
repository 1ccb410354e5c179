//! The seam to whoever owns the blocks of the KV cache.

use std::collections::BTreeMap;
use taper_base::{SeqId, TokenId};

/// The pool has too few free blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no free block in the KV cache")]
pub struct NoRoom;

/// Blocks of the KV cache, as the scheduler sees them: counts and ids, never contents.
///
/// Laws: `free() <= total()`; with every sequence released, `free() == total()` (blocks kept only
/// for a prefix that may be met again count as free); a refused `grow` changes nothing; one
/// sequence can grow to `total() * block_tokens()` tokens when no other holds a block.
pub trait BlockPool {
    /// Blocks there are; fixed.
    fn total(&self) -> u32;
    /// Blocks that `grow` can hand out.
    fn free(&self) -> u32;
    /// Tokens a block holds; fixed, at least 1.
    fn block_tokens(&self) -> u32;
    /// Ensures that the sequence has room for `rows` rows in all, those of its tokens that were not evicted; it
    /// never shrinks.
    ///
    /// # Errors
    /// There are too few free blocks.
    fn grow(&mut self, id: SeqId, rows: u32) -> Result<(), NoRoom>;
    /// Gives back whatever the sequence holds, which may be nothing.
    fn release(&mut self, id: SeqId);
    /// Tokens of which prefixes are reused a multiple; 0 when there is no reuse.
    fn prefix_tokens(&self) -> u32 {
        0
    }
    /// Whether two sequences may share blocks at all.
    fn may_share(&self, a: SeqId, b: SeqId) -> bool {
        let _ = (a, b);
        true
    }
    /// Gives a sequence that holds nothing the blocks whose contents are already those of its
    /// leading tokens, and returns how many tokens that is. The default finds none.
    fn adopt_prefix(&mut self, id: SeqId, tokens: &[TokenId]) -> u32 {
        let _ = (id, tokens);
        0
    }
}

/// A [`BlockPool`] that only counts: for tests and simulations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountingPool {
    total: u32,
    block_tokens: u32,
    held: BTreeMap<SeqId, u32>,
}

impl CountingPool {
    /// A pool of `total` blocks of `block_tokens` tokens (at least 1).
    #[must_use]
    pub fn new(total: u32, block_tokens: u32) -> Self {
        Self { total, block_tokens: block_tokens.max(1), held: BTreeMap::new() }
    }

    /// Blocks that a sequence holds.
    #[must_use]
    pub fn held(&self, id: SeqId) -> u32 {
        self.held.get(&id).copied().unwrap_or(0)
    }
}

impl BlockPool for CountingPool {
    fn total(&self) -> u32 {
        self.total
    }

    fn free(&self) -> u32 {
        self.total - self.held.values().sum::<u32>()
    }

    fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    fn grow(&mut self, id: SeqId, rows: u32) -> Result<(), NoRoom> {
        let (need, has) = (rows.div_ceil(self.block_tokens), self.held(id));
        if need.saturating_sub(has) > self.free() {
            return Err(NoRoom);
        }
        self.held.insert(id, need.max(has));
        Ok(())
    }

    fn release(&mut self, id: SeqId) {
        self.held.remove(&id);
    }
}
