//! Tokens that stay exact beside a compressed cache.
//!
//! ```text
//! exact block of one side:  [kv_heads][block_tokens][head_dim] halves, in the codec's rotated space
//! ```
//! What a query reads exactly depends on its position alone: never on how its prompt was cut into
//! steps, and never on which blocks were in the cache already.

use crate::{
    AttnBatch, KvCodecError, KvGeometry,
    rows::{HalfSide, RowFormat},
    side::{Region, Side},
};
use taper_base::BlockId;
use taper_tensor::cpu::codes::{add_rows, dot_rows};

/// Which tokens attention reads exactly instead of from their codes. Both are multiples of a
/// block's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Exact {
    /// The first tokens of a sequence (attention sinks; Xiao et al., arXiv 2309.17453).
    pub sink_tokens: usize,
    /// Recent tokens kept exact: the window starts at the last multiple of this and ends at the
    /// query.
    pub recent_tokens: usize,
}

impl Exact {
    /// The most that leaves room for three times as many sequences of 1,000 tokens as `f16`, with
    /// codes of 4 bits; docs/architecture.md has the sum. 256 recent tokens divide the divergence by three.
    pub const DEFAULT: Self = Self { sink_tokens: 32, recent_tokens: 32 };

    /// First of the recent tokens of a query at a position.
    #[must_use]
    pub fn recent_from(self, position: usize) -> usize {
        position / self.recent_tokens * self.recent_tokens
    }

    /// Whether queries of positions `from..` read the block from token `start` on exactly.
    #[must_use]
    pub fn reads(self, from: usize, start: usize) -> bool {
        start < self.sink_tokens || start >= self.recent_from(from)
    }
}

/// A sequence's exact blocks.
#[derive(Debug, Clone, Copy)]
pub struct ExactBlocks<'a> {
    /// Which are read.
    pub tokens: Exact,
    /// Where the exact rows of each block are, for those that have any.
    pub blocks: &'a [Option<BlockId>],
    /// Tokens between the sinks and the recent ones that the batch leaves out, blocks and all.
    pub skipped: usize,
}

impl ExactBlocks<'_> {
    /// First of the recent tokens of a query, both counted among the tokens that the batch has.
    #[must_use]
    pub fn recent_from(&self, position: usize) -> usize {
        self.tokens.recent_from(position + self.skipped).saturating_sub(self.skipped)
    }

    /// Whether queries from `from` on read the block from token `start` on exactly, both counted among
    /// the tokens that the batch has.
    #[must_use]
    pub fn reads(&self, from: usize, start: usize) -> bool {
        start < self.tokens.sink_tokens || start >= self.recent_from(from)
    }
}

/// Bytes of one head of an exact block, of either side.
pub(crate) fn head_bytes(g: KvGeometry) -> usize {
    HalfSide::head_bytes(g)
}

/// Refuses a batch whose queries would read exact blocks that are not there.
pub(crate) fn check(
    g: KvGeometry,
    batch: &AttnBatch<'_>,
    exact_blocks: usize,
) -> Result<(), KvCodecError> {
    for seq in &batch.seqs {
        let Some(exact) = seq.exact else { continue };
        let Exact { sink_tokens, recent_tokens } = exact.tokens;
        let whole = |n: usize| n.is_multiple_of(g.block_tokens);
        if recent_tokens == 0 || !whole(recent_tokens) || !whole(sink_tokens) {
            return Err(KvCodecError::Exact { tokens: exact.tokens, block: g.block_tokens });
        }
        let first_query = seq.kv_len - seq.q_len;
        for (index, start) in (0..seq.tokens()).step_by(g.block_tokens).enumerate() {
            let page = exact.blocks.get(index).copied().flatten();
            let there = page.is_some_and(|page| (page.0 as usize) < exact_blocks);
            if exact.reads(first_query, start) && !there {
                return Err(KvCodecError::Slot { slot: start, slots: exact_blocks });
            }
        }
    }
    Ok(())
}

/// Writes rows, in the space of `side`.
pub(crate) fn write(
    side: &dyn Side,
    halves: &HalfSide,
    region: &mut [u8],
    rows: &[(usize, &[f32])],
) {
    for &(offset, row) in rows {
        let mut row = row.to_vec();
        side.rotate(&mut row);
        halves.write(region, &[(offset, &row)]);
    }
}

/// `out[i][j] = q_i . row_j` for the first `n` rows.
pub(crate) fn dots(
    halves: &HalfSide,
    region: Region<'_>,
    q: &[f32],
    n: usize,
    out: (&mut [f32], usize),
) {
    dot_rows(q, halves.rows(region, n), halves.dim(), out);
}

/// `acc[i] += sum_j p[i][j] row_j` over the first `n` rows; weights are `stride` apart, sums `width`.
pub(crate) fn add(
    halves: &HalfSide,
    region: Region<'_>,
    (p, stride): (&[f32], usize),
    n: usize,
    acc: &mut [f32],
    width: usize,
) {
    let (rows, d) = (halves.rows(region, n), halves.dim());
    if width == d {
        return add_rows((p, stride), rows, d, acc);
    }
    for (p, acc) in p.chunks(stride).zip(acc.chunks_exact_mut(width)) {
        add_rows((p, stride), rows, d, &mut acc[..d]);
    }
}
