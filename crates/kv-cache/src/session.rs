//! One step's view of the cache.

use crate::{
    ExactRoom, KvCache, KvCacheError, KvConfig,
    cache::Table,
    finite::Watched,
    queries::{Queries, all_rows, apart, in_chunks, some_rows},
    recall::View,
    tiers::Streamed,
};
use std::{collections::HashMap, sync::Arc};
use taper_base::{BlockId, LayerId, SeqId};
use taper_kv_codecs::{AttnBatch, AttnParams, ExactBlocks, KvCodecError, Mutual, SeqSpan};
use taper_tensor::{FiniteRows, Projected, RunSegments, Tensor, cpu};

/// Sequences from which on a layer's blocks are fetched while products compute.
const FETCH_FROM: usize = 16;
/// Bytes of a layer that are fetched, at most: a part of a third-level cache.
const FETCH_BYTES: usize = 16 << 20;

/// What a model needs of the cache: the state that its layers keep from step to step.
pub trait StateSession {
    /// Stores this step's keys and values of a layer and attends over all up to here.
    ///
    /// # Shapes
    /// As [`Projected`]'s -> `[t, heads, head_dim]`.
    ///
    /// # Errors
    /// Shapes that do not fit the cache, or an unknown layer.
    fn attend(
        &mut self,
        layer: LayerId,
        rows: &Projected<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCacheError>;

    /// Attends over the keys and values that a layer has stored in this step and before: what layers
    /// without keys and values of their own do. Queries are of all tokens of the step, or of those at `rows`,
    /// ascending.
    ///
    /// # Shapes
    /// `q [t, heads, head_dim]`, normed and rotated -> the same.
    ///
    /// # Errors
    /// Shapes that do not fit the cache, or an unknown layer.
    fn attend_stored(
        &mut self,
        layer: LayerId,
        q: &Tensor,
        rows: Option<&[u32]>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCacheError>;

    /// Runs a recurrent layer, counted among recurrent layers, over the step's tokens: `f` gets each
    /// sequence's rows with its state, in one call or, where a snapshot is due in between, in several.
    ///
    /// # Errors
    /// An unknown layer, or an error of `f`.
    fn recur(&mut self, layer: usize, f: &mut RunSegments<'_>) -> Result<(), KvCacheError>;
}

/// Tokens of a sequence that a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqRange {
    /// The sequence.
    pub seq: SeqId,
    /// Tokens before them, whose rows are in the cache already or were evicted.
    pub start: usize,
    /// Tokens of this step.
    pub len: usize,
}

/// Rows of a sequence that a step writes: those of a [`SeqRange`], further ahead by what was evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowRange {
    pub(crate) seq: SeqId,
    /// Rows before them.
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// A packed step over the paged cache.
#[derive(Debug)]
pub struct PagedSession<'a> {
    cache: &'a mut KvCache,
    ranges: Vec<RowRange>,
    /// Slot of each of the step's tokens.
    slots: Vec<usize>,
    /// The exact block beside each block of each range.
    exact: Vec<Vec<Option<BlockId>>>,
    /// Exact slot of each of the step's tokens.
    exact_slots: Vec<Option<usize>>,
    /// What each range attends to, where that is not all of its sequence.
    views: Vec<Option<View>>,
    /// What far layers read from disk, one at a time.
    streamed: Streamed,
}

impl<'a> PagedSession<'a> {
    pub(crate) fn new(cache: &'a mut KvCache, tokens: &[SeqRange]) -> Result<Self, KvCacheError> {
        let size = cache.config.geometry.block_tokens;
        let ranges = tokens.iter().map(|range| cache.row_range(range));
        let ranges = ranges.collect::<Result<Vec<_>, _>>()?;
        let mut slots = Vec::new();
        for range in &ranges {
            let blocks = cache.blocks(range.seq);
            let (room, end) = (blocks.len() * size, range.start + range.len);
            if end > room {
                return Err(KvCacheError::NoRoom { seq: range.seq, room, end });
            }
            slots.extend((range.start..end).map(|i| blocks[i / size].0 as usize * size + i % size));
        }
        let mut session = Self {
            cache,
            ranges,
            slots,
            exact: vec![],
            exact_slots: vec![],
            views: vec![],
            streamed: Streamed::default(),
        };
        // Pages that are read for the choice may leave memory again, exact rows and all.
        session.cache.choose_due(tokens)?;
        if session.cache.config.exact.is_some() {
            session.place_exact()?;
        }
        session.views = session.cache.views(tokens, &session.exact);
        session.streamed = session.cache.warm(&session.ranges, &session.views);
        if let Some(states) = &mut session.cache.states {
            states.begin(tokens)?;
        }
        Ok(session)
    }

