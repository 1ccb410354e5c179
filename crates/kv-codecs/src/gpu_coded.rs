//! Compressed caches on a GPU.
//!
//! Head regions hold the bytes that [`PagedCodec`](crate::PagedCodec) writes, each at a multiple of 16
//! bytes, so a block may be some bytes larger than on the host. Exact blocks have the same size, in the
//! order of the GPU's kernels (`kernels/attention/coded.metal`).

use crate::{
    AttnBatch, AttnParams, BlockBytes, KeptBlock, KeptRow, KvCodec, KvCodecError, KvGeometry,
    LayerPages, Scheme, SideFormat, TrellisCode, compact,
    drive::values,
    gpu::{Cached, check_batch, known, moves, outside, room, scoring},
    gpu_staged::Staged,
    polar::{Polar, sketch_rotation, standard_rotation},
    taper::TaperSide,
    tiles::int8_table,
};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};
use taper_base::BlockId;
use taper_tensor::{
    KeyScorer, Projected, Tensor,
    gpu::{
        Buffer, Gpu,
        attention::BLOCK_TOKENS,
        coded::{
            CodedCache, CodedPages, CodedPlan, CodedSequence, CodedSide, ExactSlots, ExactTokens,
            NewTokens, RowFormat, Signs, Writes,
        },
        compact::ExactMoves,
    },
};

/// Head regions begin at multiples of this.
const ALIGN: usize = 16;

/// A compressed codec whose pages are on a GPU.
pub(crate) struct GpuCodedCodec {
    rows: Arc<dyn KvCodec>,
    scheme: Scheme,
    gpu: Gpu,
    caches: Mutex<Vec<(KvGeometry, Arc<CodedCache>)>>,
    /// What the layers of a step share.
    writes: Cached<Vec<usize>, Writes>,
    exact: Cached<Vec<Option<usize>>, ExactSlots>,
    new: Cached<(Vec<usize>, Vec<usize>), NewTokens>,
    plan: Cached<(Vec<CodedSequence>, usize, Option<usize>, KvGeometry), CodedPlan>,
}

impl GpuCodedCodec {
    /// The codec `rows` of a scheme with its pages on `gpu`.
    pub(crate) fn new(rows: Arc<dyn KvCodec>, scheme: Scheme, gpu: &Gpu) -> Self {
        Self {
            rows,
            scheme,
            gpu: gpu.clone(),
            caches: Mutex::default(),
            writes: Cached::default(),
            exact: Cached::default(),
            new: Cached::default(),
            plan: Cached::default(),
        }
    }

