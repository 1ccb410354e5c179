//! Blocks whose rows are in memory, and blocks whose rows are in a file alone.
//!
//! Which blocks a step reads follows from its sequences, never from where rows lie: that changes time alone, no bit of
//! anything. A block that is known as a prefix and is in a file may be *cold*: it keeps its number and its boxes, and
//! its memory goes back to the system. What a step reads is brought back before it (`moves.rs`); a prompt that is longer
//! than what may stay in memory reads cold blocks one layer at a time (`stream.rs`).

mod moves;
mod room;
mod stream;

pub use room::ResidentRoom;
pub(crate) use stream::Streamed;

use crate::{DiskTier, UnitName};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};
use taper_base::BlockId;

/// Where a block's rows are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home {
    /// The unit that it is in.
    pub(crate) unit: UnitName,
    /// Its place in a sequence.
    pub(crate) at: usize,
}

#[derive(Debug)]
struct Known {
    /// Step that read it last.
    used: u64,
    home: Option<Home>,
    cold: bool,
}

/// Where the rows of published blocks are.
#[derive(Debug)]
pub(crate) struct Places {
    tier: Arc<DiskTier>,
    /// Blocks that stay in memory beside those that a step reads.
    hot_blocks: usize,
    known: HashMap<BlockId, Known>,
    /// Those in memory, by when they were read.
    hot: BTreeSet<(u64, BlockId)>,
    step: u64,
    /// Blocks of [`Self::hot`] that this step reads.
    in_use: usize,
    /// Units that could not be read.
    doubts: HashMap<UnitName, Doubt>,
}

/// A unit that could not be read, as its file was gone or the disk did not answer: its blocks stay in memory for a
/// while, so that work is not lost again and again, and twice as long every time.
#[derive(Debug, Clone, Copy)]
struct Doubt {
    times: u32,
    /// The step from which on it is trusted again.
    until: u64,
}

/// Steps for which the blocks of a unit stay in memory that could not be read once.
const DOUBT_STEPS: u64 = 64;
/// Doublings of that at most.
const MAX_DOUBTS: u32 = 20;

impl Places {
    pub(crate) fn new(tier: Arc<DiskTier>, hot_blocks: usize) -> Self {
        Self {
            tier,
            hot_blocks,
            known: HashMap::new(),
            hot: BTreeSet::new(),
            step: 0,
            in_use: 0,
            doubts: HashMap::new(),
        }
    }

    /// A step begins.
    fn begin(&mut self) {
        (self.step, self.in_use) = (self.step + 1, 0);
    }

    /// A block with rows in memory is published.
    pub(crate) fn add(&mut self, block: BlockId) {
        if !self.known.contains_key(&block) {
            let used = self.step;
            self.known.insert(block, Known { used, home: None, cold: false });
            self.hot.insert((used, block));
            self.in_use += 1;
        }
    }

    pub(crate) fn settle(&mut self, block: BlockId, home: Home) {
        if let Some(known) = self.known.get_mut(&block) {
            known.home = Some(home);
        }
    }

    /// A block has no contents any more.
    pub(crate) fn forget(&mut self, block: BlockId) {
        let Some(known) = self.known.remove(&block) else { return };
        match known.home.filter(|_| known.cold) {
            Some(home) => self.tier.unpin(home.unit),
            None => self.leave_memory(known.used, block),
        }
    }

    fn leave_memory(&mut self, used: u64, block: BlockId) {
        self.hot.remove(&(used, block));
        self.in_use -= usize::from(used == self.step);
    }

    /// Where a cold block's rows are; `None` for blocks in memory.
    pub(crate) fn cold(&self, block: BlockId) -> Option<Home> {
        self.known.get(&block).filter(|known| known.cold)?.home
    }

    /// This step reads a block, whose rows are in memory from now on.
    pub(crate) fn read(&mut self, block: BlockId) {
        let Some(known) = self.known.get_mut(&block) else { return };
        if let Some(home) = known.home.filter(|_| known.cold) {
            self.tier.unpin(home.unit);
            known.cold = false;
        } else if known.used == self.step {
            return;
        } else {
            self.hot.remove(&(known.used, block));
        }
        known.used = self.step;
        self.hot.insert((self.step, block));
        self.in_use += 1;
    }

    /// Blocks in memory that this step does not read, the longest unused first.
    fn unused(&self) -> impl Iterator<Item = BlockId> {
        self.hot.iter().take_while(|(used, _)| *used < self.step).map(|&(_, block)| block)
    }

    /// Blocks in memory that are too many.
    fn excess(&self) -> usize {
        (self.hot.len() - self.in_use).saturating_sub(self.hot_blocks)
    }

    /// Makes a block cold if a file has its rows, those before the place `exact` in a sequence with exact ones; the file
    /// then stays.
    fn cool(&mut self, block: BlockId, exact: Option<usize>) -> bool {
        let Some(known) = self.known.get_mut(&block) else { return false };
        let trusted =
            |home: &Home| self.doubts.get(&home.unit).is_none_or(|doubt| doubt.until <= self.step);
        let home = known.home.filter(trusted);
        let home = home.filter(|home| exact.is_none_or(|exact| home.at < exact));
        let cools = home.is_some_and(|home| self.tier.pin(home.unit));
        if cools {
            known.cold = true;
            let used = known.used;
            self.leave_memory(used, block);
        }
        cools
    }

    /// A unit could not be read.
    fn doubt(&mut self, unit: UnitName) {
        // Whoever was trusted for as long as it was not begins anew.
        let step = self.step;
        let wait = |times: u32| DOUBT_STEPS << times.min(MAX_DOUBTS);
        self.doubts.retain(|_, doubt| doubt.until + wait(doubt.times) > step);
        let doubt = self.doubts.entry(unit).or_insert(Doubt { times: 0, until: 0 });
        doubt.until = step + wait(doubt.times);
        doubt.times += 1;
    }

    /// A unit was read.
    fn trust(&mut self, unit: UnitName) {
        self.doubts.remove(&unit);
    }
}
