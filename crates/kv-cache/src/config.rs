//! Shape of a cache, and what of it is in use.

use crate::{KvScheme, PAGE_BLOCKS, RecurrentConfig};
use taper_kv_codecs::{BlockBytes, Exact, KvCodecError, KvGeometry};

/// Heads of a layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvHeads {
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// A value is the end of its key, and what the rest of it would be is not read (latent attention): codecs of
    /// plain floats keep keys only.
    pub values_in_keys: bool,
}

/// Configuration of a cache.
#[derive(Debug, Clone)]
pub struct KvConfig {
    /// Encodes rows and attends over them, layer by layer.
    pub scheme: KvScheme,
    /// Layers with keys and values.
    pub layers: usize,
    /// Shape of each layer's rows, and tokens a block.
    pub geometry: KvGeometry,
    /// Heads of each layer, of a model whose layers differ; empty where all have those of `geometry`.
    pub layer_heads: Vec<KvHeads>,
    /// Blocks there are, shared by all sequences.
    pub blocks: usize,
    /// Tokens that are kept exactly beside a compressed cache.
    pub exact: Option<ExactRoom>,
    /// Computed blocks are found again by sequences that begin with the same tokens.
    pub prefix_caching: bool,
    /// States of layers that keep no keys and values.
    pub recurrent: Option<RecurrentConfig>,
}

/// Room for exact rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExactRoom {
    /// Tokens whose rows are kept exact.
    pub tokens: Exact,
    /// Exact blocks there are, shared by all sequences.
    pub blocks: usize,
    /// Tokens of a step. A step reads all of its own tokens exactly, so blocks for them stay free.
    pub step_tokens: usize,
}

impl ExactRoom {
    /// Room for so many sequences at any position, prompts included.
    #[must_use]
    pub fn for_sequences(
        tokens: Exact,
        sequences: usize,
        step_tokens: usize,
        block_tokens: usize,
    ) -> Self {
        let each = (tokens.sink_tokens + tokens.recent_tokens) / block_tokens + 1;
        let blocks = sequences * each + step_tokens.div_ceil(block_tokens);
        Self { tokens, blocks, step_tokens }
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
        let (exact, recurrent) = (None, None);
        let layer_heads = Vec::new();
        let prefix_caching = false;
        Self { scheme, layers, geometry, layer_heads, blocks, exact, prefix_caching, recurrent }
    }

    /// Shape of a layer's rows.
    #[must_use]
    pub fn geometry_of(&self, layer: usize) -> KvGeometry {
        match self.layer_heads.get(layer) {
            Some(&KvHeads { kv_heads, head_dim, .. }) => {
                KvGeometry { kv_heads, head_dim, ..self.geometry }
            }
            None => self.geometry,
        }
    }

    /// Fails where the codec of a layer cannot keep rows of the layer's shape.
    ///
    /// # Errors
    /// [`KvCodec::check`](taper_kv_codecs::KvCodec::check)'s.
    pub fn check(&self) -> Result<(), KvCodecError> {
        let mut layers = self.geometries().enumerate();
        layers.try_for_each(|(layer, geometry)| self.scheme.codec(layer).check(geometry))
    }

