//! Blocks out of the cache to disk, and back.

use crate::{
    DiskTier, KvCache, UnitName, UnitRows, Unread,
    apart::Apart,
    prefix::{Node, ROOT},
    tiers::Home,
};
use std::sync::Arc;
use taper_base::{BlockId, SeqId, TokenId};

/// Why a unit that was read from disk is not in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotRestored {
    /// No block is free for it, or what comes before it has made room for others. Its file is good.
    #[error("the KV cache has no room for a prefix from disk")]
    NoRoom,
    /// Its rows are of another size.
    #[error("a prefix on disk has rows of another size")]
    Unfit,
}

/// How much of a prompt that is read from disk is in memory.
#[derive(Debug, Default)]
pub struct Restoring {
    chain: Vec<(Node, BlockId)>,
}

/// Where units are kept, and what their names begin with.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) tier: Arc<DiskTier>,
    root: UnitName,
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

    /// Names the units that a sequence has completed, and hands them to the disk.
    pub(crate) fn keep(&mut self, seq: SeqId, tokens: &[TokenId]) {
        let (unit, blocks) = (self.prefix_tokens(), self.unit_blocks());
        if self.kept.is_none() {
            return;
        }
        let apart = self.apart(seq);
        let (Some(kept), Some(table)) = (&self.kept, self.tables.get_mut(&seq)) else { return };
        let root = kept.root.salted(apart.salt.as_ref());
        let first = table.units.len();
        let units = tokens.chunks_exact(unit).take(table.nodes.len() / blocks).enumerate();
        for (i, tokens) in units.skip(first) {
            let before = table.units.last().unwrap_or(&root);
            let images = apart.images(i * unit..(i + 1) * unit);
            let name = before.next_with(tokens, &images);
            let at = table.units.len() * blocks;
            table.units.push(name);
            for at in at..at + blocks {
                self.blocks.settle(table.blocks[at], Home { unit: name, at });
            }
        }
        self.store(seq);
    }

    /// Hands the units of a sequence to the disk that were not handed to it yet, as many as it takes.
    pub(crate) fn store(&mut self, seq: SeqId) {
        let blocks = self.unit_blocks();
        let (Some(kept), Some(table)) = (&self.kept, self.tables.get(&seq)) else { return };
        let mut stored = table.stored;
        for (unit, &name) in table.units.iter().enumerate().skip(stored) {
            let own = &table.blocks[unit * blocks..(unit + 1) * blocks];
            // A block that is nowhere but in a file has no rows to write.
            if !kept.tier.holds(&name) && !own.iter().any(|&block| self.blocks.is_cold(block)) {
                if !kept.tier.takes(self.unit_bytes(unit) as u64) {
                    break;
                }
                kept.tier.store(name, blocks, self.unit_rows(unit, own));
            }
            stored = unit + 1;
        }
        if let Some(table) = self.tables.get_mut(&seq) {
            table.stored = stored;
        }
    }

    /// The units of a sequence's prompt that are on disk and not in memory, in order: index and name. They
    /// follow those in memory without a gap, and there is room for them.
    #[must_use]
    pub fn on_disk(&self, seq: SeqId, tokens: &[TokenId]) -> Vec<(usize, UnitName)> {
        let Some(kept) = &self.kept else { return Vec::new() };
        let (unit, blocks) = (self.prefix_tokens(), self.unit_blocks());
        let (size, apart) = (self.config.geometry.block_tokens, self.apart(seq));
        let known = self.blocks.index.find(tokens, size, &apart).len() / blocks;
        let mut name = kept.root.salted(apart.salt.as_ref());
        let names = tokens.chunks_exact(unit).enumerate().map(|(i, tokens)| {
            name = name.next_with(tokens, &apart.images(i * unit..(i + 1) * unit));
            name
        });
        // Half of what is free: other sequences are about to take some too.
        let room = self.blocks.available() / 2 / blocks;
        let there = names.enumerate().skip(known).take_while(|(_, name)| kept.tier.holds(name));
        there.take(room).collect()
    }

    /// Requests a unit's rows; see [`DiskTier::load`].
    pub fn load(
        &self,
        name: UnitName,
        done: impl FnOnce(Result<UnitRows, Unread>) + Send + 'static,
    ) {
        match &self.kept {
            Some(kept) => kept.tier.load(name, done),
            None => done(Err(Unread::Gone)),
        }
    }

    /// Units that are of no use without one that was damaged: they are to be kept anew.
    pub fn forget_units(&self, names: impl IntoIterator<Item = UnitName>) {
        if let Some(kept) = &self.kept {
            names.into_iter().for_each(|name| kept.tier.forget(name));
        }
    }

    /// Units that may be requested at a time, for all sequences together, without taking much memory.
    #[must_use]
    pub fn loads_ahead(&self) -> usize {
        const BYTES: usize = 64 << 20;
        (BYTES / self.unit_bytes(0).max(1)).clamp(1, 32)
    }

    /// Puts a unit of a sequence's prompt, as it was read, into idle blocks. `so_far` is that of the units before.
    ///
    /// # Errors
    /// [`NotRestored`].
    pub fn restore(
        &mut self,
        seq: SeqId,
        tokens: &[TokenId],
        (unit, name): (usize, UnitName),
        (rows, so_far): (&UnitRows, &mut Restoring),
    ) -> Result<(), NotRestored> {
        let (size, blocks) = (self.config.geometry.block_tokens, self.unit_blocks());
        let (first, end) = (unit * blocks, (unit + 1) * blocks);
        let tokens = tokens.get(..end * size).ok_or(NotRestored::Unfit)?;
        let (apart, chain) = (self.apart(seq), &mut so_far.chain);
        let begins = chain.is_empty();
        self.blocks.index.extend(chain, tokens, size, &apart);
        if begins {
            // What was there for long would be the first to make room.
            self.refresh(chain);
        }
        if chain.len() >= end {
            return Ok(());
        }
        if !self.is_unit(unit, rows) {
            return Err(NotRestored::Unfit);
        }
        let before = chain.get(..first).ok_or(NotRestored::NoRoom)?;
        let node = before.last().map_or(ROOT, |before| before.0);
        let done = self.fill(tokens, (node, &apart), (unit, name), rows);
        self.blocks.index.extend(chain, tokens, size, &apart);
        self.cool();
        if done { Ok(()) } else { Err(NotRestored::NoRoom) }
    }

    /// The last unit of a prompt has come: its blocks are among those that were used last, the first one last of all.
    pub fn restored(&mut self, so_far: &Restoring) {
        self.refresh(&so_far.chain);
        self.cool();
    }

    fn refresh(&mut self, chain: &[(Node, BlockId)]) {
        let sinks = self.sink_blocks();
        let known = chain
            .iter()
            .enumerate()
            .filter(|(_, (node, block))| self.blocks.index.is(*block, *node));
        let known: Vec<_> = known.map(|(at, &(_, block))| (at, block)).collect();
        known.iter().for_each(|&(_, block)| self.blocks.share(block));
        for (at, block) in known.into_iter().rev() {
            self.blocks.put_back(block, at < sinks);
        }
    }

    fn fill(
        &mut self,
        tokens: &[TokenId],
        (mut before, apart): (Node, &Apart),
        (unit, name): (usize, UnitName),
        rows: &UnitRows,
    ) -> bool {
        let (size, blocks, sinks) =
            (self.config.geometry.block_tokens, self.unit_blocks(), self.sink_blocks());
        let first = unit * blocks;
        let mut taken: Vec<(usize, BlockId)> = Vec::new();
        for at in first..first + blocks {
            let block = self.blocks.take();
            taken.extend(block.map(|block| (at, block)));
            let mut ready = |block| at >= sinks || self.blocks.add_exact(block);
            if !block.is_some_and(&mut ready) {
                taken.iter().for_each(|&(_, block)| self.blocks.put_back(block, false));
                return false;
            }
        }
        self.write_unit(unit, rows, &taken);
        let sequence = tokens.chunks_exact(size).enumerate().skip(first);
        for (&(at, block), (i, tokens)) in taken.iter().zip(sequence) {
            before = self.blocks.publish(block, before, tokens, (i * size, apart));
            self.blocks.settle(block, Home { unit: name, at });
        }
        for &(at, block) in taken.iter().rev() {
            self.blocks.put_back(block, at < sinks);
        }
        true
    }
}
