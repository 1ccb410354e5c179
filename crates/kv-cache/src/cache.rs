//! Blocks and who holds them.

use crate::{
    KvCacheError, KvScheme, PagedSession, SeqRange, UnitName,
    blocks::Blocks,
    keep::Kept,
    prefix::{Node, ROOT},
};
use std::collections::HashMap;
use taper_base::{BlockId, SeqId, TokenId};
use taper_kv_codecs::{Exact, KvGeometry, LayerPages};

/// Shape of a cache.
#[derive(Debug, Clone)]
pub struct KvConfig {
    /// Encodes rows and attends over them, layer by layer.
    pub scheme: KvScheme,
    /// Layers with keys and values.
    pub layers: usize,
    /// Shape of each layer's rows, and tokens a block.
    pub geometry: KvGeometry,
    /// Blocks there are, shared by all sequences.
    pub blocks: usize,
    /// Tokens that are kept exactly beside a compressed cache.
    pub exact: Option<ExactRoom>,
    /// Computed blocks are found again by sequences that begin with the same tokens.
    pub prefix_caching: bool,
}

/// Room for exact rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExactRoom {
    /// Which tokens.
    pub tokens: Exact,
    /// Sequences that may hold blocks at a time.
    pub sequences: usize,
    /// Tokens of a step.
    pub step_tokens: usize,
}

impl ExactRoom {
    /// Exact blocks that any one sequence needs beside its part of a step.
    fn per_sequence(self, block_tokens: usize) -> usize {
        // The last two are begun, and not full.
        (self.tokens.sink_tokens + self.tokens.recent_tokens) / block_tokens + 2
    }

    /// Exact blocks in all.
    #[must_use]
    pub fn blocks(self, block_tokens: usize) -> usize {
        self.sequences * self.per_sequence(block_tokens) + self.step_tokens.div_ceil(block_tokens)
    }

    /// The same for as many sequences as fit so many exact blocks, at least one.
    #[must_use]
    pub fn within(self, blocks: usize, block_tokens: usize) -> Self {
        let rest = blocks.saturating_sub(self.step_tokens.div_ceil(block_tokens));
        let sequences = (rest / self.per_sequence(block_tokens)).clamp(1, self.sequences.max(1));
        Self { sequences, ..self }
    }
}

impl KvConfig {
    /// Tokens of a block that serves best: a multiple of every kernel's tile.
    pub const BLOCK_TOKENS: usize = 32;

    /// A cache that keeps nothing exactly and finds nothing again.
    #[must_use]
    pub fn new(
        scheme: impl Into<KvScheme>,
        layers: usize,
        geometry: KvGeometry,
        blocks: usize,
    ) -> Self {
        let scheme = scheme.into();
        Self { scheme, layers, geometry, blocks, exact: None, prefix_caching: false }
    }

    /// Bytes of one block over all layers, keys and values.
    #[must_use]
    pub fn bytes_per_block(&self) -> u64 {
        self.scheme.block_bytes(self.layers, self.geometry)
    }

    /// Bytes of one exact block over all layers, keys and values.
    #[must_use]
    pub fn bytes_per_exact_block(&self) -> u64 {
        self.scheme.exact_block_bytes(self.layers, self.geometry)
    }

    /// Exact blocks there are.
    #[must_use]
    pub fn exact_blocks(&self) -> usize {
        // No block has two exact blocks beside it.
        self.exact.map_or(0, |e| e.blocks(self.geometry.block_tokens).min(self.blocks))
    }

    /// Bytes of all blocks, the exact ones included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_per_block() * self.blocks as u64
            + self.bytes_per_exact_block() * self.exact_blocks() as u64
    }
}

/// Blocks in use and what they weigh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvUsage {
    /// Blocks held by sequences.
    pub used_blocks: usize,
    /// Blocks that nobody holds and whose contents may be met again; they count as free.
    pub idle_blocks: usize,
    /// Blocks there are.
    pub total_blocks: usize,
    /// Bytes of one block over all layers.
    pub bytes_per_block: u64,
    /// Exact blocks beside used and idle ones.
    pub exact_blocks: usize,
    /// Bytes of one exact block over all layers.
    pub bytes_per_exact_block: u64,
}

