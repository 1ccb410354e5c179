//! Pages of a sequence that no step attends to for now: they are let go, and come back when they are chosen.
//!
//! Such a page's blocks are known to be on disk, as units of the prefix cache. While there is room they stay in
//! memory as blocks that nobody holds, and coming back takes no time. Where a page lies changes no bit of anything.

use super::{Recalling, blocks_of};
use crate::{KvCache, KvCacheError, SeqRange, UnitName, cache::Table};
use std::{
    collections::BTreeSet,
    sync::mpsc,
    time::{Duration, Instant},
};
use taper_base::{BlockId, SeqId};
use taper_recall::Rule;

/// A disk that has not answered after so long is given up.
const DEADLINE: Duration = Duration::from_secs(30);

/// Memory for pages that no step attends to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiers {
    /// Blocks that nobody holds and that stay in memory, at most.
    hot_blocks: usize,
}

impl KvCache {
    /// Lets sequences that leave pages out give their memory up, where the pages are on disk: of blocks that nobody
    /// holds, those of `hot_tokens` tokens stay in memory at most, the latest ones. Nothing is given up without a
    /// disk ([`Self::with_disk`]).
    #[must_use]
    pub fn with_hot_tokens(mut self, hot_tokens: usize) -> Self {
        let hot_blocks = hot_tokens.div_ceil(self.config.geometry.block_tokens);
        self.tiers = Some(Tiers { hot_blocks });
        self
    }

    /// Pages of sequences that they do not hold.
    #[must_use]
    pub fn cold_pages(&self) -> usize {
        self.recalling.values().map(|recall| recall.cold.len()).sum()
    }

    /// Chooses pages for a step's sequences and brings them to memory. Those of whom a page is lost are returned:
    /// they are to be released, and computed anew.
    pub fn prepare(&mut self, ranges: impl IntoIterator<Item = SeqRange>) -> Vec<SeqId> {
        let mut lost = Vec::new();
        for range in ranges {
            let Some(mut recall) = self.recalling.remove(&range.seq) else { continue };
            if let Err(error) = self.choose_if_due(&range, &mut recall) {
                tracing::warn!(%error, "pages of the KV cache are lost; their sequence is computed again");
                // Once is enough: the next disk may be no better.
                recall.stays = true;
                lost.push(range.seq);
            }
            self.recalling.insert(range.seq, recall);
        }
        lost
    }

    /// Lets pages go that are not chosen, and brings those back that are.
    pub(super) fn move_pages(
        &mut self,
        (seq, tokens): (SeqId, usize),
        rule: Rule,
        recall: &mut Recalling,
    ) -> Result<(), KvCacheError> {
        let Some(tiers) = self.tiers else { return Ok(()) };
        let Some(mut table) = self.tables.remove(&seq) else { return Ok(()) };
        self.let_go(&table, (tokens, rule), recall);
        let back = self.bring_back(&mut table, recall);
        self.tables.insert(seq, table);
        self.blocks.forget_idle(|blocks, _| blocks <= tiers.hot_blocks);
        back.map_err(|()| KvCacheError::LostPage { seq })
    }

    fn let_go(&mut self, table: &Table, (tokens, rule): (usize, Rule), recall: &mut Recalling) {
        if recall.stays {
            return;
        }
        // Layers that see near tokens alone read all of these.
        let near = tokens.saturating_sub(self.near_tokens) / rule.page_tokens;
        for page in rule.candidates(tokens).filter(|&page| page < near) {
            if recall.chosen.binary_search(&page).is_ok()
                || recall.cold.contains(&page)
                || !self.is_on_disk(table, page)
            {
                continue;
            }
            for block in blocks_of(page).rev() {
                self.blocks.put_back(table.blocks[block], false);
            }
            recall.cold.insert(page);
            self.recall_counts.evicted_pages += 1;
        }
    }

