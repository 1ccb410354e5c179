//! Paged attention over any codec whose blocks are floats or cheap to widen.

use crate::{
    ExactBlocks, KvCodecError, KvGeometry,
    drive::{
        self, FLOAT_SPAN_BLOCKS, HeadScratch, Heads, PIECE_ROWS, Piece, ROUNDED_ROWS,
        ROUNDED_STEP_BLOCKS, SPAN_BLOCKS, STEP_BLOCKS, Scratch,
    },
};
use std::ops::Range;
use taper_base::BlockId;
use taper_tensor::{
    Sinks, Tensor,
    cpu::{Arithmetic, Attended, FlashTile, Floats, HeadRows},
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
    /// Query tokens; they are the last of the sequence's `kv_len` tokens.
    pub q_len: usize,
    /// Tokens of the sequence in the cache, this step's included.
    pub kv_len: usize,
    /// Blocks of the sequence, in order.
    pub blocks: &'a [BlockId],
    /// What is kept exactly of them; `None` reads codes only.
    pub exact: Option<ExactBlocks<'a>>,
    /// What all query tokens see beside what their places let them see.
    pub together: Option<Together>,
}

/// Tokens of a sequence that query tokens see, whichever come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Together {
    /// The first of them, where the window is no limit to it.
    pub from: Option<usize>,
    /// Tokens of the sequence up to the last of them. All are in the cache.
    pub end: usize,
}

impl SeqSpan<'_> {
    /// Tokens of the sequence of which its queries see some.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.together.map_or(self.kv_len, |together| together.end.max(self.kv_len))
    }
}

/// Tokens of a step that see each other, whichever come first: those of an image, or of a whole prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mutual<'a> {
    /// Ascending, and each of one sequence.
    pub spans: &'a [MutualSpan],
    /// Windows are no limit to them.
    pub past_window: bool,
}

/// Consecutive tokens of a step that see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MutualSpan {
    /// Index in the step of the first of them.
    pub start: u32,
    /// Index in the step behind the last of them.
    pub end: u32,
    /// Tokens of the span that come before those of the step, and are in the cache.
    pub before: u32,
}

/// What attention computes, beside the operands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttnParams<'a> {
    /// Factor of `q · k`, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// A token sees itself and the `window - 1` tokens before it.
    pub window: Option<usize>,
    /// A token sees those of its own chunk of so many alone: a cache cuts its batches so, and codecs refuse what is
    /// not cut (Llama 4).
    pub chunk: Option<usize>,
    /// Tokens that see each other: a cache cuts its batches so, and codecs refuse what is not cut.
    pub mutual: Mutual<'a>,
    /// `cap * tanh(score / cap)` before the softmax.
    pub soft_cap: Option<f32>,
    /// Scores that join each query head's softmax and have no value.
    pub sinks: Option<&'a Sinks>,
    /// Elements of a value that is the end of its key. The result has these alone.
    pub value_dim: Option<usize>,
    /// Whether operands may be rounded. Codecs and GPUs that have one arithmetic keep to it.
    pub arithmetic: Arithmetic,
}

impl AttnParams<'_> {
    /// Over all tokens, as exact as the codec has it.
    #[must_use]
    pub const fn new(scale: f32) -> Self {
        Self {
            scale,
            window: None,
            chunk: None,
            mutual: Mutual { spans: &[], past_window: false },
            soft_cap: None,
            sinks: None,
            value_dim: None,
            arithmetic: Arithmetic::Exact,
        }
    }
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
    /// Values of a head's tokens.
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
    params: &AttnParams<'_>,
) -> Result<Tensor, KvCodecError> {
    drive::attend(geometry, q, &Floating { geometry, reader }, batch, params)
}

/// Like [`attend_blocks`], but applies QK-norm and RoPE to the queries first.
pub(crate) fn attend_block_rows(
    geometry: KvGeometry,
    q: HeadRows<'_>,
    reader: &dyn BlockReader,
    batch: &AttnBatch<'_>,
    params: &AttnParams<'_>,
) -> Result<Tensor, KvCodecError> {
    drive::attend_rows(geometry, q, &Floating { geometry, reader }, batch, params)
}

/// Heads whose blocks are read as floats.
struct Floating<'a> {
    geometry: KvGeometry,
    reader: &'a dyn BlockReader,
}

