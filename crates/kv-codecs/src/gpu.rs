//! Uncompressed caches on a GPU.
//!
//! The rows are those of [`DenseCodec`](crate::DenseCodec); the pages are laid out for the GPU's
//! kernels (`kernels/attention/attend.metal`), block for block of the same size.

use crate::{
    AttnBatch, AttnParams, BlockBytes, KeptBlock, KeptRow, KvCodec, KvCodecError, KvGeometry,
    LayerPages, compact,
    drive::{WHOLE, values},
    gpu_staged::{at as at_number, fetch, numbered},
};
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};
use taper_base::BlockId;
use taper_tensor::{
    DType, KeyScorer, Projected, Tensor, TensorError,
    gpu::{
        self, Buffer, Gpu,
        attention::{self, BLOCK_TOKENS, KvShape, Plan, Scoring, Sequence},
        compact::Moves,
        key_scores,
    },
};

/// A dense codec whose pages are on a GPU.
pub struct GpuCodec {
    rows: Arc<dyn KvCodec>,
    dtype: DType,
    gpu: Gpu,
    /// What the layers of a step share.
    slots: Cached<Vec<usize>, Buffer>,
    plan: Cached<Parts, Plan>,
}

/// What was made last, and of what: each layer of a step asks for the same, or for that of its kind of layers.
pub(crate) struct Cached<K, T>(Mutex<VecDeque<(K, Arc<T>)>>);

/// Kinds of layers that a model has at most, with what it needs for some of a step's rows.
const KEPT: usize = 4;

impl<K, T> Default for Cached<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: PartialEq + Clone, T> Cached<K, T> {
    pub(crate) fn get(
        &self,
        key: &K,
        make: impl FnOnce() -> Result<T, KvCodecError>,
    ) -> Result<Arc<T>, KvCodecError> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, made)) = last.iter().find(|(of, _)| of == key) {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(make()?);
        last.truncate(KEPT - 1);
        last.push_front((key.clone(), Arc::clone(&made)));
        Ok(made)
    }
}

/// A layer's shape; query tokens, tokens and blocks of each sequence; and query heads a KV head.
type Parts = (KvShape, Vec<(usize, usize, Vec<u32>)>, usize);

impl GpuCodec {
    /// The codec `rows` with its pages on `gpu`.
    ///
    /// # Errors
    /// There are no kernels for it.
    pub fn new(rows: Arc<dyn KvCodec>, gpu: &Gpu) -> Result<Self, KvCodecError> {
        let dtype = match rows.name() {
            "f16" => DType::F16,
            "bf16" => DType::BF16,
            "f32" => DType::F32,
            _ => {
                let device = gpu.name();
                return Err(TensorError::Device { op: "kv cache of this type", device }.into());
            }
        };
        Ok(Self {
            rows,
            dtype,
            gpu: gpu.clone(),
            slots: Cached::default(),
            plan: Cached::default(),
        })
    }

    /// Pages without room for values have them in their keys.
    fn shape(&self, geometry: KvGeometry, pages: &LayerPages) -> Result<KvShape, KvCodecError> {
        let KvGeometry { kv_heads, head_dim, block_tokens } = geometry;
        if block_tokens != BLOCK_TOKENS {
            let expected = "blocks of 32 tokens, as the GPU's kernels have them";
            return Err(KvCodecError::Shape { expected, got: vec![block_tokens] });
        }
        let latent = pages.v.is_empty();
        Ok(KvShape { kv_heads, head_dim, dtype: self.dtype, latent })
    }

    fn slots(&self, slots: &[usize]) -> Result<Arc<Buffer>, KvCodecError> {
        self.slots.get(&slots.to_vec(), || {
            let narrow = |&s: &usize| u32::try_from(s).map_err(|_| outside(s, u32::MAX as usize));
            let narrow: Vec<u32> = slots.iter().map(narrow).collect::<Result<_, _>>()?;
            Ok(self.gpu.upload(&narrow)?)
        })
    }

    fn plan(
        &self,
        shape: KvShape,
        batch: &AttnBatch<'_>,
        group: usize,
    ) -> Result<Arc<Plan>, KvCodecError> {
        let own =
            |s: &crate::SeqSpan<'_>| (s.q_len, s.kv_len, s.blocks.iter().map(|b| b.0).collect());
        let parts: Parts = (shape, batch.seqs.iter().map(own).collect(), group);
        self.plan.get(&parts, || {
            let seqs: Vec<_> = parts
                .1
                .iter()
                .map(|(q_len, kv_len, blocks)| Sequence { q_len: *q_len, kv_len: *kv_len, blocks })
                .collect();
            Ok(Plan::new(&self.gpu, shape, &seqs, group)?)
        })
    }
}

pub(crate) fn outside(slot: usize, slots: usize) -> KvCodecError {
    KvCodecError::Slot { slot, slots }
}

