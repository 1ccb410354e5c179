//! The rows of a unit as its file has them: layer by layer, then block by block.

use crate::{KvCache, disk::UnitRows};
use taper_base::BlockId;

/// A part of a block.
#[derive(Debug, Clone, Copy)]
enum Part {
    K,
    V,
    ExactK,
    ExactV,
}

impl KvCache {
    /// Blocks of a unit.
    pub(crate) fn unit_blocks(&self) -> usize {
        self.prefix_tokens() / self.config.geometry.block_tokens
    }

    /// Places in a sequence of a unit's blocks.
    fn blocks_of_unit(&self, unit: usize) -> std::ops::Range<usize> {
        unit * self.unit_blocks()..(unit + 1) * self.unit_blocks()
    }

    /// The parts of a block's rows in a layer and their bytes, those of exact rows of sinks included.
    fn parts(&self, layer: usize, sink: bool) -> impl Iterator<Item = (Part, usize)> + use<> {
        let c = &self.config;
        let (codec, geometry) = (c.scheme.codec(layer), c.geometry_of(layer));
        let block = c.block_bytes(layer);
        let exact = codec.exact_block_bytes(geometry).filter(|_| sink && c.exact.is_some());
        let exact = exact.map(|exact| [(Part::ExactK, exact.k), (Part::ExactV, exact.v)]);
        [(Part::K, block.k), (Part::V, block.v)].into_iter().chain(exact.into_iter().flatten())
    }

    /// Bytes of a block's rows in a layer.
    fn block_rows_bytes(&self, layer: usize, at: usize) -> usize {
        self.parts(layer, at < self.sink_blocks()).map(|(_, bytes)| bytes).sum()
    }

    fn layer_bytes(&self, layer: usize, unit: usize) -> usize {
        self.blocks_of_unit(unit).map(|at| self.block_rows_bytes(layer, at)).sum()
    }

    /// Bytes of a unit's rows.
    pub(crate) fn unit_bytes(&self, unit: usize) -> usize {
        (0..self.config.layers).map(|layer| self.layer_bytes(layer, unit)).sum()
    }

    /// Whether rows have the size of a unit's, in each layer.
    pub(crate) fn is_unit(&self, unit: usize, rows: &UnitRows) -> bool {
        let sizes = (0..self.config.layers).map(|layer| self.layer_bytes(layer, unit));
        rows.iter().map(Vec::len).eq(sizes)
    }

    /// The rows of a unit that has these blocks.
    pub(crate) fn unit_rows(&self, unit: usize, blocks: &[BlockId]) -> UnitRows {
        let layer = |layer| {
            let mut rows = Vec::with_capacity(self.layer_bytes(layer, unit));
            for (at, &block) in self.blocks_of_unit(unit).zip(blocks) {
                for (part, bytes) in self.parts(layer, at < self.sink_blocks()) {
                    let Some(place) = self.place(block, part) else { continue };
                    let pages = &self.pages[layer];
                    let side = match part {
                        Part::K => &pages.k,
                        Part::V => &pages.v,
                        Part::ExactK => &pages.exact_k,
                        Part::ExactV => &pages.exact_v,
                    };
                    rows.extend_from_slice(&side.as_slice()[place * bytes..][..bytes]);
                }
            }
            rows
        };
        (0..self.config.layers).map(layer).collect()
    }

    /// Index of a block among those of a part.
    fn place(&self, block: BlockId, part: Part) -> Option<usize> {
        let block = match part {
            Part::K | Part::V => Some(block),
            Part::ExactK | Part::ExactV => self.blocks.exact(block),
        };
        block.map(|block| block.0 as usize)
    }

    /// Writes a layer's rows of some of a unit's blocks: `into` has their places in the sequence. `false`, with nothing
    /// written: the rows are of another size.
    pub(crate) fn write_layer(
        &mut self,
        layer: usize,
        unit: usize,
        rows: &[u8],
        into: &[(usize, BlockId)],
    ) -> bool {
        if rows.len() != self.layer_bytes(layer, unit) {
            return false;
        }
        let first = self.blocks_of_unit(unit).start;
        for &(at, block) in into {
            let before: usize = (first..at).map(|at| self.block_rows_bytes(layer, at)).sum();
            let mut rest = &rows[before..];
            for (part, bytes) in self.parts(layer, at < self.sink_blocks()) {
                let (own, after) = rest.split_at(bytes);
                rest = after;
                let Some(place) = self.place(block, part) else { continue };
                let pages = &mut self.pages[layer];
                let side = match part {
                    Part::K => &mut pages.k,
                    Part::V => &mut pages.v,
                    Part::ExactK => &mut pages.exact_k,
                    Part::ExactV => &mut pages.exact_v,
                };
                side.as_mut_slice()[place * bytes..][..bytes].copy_from_slice(own);
            }
        }
        true
    }

    /// Writes the rows of some of a unit's blocks, of all layers. `false`: they are of another size.
    pub(crate) fn write_unit(
        &mut self,
        unit: usize,
        rows: &UnitRows,
        into: &[(usize, BlockId)],
    ) -> bool {
        let mut layers = rows.iter().enumerate();
        self.is_unit(unit, rows)
            && layers.all(|(layer, rows)| self.write_layer(layer, unit, rows, into))
    }
}
