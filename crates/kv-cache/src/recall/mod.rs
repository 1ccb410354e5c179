//! Sequences whose steps attend to some of their pages.
//!
//! A page is two blocks. Which ones a step attends to is `taper_recall`'s choice; here are the boxes of pages, the
//! queries that choose, and the shorter lists of blocks that codecs attend over.

mod boxes;

use crate::{KvCache, KvCacheError, RowRange, SeqRange};
use std::{sync::Arc, time::Duration};
use taper_base::{BlockId, LayerId, SeqId};
use taper_kv_codecs::{AttnParams, KvCodecError};
use taper_recall::{
    EVERY_TOKENS, KeyBoxes, LayerQueries, QUESTION_TOKENS, Queries, RECENT_TOKENS, Rule, scores,
};
use taper_tensor::Projected;

/// Blocks of a page.
pub const PAGE_BLOCKS: usize = 2;

/// Boxes of a page's keys, of each layer that attends to all of a sequence.
pub(crate) type PageBoxes = Vec<Option<KeyBoxes>>;

/// What a sequence asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recall {
    /// Pages that a step attends to beside the first and the recent ones.
    pub pages: usize,
    /// Tokens of its prompt, which is computed over all pages.
    pub prompt_tokens: usize,
}

/// What was done for all sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecallCounts {
    /// Steps of sequences that left pages out.
    pub steps: u64,
    /// Pages that they attended to.
    pub attended_pages: u64,
    /// Pages that they left out.
    pub skipped_pages: u64,
    /// Choices of pages.
    pub choices: u64,
    /// Blocks that have left memory; a file has them.
    pub evicted_blocks: u64,
    /// Blocks that came back from disk.
    pub recalled_blocks: u64,
    /// Blocks that steps have read from disk layer by layer, once a step.
    pub streamed_blocks: u64,
    /// How long steps waited for the disk.
    pub wait: Duration,
}

/// A sequence that may leave pages out.
#[derive(Debug)]
pub(crate) struct Recalling {
    pub(crate) asked: Recall,
    queries: Queries,
    /// Boxes of the leading pages.
    boxes: Vec<Arc<PageBoxes>>,
    chosen: Vec<usize>,
    /// Tokens that there were when pages were chosen; 0 before.
    chosen_at: usize,
    /// First token that was computed over some pages only.
    pub(crate) sparse_from: Option<usize>,
}

impl Recalling {
    fn new(asked: Recall) -> Self {
        Self {
            asked,
            queries: Queries::default(),
            boxes: Vec::new(),
            chosen: Vec::new(),
            chosen_at: 0,
            sparse_from: None,
        }
    }

    /// Whether pages are to be chosen before a token is computed.
    fn due(&self, token: usize) -> bool {
        self.chosen_at == 0 || token / EVERY_TOKENS != self.chosen_at / EVERY_TOKENS
    }

    /// First position whose query takes part in the choice at `tokens` tokens.
    fn queries_from(&self, tokens: usize) -> usize {
        match tokens == self.asked.prompt_tokens {
            true => tokens.saturating_sub(QUESTION_TOKENS),
            false => (tokens - 1) / EVERY_TOKENS * EVERY_TOKENS,
        }
    }
}

/// The blocks of a sequence that a step attends to.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) blocks: Vec<BlockId>,
    /// The exact block beside each.
    pub(crate) exact: Vec<Option<BlockId>>,
    /// Tokens of the blocks that are left out.
    pub(crate) skipped: usize,
}

impl KvCache {
    /// Says that the tokens after a sequence's prompt are computed over some of its pages; `None` takes it back.
    /// To be called before the sequence gets its first block. Steps must not both end the prompt and go on, nor
    /// cross a multiple of [`EVERY_TOKENS`] after it.
    ///
    /// # Errors
    /// [`KvCacheError::NoRecall`].
    pub fn set_recall(&mut self, seq: SeqId, recall: Option<Recall>) -> Result<(), KvCacheError> {
        let Some(recall) = recall else {
            self.recalling.remove(&seq);
            return Ok(());
        };
        if let Some(reason) = self.cannot_recall() {
            return Err(KvCacheError::NoRecall { reason });
        }
        self.recalling.insert(seq, Recalling::new(recall));
        Ok(())
    }

