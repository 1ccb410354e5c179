//! How a step's attention is shared out: pieces of query rows, KV heads, and spans of keys.

use crate::{AttnBatch, AttnParams, KvCodecError, KvGeometry, SeqSpan, side::CodedScratch};
use std::{cell::RefCell, ops::Range};
use taper_base::BlockId;
use taper_tensor::{
    Tensor,
    cpu::{Attended, FlashTile},
    ops,
    pool::{self, GridCell},
};

/// Query rows that walk over the keys together: enough to reuse a widened block, few enough to
/// stay in the first-level cache.
const PIECE_ROWS: usize = 64;
/// Blocks whose scores are softened together.
pub(crate) const STEP_BLOCKS: usize = 4;
/// Blocks after which a row's softmax starts anew, to be merged with what was before. Where a step
/// has too few rows for all threads, these spans are shared out; the cut is the same for all steps,
/// so that no result depends on who computed it.
const SPAN_BLOCKS: usize = 64;

/// Some query tokens of one sequence.
pub(crate) struct Piece<'a> {
    pub(crate) seq: SeqSpan<'a>,
    pub(crate) params: &'a AttnParams,
    /// Their rows in the batch.
    tokens: Range<usize>,
    /// Tokens of the sequence up to and with the first of them.
    first_end: usize,
    /// Query heads of a KV head.
    group: usize,
}

impl Piece<'_> {
    /// Query rows of one KV head.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len() * self.group
    }

    /// Positions that a row sees.
    fn sees(&self, row: usize) -> Range<usize> {
        let end = self.first_end + row / self.group;
        self.params.window.map_or(0, |w| end.saturating_sub(w))..end
    }

    /// Those among `tokens`, counted from the first of these.
    pub(crate) fn sees_of(&self, row: usize, tokens: Range<usize>) -> Range<usize> {
        let clamp = |x: usize| x.clamp(tokens.start, tokens.end) - tokens.start;
        let seen = self.sees(row);
        clamp(seen.start)..clamp(seen.end)
    }

    /// Where the exact rows of a block are, if these rows read it exactly.
    pub(crate) fn exact(&self, index: usize, block_tokens: usize) -> Option<BlockId> {
        let exact = self.seq.exact?;
        let reads = exact.tokens.reads(self.first_end - 1, index * block_tokens);
        if reads { exact.blocks.get(index).copied().flatten() } else { None }
    }

    /// Blocks that any row sees.
    fn blocks(&self, block_tokens: usize) -> Range<usize> {
        let last = self.sees(self.len() - 1);
        self.sees(0).start / block_tokens..last.end.div_ceil(block_tokens)
    }
}

/// What one thread works in.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Query rows `[rows, head_dim]`, scaled.
    pub(crate) q: Vec<f32>,
    pub(crate) tile: FlashTile,
    /// Keys and values of each block of a step.
    pub(crate) blocks: [(Vec<f32>, Vec<f32>); STEP_BLOCKS],
    pub(crate) coded: CodedScratch,
}

#[derive(Default)]
struct Own {
    scratch: Scratch,
    total: Attended,
    out: Vec<f32>,
}

thread_local! {
    static OWN: RefCell<Own> = RefCell::default();
}

/// The keys and values of one layer, by head.
pub(crate) trait Heads: Sync {
    /// Takes the query rows of `scratch`.
    fn start(&self, piece: &Piece<'_>, scratch: &mut Scratch);

    /// Attends to a span of blocks, and to nothing that was attended to before. A span starts at
    /// the beginning of a step.
    fn attend<'s>(
        &self,
        piece: &Piece<'_>,
        kv_head: usize,
        span: Range<usize>,
        scratch: &'s mut Scratch,
    ) -> &'s Attended;

    /// Brings an attended row back from the values' space.
    fn restore(&self, _row: &mut [f32]) {}
}

