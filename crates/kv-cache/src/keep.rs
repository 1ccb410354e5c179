//! Blocks out of the cache to disk, and back.

use crate::{
    DiskTier, KvCache, UnitName,
    cache::Table,
    prefix::{Node, ROOT},
};
use std::sync::Arc;
use taper_base::{BlockId, SeqId, TokenId};

/// Where units are kept, and what their names begin with.
#[derive(Debug)]
pub(crate) struct Kept {
    tier: Arc<DiskTier>,
    root: UnitName,
}

impl Kept {
    /// Whether a unit is known to be in a file.
    pub(crate) fn holds(&self, name: &UnitName) -> bool {
        self.tier.holds(name)
    }
}

impl KvCache {
    /// Keeps prefixes on disk too, in `tier`. `model` names everything that rows depend on beside
    /// the cache's own shape: weights and arithmetic. Nothing is kept without prefix caching, nor
    /// for a model with recurrent layers, whose states are not written.
    #[must_use]
    pub fn with_disk(mut self, tier: Arc<DiskTier>, model: &str) -> Self {
        let c = &self.config;
        let codecs: Vec<_> = (0..c.layers).map(|layer| c.scheme.codec(layer).name()).collect();
        let exact = c.exact.map(|room| room.tokens);
        let identity = format!("{model}\n{:?}\n{codecs:?}\n{exact:?}", c.geometry);
        let identity = match c.layer_heads.as_slice() {
            [] => identity,
            heads => format!("{identity}\n{heads:?}"),
        };
        let keeps = c.prefix_caching && self.states.is_none();
        self.kept = keeps.then(|| Kept { tier, root: UnitName::root(&identity) });
        self
    }

    /// Blocks of a unit.
    pub(crate) fn unit_blocks(&self) -> usize {
        self.prefix_tokens() / self.config.geometry.block_tokens
    }

    /// Hands the units that a sequence has completed to the disk.
    pub(crate) fn keep(&mut self, seq: SeqId, tokens: &[TokenId]) {
        let (unit, blocks) = (self.prefix_tokens(), self.unit_blocks());
        let (Some(kept), Some(table)) = (&self.kept, self.tables.get_mut(&seq)) else { return };
        let root = kept.root.salted(self.salts.get(&seq));
        let first = table.units.len();
        for tokens in tokens.chunks_exact(unit).take(table.nodes.len() / blocks).skip(first) {
            let before = table.units.last().unwrap_or(&root);
            table.units.push(before.next(tokens));
        }
        let (Some(kept), Some(table)) = (&self.kept, self.tables.get(&seq)) else { return };
        for (index, &name) in table.units.iter().enumerate().skip(first) {
            let bytes = self.unit_bytes(index) as u64;
            if !kept.tier.holds(&name) && kept.tier.takes(bytes) {
                kept.tier.store(name, blocks, self.unit_rows(table, index));
            }
        }
    }

    /// The parts of a block's rows: bytes of each layer's sides, those of exact rows of sinks
    /// included.
    fn parts(&self, sink: bool) -> Vec<(usize, Part, usize)> {
        let c = &self.config;
        let mut parts = Vec::new();
        for layer in 0..c.layers {
            let (codec, geometry) = (c.scheme.codec(layer), c.geometry_of(layer));
            let block = c.block_bytes(layer);
            parts.extend([(layer, Part::K, block.k), (layer, Part::V, block.v)]);
            let exact = codec.exact_block_bytes(geometry).filter(|_| sink && c.exact.is_some());
            if let Some(exact) = exact {
                parts.extend([(layer, Part::ExactK, exact.k), (layer, Part::ExactV, exact.v)]);
            }
        }
        parts
    }

    pub(crate) fn unit_bytes(&self, index: usize) -> usize {
        let blocks = index * self.unit_blocks()..(index + 1) * self.unit_blocks();
        let (plain, sink) = (self.block_rows_bytes(false), self.block_rows_bytes(true));
        blocks.map(|block| if block < self.sink_blocks() { sink } else { plain }).sum()
    }

    /// Bytes of a block's rows, those of exact rows of sinks included.
    pub(crate) fn block_rows_bytes(&self, sink: bool) -> usize {
        self.parts(sink).iter().map(|part| part.2).sum()
    }

    fn unit_rows(&self, table: &Table, index: usize) -> Vec<u8> {
        let mut rows = Vec::with_capacity(self.unit_bytes(index));
        let first = index * self.unit_blocks();
        for at in first..first + self.unit_blocks() {
            let block = table.blocks[at];
            for (layer, part, bytes) in self.parts(at < self.sink_blocks()) {
                let Some(place) = self.place(block, part) else { continue };
                let pages = &self.pages[layer];
                let side = match part {
                    Part::K => &pages.k,
                    Part::V => &pages.v,
                    Part::ExactK => &pages.exact_k,
                    Part::ExactV => &pages.exact_v,
                };
                rows.extend_from_slice(&side.as_slice()[place * bytes..][..bytes]);
            }
        }
        rows
    }

    /// Index of a block among those of a part.
    fn place(&self, block: BlockId, part: Part) -> Option<usize> {
        let block = match part {
            Part::K | Part::V => Some(block),
            Part::ExactK | Part::ExactV => self.blocks.exact(block),
        };
        block.map(|block| block.0 as usize)
    }

