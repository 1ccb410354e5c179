//! Paged attention over any codec that can read a block back: the reference, and the driver of the
//! codecs whose blocks are cheap to widen.

use crate::{KvCodecError, KvGeometry};
use std::{cell::RefCell, ops::Range};
use taper_base::BlockId;
use taper_tensor::{
    Tensor,
    cpu::{Attended, FlashTile, Floats},
    ops,
    pool::{self, GridCell},
};

/// A packed step: the query tokens of several sequences, one after the other.
#[derive(Debug, Clone)]
pub struct AttnBatch<'a> {
    /// The sequences in the order of their query rows.
    pub seqs: Vec<SeqSpan<'a>>,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, Copy)]
pub struct SeqSpan<'a> {
    /// Its query tokens; they are the last of its `kv_len` tokens.
    pub q_len: usize,
    /// Its tokens in the cache, this step's included.
    pub kv_len: usize,
    /// Where they are.
    pub blocks: &'a [BlockId],
}

/// What attention computes, beside the operands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttnParams {
    /// Multiplies `q · k`.
    pub scale: f32,
    /// A token sees itself and the `window - 1` tokens before it.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` before the softmax.
    pub soft_cap: Option<f32>,
}

/// Gives one head of one block as floats.
pub trait BlockReader: Sync {
    /// Keys of the first `tokens` tokens, `[tokens, head_dim]`: where they lie, or in `scratch`.
    fn k<'a>(
        &'a self,
        block: BlockId,
        head: usize,
        tokens: usize,
        scratch: &'a mut Vec<f32>,
    ) -> Floats<'a>;
    /// Values, likewise.
    fn v<'a>(
        &'a self,
        block: BlockId,
        head: usize,
        tokens: usize,
        scratch: &'a mut Vec<f32>,
    ) -> Floats<'a>;
    /// Keys and values of a whole block where they lie, if they are stored as floats: it is
    /// prefetched while the block before it is read. Blocks lie apart, and hardware does not foresee
    /// the next one.
    fn in_place(&self, _block: BlockId, _head: usize) -> Option<(Floats<'_>, Floats<'_>)> {
        None
    }
}

/// Query rows that walk over the keys together: enough to reuse a widened block, few enough to
/// stay in the first-level cache.
const TILE_ROWS: usize = 64;
/// Blocks whose scores are softened together.
const STEP_BLOCKS: usize = 4;
/// Blocks after which a row's softmax starts anew, to be merged with what was before. Where a step
/// has too few rows for all threads, these spans are shared out; the cut is the same for all steps,
/// so that no result depends on who computed it.
const SPAN_BLOCKS: usize = 64;

/// Some query tokens of one sequence.
struct Rows<'a> {
    seq: SeqSpan<'a>,
    /// Their rows in the batch.
    rows: Range<usize>,
    /// Tokens of the sequence up to and with the first of them.
    first_end: usize,
}

/// What the tasks of one call share.
struct Call<'a> {
    geometry: KvGeometry,
    heads: usize,
    q: &'a [f32],
    reader: &'a dyn BlockReader,
    params: &'a AttnParams,
}