pub(crate) fn scoring<'a>(params: &AttnParams<'a>) -> Scoring<'a> {
    let AttnParams { scale, window, soft_cap, sinks, value_dim, .. } = *params;
    Scoring { scale, window, soft_cap, sinks, value_dim }
}

/// Kept rows and the blocks that they are moved to, as they are encoded.
pub(crate) fn moves(
    gpu: &Gpu,
    rows: &[KeptRow],
    into: &[KeptBlock],
) -> Result<Moves, KvCodecError> {
    let slots: Vec<_> = rows.iter().map(|row| row.slot).collect();
    let into: Vec<_> = into.iter().map(|block| block.block.0).collect();
    Ok(Moves::new(gpu, &slots, &into)?)
}

/// Slots that pages have room for.
pub(crate) fn room(bytes: usize, block: usize) -> usize {
    bytes.checked_div(block).unwrap_or(0) * BLOCK_TOKENS
}

/// The numbers of blocks inside pages with so many slots.
pub(crate) fn known(blocks: &[BlockId], room: usize) -> Result<Vec<u32>, KvCodecError> {
    match blocks.iter().find(|b| (b.0 as usize + 1) * BLOCK_TOKENS > room) {
        Some(bad) => Err(outside(bad.0 as usize * BLOCK_TOKENS, room)),
        None => Ok(blocks.iter().map(|b| b.0).collect()),
    }
}

/// Query heads a KV head, if the batch fits `q` and pages with so many slots.
pub(crate) fn check_batch(
    geometry: KvGeometry,
    q: &Tensor,
    (batch, params): (&AttnBatch<'_>, &AttnParams<'_>),
    room: usize,
) -> Result<usize, KvCodecError> {
    let shape_error = |expected| KvCodecError::Shape { expected, got: q.dims().to_vec() };
    if params.chunk.is_some() || !params.mutual.spans.is_empty() {
        return Err(shape_error(WHOLE));
    }
    if batch.seqs.iter().any(|seq| seq.together.is_some()) {
        return Err(shape_error("tokens that see none after them, on a GPU"));
    }
    let &[t, heads, _] = q.dims() else { return Err(shape_error("q [t, heads, head_dim]")) };
    if heads == 0 || !heads.is_multiple_of(geometry.kv_heads) {
        return Err(shape_error("q with a multiple of the cache's heads"));
    }
    if batch.seqs.iter().map(|s| s.q_len).sum::<usize>() != t {
        return Err(shape_error("as many query tokens as the batch describes"));
    }
    for seq in &batch.seqs {
        let slots = seq.blocks.len() * BLOCK_TOKENS;
        if seq.kv_len > slots || seq.q_len > seq.kv_len {
            return Err(outside(seq.kv_len.max(seq.q_len), slots));
        }
        known(seq.blocks, room)?;
    }
    Ok(heads / geometry.kv_heads)
}

impl KvCodec for GpuCodec {
    fn name(&self) -> &str {
        self.rows.name()
    }

    fn reads_values_in_keys(&self) -> bool {
        true
    }

    fn gpu(&self) -> Option<&Gpu> {
        Some(&self.gpu)
    }

    fn block_bytes(&self, geometry: KvGeometry) -> BlockBytes {
        self.rows.block_bytes(geometry)
    }

    fn encode(
        &self,
        geometry: KvGeometry,
        k: &Tensor,
        v: &Tensor,
        slots: &[usize],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let shape = self.shape(geometry, pages)?;
        let slots_in_all = room(pages.k.len(), self.block_bytes(geometry).k);
        if let Some(&slot) = slots.iter().find(|&&s| s >= slots_in_all) {
            return Err(outside(slot, slots_in_all));
        }
        if pages.gpu.is_none() {
            let side = |bytes: usize| self.gpu.allocate(bytes);
            pages.gpu = Some((side(pages.k.len())?, side(pages.v.len())?));
        }
        let Some((k_pages, v_pages)) = &pages.gpu else { return Ok(()) };
        let slots = self.slots(slots)?;
        Ok(attention::write(shape, k, v, &slots, (k_pages, v_pages))?)
    }

