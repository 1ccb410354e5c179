//! Compaction: blocks built anew from the rows that an eviction keeps.

use crate::{
    KvCodecError, KvGeometry,
    rows::HalfSide,
    side::{Side, Stays},
};
use taper_base::BlockId;
use taper_tensor::{AlignedBytes, pool};

/// A row that is kept when others are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptRow {
    /// Where it is.
    pub slot: usize,
    /// Where it is among the exact blocks, if it is.
    pub exact: Option<usize>,
}

/// A block that kept rows are moved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptBlock {
    /// Which one.
    pub block: BlockId,
    /// The exact block beside it, if it is to have one.
    pub exact: Option<BlockId>,
}

/// Refuses rows or blocks outside the pages, of so many blocks and exact blocks.
pub(crate) fn check(
    g: KvGeometry,
    rows: &[KeptRow],
    into: &[KeptBlock],
    (blocks, exact_blocks): (usize, usize),
) -> Result<(), KvCodecError> {
    let size = g.block_tokens;
    let distinct = |mut ids: Vec<BlockId>| {
        let n = ids.len();
        ids.sort_unstable();
        ids.dedup();
        ids.len() == n
    };
    if rows.len().div_ceil(size) != into.len()
        || !distinct(into.iter().map(|b| b.block).collect())
        || !distinct(into.iter().filter_map(|b| b.exact).collect())
    {
        return Err(KvCodecError::Compact { rows: rows.len(), blocks: into.len() });
    }
    let first = |b: BlockId| b.0 as usize * size;
    let coded = rows.iter().map(|r| r.slot).chain(into.iter().map(|b| first(b.block)));
    let exact = rows.iter().filter_map(|r| r.exact);
    let exact = exact.chain(into.iter().filter_map(|b| b.exact.map(first)));
    let outside = |slot: &usize, blocks: usize| *slot >= blocks * size;
    let coded = { coded }.find(|s| outside(s, blocks)).map(|s| (s, blocks));
    let exact = { exact }.find(|s| outside(s, exact_blocks)).map(|s| (s, exact_blocks));
    match coded.or(exact) {
        Some((slot, blocks)) => Err(KvCodecError::Slot { slot, slots: blocks * size }),
        None => Ok(()),
    }
}

/// A side's pages and exact pages, with the bytes of their head regions.
pub(crate) struct SidePages<'a> {
    pub(crate) side: &'a dyn Side,
    pub(crate) halves: &'a HalfSide,
    pub(crate) coded: (&'a mut AlignedBytes, usize),
    pub(crate) exact: (&'a mut AlignedBytes, usize),
}

impl SidePages<'_> {
    /// Builds the blocks. All of them are read before one is written, so that they may be where
    /// the rows were.
    pub(crate) fn compact(self, g: KvGeometry, rows: &[KeptRow], into: &[KeptBlock]) {
        let heads = g.kv_heads;
        let built = pool::map(into.len() * heads, |task| {
            let (index, head) = (task / heads, task % heads);
            let rows = rows.chunks(g.block_tokens).nth(index).unwrap_or_default();
            self.build(g, rows, head, into[index].exact.is_some())
        });
        let (coded, coded_bytes) = self.coded;
        let (exact, exact_bytes) = self.exact;
        for (task, (region, halves)) in built.iter().enumerate() {
            let (to, head) = (into[task / heads], task % heads);
            let at = |block: BlockId| block.0 as usize * heads + head;
            coded.as_mut_slice()[at(to.block) * coded_bytes..][..coded_bytes]
                .copy_from_slice(region);
            if let Some(block) = to.exact {
                exact.as_mut_slice()[at(block) * exact_bytes..][..exact_bytes]
                    .copy_from_slice(halves);
            }
        }
    }

    /// The head region of some rows, and their exact ones if they are wanted.
    fn build(
        &self,
        g: KvGeometry,
        rows: &[KeptRow],
        head: usize,
        wants_exact: bool,
    ) -> (Vec<u8>, Vec<u8>) {
        let (size, row_bytes) = (g.block_tokens, 2 * g.head_dim);
        let region = |(pages, bytes): (&AlignedBytes, usize), slot: usize| {
            let at = (slot / size * g.kv_heads + head) * bytes;
            at..at + bytes.min(pages.len() - at)
        };
        let coded = (&*self.coded.0, self.coded.1);
        let exact = (&*self.exact.0, self.exact.1);
        let stays = |row: &KeptRow| Stays {
            region: &coded.0.as_slice()[region(coded, row.slot)],
            offset: row.slot % size,
            exact: row.exact.map(|slot| {
                &exact.0.as_slice()[region(exact, slot)][slot % size * row_bytes..][..row_bytes]
            }),
        };
        let rows: Vec<_> = rows.iter().map(stays).collect();
        let mut out = vec![0; coded.1];
        self.side.gather(&rows, &mut out);
        let mut halves = Vec::new();
        if wants_exact {
            halves.resize(exact.1, 0);
            let mut decoded = vec![0.0; g.head_dim];
            for (offset, row) in rows.iter().enumerate() {
                if let Some(exact) = row.exact {
                    halves[offset * row_bytes..][..row_bytes].copy_from_slice(exact);
                } else {
                    self.side.read_rotated(row.region, row.offset, &mut decoded);
                    self.halves.write(&mut halves, &[(offset, &decoded)]);
                }
            }
        }
        (out, halves)
    }
}