    /// Why sequences cannot leave pages out; `None` where they can.
    #[must_use]
    pub fn cannot_recall(&self) -> Option<&'static str> {
        let gpu = (0..self.layers).any(|layer| self.scheme.codec(layer).gpu().is_some());
        gpu.then_some("pages of a KV cache on a GPU are not chosen yet")
    }

    /// Bytes of a layer's block.
    pub(crate) fn block_bytes(&self, layer: usize) -> BlockBytes {
        let codec = self.scheme.codec(layer);
        let bytes = codec.block_bytes(self.geometry_of(layer));
        let one = self.layer_heads.get(layer).is_some_and(|heads| heads.values_in_keys);
        if one && codec.reads_values_in_keys() { BlockBytes { v: 0, ..bytes } } else { bytes }
    }

    /// Shapes of all layers, in their order.
    fn geometries(&self) -> impl Iterator<Item = KvGeometry> {
        (0..self.layers).map(|layer| self.geometry_of(layer))
    }

    /// Bytes of one block over all layers, keys and values.
    #[must_use]
    pub fn bytes_per_block(&self) -> u64 {
        (0..self.layers).map(|layer| self.block_bytes(layer)).map(|b| (b.k + b.v) as u64).sum()
    }

    /// Bytes of one exact block over all layers, keys and values.
    #[must_use]
    pub fn bytes_per_exact_block(&self) -> u64 {
        self.scheme.exact_block_bytes(self.geometries())
    }

    /// Exact blocks in all.
    #[must_use]
    pub fn exact_blocks(&self) -> usize {
        // No block has two exact blocks beside it.
        self.exact.map_or(0, |e| e.blocks.min(self.blocks))
    }

    /// Bytes of a sequence's recurrent state.
    #[must_use]
    pub fn bytes_per_state(&self) -> u64 {
        self.recurrent.as_ref().map_or(0, RecurrentConfig::bytes_per_slot)
    }

    /// Bytes of the boxes of all pages, which stay in memory wherever the pages are.
    #[must_use]
    pub fn bytes_of_boxes(&self) -> u64 {
        // Two codes an element, and two scales a head.
        let page = |g: KvGeometry| g.kv_heads * (2 * g.head_dim + size_of::<[f32; 2]>());
        let page: usize = self.geometries().map(page).sum();
        page as u64 * (self.blocks / PAGE_BLOCKS) as u64
    }

    /// Bytes of all blocks, the exact ones included, and of all recurrent states.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes_per_block() * self.blocks as u64
            + self.bytes_per_exact_block() * self.exact_blocks() as u64
            + self.recurrent.as_ref().map_or(0, RecurrentConfig::bytes)
    }

    /// Rows are evicted in multiples of this: whole blocks, and whole windows of recent tokens.
    #[must_use]
    pub fn eviction_unit(&self) -> usize {
        self.exact.map_or(0, |e| e.tokens.recent_tokens).max(self.geometry.block_tokens)
    }

    /// Tokens of which prefixes of keys and values are reused a multiple, 0 when none is.
    pub(crate) fn prefix_unit(&self) -> usize {
        let recent = self.exact.map_or(0, |e| e.tokens.recent_tokens);
        if self.prefix_caching { recent.max(self.geometry.block_tokens) } else { 0 }
    }
}

/// Blocks in use and what they weigh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvUsage {
    /// Blocks held by sequences.
    pub used_blocks: usize,
    /// Blocks that nobody holds and whose contents may be met again; they count as free.
    pub idle_blocks: usize,
    /// Blocks of sequences whose rows are on disk alone.
    pub cold_blocks: usize,
    /// Blocks in all.
    pub total_blocks: usize,
    /// Bytes of one block over all layers.
    pub bytes_per_block: u64,
    /// Exact blocks beside used ones.
    pub exact_blocks: usize,
    /// Exact blocks that sequences hold or may still ask for.
    pub promised_exact_blocks: usize,
    /// Exact blocks that can be promised: all but those that a step needs for its own tokens.
    pub total_exact_blocks: usize,
    /// Bytes of one exact block over all layers.
    pub bytes_per_exact_block: u64,
    /// Recurrent states that sequences hold.
    pub states: usize,
    /// Snapshots of recurrent states, at which prefixes are taken up again.
    pub snapshots: usize,
    /// Bytes of one recurrent state over all layers.
    pub bytes_per_state: u64,
}

impl KvUsage {
    /// Bytes in memory of the blocks that sequences hold, of the exact blocks beside them, and of their recurrent
    /// states.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        (self.used_blocks - self.cold_blocks) as u64 * self.bytes_per_block
            + self.exact_blocks as u64 * self.bytes_per_exact_block
            + self.states as u64 * self.bytes_per_state
    }
}