impl KvUsage {
    /// Bytes of the blocks that sequences hold and of all exact blocks in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_blocks as u64 * self.bytes_per_block
            + self.exact_blocks as u64 * self.bytes_per_exact_block
    }
}

/// What a sequence holds.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) blocks: Vec<BlockId>,
    /// Nodes of the leading blocks that are published.
    pub(crate) nodes: Vec<Node>,
    /// Names of the leading units that are published, where units are kept on disk.
    pub(crate) units: Vec<UnitName>,
    /// First block that may have an exact block that is not a sink's.
    recent: usize,
}

/// The cache of one engine.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) config: KvConfig,
    pub(crate) pages: Vec<LayerPages>,
    pub(crate) tables: HashMap<SeqId, Table>,
    pub(crate) blocks: Blocks,
    pub(crate) kept: Option<Kept>,
    /// Pages that are written from now on are huge ones.
    huge_pages: bool,
}

/// From so many bytes of keys or of values in a layer on, a sequence is long: attention then waits for
/// memory, and what a last huge page takes in vain is little beside it.
const LONG: u64 = 2 << 20;

impl KvCache {
    /// Reserves the address space; memory is taken block by block as sequences grow.
    #[must_use]
    pub fn new(mut config: KvConfig) -> Self {
        if config.bytes_per_exact_block() == 0 {
            config.exact = None;
        }
        let exact_blocks = config.exact_blocks();
        let layer = |layer| {
            let codec = config.scheme.codec(layer);
            let pages = LayerPages::zeroed(codec.block_bytes(config.geometry), config.blocks);
            match codec.exact_block_bytes(config.geometry).filter(|_| exact_blocks > 0) {
                Some(bytes) => pages.with_exact(bytes, exact_blocks),
                None => pages,
            }
        };
        let pages = (0..config.layers).map(layer).collect();
        let blocks = Blocks::new(config.blocks, exact_blocks);
        Self { config, pages, tables: HashMap::new(), blocks, kept: None, huge_pages: false }
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
            used_blocks: self.config.blocks - self.blocks.available(),
            idle_blocks: self.blocks.index.idle(),
            total_blocks: self.config.blocks,
            bytes_per_block: self.config.bytes_per_block(),
            exact_blocks: self.config.exact_blocks() - self.blocks.free_exact(),
            bytes_per_exact_block: self.config.bytes_per_exact_block(),
        }
    }

    /// Makes room for `tokens` tokens in all; blocks that are there stay. On failure nothing
    /// changes.
    ///
    /// # Errors
    /// [`KvCacheError::Full`], [`KvCacheError::Sequences`].
    pub fn grow(&mut self, seq: SeqId, tokens: usize) -> Result<(), KvCacheError> {
        self.check_room(seq)?;
        let held = self.tables.get(&seq).map_or(0, |t| t.blocks.len());
        let needed = tokens.div_ceil(self.config.geometry.block_tokens).saturating_sub(held);
        let free = self.blocks.available();
        if needed > free {
            return Err(KvCacheError::Full { needed, free });
        }
        let table = self.tables.entry(seq).or_default();
        table.blocks.extend((0..needed).filter_map(|_| self.blocks.take()));
        let bytes = table.blocks.len() as u64 * self.config.bytes_per_block();
        if !self.huge_pages && bytes > LONG * 2 * self.config.layers as u64 {
            self.huge_pages = true;
            self.pages.iter().for_each(LayerPages::prefer_huge_pages);
        }
        Ok(())
    }

    /// Exact rows are reserved for so many sequences.
    fn check_room(&self, seq: SeqId) -> Result<(), KvCacheError> {
        match self.config.exact {
            Some(ExactRoom { sequences, .. })
                if !self.tables.contains_key(&seq) && self.tables.len() >= sequences =>
            {
                Err(KvCacheError::Sequences { limit: sequences })
            }
            _ => Ok(()),
        }
    }

    /// Gives a sequence's blocks back. Those that were published stay until their room is needed.
    pub fn release(&mut self, seq: SeqId) {
        let Some(table) = self.tables.remove(&seq) else { return };
        let sinks = self.sink_blocks();
        // The end of a sequence is the least likely to be met again.
        for (index, &block) in table.blocks.iter().enumerate().rev() {
            self.blocks.put_back(block, index < sinks);
        }
    }

    /// Blocks of a sequence, in the order of its tokens.
    #[must_use]
    pub fn blocks(&self, seq: SeqId) -> &[BlockId] {
        self.tables.get(&seq).map_or(&[], |t| t.blocks.as_slice())
    }

    /// Tokens of which a prefix is reused a multiple, 0 when none is. With exact tokens it is their
    /// recent part: what a query reads does not then depend on whether blocks were reused.
    #[must_use]
    pub fn prefix_tokens(&self) -> usize {
        let unit = self.config.exact.map_or(0, |e| e.tokens.recent_tokens);
        let unit = unit.max(self.config.geometry.block_tokens);
        if self.config.prefix_caching { unit } else { 0 }
    }

    /// Gives a sequence that holds nothing the blocks that are known to hold its leading tokens,
    /// and returns how many tokens that is.
    pub fn adopt(&mut self, seq: SeqId, tokens: &[TokenId]) -> usize {
        let (size, unit) = (self.config.geometry.block_tokens, self.prefix_tokens());
        if unit == 0 || self.tables.contains_key(&seq) || self.check_room(seq).is_err() {
            return 0;
        }
        let mut chain = self.blocks.index.find(tokens, size);
        let reused = chain.len() * size / unit * unit;
        chain.truncate(reused / size);
        if reused > 0 {
            chain.iter().for_each(|&(_, block)| self.blocks.share(block));
            let (nodes, blocks) = chain.into_iter().unzip();
            let recent = reused / size;
            self.tables.insert(seq, Table { blocks, nodes, units: Vec::new(), recent });
        }
        reused
    }

    /// Makes a sequence's full blocks known to others; `tokens` are those whose rows are computed.
    pub fn publish(&mut self, seq: SeqId, tokens: &[TokenId]) {
        let Some(table) = self.tables.get_mut(&seq).filter(|_| self.config.prefix_caching) else {
            return;
        };
        let full = tokens.chunks_exact(self.config.geometry.block_tokens).zip(&table.blocks);
        for (tokens, &block) in full.skip(table.nodes.len()) {
            let before = table.nodes.last().copied().unwrap_or(ROOT);
            table.nodes.push(self.blocks.index.publish(block, before, tokens));
        }
        self.keep(seq, tokens);
    }

    /// Opens a step in which these sequences compute these tokens.
    ///
    /// # Errors
    /// A sequence has no room for its tokens.
    pub fn session(&mut self, ranges: &[SeqRange]) -> Result<PagedSession<'_>, KvCacheError> {
        PagedSession::new(self, ranges)
    }

    pub(crate) fn sink_blocks(&self) -> usize {
        let size = self.config.geometry.block_tokens;
        self.config.exact.map_or(0, |e| e.tokens.sink_tokens / size)
    }

    /// Puts exact blocks where a step reads and writes them, and takes those back that no later
    /// token reads.
    pub(crate) fn place_exact(&mut self, range: &SeqRange) -> Result<(), KvCacheError> {
        let Some(ExactRoom { tokens, .. }) = self.config.exact else { return Ok(()) };
        let (size, sinks) = (self.config.geometry.block_tokens, self.sink_blocks());
        let Some(table) = self.tables.get_mut(&range.seq) else { return Ok(()) };
        let recent = tokens.recent_from(range.start) / size;
        for index in table.recent.max(sinks)..recent.min(table.blocks.len()) {
            self.blocks.drop_exact(table.blocks[index]);
        }
        table.recent = recent;
        let end = (range.start + range.len).div_ceil(size);
        for index in (0..sinks.min(end)).chain(recent.max(sinks)..end) {
            if !self.blocks.add_exact(table.blocks[index]) {
                return Err(KvCacheError::NoExact { blocks: self.config.exact_blocks() });
            }
        }
        Ok(())
    }
}
