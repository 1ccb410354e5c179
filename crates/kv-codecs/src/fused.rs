//! Attention over head regions as they lie: queries are rotated and rounded once, each block's
//! codes are expanded once for all query heads of a KV head, the output is rotated back once. The
//! heads of a block are read one after the other, as they stand in memory, keys of a few blocks and
//! then their values.

use crate::{
    AttnBatch, AttnParams, KvCodecError, KvGeometry,
    drive::{self, HeadScratch, Heads, Piece, STEP_BLOCKS, Scratch},
    exact,
    paged::Plan,
    side::{CodedHead, CodedScratch, Precision, Region},
};
use std::ops::Range;
use taper_base::BlockId;
use taper_tensor::{
    Tensor,
    cpu::{Attended, codes::TILE_ROWS},
};

/// Head regions between that which is read and that which is prefetched meanwhile: one takes as long as
/// memory does to answer.
const AHEAD: usize = 6;

/// A layer's pages and how to read them.
pub(crate) struct Pages<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) geometry: KvGeometry,
    /// Bytes, and bytes of a head region.
    pub(crate) k: (&'a [u8], usize),
    pub(crate) v: (&'a [u8], usize),
    pub(crate) exact_k: (&'a [u8], usize),
    pub(crate) exact_v: (&'a [u8], usize),
    pub(crate) precision: Precision,
}

/// Causal grouped-query attention.
pub(crate) fn attend(
    pages: &Pages<'_>,
    q: &Tensor,
    batch: &AttnBatch<'_>,
    params: &AttnParams,
) -> Result<Tensor, KvCodecError> {
    let g = pages.geometry;
    let blocks = |(bytes, region): (&[u8], usize)| bytes.len() / (region * g.kv_heads);
    drive::check_blocks(g, batch, blocks(pages.k).min(blocks(pages.v)))?;
    exact::check(g, batch, blocks(pages.exact_k).min(blocks(pages.exact_v)))?;
    drive::attend(g, q, pages, batch, params)
}

impl Heads for Pages<'_> {
    fn start(&self, _: &Piece<'_>, q: &[f32], head: &mut HeadScratch) {
        let queries = &mut head.coded.q;
        queries.floats.clear();
        queries.floats.extend_from_slice(q);
        self.plan.k.rotate(&mut queries.floats);
        self.plan.k.round(queries);
    }

    fn attend(
        &self,
        piece: &Piece<'_>,
        kv_heads: Range<usize>,
        span: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let Scratch { heads, coded, .. } = scratch;
        for head in &mut *heads {
            head.coded.state.clear(piece.len(), self.plan.v.width());
        }
        for first in span.clone().step_by(STEP_BLOCKS) {
            let blocks = first..(first + STEP_BLOCKS).min(span.end);
            let step =
                Step { pages: self, piece, kv_heads: kv_heads.clone(), blocks, end: span.end };
            step.score(heads, coded);
            for head in &mut *heads {
                step.soften(&mut head.coded);
            }
            step.add(heads, coded);
        }
    }

    fn seen<'s>(&self, head: &'s HeadScratch) -> &'s Attended {
        &head.coded.state
    }

    fn restore(&self, row: &mut [f32]) {
        self.plan.v.restore(row);
    }
}

/// Blocks whose scores are softened together.
struct Step<'a> {
    pages: &'a Pages<'a>,
    piece: &'a Piece<'a>,
    kv_heads: Range<usize>,
    blocks: Range<usize>,
    /// Blocks of the span end here.
    end: usize,
}

/// A head's part of a block.
struct Part {
    /// Its tokens, counted from the step's first.
    tokens: Range<usize>,
    /// Which head region has its codes, and which one is read some time after it.
    coded: usize,
    next: Option<usize>,
    /// Which one has it exactly, if it is read so.
    exact: Option<usize>,
}