    fn place_exact(&mut self) -> Result<(), KvCacheError> {
        let size = self.cache.config.geometry.block_tokens;
        self.cache.place_exact(&self.ranges)?;
        for range in &self.ranges {
            let blocks = self.cache.blocks(range.seq);
            let exact: Vec<_> = blocks.iter().map(|&b| self.cache.blocks.exact(b)).collect();
            let slot = |i: usize| exact[i / size].map(|b| b.0 as usize * size + i % size);
            self.exact_slots.extend((range.start..range.start + range.len).map(slot));
            self.exact.push(exact);
        }
        Ok(())
    }
}

impl PagedSession<'_> {
    /// Stores this step's keys and values of a layer, and attends to nothing.
    ///
    /// # Shapes
    /// `k`, `v` `[t, kv_heads, head_dim]`, f32.
    ///
    /// # Errors
    /// Shapes that do not fit the cache, or an unknown layer.
    pub fn store(&mut self, layer: LayerId, k: &Tensor, v: &Tensor) -> Result<(), KvCacheError> {
        let layers = self.cache.pages.len();
        if layer.index() >= layers {
            return Err(KvCacheError::Layer { layer, layers });
        }
        self.cache.keep_before(layer, &self.ranges, k, v)?;
        let config = &self.cache.config;
        let codec = Arc::clone(config.scheme.codec(layer.index()));
        let (geometry, exact) = (config.geometry_of(layer.index()), room(config, layer).is_some());
        let pages = &mut self.cache.pages[layer.index()];
        codec.encode(geometry, k, v, &self.slots, pages)?;
        if exact {
            codec.encode_exact(geometry, k, v, &self.exact_slots, pages)?;
        }
        Ok(())
    }

    /// Checks that a step's keys and values are finite before their blocks are published. Checking
    /// the last layer is enough: a non-finite value travels along the residual stream, and a token
    /// attends to itself.
    fn watch(&mut self, layer: LayerId, rows: &Projected<'_>) -> Result<(), KvCacheError> {
        let last = layer.index() + 1 == self.cache.pages.len();
        if last && self.cache.config.prefix_caching {
            let finite = FiniteRows::new(rows.k, rows.v).map_err(KvCodecError::from)?;
            self.cache.watched.push(Watched::new(finite, &self.ranges));
        }
        Ok(())
    }

    /// Says which blocks the layer after this one will read.
    fn announce_next(&self, layer: LayerId) {
        if self.ranges.len() < FETCH_FROM || !cpu::reads_soon() {
            return;
        }
        let config = &self.cache.config;
        let next = (layer.index() + 1) % self.cache.pages.len();
        let geometry = config.geometry_of(next);
        let (pages, bytes) = (&self.cache.pages[next], config.block_bytes(next));
        if pages.gpu.is_some() {
            return;
        }
        let blocks = |(i, range): (usize, &RowRange)| match self.views.get(i) {
            Some(Some(view)) => view.blocks.iter().take(view.blocks.len()),
            _ => {
                let used = (range.start + range.len).div_ceil(geometry.block_tokens);
                self.cache.blocks(range.seq).iter().take(used)
            }
        };
        // Attention begins with the last sequence.
        let most = FETCH_BYTES / (bytes.k + bytes.v).max(1);
        let blocks = self.ranges.iter().enumerate().rev().flat_map(blocks).take(most);
        let sides = blocks.flat_map(|block| {
            let of = |bytes: usize| block.0 as usize * bytes..(block.0 as usize + 1) * bytes;
            [pages.k.as_slice().get(of(bytes.k)), pages.v.as_slice().get(of(bytes.v))]
        });
        cpu::read_soon(&sides.flatten().collect::<Vec<_>>());
    }
}

/// Whether a layer sees all tokens, not near ones alone.
fn sees_all(params: &AttnParams<'_>) -> bool {
    params.window.is_none() && params.chunk.is_none()
}

/// Room for a layer's exact rows. Layers whose rows are exact themselves have none.
fn room(config: &KvConfig, layer: LayerId) -> Option<ExactRoom> {
    let (codec, geometry) = (config.scheme.codec(layer.index()), config.geometry_of(layer.index()));
    config.exact.filter(|_| codec.exact_block_bytes(geometry).is_some())
}

/// What a step's sequences have, range by range.
#[derive(Clone, Copy)]
struct Held<'b> {
    tables: &'b HashMap<SeqId, Table>,
    exact: &'b [Vec<Option<BlockId>>],
    views: &'b [Option<View>],
}

