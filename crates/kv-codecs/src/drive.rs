//! How a step's attention is shared out: tiles of query rows, KV heads, and spans of keys.

use crate::{
    AttnBatch, AttnParams, KvCodecError, KvGeometry, SeqSpan, Together,
    side::{CodedHead, CodedScratch},
};
use std::{cell::RefCell, ops::Range};
use taper_base::BlockId;
use taper_tensor::{
    Sinks, Tensor,
    cpu::{Attended, FlashTile, HeadRows},
    ops,
    pool::{self, GridCell},
    split_heads_at,
};

/// What [`AttnParams::chunk`] and [`AttnParams::mutual`] are refused with.
pub(crate) const WHOLE: &str = "sequences that are cut at chunks and at tokens that see each other";
/// Query rows that walk over the keys together: enough to reuse a widened block, few enough to
/// stay in the first-level cache.
pub(crate) const PIECE_ROWS: usize = 64;
/// [`PIECE_ROWS`] for arithmetic that repacks keys and values one step at a time. The repacked step stays in
/// the second-level cache.
pub(crate) const ROUNDED_ROWS: usize = 1024;
/// Blocks whose scores go through the softmax together.
pub(crate) const STEP_BLOCKS: usize = 4;
/// [`STEP_BLOCKS`] for steps of [`ROUNDED_ROWS`]: their weighted sums go through memory once a step.
pub(crate) const ROUNDED_STEP_BLOCKS: usize = 8;
/// Blocks after which a row's softmax starts anew, to be merged with what was before. Where a step
/// has too few rows for all threads, these spans are shared out; the cut is the same for all steps of one
/// arithmetic, so that no result depends on who computed it.
pub(crate) const SPAN_BLOCKS: usize = 64;
/// [`SPAN_BLOCKS`] for a cache of plain floats. These spans are short enough that one task takes all KV heads,
/// and so reads memory in order.
pub(crate) const FLOAT_SPAN_BLOCKS: usize = 16;
/// Query rows up to which a task takes several KV heads: the heads of a block lie one after the other,
/// and memory is read fastest in one go. More rows are better kept in the cache.
const FEW_ROWS: usize = 16;
/// Tasks a thread, at least, so that all end at about the same time.
const TASKS: usize = 4;

/// Some query tokens of one sequence.
pub(crate) struct Piece<'a> {
    pub(crate) seq: SeqSpan<'a>,
    pub(crate) params: &'a AttnParams<'a>,
    /// Rows of the query tokens in the batch.
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
        let start = self.params.window.map_or(0, |w| end.saturating_sub(w));
        match self.seq.together {
            Some(Together { from, end: last }) => start.min(from.unwrap_or(start))..end.max(last),
            None => start..end,
        }
    }

    /// Positions that a row attends to among `tokens`, counted from the first of these.
    pub(crate) fn sees_of(&self, row: usize, tokens: Range<usize>) -> Range<usize> {
        let clamp = |x: usize| x.clamp(tokens.start, tokens.end) - tokens.start;
        let seen = self.sees(row);
        clamp(seen.start)..clamp(seen.end)
    }

    /// Where the exact rows of a block are, if these rows read it exactly.
    pub(crate) fn exact(&self, index: usize, block_tokens: usize) -> Option<BlockId> {
        let exact = self.seq.exact?;
        let reads = exact.reads(self.first_end - 1, index * block_tokens);
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
    /// One of each KV head that a task has.
    pub(crate) heads: Vec<HeadScratch>,
    /// Keys and values of each block of a step.
    pub(crate) blocks: [(Vec<f32>, Vec<f32>); ROUNDED_STEP_BLOCKS],
    pub(crate) coded: CodedScratch,
    /// Query rows of a head, scaled.
    q: Vec<f32>,
}

/// A KV head's query rows and their attention so far; one field or the other is in use.
#[derive(Debug, Default)]
pub(crate) struct HeadScratch {
    pub(crate) tile: FlashTile,
    pub(crate) coded: CodedHead,
}

#[derive(Default)]
struct Own {
    scratch: Scratch,
    totals: Vec<Attended>,
    out: Vec<f32>,
}

thread_local! {
    static OWN: RefCell<Own> = RefCell::default();
}

