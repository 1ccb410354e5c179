//! What the layers of a step share of a compressed cache: which rows go where, and which rows see
//! which blocks.

use super::{
    Buffer, Gpu,
    attention::{BLOCK_TOKENS, prompt},
    coded::{CodedCache, CodedTile, EncodeRun, NONE, TILE_ROWS},
    count,
    expand::{self, Expanded},
};
use crate::Result;

/// Blocks of a span: a simdgroup of four takes every fourth one.
const SPAN_BLOCKS: [usize; 2] = [16, 8];
const SHORTEST: usize = 4;
/// Threadgroups that fill a large GPU: four on most multiprocessors.
const FULL: usize = 512;

/// Where the rows of a step go, on the GPU; made once a step and used by every layer.
#[derive(Debug)]
pub struct Writes {
    /// Runs and how many; a block is in a wave once.
    pub(super) waves: Vec<(Buffer, u32)>,
}

impl Writes {
    /// `slots[i]` is `block * 32 + offset` of row `i`.
    ///
    /// # Errors
    /// There is no memory, or a slot is beyond what kernels count.
    pub fn new(gpu: &Gpu, slots: &[usize]) -> Result<Self> {
        let mut waves: Vec<Vec<EncodeRun>> = Vec::new();
        let mut seen = std::collections::HashMap::new();
        let mut last: Option<(usize, EncodeRun)> = None;
        let mut add = |run: Option<(usize, EncodeRun)>| {
            let Some((_, run)) = run else { return };
            let wave = seen.entry(run.block).or_insert(0usize);
            if waves.len() == *wave {
                waves.push(Vec::new());
            }
            waves[*wave].push(run);
            *wave += 1;
        };
        for (row, &slot) in slots.iter().enumerate() {
            match &mut last {
                Some((next, run)) if *next == slot && slot % BLOCK_TOKENS > 0 => {
                    run.count += 1;
                    *next += 1;
                }
                _ => {
                    let block = count("kv write", slot / BLOCK_TOKENS)?;
                    let offset = (slot % BLOCK_TOKENS) as u32;
                    let run = EncodeRun { block, offset, row: count("kv write", row)?, count: 1 };
                    add(last.replace((slot + 1, run)));
                }
            }
        }
        add(last);
        let there = |runs: Vec<EncodeRun>| Ok((gpu.upload(&runs)?, runs.len() as u32));
        Ok(Self { waves: waves.into_iter().map(there).collect::<Result<_>>()? })
    }
}

/// Which rows of a step go to which exact slots, on the GPU.
#[derive(Debug)]
pub struct ExactSlots {
    pub(super) pairs: Buffer,
    pub(super) rows: u32,
}

impl ExactSlots {
    /// # Errors
    /// There is no memory, or a slot is beyond what kernels count.
    pub fn new(gpu: &Gpu, slots: &[Option<usize>]) -> Result<Self> {
        let mut pairs = Vec::new();
        for (row, &slot) in slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            pairs.extend([count("kv write", row)?, count("kv write", slot)?]);
        }
        Ok(Self { pairs: gpu.upload(&pairs)?, rows: (pairs.len() / 2) as u32 })
    }
}

/// One sequence's part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodedSequence {
    /// Query tokens, the last of its `kv_len` tokens.
    pub q_len: usize,
    /// Its tokens in the cache.
    pub kv_len: usize,
    /// Where their codes are, and their exact rows.
    pub blocks: Vec<(u32, Option<u32>)>,
    /// What is read exactly.
    pub exact: Option<ExactTokens>,
}

/// Tokens that are read uncompressed: the first ones, and those from the last multiple of `recent`
/// to the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExactTokens {
    /// Tokens at the beginning that are read uncompressed.
    pub sinks: usize,
    /// Where the recent ones begin is a multiple of this; above 0.
    pub recent: usize,
}

