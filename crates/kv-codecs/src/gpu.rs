//! Uncompressed caches on a GPU.
//!
//! The rows are those of [`DenseCodec`](crate::DenseCodec); the pages are laid out for the GPU's
//! kernels (`kernels/attention/attend.metal`), block for block of the same size.

use crate::{AttnBatch, AttnParams, BlockBytes, KvCodec, KvCodecError, KvGeometry, LayerPages};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};
use taper_tensor::{
    DType, Tensor, TensorError,
    gpu::{
        Buffer, Gpu,
        attention::{self, BLOCK_TOKENS, KvShape, Plan, Scoring, Sequence},
    },
    ops,
};

/// A dense codec whose pages are on a GPU.
pub struct GpuCodec {
    rows: Arc<dyn KvCodec>,
    dtype: DType,
    gpu: Gpu,
    /// What the layers of a step share.
    step: Mutex<Step>,
}

/// The step's slots and tiles on the GPU, and what they were made of: each layer asks for the same.
#[derive(Default)]
struct Step {
    slots: Vec<usize>,
    slots_there: Option<Arc<Buffer>>,
    /// Query tokens, tokens and blocks of each sequence.
    seqs: Vec<(usize, usize, Vec<u32>)>,
    group: usize,
    plan: Option<Arc<Plan>>,
}

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
        Ok(Self { rows, dtype, gpu: gpu.clone(), step: Mutex::default() })
    }

    fn shape(&self, geometry: KvGeometry) -> Result<KvShape, KvCodecError> {
        let KvGeometry { kv_heads, head_dim, block_tokens } = geometry;
        if block_tokens != BLOCK_TOKENS {
            let expected = "blocks of 32 tokens, as the GPU's kernels have them";
            return Err(KvCodecError::Shape { expected, got: vec![block_tokens] });
        }
        Ok(KvShape { kv_heads, head_dim, dtype: self.dtype })
    }

    fn slots(&self, slots: &[usize]) -> Result<Arc<Buffer>, KvCodecError> {
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = &step.slots_there
            && step.slots == slots
        {
            return Ok(Arc::clone(there));
        }
        let narrow = |&s: &usize| u32::try_from(s).map_err(|_| outside(s, u32::MAX as usize));
        let narrow: Vec<u32> = slots.iter().map(narrow).collect::<Result<_, _>>()?;
        let there = Arc::new(self.gpu.upload(&narrow)?);
        step.slots = slots.to_vec();
        step.slots_there = Some(Arc::clone(&there));
        Ok(there)
    }

    fn plan(
        &self,
        shape: KvShape,
        batch: &AttnBatch<'_>,
        group: usize,
    ) -> Result<Arc<Plan>, KvCodecError> {
        let mut step = self.step.lock().unwrap_or_else(PoisonError::into_inner);
        let same = step.group == group
            && step.seqs.len() == batch.seqs.len()
            && step.seqs.iter().zip(&batch.seqs).all(|((q, kv, blocks), seq)| {
                (*q, *kv) == (seq.q_len, seq.kv_len)
                    && blocks.iter().copied().eq(seq.blocks.iter().map(|b| b.0))
            });
        if let Some(plan) = &step.plan
            && same
        {
            return Ok(Arc::clone(plan));
        }
        let own =
            |s: &crate::SeqSpan<'_>| (s.q_len, s.kv_len, s.blocks.iter().map(|b| b.0).collect());
        step.seqs = batch.seqs.iter().map(own).collect();
        let seqs: Vec<_> = step
            .seqs
            .iter()
            .map(|(q_len, kv_len, blocks)| Sequence { q_len: *q_len, kv_len: *kv_len, blocks })
            .collect();
        let plan = Arc::new(Plan::new(&self.gpu, shape, &seqs, group)?);
        step.group = group;
        step.plan = Some(Arc::clone(&plan));
        Ok(plan)
    }
}

