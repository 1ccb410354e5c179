//! Blocks and who holds them.

use crate::{
    ExactRoom, ImageSpan, KvCacheError, KvConfig, KvUsage, PagedSession, ResidentRoom, RowRange,
    SeqRange, UnitName,
    apart::Apart,
    blocks::Blocks,
    evict::Evicted,
    finite::Watched,
    keep::Kept,
    prefix::{Node, ROOT},
    recall::{RecallCounts, Recalling},
    rewind::Before,
    states::States,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};
use taper_base::{BlockId, SeqId, TokenId};
use taper_kv_codecs::LayerPages;

/// What a sequence holds.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) blocks: Vec<BlockId>,
    /// Nodes of the leading blocks that are published.
    pub(crate) nodes: Vec<Node>,
    /// Names of the leading units that are published, where units are kept on disk.
    pub(crate) units: Vec<UnitName>,
    /// How many of them were handed to the disk, or were there.
    pub(crate) stored: usize,
    /// First block that may have an exact block that is not a sink's.
    pub(crate) recent: usize,
    /// Rows that are in the cache.
    pub(crate) computed: usize,
    /// What was evicted: from then on a row's index is not its token's.
    pub(crate) evicted: Evicted,
    /// Exact blocks beside those of sinks that the sequence may have between two steps.
    promised: usize,
    /// Blocks in memory that it may come to need, where these are limited.
    pub(crate) resident: usize,
    /// First row whose keys and values are not finite.
    pub(crate) broken: Option<usize>,
    /// What a step overwrites in blocks, where it may be taken back.
    pub(crate) before: Option<Vec<Before>>,
}