/// The keys and values of one layer, by head.
pub(crate) trait Heads: Sync {
    /// Query rows that best walk over the keys together.
    fn piece_rows(&self, _params: &AttnParams<'_>) -> usize {
        PIECE_ROWS
    }

    /// Blocks whose scores go through the softmax together.
    fn step_blocks(&self, _params: &AttnParams<'_>) -> usize {
        STEP_BLOCKS
    }

    /// Blocks of a span, whole steps.
    fn span_blocks(&self, _params: &AttnParams<'_>) -> usize {
        SPAN_BLOCKS
    }

    /// Takes the query rows of a KV head, `[rows, head_dim]`, scaled.
    fn start(&self, piece: &Piece<'_>, q: &[f32], head: &mut HeadScratch);

    /// Attends to a span of blocks of some KV heads, `scratch` having one of each, and to nothing
    /// that was attended to before. A span starts at the beginning of a step.
    fn attend(
        &self,
        piece: &Piece<'_>,
        kv_heads: Range<usize>,
        span: Range<usize>,
        scratch: &mut Scratch,
    );

    /// Attention of a head's rows so far.
    fn seen<'s>(&self, head: &'s HeadScratch) -> &'s Attended;

    /// Brings an attended row back from the values' space.
    fn restore(&self, _row: &mut [f32]) {}
}

/// Causal grouped-query attention of queries as they are, `q [t, heads, head_dim]`.
pub(crate) fn attend(
    geometry: KvGeometry,
    q: &Tensor,
    layer: &impl Heads,
    batch: &AttnBatch<'_>,
    params: &AttnParams<'_>,
) -> Result<Tensor, KvCodecError> {
    let &[_, heads, d] = q.dims() else {
        let expected = "q [t, heads, head_dim]";
        return Err(KvCodecError::Shape { expected, got: q.dims().to_vec() });
    };
    ops::with_host_f32(q, |q| {
        attend_rows(geometry, HeadRows::plain(q, heads, d), layer, batch, params)
    })?
}

/// Like [`attend`], but applies QK-norm and RoPE to the queries first.
pub(crate) fn attend_rows(
    geometry: KvGeometry,
    q: HeadRows<'_>,
    layer: &impl Heads,
    batch: &AttnBatch<'_>,
    params: &AttnParams<'_>,
) -> Result<Tensor, KvCodecError> {
    let (t, heads) = check(geometry, q, batch, params)?;
    let group = heads / geometry.kv_heads;
    let rows = piece_rows(layer.piece_rows(params), t * group, geometry.kv_heads);
    let pieces = pieces(batch, params, (group, rows));
    let span = layer.span_blocks(params);
    let sinks = params.sinks.map(Sinks::scores);
    let mut call = Call { geometry, heads, q, layer, span, sinks, together: 1 };
    let most = pieces.iter().map(|p| call.spans(p).len()).max().unwrap_or(0);
    call.together = together(&pieces, geometry.kv_heads, most);
    let out = if most > 1 && pieces.len() * call.parts() < TASKS * pool::threads() {
        call.by_spans(&pieces)
    } else {
        call.by_pieces(&pieces)
    };
    values(Tensor::from_vec(out, &[t, heads, geometry.head_dim])?, params)
}

/// What attention's rows have of values: all, or their ends.
///
/// # Shapes
/// `[t, heads, head_dim]` -> `[t, heads, value_dim]`.
///
/// # Errors
/// Values are larger than keys.
pub(crate) fn values(out: Tensor, params: &AttnParams<'_>) -> Result<Tensor, KvCodecError> {
    let (&[t, heads, d], Some(n)) = (out.dims(), params.value_dim) else { return Ok(out) };
    let Some(before) = d.checked_sub(n) else {
        return Err(KvCodecError::Shape { expected: "values within keys", got: vec![n] });
    };
    let [_, ends] = split_heads_at(&out.reshape(&[t, heads * d])?, d, before)?;
    Ok(ends.reshape(&[t, heads, n])?)
}

