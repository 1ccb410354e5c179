//! Rows that leave memory, and those that come back for a step.

use super::{Places, Streamed};
use crate::{KvCache, RowRange, UnitName, disk::DEADLINE, recall::View};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};
use taper_base::{BlockId, SeqId};
use taper_kv_codecs::LayerPages;

/// Neighbours of a block that leaves memory whose last bytes may share a page of the system with it.
const EDGE_BLOCKS: u32 = 8;

/// Cold blocks of a unit, with their places in a sequence.
pub(super) type UnitBlocks = BTreeMap<UnitName, Vec<(usize, BlockId)>>;

impl KvCache {
    /// Lets blocks that no step reads lie on disk alone: of those in files, `hot_tokens` tokens stay in memory beside
    /// what a step reads, the latest ones. Nothing leaves memory without a disk ([`Self::with_disk`]), which is to be
    /// this process's alone ([`DiskTier::open_alone`](crate::DiskTier::open_alone)).
    #[must_use]
    pub fn with_hot_tokens(mut self, hot_tokens: usize) -> Self {
        let hot_blocks = hot_tokens.div_ceil(self.config.geometry.block_tokens);
        let tier = self.kept.as_ref().map(|kept| kept.tier.clone());
        self.blocks.places = tier.map(|tier| Places::new(tier, hot_blocks));
        self
    }

    /// Sequences that had a cold block which cannot be read: what their last step computed is void. They are to be
    /// released and computed anew.
    pub fn take_lost(&mut self) -> BTreeSet<SeqId> {
        std::mem::take(&mut self.lost)
    }

    /// Has everything in memory that a step reads, but what it reads layer by layer: that is returned.
    pub(crate) fn warm(&mut self, ranges: &[RowRange], views: &[Option<View>]) -> Streamed {
        let Some(places) = &mut self.blocks.places else { return Streamed::default() };
        places.begin();
        for (i, range) in ranges.iter().enumerate() {
            let read = self.read_whole(range, views.get(i).and_then(Option::as_ref));
            if !self.bring_back(&read) {
                self.lost.insert(range.seq);
            }
        }
        self.cool_down(ranges);
        let whole = |i: usize| views.get(i).is_none_or(Option::is_none);
        let streamed = ranges.iter().enumerate().filter(|&(i, _)| whole(i));
        let streamed = streamed.map(|(_, range)| range).filter(|range| self.streams(range));
        let streamed = Streamed::new(self, streamed.map(|range| range.seq));
        self.recall_counts.streamed_blocks += streamed.len() as u64;
        streamed
    }

    /// Whether far layers read a range's earlier tokens one layer at a time: those of prompts whose later tokens leave
    /// pages out.
    pub(crate) fn streams(&self, range: &RowRange) -> bool {
        self.blocks.places.is_some()
            && self.recalling.get(&range.seq).is_some_and(|recall| self.is_long(recall, range))
    }

    /// Blocks of a range that are in memory while a step runs.
    fn read_whole(&self, range: &RowRange, view: Option<&View>) -> Vec<BlockId> {
        let size = self.config.geometry.block_tokens;
        let blocks = self.blocks(range.seq);
        let near = match view.is_some() || self.streams(range) {
            // Layers that see near tokens alone read all of these.
            true => range.start.saturating_sub(self.near_tokens()) / size,
            false => 0,
        };
        let end = (range.start + range.len).div_ceil(size).min(blocks.len());
        // Exact rows are there for a whole step.
        let sinks = blocks[..self.sink_blocks().min(near).min(end)].iter();
        let near = blocks[near.min(end)..end].iter();
        sinks.chain(near).chain(view.into_iter().flat_map(|view| &view.blocks)).copied().collect()
    }

    /// Reads cold blocks from disk. `false`: some cannot be read.
    fn bring_back(&mut self, blocks: &[BlockId]) -> bool {
        let cold = self.cold_units(blocks.iter().copied());
        let whole = cold.is_empty() || self.read_units(cold);
        for &block in blocks {
            if whole || !self.blocks.is_cold(block) {
                self.blocks.read(block);
            }
        }
        whole
    }

    /// Reads cold blocks from disk for a moment: before the next ones come they may go again. `false`: some cannot be
    /// read.
    pub(crate) fn bring_some(&mut self, blocks: &[BlockId]) -> bool {
        if let Some(places) = &mut self.blocks.places {
            places.begin();
        }
        let whole = self.bring_back(blocks);
        self.cool();
        whole
    }

    /// The cold ones of some blocks, unit by unit.
    pub(super) fn cold_units(&self, blocks: impl Iterator<Item = BlockId>) -> UnitBlocks {
        let mut units = UnitBlocks::new();
        let Some(places) = &self.blocks.places else { return units };
        for block in blocks.collect::<BTreeSet<_>>() {
            if let Some(home) = places.cold(block) {
                units.entry(home.unit).or_default().push((home.at, block));
            }
        }
        units
    }