fn outside(slot: usize, slots: usize) -> KvCodecError {
    KvCodecError::Slot { slot, slots }
}

/// Slots that pages have room for.
fn room(bytes: usize, block: usize) -> usize {
    bytes.checked_div(block).unwrap_or(0) * BLOCK_TOKENS
}

impl KvCodec for GpuCodec {
    fn name(&self) -> &str {
        self.rows.name()
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
        let shape = self.shape(geometry)?;
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
        let at_k = |token: usize, e: usize| (e / 8 * BLOCK_TOKENS + token) * 8 + e % 8;
        let at_v = |token: usize, e: usize| token * head_dim + e;
        let side =
            |pages: &Buffer, at: &dyn Fn(usize, usize) -> usize| -> Result<Tensor, KvCodecError> {
                let mut out = Vec::with_capacity(slots.len() * kv_heads * head_dim);
                for &slot in slots {
                    let floats = self.floats(pages, slot / BLOCK_TOKENS * block, block)?;
                    for head in floats.chunks_exact(BLOCK_TOKENS * head_dim) {
                        out.extend((0..head_dim).map(|e| head[at(slot % BLOCK_TOKENS, e)]));
                    }
                }
                Ok(ops::from_host_f32(out, &[slots.len(), kv_heads, head_dim])?)
            };
        Ok((side(k_pages, &at_k)?, side(v_pages, &at_v)?))
    }

    fn attend(
        &self,
        geometry: KvGeometry,
        q: &Tensor,
        pages: &LayerPages,
        batch: &AttnBatch<'_>,
        params: &AttnParams,
    ) -> Result<Tensor, KvCodecError> {
        let shape = self.shape(geometry)?;
        let shape_error = |expected| KvCodecError::Shape { expected, got: q.dims().to_vec() };
        let &[t, heads, _] = q.dims() else { return Err(shape_error("q [t, heads, head_dim]")) };
        if heads == 0 || !heads.is_multiple_of(geometry.kv_heads) {
            return Err(shape_error("q with a multiple of the cache's heads"));
        }
        if batch.seqs.iter().map(|s| s.q_len).sum::<usize>() != t {
            return Err(shape_error("as many query tokens as the batch describes"));
        }
        let blocks = room(pages.k.len(), self.block_bytes(geometry).k) / BLOCK_TOKENS;
        for seq in &batch.seqs {
            let slots = seq.blocks.len() * BLOCK_TOKENS;
            if seq.kv_len > slots || seq.q_len > seq.kv_len {
                return Err(outside(seq.kv_len.max(seq.q_len), slots));
            }
            if let Some(bad) = seq.blocks.iter().find(|b| b.0 as usize >= blocks) {
                return Err(outside(bad.0 as usize * BLOCK_TOKENS, blocks * BLOCK_TOKENS));
            }
        }
        let Some((k_pages, v_pages)) = &pages.gpu else { return Err(outside(0, 0)) };
        let plan = self.plan(shape, batch, heads / geometry.kv_heads)?;
        let AttnParams { scale, window, soft_cap } = *params;
        let scoring = Scoring { scale, window, soft_cap };
        Ok(attention::attend(shape, q, (k_pages, v_pages), &plan, &scoring)?)
    }
}

impl GpuCodec {
    /// Elements of a page on the host.
    fn floats(&self, pages: &Buffer, first: usize, n: usize) -> Result<Vec<f32>, KvCodecError> {
        let at = first * self.dtype.size_in_bytes();
        Ok(match self.dtype {
            DType::F16 => pages.read::<half::f16>(at, n)?.iter().map(|x| x.to_f32()).collect(),
            DType::BF16 => pages.read::<half::bf16>(at, n)?.iter().map(|x| x.to_f32()).collect(),
            _ => pages.read(at, n)?,
        })
    }
}

impl fmt::Debug for GpuCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuCodec").field("dtype", &self.dtype).field("gpu", &self.gpu).finish()
    }
}