    /// Which rows see which blocks, as all layers of this shape have it.
    fn plan(
        &self,
        g: KvGeometry,
        cache: &CodedCache,
        (batch, has_exact): (&AttnBatch<'_>, bool),
        (group, window): (usize, Option<usize>),
    ) -> Result<Arc<CodedPlan>, KvCodecError> {
        let seqs = batch.seqs.iter().map(|seq| own(seq, has_exact)).collect();
        let key = (seqs, group, window, g);
        self.plan.get(&key, || Ok(cache.plan(&key.0, group, window)?))
    }

    fn cache(&self, g: KvGeometry) -> Result<Arc<CodedCache>, KvCodecError> {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, cache)) = caches.iter().find(|(of, _)| *of == g) {
            return Ok(Arc::clone(cache));
        }
        if g.block_tokens != BLOCK_TOKENS {
            let expected = "blocks of 32 tokens, as the GPU's kernels have them";
            return Err(KvCodecError::Shape { expected, got: vec![g.block_tokens] });
        }
        let (k, v) = (side(self.scheme.k, g)?, side(self.scheme.v, g)?);
        let signs = if k.format.is_rotated() || v.format.is_rotated() {
            standard_rotation(g.head_dim)?.signs()
        } else {
            Signs::default()
        };
        let sketch = match k.format {
            RowFormat::Sketched { .. } => sketch_rotation(g.head_dim)?.signs(),
            _ => Signs::default(),
        };
        let shape = (g.kv_heads, g.head_dim);
        let cache = CodedCache::new(&self.gpu, shape, (k, v), &signs, &sketch)?;
        let cache = Arc::new(cache);
        caches.push((g, Arc::clone(&cache)));
        Ok(cache)
    }

    /// Builds the exact blocks of those that are to have one; the codes are where they were still.
    fn compact_exact(
        &self,
        g: KvGeometry,
        cache: &CodedCache,
        rows: &[KeptRow],
        into: &[KeptBlock],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let (mut slots, mut blocks) = (Vec::new(), Vec::new());
        // Exact blocks that nobody wrote yet have no rows to be read.
        let written = pages.gpu_exact.is_some();
        for (block, rows) in into.iter().zip(rows.chunks(g.block_tokens)) {
            let Some(exact) = block.exact else { continue };
            blocks.push(exact.0);
            slots.extend(rows.iter().map(|row| (row.slot, row.exact.filter(|_| written))));
        }
        if blocks.is_empty() {
            return Ok(());
        }
        let Some((k, v)) = &pages.gpu else { return Err(outside(0, 0)) };
        let bytes = (pages.exact_k.len(), pages.exact_v.len());
        let exact = place(&self.gpu, &mut pages.gpu_exact, bytes)?;
        let moves = ExactMoves::new(&self.gpu, &slots, &blocks)?;
        Ok(cache.compact_exact((k, v), exact, &moves)?)
    }

    fn compact_on_host(
        &self,
        g: KvGeometry,
        rows: &[KeptRow],
        into: &[KeptBlock],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let size = g.block_tokens;
        let from = rows.iter().map(|r| r.slot / size);
        let exact_from = rows.iter().filter_map(|r| r.exact).map(|slot| slot / size);
        let to = into.iter().map(|b| b.block.0 as usize);
        let exact_to = into.iter().filter_map(|b| b.exact).map(|b| b.0 as usize);
        let mut staged = self.bring(g, pages, from.chain(to), exact_from.chain(exact_to))?;
        let kept: Vec<_> = rows.iter().map(|row| staged.row(g, row)).collect();
        let built: Vec<_> = into.iter().map(|block| staged.block(block)).collect();
        self.rows.compact(g, &kept, &built, &mut staged.pages)?;
        let bytes = (pages.exact_k.len(), pages.exact_v.len());
        let exact = match into.iter().any(|block| block.exact.is_some()) {
            true => Some(place(&self.gpu, &mut pages.gpu_exact, bytes)?),
            false => None,
        };
        let Some((k, v)) = &pages.gpu else { return Err(outside(0, 0)) };
        staged.take_back(self.scheme, g, into, ((k, v), exact))
    }

    fn bring(
        &self,
        g: KvGeometry,
        pages: &LayerPages,
        blocks: impl Iterator<Item = usize>,
        exact: impl Iterator<Item = usize>,
    ) -> Result<Staged, KvCodecError> {
        Staged::bring(&*self.rows, self.scheme, g, pages, blocks, exact)
    }
}

/// Bytes of a head region on a GPU.
pub(crate) fn region(format: SideFormat, g: KvGeometry) -> usize {
    format.head_bytes(g).next_multiple_of(ALIGN)
}