#[derive(Default)]
struct Scratch {
    tile: FlashTile,
    total: Attended,
    q: Vec<f32>,
    out: Vec<f32>,
    /// Keys and values of each block of a step.
    blocks: [(Vec<f32>, Vec<f32>); STEP_BLOCKS],
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Causal grouped-query attention, block by block.
///
/// # Shapes
/// `q [t, heads, head_dim]` -> the same; `heads` is a multiple of `kv_heads`.
///
/// # Errors
/// `q` has another shape, or `batch` other query tokens than `q`.
pub fn attend_blocks(
    geometry: KvGeometry,
    q: &Tensor,
    reader: &dyn BlockReader,
    batch: &AttnBatch<'_>,
    params: &AttnParams,
) -> Result<Tensor, KvCodecError> {
    let (t, heads) = check(geometry, q, batch)?;
    let chunks = chunks(batch, heads / geometry.kv_heads);
    let out = ops::with_host_f32(q, |q| {
        let call = Call { geometry, heads, q, reader, params };
        let spans = chunks.iter().map(|c| call.spans(c).len()).max().unwrap_or(0);
        if spans > 1 && chunks.len() * geometry.kv_heads < 2 * pool::threads() {
            call.by_spans(&chunks)
        } else {
            call.by_chunks(&chunks)
        }
    })?;
    Ok(ops::from_host_f32(out, &[t, heads, geometry.head_dim])?)
}

fn check(
    geometry: KvGeometry,
    q: &Tensor,
    batch: &AttnBatch<'_>,
) -> Result<(usize, usize), KvCodecError> {
    let shape = |expected| KvCodecError::Shape { expected, got: q.dims().to_vec() };
    let &[t, heads, d] = q.dims() else { return Err(shape("q [t, heads, head_dim]")) };
    if d != geometry.head_dim || heads == 0 || !heads.is_multiple_of(geometry.kv_heads) {
        return Err(shape("q with the cache's head_dim and a multiple of its heads"));
    }
    if batch.seqs.iter().map(|s| s.q_len).sum::<usize>() != t {
        return Err(shape("as many query tokens as the batch describes"));
    }
    for seq in &batch.seqs {
        let slots = seq.blocks.len() * geometry.block_tokens;
        if seq.kv_len > slots || seq.q_len > seq.kv_len {
            return Err(KvCodecError::Slot { slot: seq.kv_len.max(seq.q_len), slots });
        }
    }
    Ok((t, heads))
}

/// Cuts the batch's query tokens into pieces of [`TILE_ROWS`] rows.
fn chunks<'a>(batch: &AttnBatch<'a>, group: usize) -> Vec<Rows<'a>> {
    let step = (TILE_ROWS / group).max(1);
    let mut chunks = Vec::new();
    let mut first_row = 0;
    for &seq in &batch.seqs {
        for start in (0..seq.q_len).step_by(step) {
            let rows = first_row + start..first_row + (start + step).min(seq.q_len);
            chunks.push(Rows { seq, rows, first_end: seq.kv_len - seq.q_len + start + 1 });
        }
        first_row += seq.q_len;
    }
    chunks
}