/// Causal grouped-query attention.
pub(crate) fn attend(
    geometry: KvGeometry,
    q: &Tensor,
    layer: &impl Heads,
    batch: &AttnBatch<'_>,
    params: &AttnParams,
) -> Result<Tensor, KvCodecError> {
    let (t, heads) = check(geometry, q, batch)?;
    let pieces = pieces(batch, params, heads / geometry.kv_heads);
    let out = ops::with_host_f32(q, |q| {
        let call = Call { geometry, heads, q, layer };
        let spans = pieces.iter().map(|p| call.spans(p).len()).max().unwrap_or(0);
        if spans > 1 && pieces.len() * geometry.kv_heads < 2 * pool::threads() {
            call.by_spans(&pieces)
        } else {
            call.by_pieces(&pieces)
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

/// Refuses blocks that the pages do not have.
pub(crate) fn check_blocks(
    geometry: KvGeometry,
    batch: &AttnBatch<'_>,
    blocks: usize,
) -> Result<(), KvCodecError> {
    let all = batch.seqs.iter().flat_map(|s| s.blocks);
    let size = geometry.block_tokens;
    match all.map(|b| b.0 as usize).find(|&b| b >= blocks) {
        Some(bad) => Err(KvCodecError::Slot { slot: bad * size, slots: blocks * size }),
        None => Ok(()),
    }
}

/// Cuts the batch's query tokens into pieces of [`PIECE_ROWS`] rows.
fn pieces<'a>(batch: &AttnBatch<'a>, params: &'a AttnParams, group: usize) -> Vec<Piece<'a>> {
    let step = (PIECE_ROWS / group).max(1);
    let mut pieces = Vec::new();
    let mut first_row = 0;
    for &seq in &batch.seqs {
        let before = seq.kv_len - seq.q_len;
        let mut start = 0;
        while start < seq.q_len {
            let mut end = (start + step).min(seq.q_len);
            if let Some(exact) = seq.exact.filter(|e| e.tokens.recent_tokens > 0) {
                // All rows of a piece read the same blocks exactly.
                let next = exact.tokens.recent_from(before + start) + exact.tokens.recent_tokens;
                end = end.min(next - before);
            }
            let tokens = first_row + start..first_row + end;
            pieces.push(Piece { seq, params, tokens, first_end: before + start + 1, group });
            start = end;
        }
        first_row += seq.q_len;
    }
    pieces
}

/// What the tasks of one call share.
struct Call<'a, H> {
    geometry: KvGeometry,
    heads: usize,
    q: &'a [f32],
    layer: &'a H,
}

impl<H: Heads> Call<'_, H> {
    fn group(&self) -> usize {
        self.heads / self.geometry.kv_heads
    }

    /// One task for each piece and KV head.
    fn by_pieces(&self, pieces: &[Piece<'_>]) -> Vec<f32> {
        let ranges: Vec<_> = pieces.iter().map(|p| p.tokens.clone()).collect();
        let width = self.group() * self.geometry.head_dim;
        pool::grid(&ranges, self.geometry.kv_heads, width, |piece, kv_head, cell| {
            let piece = &pieces[piece];
            OWN.with_borrow_mut(|Own { scratch, total, out }| {
                self.start(piece, kv_head, scratch);
                for (i, span) in self.spans(piece).enumerate() {
                    let seen = self.attend(piece, kv_head, span, scratch);
                    if i == 0 {
                        total.clone_from(seen);
                    } else {
                        total.merge(seen);
                    }
                }
                self.finish(total, out, cell);
            });
        })
    }

    /// One task for each piece, KV head and span; for few rows over many keys.
    fn by_spans(&self, pieces: &[Piece<'_>]) -> Vec<f32> {
        let mut tasks = Vec::new();
        let mut first = Vec::new();
        for piece in pieces {
            for kv_head in 0..self.geometry.kv_heads {
                first.push(tasks.len());
                tasks.extend(self.spans(piece).map(|span| (piece, kv_head, span)));
            }
        }
        first.push(tasks.len());
        let mut parts = pool::map(tasks.len(), |task| {
            let (piece, kv_head, span) = tasks[task];
            OWN.with_borrow_mut(|Own { scratch, .. }| {
                self.start(piece, kv_head, scratch);
                self.attend(piece, kv_head, span, scratch).clone()
            })
        });
        // The first span of each piece and head takes the others in.
        let totals: Vec<_> = first
            .windows(2)
            .map(|own| {
                let mut total = std::mem::take(&mut parts[own[0]]);
                parts[own[0] + 1..own[1]].iter().for_each(|part| total.merge(part));
                total
            })
            .collect();
        let ranges: Vec<_> = pieces.iter().map(|p| p.tokens.clone()).collect();
        let width = self.group() * self.geometry.head_dim;
        pool::grid(&ranges, self.geometry.kv_heads, width, |piece, kv_head, cell| {
            let total = &totals[piece * self.geometry.kv_heads + kv_head];
            self.finish(total, &mut Vec::new(), cell);
        })
    }

    fn spans(&self, piece: &Piece<'_>) -> Range<usize> {
        let blocks = piece.blocks(self.geometry.block_tokens);
        blocks.start / SPAN_BLOCKS..blocks.end.div_ceil(SPAN_BLOCKS)
    }

    fn start(&self, piece: &Piece<'_>, kv_head: usize, scratch: &mut Scratch) {
        let (d, group) = (self.geometry.head_dim, self.group());
        scratch.q.clear();
        for row in piece.tokens.clone() {
            let at = (row * self.heads + kv_head * group) * d;
            let scaled = self.q[at..at + group * d].iter().map(|x| x * piece.params.scale);
            scratch.q.extend(scaled);
        }
        self.layer.start(piece, scratch);
    }

    fn attend<'s>(
        &self,
        piece: &Piece<'_>,
        kv_head: usize,
        span: usize,
        scratch: &'s mut Scratch,
    ) -> &'s Attended {
        let all = piece.blocks(self.geometry.block_tokens);
        let from = all.start.max(span * SPAN_BLOCKS) / STEP_BLOCKS * STEP_BLOCKS;
        let blocks = from..all.end.min((span + 1) * SPAN_BLOCKS);
        self.layer.attend(piece, kv_head, blocks, scratch)
    }

    fn finish(&self, total: &Attended, out: &mut Vec<f32>, cell: &mut GridCell) {
        let (d, group) = (self.geometry.head_dim, self.group());
        let width = total.width();
        out.resize(group * d + width, 0.0);
        let (token, row) = out.split_at_mut(group * d);
        for first in (0..total.rows()).step_by(group) {
            for (head, out) in token.chunks_exact_mut(d).enumerate() {
                total.finish(first + head, row);
                out.copy_from_slice(&row[..d]);
                self.layer.restore(out);
            }
            cell.push(token);
        }
    }
}