    /// Why sequences cannot leave pages out; `None` where they can.
    #[must_use]
    pub fn cannot_recall(&self) -> Option<&'static str> {
        self.config.cannot_recall()
    }

    /// What was done for sequences that leave pages out, since this was last asked.
    pub fn take_recall_counts(&mut self) -> RecallCounts {
        std::mem::take(&mut self.recall_counts)
    }

    fn rule(&self, recall: &Recalling) -> Rule {
        let exact = self.config.exact.map(|room| room.tokens);
        Rule {
            pages: recall.asked.pages,
            page_tokens: PAGE_BLOCKS * self.config.geometry.block_tokens,
            sink_tokens: exact.map_or(0, |exact| exact.sink_tokens),
            recent_tokens: exact.map_or(0, |exact| exact.recent_tokens).max(RECENT_TOKENS),
        }
    }

    /// Tokens of a sequence of `tokens` tokens that may come from the cache: the queries that choose pages are
    /// computed.
    pub(crate) fn adoptable(&self, seq: SeqId, tokens: usize) -> usize {
        match self.recalling.get(&seq) {
            Some(recall) if self.keeps_queries(recall, tokens) => {
                tokens.min(recall.asked.prompt_tokens.saturating_sub(QUESTION_TOKENS))
            }
            _ => tokens,
        }
    }

    /// Whether a choice that follows a position soon may leave pages out.
    fn keeps_queries(&self, recall: &Recalling, position: usize) -> bool {
        self.rule(recall).leaves_out(position + QUESTION_TOKENS + EVERY_TOKENS)
    }

    /// Keeps the queries of a layer that pages are chosen by.
    pub(crate) fn keep_queries(
        &mut self,
        layer: LayerId,
        ranges: &[RowRange],
        rows: &Projected<'_>,
        params: &AttnParams<'_>,
    ) -> Result<(), KvCacheError> {
        // Such layers attend to near tokens, all of them.
        let near = params.window.or(params.chunk);
        self.sight.insert(layer.index(), near);
        if near.is_some() || self.recalling.is_empty() {
            return Ok(());
        }
        let (mut wanted, mut first) = (Vec::new(), 0);
        for range in ranges {
            // Their rows are all there, so that rows count as tokens.
            if let Some(recall) = self.recalling.get(&range.seq) {
                let from = recall.asked.prompt_tokens.saturating_sub(QUESTION_TOKENS);
                let own = range.start.max(from)..range.start + range.len;
                let own = own.filter(|&at| self.keeps_queries(recall, at));
                wanted.extend(own.map(|at| (range.seq, at, first + at - range.start)));
            }
            first += range.len;
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let queries = rows.with_host(|[q, _, _]| {
            let [_, heads, d] = q.dims();
            let query = |row: usize| {
                let mut query = vec![0.0; heads * d];
                let heads = query.chunks_exact_mut(d).enumerate();
                heads.for_each(|(head, out)| q.turn(row, head, params.scale, out));
                query
            };
            wanted.iter().map(|&(_, _, row)| query(row)).collect::<Vec<_>>()
        });
        let queries = queries.map_err(KvCodecError::from)?;
        for ((seq, at, _), query) in wanted.into_iter().zip(queries) {
            if let Some(recall) = self.recalling.get_mut(&seq) {
                recall.queries.put(layer.index(), at, query);
            }
        }
        Ok(())
    }

    /// Chooses the pages of a step's sequences that are due.
    pub(crate) fn choose_due(&mut self, ranges: &[SeqRange]) -> Result<(), KvCacheError> {
        for range in ranges {
            let Some(mut recall) = self.recalling.remove(&range.seq) else { continue };
            let done = if range.start < recall.asked.prompt_tokens {
                self.prepare_boxes(range, &mut recall)
            } else if recall.due(range.start) {
                self.choose_pages(range, &mut recall)
            } else {
                Ok(())
            };
            self.recalling.insert(range.seq, recall);
            done?;
        }
        Ok(())
    }

    /// What each range of a step attends to: all of its sequence where it is `None`, or has no place.
    pub(crate) fn views(
        &mut self,
        ranges: &[SeqRange],
        exact: &[Vec<Option<BlockId>>],
    ) -> Vec<Option<View>> {
        if self.recalling.is_empty() {
            return Vec::new();
        }
        let exact = |i: usize| exact.get(i).map_or(&[][..], Vec::as_slice);
        ranges.iter().enumerate().map(|(i, range)| self.view(range, exact(i))).collect()
    }

    fn view(&mut self, range: &SeqRange, exact: &[Option<BlockId>]) -> Option<View> {
        let recall = self.recalling.get(&range.seq)?;
        let rule = self.rule(recall);
        if range.start < recall.asked.prompt_tokens || !rule.leaves_out(recall.chosen_at) {
            return None;
        }
        let candidates = rule.candidates(recall.chosen_at);
        let left_out = candidates.len() - recall.chosen.len();
        let chosen = recall.chosen.iter().flat_map(|&page| blocks_of(page));
        let blocks = self.blocks(range.seq);
        let sinks = 0..candidates.start * PAGE_BLOCKS;
        let recent = candidates.end * PAGE_BLOCKS..blocks.len();
        let list: Vec<usize> = sinks.chain(chosen).chain(recent).collect();
        let view = View {
            blocks: list.iter().filter_map(|&at| blocks.get(at).copied()).collect(),
            exact: list.iter().filter_map(|&at| exact.get(at).copied()).collect(),
            skipped: left_out * rule.page_tokens,
        };
        if let Some(recall) = self.recalling.get_mut(&range.seq) {
            recall.sparse_from.get_or_insert(range.start);
        }
        let counts = &mut self.recall_counts;
        counts.steps += 1;
        counts.attended_pages += (list.len() / PAGE_BLOCKS) as u64;
        counts.skipped_pages += left_out as u64;
        Some(view)
    }

    /// Chooses the pages that are attended to from a position on.
    fn choose_pages(
        &mut self,
        range: &SeqRange,
        recall: &mut Recalling,
    ) -> Result<(), KvCacheError> {
        let (tokens, rule) = (range.start, self.rule(recall));
        if rule.leaves_out(tokens) {
            let from = recall.queries_from(tokens);
            let pages = (from / rule.page_tokens).max(rule.candidates(tokens).end);
            let layers: Vec<_> = recall.queries.layers().collect();
            if !layers.is_empty() {
                self.ensure_boxes(range.seq, &mut recall.boxes, pages, &layers)?;
            }
            let layers: Vec<_> = layers
                .iter()
                .map(|&layer| {
                    let boxes = recall.boxes[..pages.min(recall.boxes.len())].iter();
                    let pages: Vec<_> = boxes.filter_map(|page| page[layer].as_ref()).collect();
                    let queries = recall.queries.of(layer, from, tokens);
                    let width = queries.first().map_or(0, |query| query.len());
                    let d = self.config.geometry_of(layer).head_dim;
                    LayerQueries { queries, heads: width / d, pages }
                })
                .filter(|layer| !layer.queries.is_empty())
                .collect();
            recall.chosen = rule.select(tokens, &scores(&layers), &recall.chosen);
            self.recall_counts.choices += 1;
        }
        recall.chosen_at = tokens;
        recall.queries.forget_before(tokens / EVERY_TOKENS * EVERY_TOKENS);
        Ok(())
    }

    /// Whether the tokens after a prompt leave pages out, which a range is a part of.
    pub(crate) fn is_long(&self, recall: &Recalling, range: &RowRange) -> bool {
        let prompt = recall.asked.prompt_tokens;
        range.start < prompt && self.rule(recall).leaves_out(prompt)
    }

    /// A sequence's blocks go: it begins anew.
    pub(crate) fn forget_recalled(&mut self, seq: SeqId) {
        if let Some(recall) = self.recalling.get_mut(&seq) {
            *recall = Recalling::new(recall.asked);
        }
    }
}

/// Blocks of a page, by their places in a sequence.
fn blocks_of(page: usize) -> std::ops::Range<usize> {
    page * PAGE_BLOCKS..(page + 1) * PAGE_BLOCKS
}