fn side(of: SideFormat, g: KvGeometry) -> Result<CodedSide, KvCodecError> {
    let (format, levels, thresholds, step) = match of {
        SideFormat::F16 => (RowFormat::Halves, vec![], vec![], 1.0),
        SideFormat::Affine { bits, group } => {
            (RowFormat::Affine { bits, group }, vec![], vec![], 1.0)
        }
        SideFormat::Turbo { bits } => {
            let exact = Polar::new(standard_rotation(g.head_dim)?, bits);
            let (table, step): ([_; 64], _) = int8_table(exact.levels());
            let levels: Vec<_> = table[..1 << bits].iter().map(|&c| f32::from(c) * step).collect();
            let thresholds = levels.windows(2).map(|w| (w[0] + w[1]) / 2.0).collect();
            (RowFormat::Scalar { bits }, levels, thresholds, step)
        }
        SideFormat::TurboQjl { bits } => {
            let polar = Polar::new(standard_rotation(g.head_dim)?, bits - 1);
            let (levels, thresholds) = (polar.levels().to_vec(), polar.thresholds().to_vec());
            let largest = levels.iter().copied().fold(0.0, f32::max);
            (RowFormat::Sketched { bits }, levels, thresholds, largest)
        }
        SideFormat::Taper { bits, centred, wide } => {
            let code = if wide { TrellisCode::wide() } else { TrellisCode::new(bits) };
            let young = TaperSide::new(g, code.clone(), centred)?.young();
            let levels = (0..1 << code.state_bits()).map(|state| code.level(state)).collect();
            let format = match wide {
                true => RowFormat::Wide { young },
                false => RowFormat::Trellis { bits, young },
            };
            (format, levels, vec![], code.step())
        }
    };
    Ok(CodedSide { format, region: region(of, g), levels, thresholds, step })
}

impl KvCodec for GpuCodedCodec {
    fn name(&self) -> &str {
        self.rows.name()
    }

    fn gpu(&self) -> Option<&Gpu> {
        Some(&self.gpu)
    }

    fn check(&self, g: KvGeometry) -> Result<(), KvCodecError> {
        self.rows.check(g)
    }

    fn block_bytes(&self, g: KvGeometry) -> BlockBytes {
        let side = |format| g.kv_heads * region(format, g);
        BlockBytes { k: side(self.scheme.k), v: side(self.scheme.v) }
    }

    fn exact_block_bytes(&self, g: KvGeometry) -> Option<BlockBytes> {
        self.rows.exact_block_bytes(g)
    }

    fn encode(
        &self,
        g: KvGeometry,
        k: &Tensor,
        v: &Tensor,
        slots: &[usize],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let cache = self.cache(g)?;
        check_slots(slots.iter().copied(), room(pages.k.len(), self.block_bytes(g).k))?;
        check_rows(g, k, v, slots.len())?;
        let coded = place(&self.gpu, &mut pages.gpu, (pages.k.len(), pages.v.len()))?;
        let writes = self.writes.get(&slots.to_vec(), || Ok(Writes::new(&self.gpu, slots)?))?;
        Ok(cache.encode(k, v, &writes, CodedPages { coded, exact: None })?)
    }

    fn encode_exact(
        &self,
        g: KvGeometry,
        k: &Tensor,
        v: &Tensor,
        slots: &[Option<usize>],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let (cache, block) = (self.cache(g)?, self.exact_block_bytes(g).map_or(0, |b| b.k));
        check_slots(slots.iter().copied().flatten(), room(pages.exact_k.len(), block))?;
        check_rows(g, k, v, slots.len())?;
        let bytes = (pages.exact_k.len(), pages.exact_v.len());
        let exact = place(&self.gpu, &mut pages.gpu_exact, bytes)?;
        let slots = self.exact.get(&slots.to_vec(), || Ok(ExactSlots::new(&self.gpu, slots)?))?;
        Ok(cache.encode_exact(k, v, &slots, exact)?)
    }