    fn read_units(&mut self, mut units: UnitBlocks) -> bool {
        let since = Instant::now();
        let Some(tier) = self.blocks.places.as_ref().map(|places| places.tier.clone()) else {
            return false;
        };
        let names: Vec<_> = units.keys().copied().collect();
        let reading = tier.request(names.iter().map(|&name| (name, None)));
        while let Some((i, rows)) = tier.receive(&reading) {
            let Some(blocks) = units.get(&names[i]) else { continue };
            let unit = blocks.first().map_or(0, |(at, _)| at / self.unit_blocks());
            let (blocks, sinks) = (blocks.clone(), self.sink_blocks());
            // The file has exact rows of sinks, and every step reads them.
            let mut ready = blocks.iter().filter(|(at, _)| *at < sinks);
            let ready = ready.all(|&(_, block)| self.blocks.add_exact(block));
            if ready && rows.is_ok_and(|rows| self.write_unit(unit, &rows, &blocks)) {
                self.recall_counts.recalled_blocks += blocks.len() as u64;
                units.remove(&names[i]);
                blocks.iter().for_each(|&(_, block)| self.blocks.read(block));
                if let Some(places) = &mut self.blocks.places {
                    places.trust(names[i]);
                }
            }
        }
        self.recall_counts.wait += since.elapsed();
        let whole = units.is_empty();
        self.lose(units);
        whole
    }

    /// Units that cannot be read: nobody finds their blocks any more. Those who hold them find out when they read them.
    pub(super) fn lose(&mut self, units: UnitBlocks) {
        for (name, blocks) in units {
            tracing::warn!("a cold page of the KV cache is lost; what needs it is computed again");
            blocks.iter().for_each(|&(_, block)| self.blocks.index.forget(block));
            if let Some(places) = &mut self.blocks.places {
                places.doubt(name);
            }
        }
    }

    /// Lets blocks go until no more are in memory than may be, and waits for the disk where it is still writing them:
    /// a moment, as everybody waits with it.
    fn cool_down(&mut self, ranges: &[RowRange]) {
        self.cool();
        let since = Instant::now();
        while self.blocks.places.as_ref().is_some_and(|places| places.excess() > 0) {
            ranges.iter().for_each(|range| self.store(range.seq));
            let tier = self.kept.as_ref().map(|kept| kept.tier.clone());
            if !tier.is_some_and(|tier| tier.wait_written(since + DEADLINE)) {
                break;
            }
            self.cool();
        }
        self.recall_counts.wait += since.elapsed();
    }

    /// Lets blocks go until no more are in memory than may be, as far as files have them. Others that nobody holds are
    /// forgotten.
    pub(crate) fn cool(&mut self) {
        let Some(mut places) = self.blocks.places.take() else { return };
        let (mut cooled, mut idle) = (Vec::new(), Vec::new());
        let unused: Vec<_> =
            if places.excess() > 0 { places.unused().collect() } else { Vec::new() };
        for block in unused {
            if places.excess() <= idle.len() {
                break;
            }
            // No exact rows are in files but those of sinks.
            let exact = self.blocks.exact(block).map(|_| self.sink_blocks());
            if places.cool(block, exact) {
                self.blocks.held_cold += usize::from(self.blocks.holders(block) > 0);
                self.blocks.cool_exact(block);
                cooled.push(block);
            } else if self.blocks.holders(block) == 0 {
                idle.push(block);
            }
        }
        self.recall_counts.evicted_blocks += cooled.len() as u64;
        self.blocks.places = Some(places);
        cooled.extend_from_slice(&idle);
        idle.into_iter().for_each(|block| self.blocks.forget_one(block));
        self.give_up_memory(cooled);
    }

    /// Gives the memory of blocks back to the system.
    fn give_up_memory(&mut self, mut blocks: Vec<BlockId>) {
        blocks.sort_unstable_by_key(|block| block.0);
        for run in blocks.chunk_by(|a, b| a.0 + 1 == b.0) {
            let (first, last) = (run[0].0, run[run.len() - 1].0);
            let cold = |block: &u32| self.blocks.is_cold(BlockId(*block));
            let before = (1..=EDGE_BLOCKS).map_while(|n| first.checked_sub(n)).take_while(cold);
            let after = (1..=EDGE_BLOCKS).map_while(|n| last.checked_add(n)).take_while(cold);
            let run = (first - before.count() as u32) as usize
                ..(last + after.count() as u32) as usize + 1;
            (0..self.config.layers).for_each(|layer| self.discard_layer(layer, &run));
        }
    }

    /// Gives a layer's memory of consecutive blocks back to the system.
    pub(super) fn discard_layer(&mut self, layer: usize, run: &std::ops::Range<usize>) {
        let bytes = self.config.block_bytes(layer);
        let pages: &mut LayerPages = &mut self.pages[layer];
        if cfg!(debug_assertions) {
            // Small caches keep what was there: whoever reads it is to be found out.
            pages.k.as_mut_slice()[run.start * bytes.k..run.end * bytes.k].fill(0x3c);
            pages.v.as_mut_slice()[run.start * bytes.v..run.end * bytes.v].fill(0x3c);
        }
        pages.discard(bytes, run);
    }
}