/// The cache of one engine.
#[derive(Debug)]
pub struct KvCache {
    pub(crate) config: KvConfig,
    pub(crate) pages: Vec<LayerPages>,
    pub(crate) tables: HashMap<SeqId, Table>,
    pub(crate) blocks: Blocks,
    pub(crate) kept: Option<Kept>,
    pub(crate) states: Option<States>,
    /// Sequences whose prefixes are not for everybody.
    apart: HashMap<SeqId, Apart>,
    /// Sequences of the last step.
    last_step: Vec<SeqId>,
    /// Exact blocks promised to all sequences, those of sinks left out.
    promised: usize,
    /// Held blocks of sinks.
    held_sinks: usize,
    /// What may be in memory, and blocks of it promised to all sequences.
    pub(crate) resident: Option<ResidentRoom>,
    pub(crate) promised_resident: usize,
    /// Rows of the last step that nobody has asked yet whether they are finite.
    pub(crate) watched: Vec<Watched>,
    /// Pages that are written from now on are huge ones.
    huge_pages: bool,
    /// Sequences that may leave pages out.
    pub(crate) recalling: HashMap<SeqId, Recalling>,
    pub(crate) recall_counts: RecallCounts,
    /// Sequences that had a cold block which cannot be read.
    pub(crate) lost: BTreeSet<SeqId>,
    /// Tokens back that each layer sees; `None` where that is all. Known of layers that have run.
    pub(crate) sight: BTreeMap<usize, Option<usize>>,
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
            let (codec, geometry) = (config.scheme.codec(layer), config.geometry_of(layer));
            let pages = LayerPages::zeroed(config.block_bytes(layer), config.blocks);
            match codec.exact_block_bytes(geometry).filter(|_| exact_blocks > 0) {
                Some(bytes) => pages.with_exact(bytes, exact_blocks),
                None => pages,
            }
        };
        let pages = (0..config.layers).map(layer).collect();
        let blocks = Blocks::new(config.blocks, exact_blocks);
        // Layers without keys and values run where those with such do.
        let gpu = config.scheme.codec(0).gpu();
        let recurrent = config.recurrent.as_ref();
        let states = recurrent.map(|r| States::new(r, config.prefix_unit(), gpu));
        Self {
            config,
            pages,
            tables: HashMap::new(),
            blocks,
            kept: None,
            states,
            apart: HashMap::new(),
            last_step: Vec::new(),
            promised: 0,
            held_sinks: 0,
            resident: None,
            promised_resident: 0,
            watched: Vec::new(),
            huge_pages: false,
            recalling: HashMap::new(),
            recall_counts: RecallCounts::default(),
            lost: BTreeSet::new(),
            sight: BTreeMap::new(),
        }
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
            cold_blocks: self.blocks.held_cold,
            total_blocks: self.config.blocks,
            bytes_per_block: self.config.bytes_per_block(),
            exact_blocks: self.config.exact_blocks() - self.blocks.available_exact(),
            promised_exact_blocks: self.promised + self.held_sinks,
            total_exact_blocks: self.promisable(),
            bytes_per_exact_block: self.config.bytes_per_exact_block(),
            states: self.states.as_ref().map_or(0, States::running),
            snapshots: self.states.as_ref().map_or(0, States::snapshots),
            bytes_per_state: self.config.bytes_per_state(),
        }
    }

    /// Makes room for `rows` rows in all, as [`Self::rows`] counts them; blocks that are there stay. On failure
    /// nothing changes.
    ///
    /// # Errors
    /// [`KvCacheError::Full`], [`KvCacheError::NoMemory`], [`KvCacheError::NoExact`], [`KvCacheError::NoState`].
    pub fn grow(&mut self, seq: SeqId, rows: usize) -> Result<(), KvCacheError> {
        let held = self.tables.get(&seq).map_or(0, |t| t.blocks.len());
        let needed = rows.div_ceil(self.config.geometry.block_tokens).saturating_sub(held);
        let free = self.blocks.available();
        if needed > free {
            return Err(KvCacheError::Full { needed, free });
        }
        if let Some(states) = &self.states {
            states.check_start(seq)?;
        }
        let resident = self.check_resident(seq, rows)?;
        self.promise(seq, rows, held..held + needed)?;
        self.promise_resident(seq, resident);
        if let Some(states) = &mut self.states {
            states.start(seq)?;
        }
        let table = self.tables.entry(seq).or_default();
        table.blocks.extend((0..needed).filter_map(|_| self.blocks.take()));
        let bytes = table.blocks.len() as u64 * self.config.bytes_per_block();
        // Blocks that come back to memory one by one would each take a huge page.
        let stays = self.blocks.places.is_none();
        if stays && !self.huge_pages && bytes > LONG * 2 * self.config.layers as u64 {
            self.huge_pages = true;
            self.pages.iter().for_each(LayerPages::prefer_huge_pages);
        }
        Ok(())
    }

    /// Frees a sequence's blocks. Published ones are kept until they are evicted.
    pub fn release(&mut self, seq: SeqId) {
        if let Some(states) = &mut self.states {
            states.release(seq);
        }
        self.forget_recalled(seq);
        let Some(table) = self.tables.remove(&seq) else { return };
        self.watched.retain(|watched| watched.is_of(&self.tables));
        let sinks = self.sink_blocks();
        self.promised -= table.promised;
        self.promised_resident -= table.resident;
        let held = table.blocks.iter().take(sinks).filter(|&&b| self.blocks.holders(b) == 1);
        self.held_sinks -= held.count();
        // The end of a sequence is the least likely to be met again.
        for (index, &block) in table.blocks.iter().enumerate().rev() {
            self.blocks.put_back(block, index < sinks);
        }
        self.cool();
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
        match &self.states {
            Some(states) => states.interval(),
            None => self.config.prefix_unit(),
        }
    }

    /// Gives a sequence that holds nothing the blocks that are known to hold its leading tokens,
    /// and returns how many tokens that is.
    pub fn adopt(&mut self, seq: SeqId, tokens: &[TokenId]) -> usize {
        let (size, unit) = (self.config.geometry.block_tokens, self.prefix_tokens());
        if unit == 0 || self.tables.contains_key(&seq) {
            return 0;
        }
        let apart = self.apart(seq);
        let tokens = &tokens[..self.adoptable(seq, tokens.len())];
        let mut chain = self.blocks.index.find(tokens, size, &apart);
        let mut reused = chain.len() * size / unit * unit;
        if let Some(states) = &self.states {
            let nodes: Vec<_> = chain[..reused / size].iter().map(|&(node, _)| node).collect();
            reused = states.longest(&nodes, size);
        }
        chain.truncate(reused / size);
        let sinks = chain.iter().take(self.sink_blocks());
        let woken = sinks.filter(|&&(_, b)| self.blocks.holders(b) == 0).count();
        if woken > self.unpromised() {
            return 0;
        }
        if let (Some(states), Some(&(last, _))) = (&mut self.states, chain.last()) {
            states.adopt(seq, last, reused);
        }
        if reused > 0 {
            self.held_sinks += woken;
            chain.iter().for_each(|&(_, block)| self.blocks.share(block));
            let (nodes, blocks) = chain.into_iter().unzip();
            let recent = reused / size;
            let table = Table { blocks, nodes, recent, computed: reused, ..Table::default() };
            self.tables.insert(seq, table);
        }
        reused
    }

    /// Makes a sequence's full blocks known to others; `tokens` are those whose rows are computed. Blocks
    /// from the first row on that is not finite, or was computed over some of its pages, stay the sequence's own, and so
    /// do all of a sequence whose rows were evicted, as later ones have not seen what their tokens say, or that has lost
    /// a cold block.
    pub fn publish(&mut self, seq: SeqId, tokens: &[TokenId]) {
        self.take_watched();
        let caches = self.config.prefix_caching;
        let lost = self.lost.contains(&seq);
        let whole = |table: &&mut Table| caches && !lost && table.evicted.rows == 0;
        let Some(table) = self.tables.get_mut(&seq).filter(whole) else { return };
        let tokens = &tokens[..table.broken.map_or(tokens.len(), |at| at.min(tokens.len()))];
        // What was computed over some pages is not what others would compute.
        let sparse = self.recalling.get(&seq).and_then(|recall| recall.sparse_from);
        let tokens = &tokens[..sparse.map_or(tokens.len(), |at| at.min(tokens.len()))];
        let size = self.config.geometry.block_tokens;
        let apart = self.apart.get(&seq).cloned().unwrap_or_default();
        let full = tokens.chunks_exact(size).zip(&table.blocks).enumerate();
        for (i, (tokens, &block)) in full.skip(table.nodes.len()) {
            let (before, place) = (table.nodes.last().copied().unwrap_or(ROOT), (i * size, &apart));
            table.nodes.push(self.blocks.publish(block, before, tokens, place));
        }
        if let Some(states) = &mut self.states {
            states.publish(seq, &table.nodes, self.config.geometry.block_tokens);
        }
        self.keep(seq, tokens);
    }

    /// Gives memory back to the system: that of blocks without contents, and that of prefixes that
    /// nobody holds, the longest unused first, until these take `keep` bytes at most.
    pub fn give_back(&mut self, keep: u64) {
        if let Some(states) = &mut self.states {
            states.give_back(keep);
        }
        let config = &self.config;
        let (coded, beside) = (config.bytes_per_block(), config.bytes_per_exact_block());
        self.blocks.forget_idle(|n, exact| n as u64 * coded + exact as u64 * beside <= keep);
        let [runs, exact_runs] = self.blocks.free_runs();
        for (layer, pages) in self.pages.iter_mut().enumerate() {
            let (codec, geometry) = (config.scheme.codec(layer), config.geometry_of(layer));
            let bytes = config.block_bytes(layer);
            runs.iter().for_each(|run| pages.discard(bytes, run));
            if let Some(bytes) = codec.exact_block_bytes(geometry) {
                exact_runs.iter().for_each(|run| pages.discard_exact(bytes, run));
            }
        }
    }

    /// Keeps a sequence's prefix apart: it is shared only among sequences of the same salt. To be
    /// called before the sequence gets its first block.
    pub fn set_salt(&mut self, seq: SeqId, salt: Option<Arc<str>>) {
        self.set_apart(seq, |apart| apart.salt = salt);
    }

    /// Says which of a sequence's tokens stand for images, in their order: blocks that hold some of them are shared only
    /// where the images are the same. To be called before the sequence gets its first block.
    pub fn set_images(&mut self, seq: SeqId, images: Arc<[ImageSpan]>) {
        self.set_apart(seq, |apart| apart.set_images(images));
    }

    fn set_apart(&mut self, seq: SeqId, set: impl FnOnce(&mut Apart)) {
        let mut apart = self.apart.remove(&seq).unwrap_or_default();
        set(&mut apart);
        if !apart.is_nothing() {
            self.apart.insert(seq, apart);
        }
    }

    /// A sequence is over: what was set for it goes.
    pub fn forget(&mut self, seq: SeqId) {
        self.apart.remove(&seq);
        self.recalling.remove(&seq);
    }

    /// Whether sequences with equal tokens would share blocks to their end: they have the same salt and images.
    #[must_use]
    pub fn may_share(&self, a: SeqId, b: SeqId) -> bool {
        self.apart.get(&a) == self.apart.get(&b)
    }

    pub(crate) fn apart(&self, seq: SeqId) -> Apart {
        self.apart.get(&seq).cloned().unwrap_or_default()
    }

    /// Opens a step in which these sequences compute these tokens.
    ///
    /// # Errors
    /// A sequence has no room for its tokens.
    pub fn session(&mut self, ranges: &[SeqRange]) -> Result<PagedSession<'_>, KvCacheError> {
        PagedSession::new(self, ranges)
    }

    /// Exact blocks that can be promised.
    fn promisable(&self) -> usize {
        let size = self.config.geometry.block_tokens;
        match self.config.exact {
            // Each block has one of its own.
            Some(_) if self.config.exact_blocks() == self.config.blocks => self.config.blocks,
            Some(room) => room.blocks.saturating_sub(room.step_tokens.div_ceil(size)),
            None => 0,
        }
    }

    /// Exact blocks that are not promised to anybody.
    fn unpromised(&self) -> usize {
        self.promisable().saturating_sub(self.promised + self.held_sinks)
    }

    /// Exact blocks beside sinks that a sequence needs to get to `tokens` tokens, beyond what a step
    /// has for its own tokens.
    ///
    /// A step that computes `n` tokens of a prompt reads `recent_tokens / size + ceil(n / size)`
    /// blocks exactly at most. Of these, one beside the recent ones is promised, so that the parts
    /// of several prompts that are rounded up do not exceed the blocks of the step.
    fn recent_needed(&self, room: ExactRoom, computed: usize, tokens: usize) -> usize {
        let size = self.config.geometry.block_tokens;
        let (sinks, end) = (self.sink_blocks(), tokens.div_ceil(size));
        if tokens > computed + 1 {
            let prompt = room.tokens.recent_tokens / size + 1;
            return prompt.min(end.saturating_sub(sinks));
        }
        let first = room.tokens.recent_from(tokens.saturating_sub(1)) / size;
        end.saturating_sub(first.max(sinks))
    }

    /// Sets exact blocks apart for a sequence of `tokens` tokens that gets the blocks `new`.
    fn promise(
        &mut self,
        seq: SeqId,
        tokens: usize,
        new: std::ops::Range<usize>,
    ) -> Result<(), KvCacheError> {
        let Some(room) = self.config.exact else { return Ok(()) };
        let (computed, before) = self.tables.get(&seq).map_or((0, 0), |t| (t.computed, t.promised));
        let promised = self.recent_needed(room, computed, tokens);
        let sinks = new.end.min(self.sink_blocks()).saturating_sub(new.start);
        let needed = promised.saturating_sub(before) + sinks;
        let free = self.unpromised();
        if needed > free {
            return Err(KvCacheError::NoExact { needed, free });
        }
        self.tables.entry(seq).or_default().promised = promised;
        self.promised = self.promised - before + promised;
        self.held_sinks += sinks;
        Ok(())
    }

    /// Takes back the exact blocks of the last step that no later token reads, then places those of
    /// this one.
    pub(crate) fn place_exact(&mut self, ranges: &[RowRange]) -> Result<(), KvCacheError> {
        let Some(room) = self.config.exact else { return Ok(()) };
        for seq in std::mem::take(&mut self.last_step) {
            let computed = self.tables.get(&seq).map_or(0, |t| t.computed);
            self.drop_before(seq, room.tokens.recent_from(computed));
        }
        self.last_step.extend(ranges.iter().map(|range| range.seq));
        ranges.iter().try_for_each(|range| self.place_exact_of(range, room))
    }

    /// Takes back exact blocks of a sequence before its recent tokens.
    pub(crate) fn drop_before(&mut self, seq: SeqId, row: usize) {
        let (recent, sinks) = (row / self.config.geometry.block_tokens, self.sink_blocks());
        let Some(table) = self.tables.get_mut(&seq) else { return };
        for index in table.recent.max(sinks)..recent.min(table.blocks.len()) {
            self.blocks.drop_exact(table.blocks[index]);
        }
        table.recent = recent;
    }

    pub(crate) fn sink_blocks(&self) -> usize {
        let size = self.config.geometry.block_tokens;
        self.config.exact.map_or(0, |e| e.tokens.sink_tokens / size)
    }

    fn place_exact_of(&mut self, range: &RowRange, room: ExactRoom) -> Result<(), KvCacheError> {
        let (size, sinks) = (self.config.geometry.block_tokens, self.sink_blocks());
        let from = room.tokens.recent_from(range.start);
        self.drop_before(range.seq, from);
        let end = range.start + range.len;
        let Some(table) = self.tables.get_mut(&range.seq) else { return Ok(()) };
        table.computed = end;
        let end = end.div_ceil(size);
        for index in (0..sinks.min(end)).chain((from / size).max(sinks)..end) {
            if !self.blocks.add_exact(table.blocks[index]) {
                return Err(KvCacheError::NoExact { needed: 1, free: 0 });
            }
        }
        Ok(())
    }
}