/// Which rows of a step see which blocks, on the GPU; made once a step and used by every layer.
#[derive(Debug)]
pub struct CodedPlan {
    pub(super) tokens: usize,
    pub(super) group: usize,
    /// Sequences of few tokens, whose blocks are read as they lie.
    pub(super) few: Option<Tiles>,
    /// Sequences of many, whose blocks are expanded.
    pub(super) many: Option<Expanded>,
}

/// Tiles of the rows of some sequences.
#[derive(Debug)]
pub(super) struct Tiles {
    /// Which rows of the step these are.
    pub(super) rows: Vec<u32>,
    pub(super) blocks: Buffer,
    pub(super) tiles: Buffer,
    pub(super) n_tiles: u32,
    pub(super) tokens: usize,
    pub(super) spans: usize,
    pub(super) span_blocks: usize,
}

impl CodedCache {
    /// Cuts the query tokens of a step into tiles. `group` is the number of query heads a KV head.
    ///
    /// # Errors
    /// There is no memory.
    pub fn plan(
        &self,
        seqs: &[CodedSequence],
        group: usize,
        window: Option<usize>,
    ) -> Result<CodedPlan> {
        let is_many = |seq: &CodedSequence| seq.q_len >= expand::FROM && self.expands();
        let tokens = seqs.iter().map(|seq| seq.q_len).sum();
        let (many, few): (Vec<_>, Vec<_>) = seqs.iter().partition(|seq| is_many(seq));
        let shape = (self.kv_heads, self.head_dim);
        let expanded = match many.is_empty() {
            true => None,
            false => Some(Expanded::new(&self.gpu, shape, seqs, group, window)?),
        };
        let rows = prompt::rows_of(seqs.iter().map(|seq| (seq.q_len, !is_many(seq))))?;
        let few = match few.is_empty() {
            true => None,
            false => Some(Tiles::new(&self.gpu, &few, (self.kv_heads, group), rows)?),
        };
        Ok(CodedPlan { tokens, group, few, many: expanded })
    }
}

impl Tiles {
    fn new(
        gpu: &Gpu,
        seqs: &[&CodedSequence],
        (kv_heads, group): (usize, usize),
        rows: Vec<u32>,
    ) -> Result<Self> {
        let step = (TILE_ROWS / group).max(1);
        let (mut tiles, mut blocks, mut first) = (Vec::new(), Vec::new(), 0);
        for seq in seqs {
            let table = count("attention", blocks.len() / 2)?;
            let before = seq.kv_len - seq.q_len;
            let mut start = 0;
            while start < seq.q_len {
                let (mut end, mut recent) = ((start + step).min(seq.q_len), u32::MAX);
                if let Some(exact) = seq.exact {
                    // All rows of a tile read the same blocks exactly.
                    let from = (before + start) / exact.recent * exact.recent;
                    end = end.min(from + exact.recent - before);
                    recent = (from / BLOCK_TOKENS) as u32;
                }
                tiles.push(CodedTile {
                    row: count("attention", first + start)?,
                    count: (end - start) as u32,
                    end: count("attention", before + start + 1)?,
                    table,
                    recent,
                    sinks: seq.exact.map_or(0, |e| (e.sinks / BLOCK_TOKENS) as u32),
                });
                start = end;
            }
            blocks.extend(seq.blocks.iter().flat_map(|b| [b.0, b.1.unwrap_or(NONE)]));
            first += seq.q_len;
        }
        let longest = seqs.iter().map(|s| s.kv_len).max().unwrap_or(0).div_ceil(BLOCK_TOKENS);
        // The longest spans with which the threadgroups of all fill a large GPU, or the shortest.
        let groups = tiles.len() * kv_heads * group.div_ceil(TILE_ROWS);
        let fills = |span: &usize| groups * longest.div_ceil(*span) >= FULL;
        let span_blocks = SPAN_BLOCKS.into_iter().find(fills).unwrap_or(SHORTEST);
        Ok(Self {
            n_tiles: count("attention", tiles.len())?,
            blocks: gpu.upload(&blocks)?,
            tiles: gpu.upload(&tiles)?,
            tokens: first,
            spans: longest.div_ceil(span_blocks).max(1),
            span_blocks,
            rows,
        })
    }
}
