//! Boxes of pages: made of the keys as the codec gives them back, and kept beside the blocks.

use super::{PAGE_BLOCKS, PageBoxes, Recalling, blocks_of};
use crate::{KvCache, KvCacheError, RowRange, SeqRange};
use std::sync::Arc;
use taper_base::{BlockId, SeqId};
use taper_kv_codecs::KvCodecError;
use taper_recall::KeyBoxes;
use taper_tensor::pool;

/// Cold pages that are in memory at a time while their boxes are made.
const PAGES: usize = 16;

impl KvCache {
    /// Makes the boxes of a long prompt's pages while they are in memory.
    pub(super) fn prepare_boxes(
        &mut self,
        range: &SeqRange,
        recall: &mut Recalling,
    ) -> Result<(), KvCacheError> {
        let SeqRange { seq, start, len } = *range;
        if self.blocks.places.is_none() || !self.is_long(recall, &RowRange { seq, start, len }) {
            return Ok(());
        }
        // Before the first step it is not known which layers see all tokens: the choice makes all boxes then.
        if !self.knows_sight() {
            return Ok(());
        }
        let layers: Vec<_> = self.far_layers(0).collect();
        let pages = start / (PAGE_BLOCKS * self.config.geometry.block_tokens);
        self.ensure_boxes(seq, &mut recall.boxes, pages, &layers)
    }

    /// Brings the boxes of a sequence's first pages together. Those that no sequence has needed before are
    /// computed, a few pages at a time where they have to come from disk.
    pub(super) fn ensure_boxes(
        &mut self,
        seq: SeqId,
        boxes: &mut Vec<Arc<PageBoxes>>,
        pages: usize,
        layers: &[usize],
    ) -> Result<(), KvCacheError> {
        let table: Vec<BlockId> = self.blocks(seq).to_vec();
        let last = |page: usize| table.get(blocks_of(page)).and_then(|own| own.last()).copied();
        let complete = |own: &Arc<PageBoxes>| layers.iter().all(|&layer| own[layer].is_some());
        boxes.truncate(boxes.iter().position(|own| !complete(own)).unwrap_or(boxes.len()));
        let together = if self.blocks.places.is_some() { PAGES } else { pages };
        while let Some(block) = last(boxes.len()).filter(|_| boxes.len() < pages) {
            if let Some(known) = self.known_boxes(block, layers) {
                boxes.push(known);
                continue;
            }
            let unknown = |page: &usize| {
                last(*page).is_some_and(|block| self.known_boxes(block, layers).is_none())
            };
            let group: Vec<_> = (boxes.len()..pages).take(together).take_while(unknown).collect();
            let blocks = &table[blocks_of(group[0]).start..blocks_of(group[group.len() - 1]).end];
            if !self.bring_some(blocks) {
                self.lost.insert(seq);
                return Ok(());
            }
            let computed = pool::map(group.len() * layers.len(), |task| {
                let (page, layer) = (group[task / layers.len()], layers[task % layers.len()]);
                self.key_boxes(&table[blocks_of(page)], layer)
            });
            let mut computed = computed.into_iter();
            for page in group {
                let mut own: PageBoxes = vec![None; self.config.layers];
                for (&layer, boxes) in layers.iter().zip(computed.by_ref()) {
                    own[layer] = Some(boxes?);
                }
                let own = Arc::new(own);
                boxes.push(Arc::clone(&own));
                if let Some(block) = last(page) {
                    self.blocks.set_boxes(block, own);
                }
            }
        }
        Ok(())
    }

    /// Boxes of the page that ends with a block, if they are known of these layers.
    fn known_boxes(&self, block: BlockId, layers: &[usize]) -> Option<Arc<PageBoxes>> {
        self.blocks.boxes(block).filter(|own| layers.iter().all(|&layer| own[layer].is_some()))
    }

    fn key_boxes(&self, blocks: &[BlockId], layer: usize) -> Result<KeyBoxes, KvCodecError> {
        let (g, size) = (self.config.geometry_of(layer), self.config.geometry.block_tokens);
        let slots = blocks.iter().flat_map(|block| {
            let first = block.0 as usize * size;
            first..first + size
        });
        let slots: Vec<_> = slots.collect();
        let keys = self.config.scheme.codec(layer).decode_keys(g, &slots, &self.pages[layer])?;
        Ok(KeyBoxes::of(&keys.to_vec()?, g.kv_heads, g.head_dim))
    }
}
