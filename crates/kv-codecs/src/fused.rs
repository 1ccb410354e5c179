//! Attention over head regions as they lie: queries are rotated and rounded once, each block's
//! codes are expanded once for all query heads of a KV head, the output is rotated back once.

use crate::{
    AttnBatch, AttnParams, KvCodecError, KvGeometry,
    drive::{self, Heads, Piece, Scratch},
    exact,
    paged::Plan,
    side::{CodedScratch, Precision, Region},
};
use std::ops::Range;
use taper_base::BlockId;
use taper_tensor::{
    Tensor,
    cpu::{Attended, codes::TILE_ROWS},
};

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
    fn start(&self, piece: &Piece<'_>, scratch: &mut Scratch) {
        let Scratch { q, coded, .. } = scratch;
        coded.q.floats.clone_from(q);
        self.plan.k.rotate(&mut coded.q.floats);
        if self.plan.k.wants_int8() {
            coded.q.int8.set(&coded.q.floats, self.geometry.head_dim);
        }
        coded.rows = piece.len();
    }

    fn attend<'s>(
        &self,
        piece: &Piece<'_>,
        kv_head: usize,
        span: Range<usize>,
        scratch: &'s mut Scratch,
    ) -> &'s Attended {
        let CodedScratch { rows, q, state, scores, products } = &mut scratch.coded;
        let (size, plan) = (self.geometry.block_tokens, self.plan);
        state.clear(*rows, plan.v.width());
        for index in span.clone() {
            // Blocks are read whole but for the sequence's last, so that a row's sums are cut at
            // the same places whatever else is in the step.
            let tokens = index * size..((index + 1) * size).min(piece.seq.kv_len);
            let padded = tokens.len().next_multiple_of(TILE_ROWS);
            let head = |block: BlockId| block.0 as usize * self.geometry.kv_heads + kv_head;
            let exact = piece.exact(index, size).map(head);
            let coded = head(piece.seq.blocks[index]);
            let next = piece.seq.blocks[..span.end].get(index + 1).copied().map(head);
            let coded = |pages| Region {
                here: region(pages, coded),
                next: next.map(|next| region(pages, next)),
            };
            scores.resize(*rows * padded, 0.0);
            match exact {
                Some(at) => {
                    let k = region(self.exact_k, at);
                    plan.halves.dots(k, &q.floats, padded, scores);
                }
                None => {
                    let k = coded(self.k);
                    plan.k.scores(k, q, padded, self.precision, products, scores);
                }
            }
            for (row, scores) in scores.chunks_exact_mut(padded).enumerate() {
                let seen = piece.sees_of(row, tokens.clone());
                state.soften(row, scores, seen, piece.params.soft_cap);
            }
            let (sums, width) = (state.sums(), plan.v.width());
            match exact {
                Some(at) => {
                    let v = region(self.exact_v, at);
                    exact::add(&plan.halves, v, scores, padded, sums, width);
                }
                None => {
                    let v = coded(self.v);
                    plan.v.add(v, scores, padded, self.precision, products, sums);
                }
            }
        }
        state
    }

    fn restore(&self, row: &mut [f32]) {
        self.plan.v.restore(row);
    }
}

/// The head region at an index.
fn region((bytes, len): (&[u8], usize), index: usize) -> &[u8] {
    &bytes[index * len..][..len]
}
