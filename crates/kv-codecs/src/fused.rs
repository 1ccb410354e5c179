//! Attention over head regions as they lie: queries are rotated and rounded once, each block's
//! codes are expanded once for all query heads of a KV head, the output is rotated back once.

use crate::{
    AttnBatch, AttnParams, KvCodecError, KvGeometry, SeqSpan,
    paged::Plan,
    side::{Precision, Queries, Scratch},
};
use std::{cell::RefCell, ops::Range};
use taper_tensor::{
    Tensor,
    cpu::codes::{Row, TILE_ROWS, soften},
    ops, pool,
};

/// A layer's pages and how to read them.
pub(crate) struct Pages<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) geometry: KvGeometry,
    /// Bytes, and bytes of a head region.
    pub(crate) k: (&'a [u8], usize),
    pub(crate) v: (&'a [u8], usize),
    pub(crate) precision: Precision,
}

/// Query rows that share an expanded block.
const ROWS: usize = 64;

/// Keys after which a sequence's walk is cut: the pieces can run side by side. Where the cuts are
/// depends on nothing but the keys' positions, so that a row's sums do not either.
const SPAN_TOKENS: usize = 8192;

/// Some query tokens of one sequence, for one KV head, over some of its keys.
#[derive(Debug, Clone)]
struct Task<'a> {
    seq: SeqSpan<'a>,
    kv_head: usize,
    /// Row of the sequence's first query token in the batch.
    first_row: usize,
    /// Query tokens, counted within the sequence's step.
    tokens: Range<usize>,
    keys: Range<usize>,
}

impl Task<'_> {
    /// Position of the first query token.
    fn base(&self) -> usize {
        self.seq.kv_len - self.seq.q_len + self.tokens.start
    }

    /// What a query token of the task sees.
    fn sees(&self, token: usize, window: Option<usize>) -> Range<usize> {
        let end = self.base() + token + 1;
        window.map_or(0, |w| end.saturating_sub(w))..end
    }
}

/// Softmax attention of some rows over some keys, not yet divided by the sum of the weights.
#[derive(Debug, Clone, Default)]
struct Partial {
    max: Vec<f32>,
    sum: Vec<f32>,
    /// `[rows, width]`.
    acc: Vec<f32>,
}

impl Partial {
    fn new(rows: usize, width: usize) -> Self {
        Self {
            max: vec![f32::NEG_INFINITY; rows],
            sum: vec![0.0; rows],
            acc: vec![0.0; rows * width],
        }
    }

    /// Takes in the rows' attention over further keys.
    fn merge(&mut self, other: &Self) {
        let width = self.acc.len() / self.max.len();
        let rows = self.acc.chunks_exact_mut(width).zip(other.acc.chunks_exact(width));
        for (row, (acc, more)) in rows.enumerate() {
            let max = self.max[row].max(other.max[row]);
            if max == f32::NEG_INFINITY {
                continue;
            }
            let (mine, theirs) = ((self.max[row] - max).exp(), (other.max[row] - max).exp());
            self.sum[row] = self.sum[row] * mine + other.sum[row] * theirs;
            acc.iter_mut().zip(more).for_each(|(a, b)| *a = *a * mine + b * theirs);
            self.max[row] = max;
        }
    }
}

