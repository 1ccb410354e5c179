//! Cold blocks that a step reads one layer at a time: a prompt attends to all of its pages, and memory has one layer of
//! those that are cold.

use super::moves::UnitBlocks;
use crate::{KvCache, UnitName, disk::Reading};
use std::{collections::BTreeSet, time::Instant};
use taper_base::{BlockId, SeqId};

/// What a step reads layer by layer.
#[derive(Debug, Default)]
pub(crate) struct Streamed {
    units: Vec<(UnitName, Vec<(usize, BlockId)>)>,
    /// Sequences that read it.
    seqs: BTreeSet<SeqId>,
    /// Stretches of its blocks.
    runs: Vec<std::ops::Range<usize>>,
    /// Near tokens of all layers are in memory.
    knows_sight: bool,
    /// A layer that is being read.
    ahead: Option<(usize, Reading)>,
}

impl Streamed {
    /// All cold blocks of some sequences.
    pub(super) fn new(cache: &KvCache, seqs: impl Iterator<Item = SeqId>) -> Self {
        let seqs: BTreeSet<_> = seqs.collect();
        let blocks = seqs.iter().flat_map(|&seq| cache.blocks(seq)).copied();
        let units: Vec<_> = cache.cold_units(blocks).into_iter().collect();
        let mut places: Vec<_> = units
            .iter()
            .flat_map(|(_, blocks)| blocks)
            .map(|(_, block)| block.0 as usize)
            .collect();
        places.sort_unstable();
        let runs = places.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1);
        Self { runs: runs.collect(), knows_sight: cache.knows_sight(), units, seqs, ahead: None }
    }

    /// Whether a layer that sees so many tokens back reads it: near tokens are in memory, once it is known how many they
    /// are.
    pub(crate) fn is_for(&self, near: Option<usize>) -> bool {
        near.is_none() || !self.knows_sight
    }

    /// Blocks.
    pub(super) fn len(&self) -> usize {
        self.units.iter().map(|(_, blocks)| blocks.len()).sum()
    }
}

impl KvCache {
    /// Whether it is known of each layer how far back it sees: a step has run.
    pub(crate) fn knows_sight(&self) -> bool {
        self.sight.len() == self.config.layers
    }

    /// Layers from one on that see all tokens.
    pub(crate) fn far_layers(&self, from: usize) -> impl Iterator<Item = usize> {
        self.sight.range(from..).filter(|(_, near)| near.is_none()).map(|(&layer, _)| layer)
    }

    /// Tokens back that the other layers see.
    pub(super) fn near_tokens(&self) -> usize {
        self.sight.values().flatten().copied().max().unwrap_or(0)
    }

    /// Brings a layer of what is streamed to memory, and requests the next layer.
    pub(crate) fn stream_in(&mut self, layer: usize, streamed: &mut Streamed) {
        let tier = self.blocks.places.as_ref().map(|places| places.tier.clone());
        let Some(tier) = tier.filter(|_| !streamed.units.is_empty()) else { return };
        let since = Instant::now();
        let request = |layer: usize| {
            tier.request(streamed.units.iter().map(|(name, _)| (*name, Some(layer))))
        };
        let ahead = streamed.ahead.take().filter(|(ahead, _)| *ahead == layer);
        let reading = ahead.map_or_else(|| request(layer), |(_, reading)| reading);
        let next = self.far_layers(layer + 1).next();
        let ahead = next.map(|next| (next, request(next)));
        let mut missing: BTreeSet<_> = (0..streamed.units.len()).collect();
        while let Some((i, rows)) = tier.receive(&reading) {
            let (_, blocks) = &streamed.units[i];
            let unit = blocks.first().map_or(0, |(at, _)| at / self.unit_blocks());
            let rows = rows.ok().and_then(|rows| rows.into_iter().next());
            if rows.is_some_and(|rows| self.write_layer(layer, unit, &rows, blocks)) {
                missing.remove(&i);
            }
        }
        streamed.ahead = ahead;
        self.recall_counts.wait += since.elapsed();
        if !missing.is_empty() {
            let lost: UnitBlocks = missing.iter().map(|&i| streamed.units[i].clone()).collect();
            let gone: BTreeSet<_> = lost.values().flatten().map(|(_, block)| block).collect();
            let holds = |seq: &&SeqId| self.blocks(**seq).iter().any(|block| gone.contains(block));
            let seqs: Vec<_> = streamed.seqs.iter().filter(holds).copied().collect();
            self.lost.extend(seqs);
            self.lose(lost);
        }
    }

    /// Gives the memory of a layer of what is streamed back.
    pub(crate) fn stream_out(&mut self, layer: usize, streamed: &Streamed) {
        streamed.runs.iter().for_each(|run| self.discard_layer(layer, run));
    }
}