    fn attend_new(
        &self,
        g: KvGeometry,
        rows: &Projected<'_>,
        slots: &[usize],
        pages: &mut LayerPages,
        batch: &AttnBatch<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Option<Tensor>, KvCodecError> {
        let (cache, own) = (self.cache(g)?, self.block_bytes(g));
        let there = exact_slots(g, batch);
        let Some(exact_slots) = there.filter(|_| cache.attends_new() && params.value_dim.is_none())
        else {
            return Ok(None);
        };
        if exact_slots.len() != slots.len() {
            return Ok(None);
        }
        let blocks = room(pages.k.len(), own.k);
        check_slots(slots.iter().copied(), blocks)?;
        let exact_bytes = self.exact_block_bytes(g).map_or(1, |b| b.k);
        check_slots(exact_slots.iter().copied(), room(pages.exact_k.len(), exact_bytes))?;
        crate::exact::check(g, batch, pages.exact_k.len() / exact_bytes)?;
        let &[t, width] = rows.q.dims() else {
            let expected = "q [t, heads * head_dim]";
            return Err(KvCodecError::Shape { expected, got: rows.q.dims().to_vec() });
        };
        let q = rows.q.reshape(&[t, width.checked_div(g.head_dim).unwrap_or(0), g.head_dim])?;
        let group = check_batch(g, &q, (batch, params), blocks)?;
        place(&self.gpu, &mut pages.gpu, (pages.k.len(), pages.v.len()))?;
        place(&self.gpu, &mut pages.gpu_exact, (pages.exact_k.len(), pages.exact_v.len()))?;
        let bytes = cache.new_row_bytes(slots.len());
        if pages.gpu_new.as_ref().is_some_and(|(k, _)| k.len() < bytes) {
            pages.gpu_new = None;
        }
        place(&self.gpu, &mut pages.gpu_new, (bytes, bytes))?;
        let (Some((k, v)), Some((exact_k, exact_v)), Some((new_k, new_v))) =
            (&pages.gpu, &pages.gpu_exact, &pages.gpu_new)
        else {
            return Err(outside(0, 0));
        };
        let key = (slots.to_vec(), exact_slots);
        let to = self.new.get(&key, || Ok(NewTokens::new(&self.gpu, &key.0, &key.1)?))?;
        let plan = self.plan(g, &cache, (batch, true), (group, params.window))?;
        let pages = CodedPages { coded: (k, v), exact: Some((exact_k, exact_v)) };
        let out = cache.attend_new(rows, &to, (new_k, new_v), (pages, &plan), &scoring(params))?;
        Ok(Some(out))
    }

    fn decode(
        &self,
        g: KvGeometry,
        slots: &[usize],
        pages: &LayerPages,
    ) -> Result<(Tensor, Tensor), KvCodecError> {
        check_slots(slots.iter().copied(), room(pages.k.len(), self.block_bytes(g).k))?;
        let blocks = slots.iter().map(|slot| slot / g.block_tokens);
        let staged = self.bring(g, pages, blocks, std::iter::empty())?;
        let slots: Vec<_> = slots.iter().map(|&slot| staged.slot(g, slot)).collect();
        self.rows.decode(g, &slots, &staged.pages)
    }

    /// Trellis codes are built on the host, by the codec that defines their bytes, and taken back: a key's
    /// centre and a scale are relative to a block.
    fn compact(
        &self,
        g: KvGeometry,
        rows: &[KeptRow],
        into: &[KeptBlock],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let (own, cache) = (self.block_bytes(g), self.cache(g)?);
        let blocks = (pages.k.len() / own.k).min(pages.v.len() / own.v);
        let exact_blocks = self.exact_block_bytes(g).map_or(0, |b| pages.exact_k.len() / b.k);
        compact::check(g, rows, into, (blocks, exact_blocks))?;
        if rows.is_empty() {
            return Ok(());
        }
        if !cache.moves_rows() {
            return self.compact_on_host(g, rows, into, pages);
        }
        self.compact_exact(g, &cache, rows, into, pages)?;
        let Some((k, v)) = &pages.gpu else { return Err(outside(0, 0)) };
        Ok(cache.compact((k, v), &moves(&self.gpu, rows, into)?)?)
    }

    fn key_scores(
        &self,
        g: KvGeometry,
        scorer: &KeyScorer,
        pages: &LayerPages,
        (blocks, tokens): (&[BlockId], usize),
    ) -> Result<Vec<f32>, KvCodecError> {
        let cache = self.cache(g)?;
        let blocks = known(blocks, room(pages.k.len(), self.block_bytes(g).k))?;
        let Some((k, _)) = &pages.gpu else { return Err(outside(0, 0)) };
        Ok(cache.key_scores(k, &blocks, tokens, scorer)?)
    }

    fn attend(
        &self,
        g: KvGeometry,
        q: &Tensor,
        pages: &LayerPages,
        batch: &AttnBatch<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCodecError> {
        let cache = self.cache(g)?;
        let group = check_batch(g, q, (batch, params), room(pages.k.len(), self.block_bytes(g).k))?;
        let exact_bytes = self.exact_block_bytes(g).map_or(1, |b| b.k);
        crate::exact::check(g, batch, pages.exact_k.len() / exact_bytes)?;
        let Some((k, v)) = &pages.gpu else { return Err(outside(0, 0)) };
        let exact = pages.gpu_exact.as_ref().map(|(k, v)| (k, v));
        let plan = self.plan(g, &cache, (batch, exact.is_some()), (group, params.window))?;
        let pages = CodedPages { coded: (k, v), exact };
        values(cache.attend(q, pages, &plan, &scoring(params))?, params)
    }
}

/// Where the new tokens of sequences that have one each are among the exact blocks; `None` where there is another
/// number, or no such block.
fn exact_slots(g: KvGeometry, batch: &AttnBatch<'_>) -> Option<Vec<usize>> {
    let slot = |seq: &crate::SeqSpan<'_>| {
        let last = seq.kv_len.checked_sub(1).filter(|_| seq.q_len == 1)?;
        let block = (*seq.exact.as_ref()?.blocks.get(last / g.block_tokens)?)?;
        Some(block.0 as usize * g.block_tokens + last % g.block_tokens)
    };
    batch.seqs.iter().map(slot).collect()
}

fn own(seq: &crate::SeqSpan<'_>, has_exact: bool) -> CodedSequence {
    let tokens = seq.exact.filter(|_| has_exact).map(|e| e.tokens);
    let tokens = tokens.map(|t| ExactTokens { sinks: t.sink_tokens, recent: t.recent_tokens });
    let exact = |i: usize| seq.exact?.blocks.get(i).copied().flatten().map(|b| b.0);
    let blocks = seq.blocks.iter().enumerate().map(|(i, b)| (b.0, exact(i))).collect();
    CodedSequence { q_len: seq.q_len, kv_len: seq.kv_len, blocks, exact: tokens }
}

/// Pages on the GPU; they are allocated when first written.
fn place<'a>(
    gpu: &Gpu,
    pages: &'a mut Option<(Buffer, Buffer)>,
    (k, v): (usize, usize),
) -> Result<(&'a Buffer, &'a Buffer), KvCodecError> {
    if pages.is_none() {
        *pages = Some((gpu.allocate(k)?, gpu.allocate(v)?));
    }
    match pages {
        Some((k, v)) => Ok((k, v)),
        None => Err(outside(0, 0)),
    }
}

fn check_slots(mut slots: impl Iterator<Item = usize>, limit: usize) -> Result<(), KvCodecError> {
    slots.find(|&slot| slot >= limit).map_or(Ok(()), |slot| Err(outside(slot, limit)))
}

fn check_rows(g: KvGeometry, k: &Tensor, v: &Tensor, rows: usize) -> Result<(), KvCodecError> {
    match [k, v].into_iter().find(|x| *x.dims() != [rows, g.kv_heads, g.head_dim]) {
        None => Ok(()),
        Some(x) => {
            let expected = "k and v [slots, kv_heads, head_dim]";
            Err(KvCodecError::Shape { expected, got: x.dims().to_vec() })
        }
    }
}

impl fmt::Debug for GpuCodedCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuCodedCodec").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}