    /// The units of a sequence's prompt that are on disk and not in memory, in order: index and name. They
    /// follow those in memory without a gap, and there is room for them.
    #[must_use]
    pub fn on_disk(&self, seq: SeqId, tokens: &[TokenId]) -> Vec<(usize, UnitName)> {
        let Some(kept) = &self.kept else { return Vec::new() };
        let (unit, blocks) = (self.prefix_tokens(), self.unit_blocks());
        let (size, salt) = (self.config.geometry.block_tokens, self.salt(seq));
        let known = self.blocks.index.find(tokens, size, salt).len() / blocks;
        let mut name = kept.root.salted(salt);
        let names = tokens.chunks_exact(unit).map(|tokens| {
            name = name.next(tokens);
            name
        });
        // Half of what is free: other sequences are about to take some too.
        let room = self.blocks.available() / 2 / blocks;
        let there = names.enumerate().skip(known).take_while(|(_, name)| kept.tier.holds(name));
        there.take(room).collect()
    }

    /// Requests a unit's rows; see [`DiskTier::load`].
    pub fn load(&self, name: UnitName, done: impl FnOnce(Option<Vec<u8>>) + Send + 'static) {
        match &self.kept {
            Some(kept) => kept.tier.load(name, done),
            None => done(None),
        }
    }

    /// Units that are of no use without one that could not be read: they are to be kept anew.
    pub fn forget_units(&self, names: impl IntoIterator<Item = UnitName>) {
        if let Some(kept) = &self.kept {
            names.into_iter().for_each(|name| kept.tier.forget(name));
        }
    }

    /// Units that may be requested at a time without taking much memory.
    #[must_use]
    pub fn loads_ahead(&self) -> usize {
        const BYTES: usize = 64 << 20;
        (BYTES / self.unit_bytes(0).max(1)).clamp(1, 32)
    }

    /// Puts a unit of a sequence's prompt, as it was read, into idle blocks. `false`: what comes before it is
    /// gone, there is no room, or the rows are of another size.
    pub fn restore(&mut self, seq: SeqId, tokens: &[TokenId], index: usize, rows: &[u8]) -> bool {
        let (size, blocks) = (self.config.geometry.block_tokens, self.unit_blocks());
        let end = (index + 1) * blocks;
        let Some(tokens) = tokens.get(..end * size) else { return false };
        let salt = self.salt(seq).cloned();
        let chain = self.blocks.index.find(tokens, size, salt.as_ref());
        if chain.len() == end {
            return true;
        }
        let before = &chain[..(index * blocks).min(chain.len())];
        if before.len() < index * blocks || rows.len() != self.unit_bytes(index) {
            return false;
        }
        // Held, so that they are not what makes room.
        before.iter().for_each(|&(_, block)| self.blocks.share(block));
        let node = before.last().map_or(ROOT, |b| b.0);
        let done = self.fill(tokens, (node, salt.as_ref()), index, rows);
        let sinks = self.sink_blocks();
        for (at, &(_, block)) in before.iter().enumerate().rev() {
            self.blocks.put_back(block, at < sinks);
        }
        done
    }

    fn fill(
        &mut self,
        tokens: &[TokenId],
        (mut before, salt): (Node, Option<&Arc<str>>),
        index: usize,
        rows: &[u8],
    ) -> bool {
        let (size, blocks, sinks) =
            (self.config.geometry.block_tokens, self.unit_blocks(), self.sink_blocks());
        let first = index * blocks;
        let mut taken: Vec<BlockId> = Vec::new();
        let mut rest = rows;
        for at in first..first + blocks {
            let block = self.blocks.take();
            taken.extend(block);
            let sink = at < sinks;
            let mut ready = |block| !sink || self.blocks.add_exact(block);
            let Some(block) = block.filter(|&block| ready(block)) else {
                taken.iter().for_each(|&block| self.blocks.put_back(block, false));
                return false;
            };
            rest = self.write_rows(block, sink, rest);
        }
        let sequence = tokens.chunks_exact(size).skip(first);
        for (&block, tokens) in taken.iter().zip(sequence) {
            before = self.blocks.index.publish(block, before, tokens, salt);
        }
        for (at, &block) in taken.iter().enumerate().rev() {
            self.blocks.put_back(block, first + at < sinks);
        }
        true
    }

    /// Writes a block's rows and returns what comes after them.
    pub(crate) fn write_rows<'a>(
        &mut self,
        block: BlockId,
        sink: bool,
        mut rows: &'a [u8],
    ) -> &'a [u8] {
        for (layer, part, bytes) in self.parts(sink) {
            let Some(place) = self.place(block, part) else { continue };
            let (own, rest) = rows.split_at(bytes);
            let pages = &mut self.pages[layer];
            let side = match part {
                Part::K => &mut pages.k,
                Part::V => &mut pages.v,
                Part::ExactK => &mut pages.exact_k,
                Part::ExactV => &mut pages.exact_v,
            };
            side.as_mut_slice()[place * bytes..][..bytes].copy_from_slice(own);
            rows = rest;
        }
        rows
    }
}

/// A part of a block.
#[derive(Debug, Clone, Copy)]
enum Part {
    K,
    V,
    ExactK,
    ExactV,
}