impl Floating<'_> {
    fn rounds(&self, params: &AttnParams<'_>) -> bool {
        let d = self.geometry.head_dim;
        params.arithmetic == Arithmetic::Rounded && FlashTile::rounds(d, d)
    }

    /// Some blocks of few query rows, whose keys and values are read in place: first all heads' keys, then
    /// all their values, in the order in which memory has them.
    fn step_in_order(
        &self,
        piece: &Piece<'_>,
        kv_heads: Range<usize>,
        (blocks, end): (Range<usize>, usize),
        heads: &mut [HeadScratch],
    ) {
        let (size, all) = (self.geometry.block_tokens, kv_heads.len());
        let first = blocks.start * size;
        let tokens = first..(blocks.end * size).min(piece.seq.tokens());
        let page = |place: usize| {
            let block = piece.seq.blocks[..end].get(place / all)?;
            self.reader.in_place(*block, kv_heads.start + place % all)
        };
        // Of a page: its head, the first of its tokens in the step, and how many elements of it are used.
        let used = |place: usize| {
            let from = place / all * size - first;
            (place % all, from, size.min(tokens.len() - from) * self.geometry.head_dim)
        };
        let places = blocks.start * all..blocks.end * all;
        heads.iter_mut().for_each(|head| head.tile.expect(tokens.len()));
        each_page(
            places.clone(),
            |place| page(place).map(|(k, _)| k),
            |place, k, next| {
                let (head, from, n) = used(place);
                heads[head].tile.score(from, k.slice(0..n), next);
            },
        );
        for head in &mut *heads {
            head.tile.soften(|row| piece.sees_of(row, tokens.clone()));
        }
        each_page(
            places,
            |place| page(place).map(|(_, v)| v),
            |place, v, next| {
                let (head, from, n) = used(place);
                heads[head].tile.weigh(from, v.slice(0..n), next);
            },
        );
    }
}

/// Calls `visit` with every page, and the two after it.
fn each_page<'a>(
    places: Range<usize>,
    page: impl Fn(usize) -> Option<Floats<'a>>,
    mut visit: impl FnMut(usize, Floats<'a>, [Option<Floats<'a>>; 2]),
) {
    let mut ahead = [0, 1].map(|i| page(places.start + i));
    for place in places {
        let [this, next] = ahead;
        ahead = [next, page(place + 2)];
        if let Some(this) = this {
            visit(place, this, ahead);
        }
    }
}

impl Heads for Floating<'_> {
    fn piece_rows(&self, params: &AttnParams<'_>) -> usize {
        if self.rounds(params) { ROUNDED_ROWS } else { PIECE_ROWS }
    }

    fn step_blocks(&self, params: &AttnParams<'_>) -> usize {
        if self.rounds(params) { ROUNDED_STEP_BLOCKS } else { STEP_BLOCKS }
    }

    fn span_blocks(&self, params: &AttnParams<'_>) -> usize {
        if self.rounds(params) { SPAN_BLOCKS } else { FLOAT_SPAN_BLOCKS }
    }

    fn start(&self, piece: &Piece<'_>, q: &[f32], head: &mut HeadScratch) {
        let AttnParams { soft_cap, arithmetic, .. } = *piece.params;
        head.tile.start(q, piece.len(), self.geometry.head_dim, soft_cap, arithmetic);
    }

    fn attend(
        &self,
        piece: &Piece<'_>,
        kv_heads: Range<usize>,
        span: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let size = self.geometry.block_tokens;
        let Scratch { heads, blocks: room, .. } = scratch;
        heads.iter_mut().for_each(|head| head.tile.restart());
        let together = self.step_blocks(piece.params);
        let in_order = FlashTile::reads_in_place(piece.len()) && !self.rounds(piece.params);
        for step in span.clone().step_by(together) {
            let blocks = step..(step + together).min(span.end);
            if in_order && self.reader.in_place(piece.seq.blocks[step], kv_heads.start).is_some() {
                self.step_in_order(piece, kv_heads.clone(), (blocks, span.end), heads);
                continue;
            }
            // Blocks are read whole but for the sequence's last, so that a row's sums are cut at
            // the same positions whatever else is in the step.
            let tokens = step * size..(blocks.end * size).min(piece.seq.tokens());
            let at = |i: usize, kv_head| {
                let block = piece.seq.blocks[..span.end].get(i)?;
                self.reader.in_place(*block, kv_head)
            };
            for (head, kv_head) in heads.iter_mut().zip(kv_heads.clone()) {
                let last = kv_head + 1 == kv_heads.end;
                let next = [0, 1].map(|i| {
                    if last {
                        at(blocks.end + i, kv_heads.start)
                    } else {
                        at(step + i, kv_head + 1)
                    }
                });
                let mut pages = [(Floats::F32(&[]), Floats::F32(&[])); ROUNDED_STEP_BLOCKS];
                let read = pages.iter_mut().zip(&mut *room).zip(blocks.clone());
                for ((page, (k, v)), index) in read {
                    let n = size.min(piece.seq.tokens() - index * size);
                    let block = piece.seq.blocks[index];
                    let reader = self.reader;
                    *page = (reader.k(block, kv_head, n, k), reader.v(block, kv_head, n, v));
                }
                let seen = |row| piece.sees_of(row, tokens.clone());
                head.tile.step(&pages[..blocks.len()], next, seen);
            }
        }
        heads.iter_mut().for_each(|head| head.tile.settle());
    }

    fn seen<'s>(&self, head: &'s HeadScratch) -> &'s Attended {
        head.tile.state()
    }
}