/// Queries of a step's sequences as a layer's codec sees them, with the exact blocks beside their own where there
/// is room for such. Layers that see near tokens alone see all of these.
fn batch<'b>(
    (ranges, queries): (&[RowRange], Vec<Queries>),
    (config, layer, params): (&KvConfig, LayerId, &AttnParams<'_>),
    Held { tables, exact, views }: Held<'b>,
) -> Result<AttnBatch<'b>, KvCodecError> {
    let (room, size) = (room(config, layer), config.geometry.block_tokens);
    let far = sees_all(params);
    let queries = match params.chunk {
        Some(chunk) => {
            let recent = room.map_or(1, |room| room.tokens.recent_tokens);
            in_chunks(queries, chunk, &[size, recent])?
        }
        None => apart(queries, ranges, params.mutual)?,
    };
    let exact = |own: Queries| {
        let mut tokens = room?.tokens;
        // The sequence's first tokens are none of a later chunk's.
        tokens.sink_tokens *= usize::from(own.unseen == 0);
        let blocks = exact.get(own.range)?.get(own.unseen / size..)?;
        Some(ExactBlocks { tokens, blocks, skipped: 0 })
    };
    let some = |own: Queries, view: &'b View| SeqSpan {
        q_len: own.len,
        kv_len: own.end - view.skipped,
        blocks: &view.blocks,
        exact: room.map(|room| ExactBlocks {
            tokens: room.tokens,
            blocks: &view.exact,
            skipped: view.skipped,
        }),
        // Pages are left out behind the prompt only.
        together: None,
    };
    let span = |own: Queries| {
        if let Some(Some(view)) = views.get(own.range).filter(|_| far) {
            return some(own, view);
        }
        let blocks = tables.get(&ranges[own.range].seq).map_or(&[][..], |t| t.blocks.as_slice());
        SeqSpan {
            q_len: own.len,
            kv_len: own.end - own.unseen,
            blocks: blocks.get(own.unseen / size..).unwrap_or(&[]),
            exact: exact(own),
            together: own.together,
        }
    };
    Ok(AttnBatch { seqs: queries.into_iter().map(span).collect() })
}

/// What is left to codecs of what a batch was cut by.
fn within<'p>(params: &AttnParams<'p>) -> AttnParams<'p> {
    AttnParams { chunk: None, mutual: Mutual::default(), ..*params }
}

impl PagedSession<'_> {
    /// Runs a layer's attention; what of it is streamed is in memory meanwhile.
    fn with_streamed(
        &mut self,
        layer: LayerId,
        params: &AttnParams<'_>,
        attend: impl FnOnce(&mut Self) -> Result<Tensor, KvCacheError>,
    ) -> Result<Tensor, KvCacheError> {
        // Tokens that see each other may do so from before the window.
        let past = params.mutual.past_window && params.mutual.spans.iter().any(|s| s.before > 0);
        if !self.streamed.is_for(params.window.or(params.chunk).filter(|_| !past)) {
            return attend(self);
        }
        self.cache.stream_in(layer.index(), &mut self.streamed);
        let out = attend(self);
        self.cache.stream_out(layer.index(), &self.streamed);
        out
    }

    fn store_and_attend(
        &mut self,
        layer: LayerId,
        rows: &Projected<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCacheError> {
        let ranges = &self.ranges;
        let KvCache { config, pages, tables, .. } = &mut *self.cache;
        let layers = pages.len();
        let own = pages.get_mut(layer.index()).ok_or(KvCacheError::Layer { layer, layers })?;
        let (codec, g) =
            (Arc::clone(config.scheme.codec(layer.index())), config.geometry_of(layer.index()));
        let held = Held { tables, exact: &self.exact, views: &self.views };
        let seqs = batch((ranges, all_rows(ranges)), (config, layer, params), held)?;
        let within = within(params);
        if let Some(out) = codec.attend_new(g, rows, &self.slots, own, &seqs, &within)? {
            self.announce_next(layer);
            return Ok(out);
        }
        let [q, k, v] = rows.turned().map_err(KvCodecError::from)?;
        self.store(layer, &k, &v)?;
        self.announce_next(layer);
        self.attend_to_stored(layer, &q, None, params)
    }

    fn attend_to_stored(
        &self,
        layer: LayerId,
        q: &Tensor,
        rows: Option<&[u32]>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCacheError> {
        let KvCache { config, pages, tables, .. } = &*self.cache;
        let layers = pages.len();
        let own = pages.get(layer.index()).ok_or(KvCacheError::Layer { layer, layers })?;
        let ranges = self.ranges.as_slice();
        let queries = rows.map_or_else(|| all_rows(ranges), |rows| some_rows(ranges, rows));
        let held = Held { tables, exact: &self.exact, views: &self.views };
        let seqs = batch((ranges, queries), (config, layer, params), held)?;
        let (g, within) = (config.geometry_of(layer.index()), within(params));
        Ok(config.scheme.codec(layer.index()).attend(g, q, own, &seqs, &within)?)
    }
}

impl StateSession for PagedSession<'_> {
    fn attend(
        &mut self,
        layer: LayerId,
        rows: &Projected<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCacheError> {
        self.watch(layer, rows)?;
        self.cache.keep_queries(layer, &self.ranges, rows, params)?;
        self.with_streamed(layer, params, |session| session.store_and_attend(layer, rows, params))
    }

    fn attend_stored(
        &mut self,
        layer: LayerId,
        q: &Tensor,
        rows: Option<&[u32]>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCacheError> {
        self.with_streamed(layer, params, |session| {
            session.attend_to_stored(layer, q, rows, params)
        })
    }

    fn recur(&mut self, layer: usize, f: &mut RunSegments<'_>) -> Result<(), KvCacheError> {
        match &mut self.cache.states {
            Some(states) => states.run(layer, f),
            None => Err(KvCacheError::Recurrent { layer, layers: 0 }),
        }
    }
}