#[derive(Default)]
struct Buffers {
    q: Queries,
    scores: Vec<f32>,
    scratch: Scratch,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// Causal grouped-query attention.
pub(crate) fn attend(
    pages: &Pages<'_>,
    q: &Tensor,
    batch: &AttnBatch<'_>,
    params: &AttnParams,
) -> Result<Tensor, KvCodecError> {
    let g = pages.geometry;
    let (t, heads) = check(pages, q, batch)?;
    let (group, d) = (heads / g.kv_heads, g.head_dim);
    let tasks = tasks(g, batch, group, params.window);
    let partials = ops::with_host_f32(q, |q| -> Vec<Partial> {
        pool::map(tasks.len(), |i| run(pages, q, heads, &tasks[i], params))
    })?;
    let mut out = vec![0.0; t * heads * d];
    let mut whole = Partial::default();
    for (i, (task, partial)) in tasks.iter().zip(partials).enumerate() {
        // The spans of the same rows follow each other.
        if i > 0 && same_rows(task, &tasks[i - 1]) {
            whole.merge(&partial);
        } else {
            whole = partial;
        }
        if tasks.get(i + 1).is_some_and(|next| same_rows(task, next)) {
            continue;
        }
        let width = pages.plan.v.width();
        for (row, acc) in whole.acc.chunks_exact(width).enumerate() {
            let (token, head) =
                (task.tokens.start + row / group, task.kv_head * group + row % group);
            let out = &mut out[((task.first_row + token) * heads + head) * d..][..d];
            let scale = if whole.sum[row] > 0.0 { 1.0 / whole.sum[row] } else { 0.0 };
            out.iter_mut().zip(acc).for_each(|(o, a)| *o = a * scale);
            pages.plan.v.restore(out);
        }
    }
    Ok(ops::from_host_f32(out, &[t, heads, d])?)
}

fn same_rows(a: &Task<'_>, b: &Task<'_>) -> bool {
    (a.first_row, &a.tokens, a.kv_head) == (b.first_row, &b.tokens, b.kv_head)
}

fn check(
    pages: &Pages<'_>,
    q: &Tensor,
    batch: &AttnBatch<'_>,
) -> Result<(usize, usize), KvCodecError> {
    let g = pages.geometry;
    let shape = |expected| KvCodecError::Shape { expected, got: q.dims().to_vec() };
    let &[t, heads, d] = q.dims() else { return Err(shape("q [t, heads, head_dim]")) };
    if d != g.head_dim || heads == 0 || !heads.is_multiple_of(g.kv_heads) {
        return Err(shape("q with the cache's head_dim and a multiple of its heads"));
    }
    if batch.seqs.iter().map(|s| s.q_len).sum::<usize>() != t {
        return Err(shape("as many query tokens as the batch describes"));
    }
    let blocks = |(bytes, region): (&[u8], usize)| bytes.len() / (region * g.kv_heads);
    let blocks = blocks(pages.k).min(blocks(pages.v));
    for seq in &batch.seqs {
        let slots = seq.blocks.len() * g.block_tokens;
        if seq.kv_len > slots || seq.q_len > seq.kv_len {
            return Err(KvCodecError::Slot { slot: seq.kv_len.max(seq.q_len), slots });
        }
        if let Some(bad) = seq.blocks.iter().find(|b| b.0 as usize >= blocks) {
            let slot = bad.0 as usize * g.block_tokens;
            return Err(KvCodecError::Slot { slot, slots: blocks * g.block_tokens });
        }
    }
    Ok((t, heads))
}

fn tasks<'a>(
    g: KvGeometry,
    batch: &AttnBatch<'a>,
    group: usize,
    window: Option<usize>,
) -> Vec<Task<'a>> {
    let step = (ROWS / group).max(1);
    let span = SPAN_TOKENS.next_multiple_of(g.block_tokens);
    let mut tasks = Vec::new();
    let mut first_row = 0;
    for &seq in &batch.seqs {
        for start in (0..seq.q_len).step_by(step) {
            let tokens = start..(start + step).min(seq.q_len);
            for kv_head in 0..g.kv_heads {
                let rows = Task { seq, kv_head, first_row, tokens: tokens.clone(), keys: 0..0 };
                let first = rows.sees(0, window).start / span * span;
                let last = rows.sees(tokens.len() - 1, window).end;
                tasks.extend(
                    (first..last)
                        .step_by(span)
                        .map(|from| Task { keys: from..(from + span).min(last), ..rows.clone() }),
                );
            }
        }
        first_row += seq.q_len;
    }
    tasks
}

/// Attention of a task's rows, `[tokens, group]`.
fn run(
    pages: &Pages<'_>,
    q: &[f32],
    heads: usize,
    task: &Task<'_>,
    params: &AttnParams,
) -> Partial {
    let (g, plan, precision) = (pages.geometry, pages.plan, pages.precision);
    let (d, size, group) = (g.head_dim, g.block_tokens, heads / g.kv_heads);
    let (rows, width) = (task.tokens.len() * group, plan.v.width());
    let mut partial = Partial::new(rows, width);
    BUFFERS.with_borrow_mut(|Buffers { q: queries, scores, scratch }| {
        let Queries { floats, int8 } = queries;
        floats.clear();
        for token in task.tokens.clone() {
            let at = ((task.first_row + token) * heads + task.kv_head * group) * d;
            floats.extend(q[at..at + group * d].iter().map(|x| x * params.scale));
        }
        plan.k.rotate(floats);
        if plan.k.wants_int8() {
            int8.set(floats, d);
        }
        let seen_from = task.sees(0, params.window).start;
        for index in task.keys.start.max(seen_from) / size..task.keys.end.div_ceil(size) {
            let start = index * size;
            // Blocks are read whole but for the sequence's last, so that a row's sums are cut at
            // the same places whatever else is in the step.
            let n = size.min(task.seq.kv_len - start);
            let padded = n.next_multiple_of(TILE_ROWS);
            let region = |(bytes, len): (&'_ [u8], usize)| -> Range<usize> {
                let at = (task.seq.blocks[index].0 as usize * g.kv_heads + task.kv_head) * len;
                debug_assert!(at + len <= bytes.len());
                at..at + len
            };
            scores.resize(rows * padded, 0.0);
            let k = &pages.k.0[region(pages.k)];
            plan.k.scores(k, queries, padded, precision, scratch, scores);
            for (row, scores) in scores.chunks_exact_mut(padded).enumerate() {
                let seen = task.sees(row / group, params.window);
                let clamp = |x: usize| x.clamp(start, start + n) - start;
                let mut state = Row {
                    max: &mut partial.max[row],
                    sum: &mut partial.sum[row],
                    acc: &mut partial.acc[row * width..][..width],
                };
                soften(scores, clamp(seen.start)..clamp(seen.end), params.soft_cap, &mut state);
            }
            let v = &pages.v.0[region(pages.v)];
            plan.v.add(v, scores, padded, precision, scratch, &mut partial.acc);
        }
    });
    partial
}
