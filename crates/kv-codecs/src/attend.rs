//! Paged attention over any codec that can read a block back: the reference, and the driver of the
//! codecs whose blocks are cheap to widen.

use crate::{KvCodecError, KvGeometry};
use rayon::prelude::*;
use std::{cell::RefCell, ops::Range};
use taper_base::BlockId;
use taper_tensor::{
    Tensor,
    cpu::{FlashTile, Floats},
    ops,
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
}

/// Query rows that walk over the keys together: enough to reuse a widened block, few enough to
/// stay in the first-level cache.
const TILE_ROWS: usize = 64;

/// Some query tokens of one sequence, for one KV head.
struct Task<'a> {
    seq: SeqSpan<'a>,
    kv_head: usize,
    /// Row of the sequence's first query token in the batch.
    first_row: usize,
    /// Query tokens, counted within the sequence's step.
    tokens: Range<usize>,
}

#[derive(Default)]
struct Scratch {
    tile: FlashTile,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
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
    let group = heads / geometry.kv_heads;
    let tasks = tasks(geometry, batch, group);
    let d = geometry.head_dim;
    let run = |q: &[f32]| -> Vec<Vec<f32>> {
        let one = |task: &Task<'_>| attend_task(geometry, q, heads, reader, task, params);
        if tasks.len() == 1 {
            tasks.iter().map(one).collect()
        } else {
            tasks.par_iter().map(one).collect()
        }
    };
    let results = ops::with_host_f32(q, run)?;
    let mut out = vec![0.0; t * heads * d];
    for (task, rows) in tasks.iter().zip(results) {
        for (i, token) in task.tokens.clone().enumerate() {
            let at = ((task.first_row + token) * heads + task.kv_head * group) * d;
            out[at..at + group * d].copy_from_slice(&rows[i * group * d..][..group * d]);
        }
    }
    Ok(ops::from_host_f32(out, &[t, heads, d])?)
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

fn tasks<'a>(geometry: KvGeometry, batch: &AttnBatch<'a>, group: usize) -> Vec<Task<'a>> {
    let step = (TILE_ROWS / group).max(1);
    let mut tasks = Vec::new();
    let mut first_row = 0;
    for &seq in &batch.seqs {
        for start in (0..seq.q_len).step_by(step) {
            let tokens = start..(start + step).min(seq.q_len);
            tasks.extend((0..geometry.kv_heads).map(|kv_head| {
                let tokens = tokens.clone();
                Task { seq, kv_head, first_row, tokens }
            }));
        }
        first_row += seq.q_len;
    }
    tasks
}

/// Returns `[tokens, group, head_dim]`.
fn attend_task(
    geometry: KvGeometry,
    q: &[f32],
    heads: usize,
    reader: &dyn BlockReader,
    task: &Task<'_>,
    params: &AttnParams,
) -> Vec<f32> {
    let (d, size) = (geometry.head_dim, geometry.block_tokens);
    let group = heads / geometry.kv_heads;
    let rows = task.tokens.len() * group;
    // Position of the first query token of the task.
    let base = task.seq.kv_len - task.seq.q_len + task.tokens.start;
    let sees = |token: usize| {
        let end = base + token + 1;
        params.window.map_or(0, |w| end.saturating_sub(w))..end
    };
    SCRATCH.with_borrow_mut(|Scratch { tile, q: scaled, k, v }| {
        scaled.clear();
        for token in task.tokens.clone() {
            let at = ((task.first_row + token) * heads + task.kv_head * group) * d;
            scaled.extend(q[at..at + group * d].iter().map(|x| x * params.scale));
        }
        tile.reset(rows, d);
        let (first, last) = (sees(0).start, sees(task.tokens.len() - 1).end);
        for index in first / size..last.div_ceil(size) {
            let start = index * size;
            // Blocks are read whole but for the sequence's last, so that a row's sums are cut at
            // the same places whatever else is in the step.
            let n = size.min(task.seq.kv_len - start);
            let block = task.seq.blocks[index];
            let k = reader.k(block, task.kv_head, n, k);
            let v = reader.v(block, task.kv_head, n, v);
            tile.block(scaled, k, v, params.soft_cap, |row| {
                let seen = sees(row / group);
                let clamp = |x: usize| x.clamp(start, start + n) - start;
                clamp(seen.start)..clamp(seen.end)
            });
        }
        let mut out = vec![0.0; rows * d];
        for (row, out) in out.chunks_exact_mut(d).enumerate() {
            tile.finish(row, out);
        }
        out
    })
}