impl Call<'_> {
    fn group(&self) -> usize {
        self.heads / self.geometry.kv_heads
    }

    /// One task for each piece and KV head.
    fn by_chunks(&self, chunks: &[Rows<'_>]) -> Vec<f32> {
        let ranges: Vec<_> = chunks.iter().map(|c| c.rows.clone()).collect();
        let width = self.group() * self.geometry.head_dim;
        pool::grid(&ranges, self.geometry.kv_heads, width, |chunk, kv_head, cell| {
            SCRATCH.with_borrow_mut(|scratch| {
                let chunk = &chunks[chunk];
                self.start(chunk, kv_head, scratch);
                for span in self.spans(chunk) {
                    scratch.tile.restart();
                    self.walk(chunk, kv_head, span, scratch);
                    scratch.total.merge(scratch.tile.state());
                }
                self.finish(&scratch.total, &mut scratch.out, cell);
            });
        })
    }

    /// One task for each piece, KV head and span; for few rows over many keys.
    fn by_spans(&self, chunks: &[Rows<'_>]) -> Vec<f32> {
        let mut tasks = Vec::new();
        let mut first = Vec::new();
        for chunk in chunks {
            for kv_head in 0..self.geometry.kv_heads {
                first.push(tasks.len());
                tasks.extend(self.spans(chunk).map(|span| (chunk, kv_head, span)));
            }
        }
        first.push(tasks.len());
        let parts = pool::map(tasks.len(), |task| {
            let (chunk, kv_head, span) = tasks[task];
            SCRATCH.with_borrow_mut(|scratch| {
                self.start(chunk, kv_head, scratch);
                self.walk(chunk, kv_head, span, scratch);
                scratch.tile.state().clone()
            })
        });
        let ranges: Vec<_> = chunks.iter().map(|c| c.rows.clone()).collect();
        let width = self.group() * self.geometry.head_dim;
        pool::grid(&ranges, self.geometry.kv_heads, width, |chunk, kv_head, cell| {
            let own = chunk * self.geometry.kv_heads + kv_head;
            let rows = chunks[chunk].rows.len() * self.group();
            let mut total = Attended::default();
            total.clear(rows, self.geometry.head_dim);
            parts[first[own]..first[own + 1]].iter().for_each(|part| total.merge(part));
            self.finish(&total, &mut Vec::new(), cell);
        })
    }

    /// Tokens that the row of query token `i` of a piece sees.
    fn sees(&self, chunk: &Rows<'_>, i: usize) -> Range<usize> {
        let end = chunk.first_end + i;
        self.params.window.map_or(0, |w| end.saturating_sub(w))..end
    }

    /// Blocks that any row of the piece sees.
    fn blocks(&self, chunk: &Rows<'_>) -> Range<usize> {
        let size = self.geometry.block_tokens;
        let last = self.sees(chunk, chunk.rows.len() - 1);
        self.sees(chunk, 0).start / size..last.end.div_ceil(size)
    }

    fn spans(&self, chunk: &Rows<'_>) -> Range<usize> {
        let blocks = self.blocks(chunk);
        blocks.start / SPAN_BLOCKS..blocks.end.div_ceil(SPAN_BLOCKS)
    }

    fn start(&self, chunk: &Rows<'_>, kv_head: usize, scratch: &mut Scratch) {
        let (d, group) = (self.geometry.head_dim, self.group());
        scratch.q.clear();
        for row in chunk.rows.clone() {
            let at = (row * self.heads + kv_head * group) * d;
            let scaled = self.q[at..at + group * d].iter().map(|x| x * self.params.scale);
            scratch.q.extend(scaled);
        }
        let rows = chunk.rows.len() * group;
        scratch.tile.start(&scratch.q, rows, d, self.params.soft_cap);
        scratch.total.clear(rows, d);
    }

    /// Attends to the blocks of a span.
    fn walk(&self, chunk: &Rows<'_>, kv_head: usize, span: usize, scratch: &mut Scratch) {
        let (size, group) = (self.geometry.block_tokens, self.group());
        let all = self.blocks(chunk);
        let from = all.start.max(span * SPAN_BLOCKS) / STEP_BLOCKS * STEP_BLOCKS;
        let to = all.end.min((span + 1) * SPAN_BLOCKS);
        for step in (from..to).step_by(STEP_BLOCKS) {
            let blocks = step..(step + STEP_BLOCKS).min(to);
            // Blocks are read whole but for the sequence's last, so that a row's sums are cut at
            // the same places whatever else is in the step.
            let (start, end) = (step * size, (blocks.end * size).min(chunk.seq.kv_len));
            let next = chunk.seq.blocks[..to].get(blocks.end);
            let next = next.and_then(|&block| self.reader.in_place(block, kv_head));
            let mut pages = [(Floats::F32(&[]), Floats::F32(&[])); STEP_BLOCKS];
            let read = pages.iter_mut().zip(&mut scratch.blocks).zip(blocks.clone());
            for ((page, (k, v)), index) in read {
                let n = size.min(chunk.seq.kv_len - index * size);
                let block = chunk.seq.blocks[index];
                *page = (self.reader.k(block, kv_head, n, k), self.reader.v(block, kv_head, n, v));
            }
            scratch.tile.step(&pages[..blocks.len()], next, |row| {
                let seen = self.sees(chunk, row / group);
                let clamp = |x: usize| x.clamp(start, end) - start;
                clamp(seen.start)..clamp(seen.end)
            });
        }
    }

    fn finish(&self, total: &Attended, out: &mut Vec<f32>, cell: &mut GridCell) {
        let (d, group) = (self.geometry.head_dim, self.group());
        out.resize(group * d, 0.0);
        for token in 0..total.rows() / group {
            for (head, out) in out.chunks_exact_mut(d).enumerate() {
                total.finish(token * group + head, out);
            }
            cell.push(out);
        }
    }
}