fn check(
    geometry: KvGeometry,
    q: HeadRows<'_>,
    batch: &AttnBatch<'_>,
    params: &AttnParams<'_>,
) -> Result<(usize, usize), KvCodecError> {
    let [t, heads, d] = q.dims();
    let shape = |expected| KvCodecError::Shape { expected, got: q.dims().to_vec() };
    if params.chunk.is_some() || !params.mutual.spans.is_empty() {
        return Err(shape(WHOLE));
    }
    if params.sinks.is_some_and(|sinks| sinks.scores().len() != heads) {
        return Err(shape("q with as many heads as there are sinks"));
    }
    if d != geometry.head_dim || heads == 0 || !heads.is_multiple_of(geometry.kv_heads) {
        return Err(shape("q with the cache's head_dim and a multiple of its heads"));
    }
    if batch.seqs.iter().map(|s| s.q_len).sum::<usize>() != t {
        return Err(shape("as many query tokens as the batch describes"));
    }
    for seq in &batch.seqs {
        let slots = seq.blocks.len() * geometry.block_tokens;
        if seq.tokens() > slots || seq.q_len > seq.kv_len {
            return Err(KvCodecError::Slot { slot: seq.tokens().max(seq.q_len), slots });
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

/// At most `best`, a power of two, so that there are tasks for all threads.
fn piece_rows(best: usize, rows: usize, kv_heads: usize) -> usize {
    let mut piece = best;
    while piece > PIECE_ROWS && rows.div_ceil(piece) * kv_heads < TASKS * pool::threads() {
        piece /= 2;
    }
    piece
}

/// Cuts the batch's query tokens into tiles of `rows` query rows, of which a token has `group`.
fn pieces<'a>(
    batch: &AttnBatch<'a>,
    params: &'a AttnParams<'a>,
    (group, rows): (usize, usize),
) -> Vec<Piece<'a>> {
    let step = (rows / group).max(1);
    let mut pieces = Vec::new();
    let mut first_row = 0;
    for &seq in &batch.seqs {
        let before = seq.kv_len - seq.q_len;
        let mut start = 0;
        while start < seq.q_len {
            let mut end = (start + step).min(seq.q_len);
            if let Some(exact) = seq.exact.filter(|e| e.tokens.recent_tokens > 0) {
                // All rows of a tile read the same blocks exactly.
                let next = exact.recent_from(before + start) + exact.tokens.recent_tokens;
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

/// How many KV heads a task takes.
fn together(pieces: &[Piece<'_>], kv_heads: usize, spans: usize) -> usize {
    if pieces.iter().any(|p| p.len() > FEW_ROWS) {
        return 1;
    }
    let enough = |&n: &usize| {
        let parts = pieces.len() * spans * (kv_heads / n);
        kv_heads.is_multiple_of(n) && parts >= TASKS * pool::threads()
    };
    (1..=kv_heads).rev().find(enough).unwrap_or(1)
}

/// What the tasks of one call share.
struct Call<'a, H> {
    geometry: KvGeometry,
    heads: usize,
    q: HeadRows<'a>,
    layer: &'a H,
    /// Blocks of a span.
    span: usize,
    sinks: Option<&'a [f32]>,
    /// KV heads of a task.
    together: usize,
}

impl<H: Heads> Call<'_, H> {
    fn group(&self) -> usize {
        self.heads / self.geometry.kv_heads
    }

    /// The spans that a tile's blocks are in.
    fn spans(&self, piece: &Piece<'_>) -> Range<usize> {
        let blocks = piece.blocks(self.geometry.block_tokens);
        blocks.start / self.span..blocks.end.div_ceil(self.span)
    }

    /// Parts that the KV heads are in.
    fn parts(&self) -> usize {
        self.geometry.kv_heads / self.together
    }

    /// Elements of a row of a part.
    fn width(&self) -> usize {
        self.together * self.group() * self.geometry.head_dim
    }

    /// One task for each tile and part.
    fn by_pieces(&self, pieces: &[Piece<'_>]) -> Vec<f32> {
        let ranges: Vec<_> = pieces.iter().map(|p| p.tokens.clone()).collect();
        pool::grid(&ranges, self.parts(), self.width(), |piece, part, cell| {
            let piece = &pieces[piece];
            OWN.with_borrow_mut(|Own { scratch, totals, out }| {
                self.start(piece, part, scratch);
                let spans = self.spans(piece);
                if spans.len() == 1 {
                    self.attend(piece, part, spans.start, scratch);
                    let seen = |head: usize| self.layer.seen(&scratch.heads[head]);
                    return self.finish(part, seen, out, cell);
                }
                totals.resize_with(self.together, Attended::default);
                for (i, span) in spans.enumerate() {
                    self.attend(piece, part, span, scratch);
                    for (total, head) in totals.iter_mut().zip(&scratch.heads) {
                        let seen = self.layer.seen(head);
                        if i == 0 {
                            total.clone_from(seen);
                        } else {
                            total.merge(seen);
                        }
                    }
                }
                self.finish(part, |head| &totals[head], out, cell);
            });
        })
    }

    /// One task for each tile, part and span; for few rows over many keys.
    fn by_spans(&self, pieces: &[Piece<'_>]) -> Vec<f32> {
        let mut tasks = Vec::new();
        let mut first = Vec::new();
        for piece in pieces {
            for part in 0..self.parts() {
                first.push(tasks.len());
                tasks.extend(self.spans(piece).map(|span| (piece, part, span)));
            }
        }
        first.push(tasks.len());
        let mut seen = pool::map(tasks.len(), |task| {
            let (piece, part, span) = tasks[task];
            OWN.with_borrow_mut(|Own { scratch, .. }| {
                self.start(piece, part, scratch);
                self.attend(piece, part, span, scratch);
                let heads = scratch.heads.iter();
                heads.map(|head| self.layer.seen(head).clone()).collect::<Vec<_>>()
            })
        });
        // The first span of each tile and part takes the others in.
        let totals: Vec<_> = first
            .windows(2)
            .map(|own| {
                let mut totals = std::mem::take(&mut seen[own[0]]);
                for seen in &seen[own[0] + 1..own[1]] {
                    totals.iter_mut().zip(seen).for_each(|(total, seen)| total.merge(seen));
                }
                totals
            })
            .collect();
        let ranges: Vec<_> = pieces.iter().map(|p| p.tokens.clone()).collect();
        pool::grid(&ranges, self.parts(), self.width(), |piece, part, cell| {
            let totals = &totals[piece * self.parts() + part];
            self.finish(part, |head| &totals[head], &mut Vec::new(), cell);
        })
    }

    fn start(&self, piece: &Piece<'_>, part: usize, scratch: &mut Scratch) {
        let (d, group) = (self.geometry.head_dim, self.group());
        let Scratch { heads, q, .. } = scratch;
        heads.resize_with(self.together, HeadScratch::default);
        q.resize(piece.len() * d, 0.0);
        for (i, head) in heads.iter_mut().enumerate() {
            let first = (part * self.together + i) * group;
            for (row, out) in q.chunks_exact_mut(d).enumerate() {
                let token = piece.tokens.start + row / group;
                self.q.turn(token, first + row % group, piece.params.scale, out);
            }
            self.layer.start(piece, q, head);
        }
    }

    fn attend(&self, piece: &Piece<'_>, part: usize, span: usize, scratch: &mut Scratch) {
        let all = piece.blocks(self.geometry.block_tokens);
        let step = self.layer.step_blocks(piece.params);
        let from = all.start.max(span * self.span) / step * step;
        let blocks = from..all.end.min((span + 1) * self.span);
        let kv_heads = part * self.together..(part + 1) * self.together;
        self.layer.attend(piece, kv_heads, blocks, scratch);
    }

    /// Writes the attention output of a part's heads, token by token.
    fn finish<'s>(
        &self,
        part: usize,
        seen: impl Fn(usize) -> &'s Attended,
        out: &mut Vec<f32>,
        cell: &mut GridCell<'_>,
    ) {
        let (d, group) = (self.geometry.head_dim, self.group());
        let (rows, wide) = (seen(0).rows(), seen(0).width());
        out.resize(self.width() + wide, 0.0);
        let (token, row) = out.split_at_mut(self.width());
        let first_head = part * self.together * group;
        for first in (0..rows).step_by(group) {
            for (head, out) in token.chunks_exact_mut(d).enumerate() {
                let (seen, at) = (seen(head / group), first + head % group);
                let sink = self.sinks.map(|sinks| sinks[first_head + head]);
                if wide == d {
                    seen.finish(at, sink, out);
                } else {
                    seen.finish(at, sink, row);
                    out.copy_from_slice(&row[..d]);
                }
                self.layer.restore(out);
            }
            cell.push(token);
        }
    }
}