    /// Whether a page's blocks are published and in files.
    fn is_on_disk(&self, table: &Table, page: usize) -> bool {
        let Some(kept) = &self.kept else { return false };
        let published = blocks_of(page).end <= table.nodes.len();
        let holds = |unit: usize| table.units.get(unit).is_some_and(|name| kept.holds(name));
        published && self.units_of(page).into_iter().all(holds)
    }

    /// Units that a page's blocks are in.
    fn units_of(&self, page: usize) -> BTreeSet<usize> {
        blocks_of(page).map(|block| block / self.unit_blocks()).collect()
    }

    fn bring_back(&mut self, table: &mut Table, recall: &mut Recalling) -> Result<(), ()> {
        let wanted = recall.chosen.iter().copied().filter(|page| recall.cold.contains(page));
        let wanted: Vec<usize> = wanted.collect();
        let mut missing = Vec::new();
        for &page in &wanted {
            let found = blocks_of(page).map(|at| self.blocks.index.block_of(table.nodes[at]));
            match found.collect::<Option<Vec<BlockId>>>() {
                Some(found) => {
                    found.iter().for_each(|&block| self.blocks.share(block));
                    table.blocks[blocks_of(page)].copy_from_slice(&found);
                    recall.cold.remove(&page);
                }
                None => missing.push(page),
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let since = Instant::now();
        let read = self.read_pages(&missing, table, recall);
        self.recall_counts.wait += since.elapsed();
        read
    }

    /// Reads pages from disk into blocks of their own.
    fn read_pages(
        &mut self,
        pages: &[usize],
        table: &mut Table,
        recall: &mut Recalling,
    ) -> Result<(), ()> {
        let units: BTreeSet<usize> = pages.iter().flat_map(|&page| self.units_of(page)).collect();
        let names = units.iter().map(|&unit| table.units.get(unit).copied().ok_or(()));
        let names: Vec<UnitName> = names.collect::<Result<_, _>>()?;
        let (sender, answers) = mpsc::channel();
        for (&unit, name) in units.iter().zip(names) {
            let sender = sender.clone();
            // Nobody listens once one of them is lost.
            self.load(name, move |rows| drop(sender.send((unit, rows))));
        }
        drop(sender);
        let wanted: BTreeSet<usize> = pages.iter().flat_map(|&page| blocks_of(page)).collect();
        let (mut taken, mut whole) = (Vec::new(), true);
        for _ in &units {
            let answer = answers.recv_timeout(DEADLINE).ok();
            let rows = answer.and_then(|(unit, rows)| Some((unit, rows?)));
            whole =
                rows.is_some_and(|(unit, rows)| self.take_unit(unit, &rows, &wanted, &mut taken));
            if !whole {
                break;
            }
        }
        if !whole {
            taken.iter().for_each(|&(_, block)| self.blocks.put_back(block, false));
            return Err(());
        }
        taken.into_iter().for_each(|(at, block)| table.blocks[at] = block);
        pages.iter().for_each(|page| {
            recall.cold.remove(page);
        });
        self.recall_counts.recalled_pages += pages.len() as u64;
        Ok(())
    }

    /// Writes the wanted blocks of a unit. `false`: the rows are of another size, or no block is free.
    fn take_unit(
        &mut self,
        unit: usize,
        rows: &[u8],
        wanted: &BTreeSet<usize>,
        taken: &mut Vec<(usize, BlockId)>,
    ) -> bool {
        let (first, blocks) = (unit * self.unit_blocks(), self.unit_blocks());
        if rows.len() != self.unit_bytes(unit) {
            return false;
        }
        let mut rest = rows;
        for at in first..first + blocks {
            let sink = at < self.sink_blocks();
            if !wanted.contains(&at) {
                rest = &rest[self.block_rows_bytes(sink)..];
                continue;
            }
            let Some(block) = self.blocks.take() else { return false };
            taken.push((at, block));
            rest = self.write_rows(block, sink, rest);
        }
        true
    }
}