    fn decode(
        &self,
        geometry: KvGeometry,
        slots: &[usize],
        pages: &LayerPages,
    ) -> Result<(Tensor, Tensor), KvCodecError> {
        let KvGeometry { kv_heads, head_dim, .. } = geometry;
        let Some((k_pages, v_pages)) = &pages.gpu else { return Err(outside(0, 0)) };
        let block = kv_heads * BLOCK_TOKENS * head_dim;
        let limit = room(pages.k.len(), self.block_bytes(geometry).k);
        if let Some(&slot) = slots.iter().find(|&&s| s >= limit) {
            return Err(outside(slot, limit));
        }
        let numbers = numbered(slots.iter().map(|slot| slot / BLOCK_TOKENS));
        let at_k = |token: usize, e: usize| (e / 8 * BLOCK_TOKENS + token) * 8 + e % 8;
        let at_v = |token: usize, e: usize| token * head_dim + e;
        let side =
            |pages: &Buffer, at: &dyn Fn(usize, usize) -> usize| -> Result<Tensor, KvCodecError> {
                let mut blocks = vec![Vec::new(); numbers.len()];
                let bytes = block * self.dtype.size_in_bytes();
                fetch(pages, bytes, &numbers, |number, block| blocks[number] = self.floats(block))?;
                let mut out = Vec::with_capacity(slots.len() * kv_heads * head_dim);
                for &slot in slots {
                    let floats = &blocks[at_number(&numbers, slot / BLOCK_TOKENS)];
                    for head in floats.chunks_exact(BLOCK_TOKENS * head_dim) {
                        out.extend((0..head_dim).map(|e| head[at(slot % BLOCK_TOKENS, e)]));
                    }
                }
                Ok(Tensor::from_vec(out, &[slots.len(), kv_heads, head_dim])?)
            };
        let keys = side(k_pages, &at_k)?;
        let values = if pages.v.is_empty() { keys.clone() } else { side(v_pages, &at_v)? };
        Ok((keys, values))
    }

    fn compact(
        &self,
        geometry: KvGeometry,
        rows: &[KeptRow],
        into: &[KeptBlock],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let shape = self.shape(geometry, pages)?;
        let slots = room(pages.k.len(), self.block_bytes(geometry).k);
        compact::check(geometry, rows, into, (slots / BLOCK_TOKENS, 0))?;
        if rows.is_empty() {
            return Ok(());
        }
        let Some((k, v)) = &pages.gpu else { return Err(outside(0, 0)) };
        Ok(gpu::compact::compact(shape, (k, v), &moves(&self.gpu, rows, into)?)?)
    }

    fn key_scores(
        &self,
        geometry: KvGeometry,
        scorer: &KeyScorer,
        pages: &LayerPages,
        (blocks, tokens): (&[BlockId], usize),
    ) -> Result<Vec<f32>, KvCodecError> {
        let shape = self.shape(geometry, pages)?;
        let blocks = known(blocks, room(pages.k.len(), self.block_bytes(geometry).k))?;
        let Some((k_pages, _)) = &pages.gpu else { return Err(outside(0, 0)) };
        Ok(key_scores::key_scores(shape, k_pages, &blocks, tokens, scorer)?)
    }

    fn attend_new(
        &self,
        geometry: KvGeometry,
        rows: &Projected<'_>,
        _slots: &[usize],
        pages: &mut LayerPages,
        batch: &AttnBatch<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Option<Tensor>, KvCodecError> {
        let Some((k_pages, v_pages)) = &pages.gpu else { return Ok(None) };
        if batch.seqs.iter().any(|seq| seq.q_len > 1) {
            return Ok(None);
        }
        let shape = self.shape(geometry, pages)?;
        let room = room(pages.k.len(), self.block_bytes(geometry).k);
        let &[t, width] = rows.q.dims() else {
            let expected = "q [t, heads * head_dim]";
            return Err(KvCodecError::Shape { expected, got: rows.q.dims().to_vec() });
        };
        let heads = width.checked_div(geometry.head_dim).unwrap_or(0);
        let q = rows.q.reshape(&[t, heads, geometry.head_dim])?;
        let group = check_batch(geometry, &q, (batch, params), room)?;
        let plan = self.plan(shape, batch, group)?;
        Ok(attention::attend_new(shape, rows, (k_pages, v_pages), &plan, &scoring(params))?)
    }

    fn attend(
        &self,
        geometry: KvGeometry,
        q: &Tensor,
        pages: &LayerPages,
        batch: &AttnBatch<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCodecError> {
        let shape = self.shape(geometry, pages)?;
        let room = room(pages.k.len(), self.block_bytes(geometry).k);
        let group = check_batch(geometry, q, (batch, params), room)?;
        let Some((k_pages, v_pages)) = &pages.gpu else { return Err(outside(0, 0)) };
        let plan = self.plan(shape, batch, group)?;
        let out = attention::attend(shape, q, (k_pages, v_pages), &plan, &scoring(params))?;
        if shape.latent { Ok(out) } else { values(out, params) }
    }
}

impl GpuCodec {
    /// Elements of a page's bytes.
    fn floats(&self, bytes: &[u8]) -> Vec<f32> {
        let pairs = || bytes.as_chunks::<2>().0.iter();
        match self.dtype {
            DType::F16 => pairs().map(|&x| half::f16::from_le_bytes(x).to_f32()).collect(),
            DType::BF16 => pairs().map(|&x| half::bf16::from_le_bytes(x).to_f32()).collect(),
            _ => bytes.as_chunks::<4>().0.iter().map(|&x| f32::from_le_bytes(x)).collect(),
        }
    }
}

impl fmt::Debug for GpuCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuCodec").field("dtype", &self.dtype).field("gpu", &self.gpu).finish()
    }
}
