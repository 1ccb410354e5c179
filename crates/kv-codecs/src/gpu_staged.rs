//! Blocks brought from a GPU to the host, and those of a compressed cache back.
//!
//! Both have the same bytes at other offsets: on a GPU head regions begin at multiples of 16, and
//! keys of exact blocks stand as its kernels read them.

use crate::{
    KeptBlock, KeptRow, KvCodec, KvCodecError, KvGeometry, LayerPages, Scheme, gpu::outside,
    gpu_coded::region,
};
use std::collections::BTreeMap;
use taper_base::BlockId;
use taper_tensor::gpu::Buffer;

/// Elements that stand together in keys of exact blocks.
const TOGETHER: usize = 8;

/// Some blocks on the host, and which ones they were.
pub(crate) struct Staged {
    pub(crate) pages: LayerPages,
    blocks: BTreeMap<usize, usize>,
    exact: BTreeMap<usize, usize>,
}

/// Numbers from 0 for different blocks, ascending.
pub(crate) fn numbered(blocks: impl Iterator<Item = usize>) -> BTreeMap<usize, usize> {
    let mut numbers: BTreeMap<_, _> = blocks.map(|b| (b, 0)).collect();
    numbers.values_mut().enumerate().for_each(|(i, n)| *n = i);
    numbers
}

/// Reads blocks of `bytes` bytes, neighbours at once: `take(number, bytes)`.
pub(crate) fn fetch(
    from: &Buffer,
    bytes: usize,
    blocks: &BTreeMap<usize, usize>,
    mut take: impl FnMut(usize, &[u8]),
) -> Result<(), KvCodecError> {
    let order: Vec<_> = blocks.iter().map(|(&block, &number)| (block, number)).collect();
    for run in order.chunk_by(|a, b| a.0 + 1 == b.0) {
        let read = from.read::<u8>(run[0].0 * bytes, run.len() * bytes)?;
        for (block, (_, number)) in read.chunks_exact(bytes).zip(run) {
            take(*number, block);
        }
    }
    Ok(())
}

/// Copies rows of halves `[head][token][d]` to `[head][d / 8][token][8]`, or back.
fn retile(g: KvGeometry, from: &[u8], to: &mut [u8], tiled: bool) {
    let (d, size) = (g.head_dim, 2 * TOGETHER);
    for head in 0..g.kv_heads {
        for token in 0..g.block_tokens {
            for part in 0..d / TOGETHER {
                let start = head * g.block_tokens * d * 2;
                let row = start + (token * d + part * TOGETHER) * 2;
                let tile = start + (part * g.block_tokens + token) * size;
                let (from_at, to_at) = if tiled { (row, tile) } else { (tile, row) };
                to[to_at..to_at + size].copy_from_slice(&from[from_at..from_at + size]);
            }
        }
    }
}

impl Staged {
    /// Brings blocks, and exact blocks, of a layer to the host. They are inside the pages.
    pub(crate) fn bring(
        rows: &dyn KvCodec,
        scheme: Scheme,
        g: KvGeometry,
        from: &LayerPages,
        blocks: impl Iterator<Item = usize>,
        exact: impl Iterator<Item = usize>,
    ) -> Result<Self, KvCodecError> {
        let (blocks, exact) = (numbered(blocks), numbered(exact));
        let mut pages = LayerPages::zeroed(rows.block_bytes(g), blocks.len());
        let Some((k, v)) = &from.gpu else { return Err(outside(0, 0)) };
        for (format, from, to) in [(scheme.k, k, &mut pages.k), (scheme.v, v, &mut pages.v)] {
            let (here, there) = (format.head_bytes(g), region(format, g));
            fetch(from, g.kv_heads * there, &blocks, |number, block| {
                let to = &mut to.as_mut_slice()[number * g.kv_heads * here..];
                for (to, from) in to.chunks_exact_mut(here).zip(block.chunks_exact(there)) {
                    to.copy_from_slice(&from[..here]);
                }
            })?;
        }
        if let (false, Some(bytes)) = (exact.is_empty(), rows.exact_block_bytes(g)) {
            pages = pages.with_exact(bytes, exact.len());
            // Exact blocks that nobody wrote yet have no rows to be read.
            if let Some((k, v)) = &from.gpu_exact {
                let to = pages.exact_k.as_mut_slice();
                fetch(k, bytes.k, &exact, |number, block| {
                    retile(g, block, &mut to[number * bytes.k..][..bytes.k], false);
                })?;
                let to = pages.exact_v.as_mut_slice();
                fetch(v, bytes.v, &exact, |number, block| {
                    to[number * bytes.v..][..bytes.v].copy_from_slice(block);
                })?;
            }
        }
        Ok(Self { pages, blocks, exact })
    }

    /// A slot, a kept row, or a block that kept rows are moved to, among these blocks.
    pub(crate) fn slot(&self, g: KvGeometry, slot: usize) -> usize {
        at(&self.blocks, slot / g.block_tokens) * g.block_tokens + slot % g.block_tokens
    }

    pub(crate) fn row(&self, g: KvGeometry, row: &KeptRow) -> KeptRow {
        let size = g.block_tokens;
        let exact = row.exact.map(|slot| at(&self.exact, slot / size) * size + slot % size);
        KeptRow { slot: self.slot(g, row.slot), exact }
    }

    pub(crate) fn block(&self, block: &KeptBlock) -> KeptBlock {
        let among = |of: &BTreeMap<_, _>, b: BlockId| BlockId(at(of, b.0 as usize) as u32);
        let exact = block.exact.map(|b| among(&self.exact, b));
        KeptBlock { block: among(&self.blocks, block.block), exact }
    }

    /// Takes blocks back to the GPU.
    pub(crate) fn take_back(
        &self,
        scheme: Scheme,
        g: KvGeometry,
        blocks: &[KeptBlock],
        (coded, exact): ((&Buffer, &Buffer), Option<(&Buffer, &Buffer)>),
    ) -> Result<(), KvCodecError> {
        let pages = &self.pages;
        for (format, from, to) in [(scheme.k, &pages.k, coded.0), (scheme.v, &pages.v, coded.1)] {
            let (here, there) = (format.head_bytes(g), region(format, g));
            let mut bytes = vec![0; g.kv_heads * there];
            for block in blocks {
                let block = block.block.0 as usize;
                let from = &from.as_slice()[at(&self.blocks, block) * g.kv_heads * here..];
                for (to, from) in bytes.chunks_exact_mut(there).zip(from.chunks_exact(here)) {
                    to[..here].copy_from_slice(from);
                }
                to.write(block * bytes.len(), &bytes)?;
            }
        }
        let Some((exact_k, exact_v)) = exact else { return Ok(()) };
        let bytes = g.kv_heads * g.block_tokens * g.head_dim * 2;
        let mut tiled = vec![0; bytes];
        for block in blocks.iter().filter_map(|b| b.exact) {
            let (block, from) = (block.0 as usize, at(&self.exact, block.0 as usize) * bytes);
            retile(g, &pages.exact_k.as_slice()[from..from + bytes], &mut tiled, true);
            exact_k.write(block * bytes, &tiled)?;
            exact_v.write(block * bytes, &pages.exact_v.as_slice()[from..from + bytes])?;
        }
        Ok(())
    }
}

/// The number of one of the blocks.
pub(crate) fn at(of: &BTreeMap<usize, usize>, block: usize) -> usize {
    of.get(&block).copied().unwrap_or_default()
}
