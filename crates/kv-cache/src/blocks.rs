//! The blocks of the pool: who holds how much of them, and which keep exact rows beside their codes.

use crate::{
    apart::Apart,
    prefix::{Node, PrefixIndex},
    recall::PageBoxes,
    tiers::{Home, Places},
};
use std::{collections::HashMap, ops::Range, sync::Arc};
use taper_base::{BlockId, TokenId};

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
    /// Exact blocks beside idle blocks.
    idle_exact: usize,
    /// Boxes of the pages that end with a block, where somebody needed them.
    boxes: HashMap<BlockId, Arc<PageBoxes>>,
    /// Which published blocks have their rows in memory, where some have not.
    pub(crate) places: Option<Places>,
    /// Blocks of sequences whose rows are in files alone.
    pub(crate) held_cold: usize,
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
            idle_exact: 0,
            boxes: HashMap::new(),
            places: None,
            held_cold: 0,
        }
    }

    /// Blocks that can be taken.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.index.idle()
    }

    /// Exact blocks that can be taken.
    pub(crate) fn available_exact(&self) -> usize {
        self.free_exact.len() + self.idle_exact
    }

    /// Sequences that hold a block.
    pub(crate) fn holders(&self, block: BlockId) -> u32 {
        self.holders[block.0 as usize]
    }

    /// Forgets the idle block that was held longest ago, of those that fit.
    fn evict(&mut self, with_exact: bool) -> Option<BlockId> {
        let exact = &self.exact;
        let block = self.index.evict(|b| !with_exact || exact[b.0 as usize].is_some())?;
        self.idle_exact -= usize::from(self.exact(block).is_some());
        self.clear(block);
        Some(block)
    }

    /// A block has no contents any more.
    fn clear(&mut self, block: BlockId) {
        self.drop_exact(block);
        self.boxes.remove(&block);
        if let Some(places) = &mut self.places {
            places.forget(block);
        }
    }

    /// Makes a block known, as [`PrefixIndex::publish`].
    pub(crate) fn publish(
        &mut self,
        block: BlockId,
        before: Node,
        tokens: &[TokenId],
        place: (usize, &Apart),
    ) -> Node {
        let node = self.index.publish(block, before, tokens, place);
        if let Some(places) = self.places.as_mut().filter(|_| self.index.is_published(block)) {
            places.add(block);
        }
        node
    }

    /// Says in which unit a published block is.
    pub(crate) fn settle(&mut self, block: BlockId, home: Home) {
        if let Some(places) = &mut self.places {
            places.settle(block, home);
        }
    }

    /// Whether a block's rows are in a file alone.
    pub(crate) fn is_cold(&self, block: BlockId) -> bool {
        self.places.as_ref().is_some_and(|places| places.cold(block).is_some())
    }

    /// A step reads a block, whose rows are in memory from now on.
    pub(crate) fn read(&mut self, block: BlockId) {
        self.held_cold -= usize::from(self.holders(block) > 0 && self.is_cold(block));
        if let Some(places) = &mut self.places {
            places.read(block);
        }
    }

    /// Takes the exact block beside a block whose rows leave memory.
    pub(crate) fn cool_exact(&mut self, block: BlockId) {
        let idle = self.holders(block) == 0 && self.exact(block).is_some();
        self.idle_exact -= usize::from(idle);
        self.drop_exact(block);
    }

    /// Forgets an idle block.
    pub(crate) fn forget_one(&mut self, block: BlockId) {
        self.index.forget(block);
        self.cool_exact(block);
        self.clear(block);
        self.free.push(block);
    }

    /// Boxes of the page that ends with a block, if they are known.
    pub(crate) fn boxes(&self, block: BlockId) -> Option<Arc<PageBoxes>> {
        self.boxes.get(&block).cloned()
    }

    pub(crate) fn set_boxes(&mut self, block: BlockId, boxes: Arc<PageBoxes>) {
        self.boxes.insert(block, boxes);
    }

    /// A block without contents, for one sequence.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => self.evict(false)?,
        };
        self.holders[block.0 as usize] = 1;
        Some(block)
    }

    /// One more sequence holds a published block.
    pub(crate) fn share(&mut self, block: BlockId) {
        let holders = &mut self.holders[block.0 as usize];
        *holders += 1;
        if *holders == 1 {
            self.idle_exact -= usize::from(self.exact(block).is_some());
            self.held_cold += usize::from(self.is_cold(block));
        }
        self.index.wake(block);
    }

    /// Forgets what a block holds that one sequence holds: it is about to be written.
    pub(crate) fn unpublish(&mut self, block: BlockId) {
        self.held_cold -= usize::from(self.is_cold(block));
        self.index.forget(block);
        self.clear(block);
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
        let holders = *holders;
        if holders == 0 {
            self.held_cold -= usize::from(self.is_cold(block));
        }
        match holders {
            0 if published => {
                self.idle_exact += usize::from(self.exact(block).is_some());
                self.index.rest(block);
            }
            0 => {
                self.clear(block);
                self.free.push(block);
            }
            _ => {}
        }
    }

    /// Forgets idle blocks, the longest unused first, while `keeps(blocks, exact blocks)` says no to
    /// what is left.
    pub(crate) fn forget_idle(&mut self, keeps: impl Fn(usize, usize) -> bool) {
        while !keeps(self.index.idle(), self.idle_exact) {
            let Some(block) = self.evict(false) else { return };
            self.free.push(block);
        }
    }

    /// Stretches of blocks and of exact blocks without contents. The first ones are taken next.
    pub(crate) fn free_runs(&mut self) -> [Vec<Range<usize>>; 2] {
        [&mut self.free, &mut self.free_exact].map(|free| {
            free.sort_unstable_by_key(|block| std::cmp::Reverse(block.0));
            let mut runs: Vec<Range<usize>> = Vec::new();
            for index in free.iter().rev().map(|block| block.0 as usize) {
                match runs.last_mut() {
                    Some(run) if run.end == index => run.end += 1,
                    _ => runs.push(index..index + 1),
                }
            }
            runs
        })
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
            let Some(idle) = self.evict(true) else { return false };
            self.free.push(idle);
        }
        self.exact[block.0 as usize] = self.free_exact.pop();
        true
    }

    pub(crate) fn drop_exact(&mut self, block: BlockId) {
        self.free_exact.extend(self.exact[block.0 as usize].take());
    }
}
