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
    cpu::{
        Attended,
        codes::{TILE_ROWS, prefetch},
    },
};

/// Head regions between that which is read and that which is prefetched meanwhile: one takes as long as
/// memory does to respond.
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
    params: &AttnParams<'_>,
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
        let places = self.places(piece, kv_heads, span.clone());
        for first in span.clone().step_by(STEP_BLOCKS) {
            let blocks = first..(first + STEP_BLOCKS).min(span.end);
            let places = &places[(first - span.start) * heads.len()..];
            let step = Step { pages: self, piece, blocks, places };
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

impl Pages<'_> {
    /// Where head regions are, in the order in which they are read.
    fn places(&self, piece: &Piece<'_>, kv_heads: Range<usize>, span: Range<usize>) -> Vec<Place> {
        let g = self.geometry;
        let mut places = Vec::with_capacity(span.len() * kv_heads.len());
        for index in span {
            let exact = piece.exact(index, g.block_tokens);
            let at = |block: BlockId, head: usize| block.0 as usize * g.kv_heads + head;
            places.extend(kv_heads.clone().map(|head| match exact {
                Some(block) => Place::Exact(at(block, head)),
                None => Place::Coded(at(piece.seq.blocks[index], head)),
            }));
        }
        places
    }
}

/// Blocks whose scores go through the softmax together.
struct Step<'a> {
    pages: &'a Pages<'a>,
    piece: &'a Piece<'a>,
    blocks: Range<usize>,
    /// Where the head regions of these blocks and of the span's others after them are.
    places: &'a [Place],
}

/// Where a head region is.
#[derive(Clone, Copy)]
enum Place {
    Coded(usize),
    Exact(usize),
}

/// A head's part of a block.
struct Part {
    /// Its tokens, counted from the step's first.
    tokens: Range<usize>,
    here: Place,
    /// What is read some time after it.
    next: Option<Place>,
}

impl Part {
    /// Its region in the pages of codes and of exact rows. What comes next is prefetched while this
    /// is read if it is of the same kind, else now.
    fn region<'a>(&self, coded: (&'a [u8], usize), exact: (&'a [u8], usize)) -> Region<'a> {
        let at = |place| match place {
            Place::Coded(index) => region(coded, index),
            Place::Exact(index) => region(exact, index),
        };
        let (here, next) = (at(self.here), self.next.map(at));
        if next.is_some_and(|next| next.len() != here.len()) {
            next.into_iter().for_each(prefetch);
            return Region { here, next: None };
        }
        Region { here, next }
    }

    /// Rows of its region, whole tiles.
    fn rows(&self) -> usize {
        self.tokens.len().next_multiple_of(TILE_ROWS)
    }
}

impl Step<'_> {
    /// The step's tokens. Blocks are read whole but for the sequence's last, so that a row's sums
    /// are cut at the same positions whatever else is in the batch.
    fn tokens(&self) -> Range<usize> {
        let size = self.pages.geometry.block_tokens;
        self.blocks.start * size..(self.blocks.end * size).min(self.piece.seq.tokens())
    }

    /// The part of the `i`th of some heads.
    fn part(&self, index: usize, i: usize, heads: usize) -> Part {
        let size = self.pages.geometry.block_tokens;
        let block = index - self.blocks.start;
        let tokens = block * size..((block + 1) * size).min(self.tokens().len());
        let at = block * heads + i;
        Part { tokens, here: self.places[at], next: self.places.get(at + AHEAD).copied() }
    }

    /// Scores of a row, whole tiles of them.
    fn width(&self) -> usize {
        self.tokens().len().next_multiple_of(TILE_ROWS)
    }

    fn score(&self, heads: &mut [HeadScratch], scratch: &mut CodedScratch) {
        let (pages, width, count) = (self.pages, self.width(), heads.len());
        for index in self.blocks.clone() {
            for (i, head) in heads.iter_mut().enumerate() {
                let part = self.part(index, i, count);
                let CodedHead { q, scores, .. } = &mut head.coded;
                scores.resize(self.piece.len() * width, 0.0);
                let scores = (&mut scores[part.tokens.start..], width);
                let k = part.region(pages.k, pages.exact_k);
                match part.here {
                    Place::Exact(_) => {
                        let n = part.tokens.len();
                        exact::dots(&pages.plan.halves, k, &q.floats, n, scores);
                    }
                    Place::Coded(_) => {
                        let (n, products) = (part.rows(), &mut scratch.products);
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
        let (pages, plan) = (self.pages, self.pages.plan);
        let (width, count) = (self.width(), heads.len());
        for index in self.blocks.clone() {
            for (i, head) in heads.iter_mut().enumerate() {
                let part = self.part(index, i, count);
                let CodedHead { state, scores, .. } = &mut head.coded;
                let sums = state.sums();
                let weights = (&scores[part.tokens.start..], width);
                let v = part.region(pages.v, pages.exact_v);
                match part.here {
                    Place::Exact(_) => {
                        let n = part.tokens.len();
                        exact::add(&plan.halves, v, weights, n, sums, plan.v.width());
                    }
                    Place::Coded(_) => {
                        let n = part.rows();
                        plan.v.add(v, weights, n, pages.precision, &mut scratch.products, sums);
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