impl Part {
    fn region<'a>(&self, pages: (&'a [u8], usize)) -> Region<'a> {
        let next = self.next.map(|next| region(pages, next));
        Region { here: region(pages, self.coded), next }
    }

    /// Rows of its region, whole tiles.
    fn rows(&self) -> usize {
        self.tokens.len().next_multiple_of(TILE_ROWS)
    }
}

impl Step<'_> {
    /// The step's tokens. Blocks are read whole but for the sequence's last, so that a row's sums
    /// are cut at the same places whatever else is in the batch.
    fn tokens(&self) -> Range<usize> {
        let size = self.pages.geometry.block_tokens;
        self.blocks.start * size..(self.blocks.end * size).min(self.piece.seq.kv_len)
    }

    /// The part of the `i`th head, in the order in which they stand.
    fn part(&self, index: usize, i: usize) -> Part {
        let KvGeometry { kv_heads, block_tokens: size, .. } = self.pages.geometry;
        let at = |block: BlockId, i: usize| block.0 as usize * kv_heads + self.kv_heads.start + i;
        let here = self.piece.seq.blocks[index];
        let (blocks, head) = ((i + AHEAD) / self.kv_heads.len(), (i + AHEAD) % self.kv_heads.len());
        let after = self.piece.seq.blocks[..self.end].get(index + blocks);
        let next = after.map(|&block| at(block, head));
        let first = (index - self.blocks.start) * size;
        Part {
            tokens: first..(first + size).min(self.tokens().len()),
            coded: at(here, i),
            next,
            exact: self.piece.exact(index, size).map(|block| at(block, i)),
        }
    }

    /// Scores of a row, whole tiles of them.
    fn width(&self) -> usize {
        self.tokens().len().next_multiple_of(TILE_ROWS)
    }

    fn score(&self, heads: &mut [HeadScratch], scratch: &mut CodedScratch) {
        let (pages, width) = (self.pages, self.width());
        for index in self.blocks.clone() {
            for (i, head) in heads.iter_mut().enumerate() {
                let part = self.part(index, i);
                let CodedHead { q, scores, .. } = &mut head.coded;
                let n = part.rows();
                scores.resize(self.piece.len() * width, 0.0);
                let scores = (&mut scores[part.tokens.start..], width);
                match part.exact {
                    Some(at) => {
                        let k = region(pages.exact_k, at);
                        pages.plan.halves.exact_dots(k, &q.floats, n, scores);
                    }
                    None => {
                        let (k, products) = (part.region(pages.k), &mut scratch.products);
                        pages.plan.k.scores(k, q, n, pages.precision, products, scores);
                    }
                }
            }
        }
    }

    fn soften(&self, head: &mut CodedHead) {
        let CodedHead { state, scores, .. } = head;
        let tokens = self.tokens();
        for (row, scores) in scores.chunks_exact_mut(self.width()).enumerate() {
            let seen = self.piece.sees_of(row, tokens.clone());
            state.soften(row, scores, seen, self.piece.params.soft_cap);
        }
    }

    fn add(&self, heads: &mut [HeadScratch], scratch: &mut CodedScratch) {
        let (pages, plan, width) = (self.pages, self.pages.plan, self.width());
        for index in self.blocks.clone() {
            for (i, head) in heads.iter_mut().enumerate() {
                let part = self.part(index, i);
                let CodedHead { state, scores, .. } = &mut head.coded;
                let (n, sums) = (part.rows(), state.sums());
                let weights = (&scores[part.tokens.start..], width);
                match part.exact {
                    Some(at) => {
                        let v = region(pages.exact_v, at);
                        exact::add(&plan.halves, v, weights, n, sums, plan.v.width());
                    }
                    None => {
                        let (v, products) = (part.region(pages.v), &mut scratch.products);
                        plan.v.add(v, weights, n, pages.precision, products, sums);
                    }
                }
            }
        }
    }
}

/// The head region at an index.
fn region((bytes, len): (&[u8], usize), index: usize) -> &[u8] {
    &bytes[index * len..][..len]
}
