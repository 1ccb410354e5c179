//! The blocks of the pool: who holds how much of them, and which keep exact rows beside their codes.

use crate::prefix::PrefixIndex;
use taper_base::BlockId;

#[derive(Debug)]
pub(crate) struct Blocks {
    /// Sequences that hold each block.
    holders: Vec<u32>,
    /// Blocks without contents. Last freed is next used: its memory is warm.
    free: Vec<BlockId>,
    pub(crate) index: PrefixIndex,
    /// The exact block beside each block.
    exact: Vec<Option<BlockId>>,
    free_exact: Vec<BlockId>,
}

impl Blocks {
    pub(crate) fn new(blocks: usize, exact: usize) -> Self {
        let ids = |n: usize| (0..u32::try_from(n).unwrap_or(u32::MAX)).rev().map(BlockId).collect();
        Self {
            holders: vec![0; blocks],
            free: ids(blocks),
            index: PrefixIndex::default(),
            exact: vec![None; blocks],
            free_exact: ids(exact),
        }
    }

    /// Blocks that can be taken.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.index.idle()
    }

    pub(crate) fn free_exact(&self) -> usize {
        self.free_exact.len()
    }

    /// A block without contents, for one sequence.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let block = self.index.evict(|_| true)?;
                self.drop_exact(block);
                block
            }
        };
        self.holders[block.0 as usize] = 1;
        Some(block)
    }

    /// One more sequence holds a published block.
    pub(crate) fn share(&mut self, block: BlockId) {
        self.holders[block.0 as usize] += 1;
        self.index.wake(block);
    }

    /// One sequence fewer holds a block. `keep_exact`: its exact rows belong to its contents.
    pub(crate) fn put_back(&mut self, block: BlockId, keep_exact: bool) {
        let published = self.index.is_published(block);
        if !(published && keep_exact) {
            // Others that hold the block came after its rows were recent.
            self.drop_exact(block);
        }
        let holders = &mut self.holders[block.0 as usize];
        *holders -= 1;
        match *holders {
            0 if published => self.index.rest(block),
            0 => self.free.push(block),
            _ => {}
        }
    }

    /// The exact block beside a block.
    pub(crate) fn exact(&self, block: BlockId) -> Option<BlockId> {
        self.exact[block.0 as usize]
    }

    /// Puts an exact block beside a block that has none. Idle blocks that have one make room.
    pub(crate) fn add_exact(&mut self, block: BlockId) -> bool {
        if self.exact(block).is_some() {
            return true;
        }
        if self.free_exact.is_empty() {
            let exact = &self.exact;
            let Some(idle) = self.index.evict(|b| exact[b.0 as usize].is_some()) else {
                return false;
            };
            self.drop_exact(idle);
            self.free.push(idle);
        }
        self.exact[block.0 as usize] = self.free_exact.pop();
        true
    }

    pub(crate) fn drop_exact(&mut self, block: BlockId) {
        self.free_exact.extend(self.exact[block.0 as usize].take());
    }
}
