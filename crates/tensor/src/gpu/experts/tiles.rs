//! Products by expert: an expert's weights are read once for a tile of its pairs, and the device alone knows which
//! these are.

use super::{
    Read, Routes, Stack, StackedExperts,
    products::{HALVES, WIDE},
};
use crate::{
    Result, RmsNorm,
    gpu::{Buffer, Launch, Operand, count, params},
    tensor::GpuTensor,
};

params!(
    /// Parameters of `experts_begin`.
    BeginParams {
        pairs: u32,
        experts: u32,
        tile: u32,
        most: u32,
        cols: u32,
        bits: u32,
        flags: u32,
        eps: f32,
    }
);
params!(
    /// Parameters of `experts_matmul_*`, `experts_tile_*` and `experts_wide_*`.
    ExpertTileParams {
        rows: u32,
        cols: u32,
        chosen: u32,
        stride: u32,
        group_shift: u32,
        scale_type: u32,
        packed: u32,
        curve: u32,
        flags: u32,
        bits: u32,
        limit: f32,
    }
);

/// The file of `experts_begin` and of tiles of any format.
const FAMILY: &str = "experts_matmul";
/// Words of a tile in the list.
const TILE_WORDS: usize = 3;
/// Columns of a token that a threadgroup of `experts_begin` takes.
const PREPARE_COLS: usize = 2048;
const PREPARE_NORM: u32 = 1;
const PREPARE_WIDE: u32 = 2;
/// Pairs of a tile of `experts_wide_*`.
const WIDE_SIZE: usize = 64;
/// Threads of a tile.
const THREADS: u32 = 128;

/// How pairs are cut into tiles, and the kernels for these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiling {
    /// The names of both maps' formats, and bits of a weight, where matrix units are fast and these have kernels of
    /// their own.
    formats: Option<[(&'static str, u8); 2]>,
    /// Pairs of a tile.
    size: usize,
    /// Four simdgroups can multiply together.
    wide: bool,
}

impl Tiling {
    /// Bits of a weight of a map, in whose order it takes halves; 0 for that of columns.
    fn bits(self, map: usize) -> u32 {
        self.formats.map_or(0, |formats| u32::from(formats[map].1))
    }

    fn is_wide(self, map: usize) -> bool {
        self.wide && self.size == WIDE_SIZE && self.bits(map) == 4
    }

    /// A map's file and kernel, and the rows that a threadgroup takes.
    fn kernel(self, map: usize, format: &str) -> (&'static str, String, u32) {
        let size = self.size;
        match self.formats.map(|formats| formats[map].0) {
            None => (FAMILY, format!("experts_matmul_{format}_t{size}"), 64),
            Some(name) if self.is_wide(map) => {
                ("experts_wide", format!("experts_wide_{name}"), 128)
            }
            Some(name) => ("experts_tile", format!("experts_tile_{name}_t{size}"), 128),
        }
    }
}

/// What products by expert read: activations as halves, and pairs in the order of experts.
struct Begun {
    halves: Buffer,
    /// The pair in each place.
    order: Buffer,
    /// The place of each pair.
    places: Buffer,
    tiles: Buffer,
    /// Tiles in the list, some of them empty.
    count: usize,
}

/// An experts' product over tiles.
struct TileProduct<'a> {
    stack: &'a Stack,
    /// Activations as halves.
    x: &'a Buffer,
    params: ExpertTileParams,
    /// Which of both maps it is.
    map: usize,
}

impl StackedExperts {
    /// The tiles for so many tokens, if pairs are not better multiplied one by one.
    pub(super) fn tiling(&self, tokens: usize, chosen: usize) -> Option<Tiling> {
        if self.exact || tokens < 2 {
            return None;
        }
        let formats = match [&self.first, &self.down].map(|stack| stack.weight.own_tiles()) {
            [Some(first), Some(down)] => Some([first, down]),
            _ => None,
        };
        let size = tile_size(formats.is_some(), tokens * chosen, self.experts)?;
        Some(Tiling { formats, size, wide: self.first.weight.gpu().has_wide_tiles() })
    }

    /// Both products of each pair, without the biases of the second, in places; and the place of each pair.
    pub(super) fn by_tiles(
        &self,
        read: &Read<'_>,
        routes: &Routes,
        chosen: usize,
        tiling: Tiling,
    ) -> Result<(GpuTensor, Buffer)> {
        let gpu = read.x.gpu();
        let begun = self.begin(read, routes, tiling)?;
        let (width, stride) = self.inner();
        let inner = gpu.temporary(2 * routes.pairs * stride)?;
        let (curve, limit) = self.curve();
        let params = ExpertTileParams {
            chosen: count(FAMILY, chosen)?,
            stride: count(FAMILY, stride)?,
            curve,
            flags: self.flags() | HALVES | if tiling.is_wide(1) { WIDE } else { 0 },
            bits: tiling.bits(1),
            limit,
            ..ExpertTileParams::default()
        };
        let product = TileProduct { stack: &self.first, x: &begun.halves, params, map: 0 };
        self.multiply_tiles(&product, (routes, &begun), tiling, &inner, width)?;
        let hidden = self.hidden();
        let y = GpuTensor::new(gpu, &[routes.pairs, hidden])?;
        let params =
            ExpertTileParams { stride: count(FAMILY, hidden)?, ..ExpertTileParams::default() };
        let product = TileProduct { stack: &self.down, x: &inner, params, map: 1 };
        self.multiply_tiles(&product, (routes, &begun), tiling, &y.buffer, hidden)?;
        Ok((y, begun.places))
    }

    /// Orders pairs by expert, in tiles, and makes halves of what their experts read.
    fn begin(&self, read: &Read<'_>, routes: &Routes, tiling: Tiling) -> Result<Begun> {
        let (x, gpu) = (read.x, read.x.gpu());
        let gains = read.norm.map(|norm| norm.resident().on(gpu)).transpose()?;
        let most = most_tiles(routes.pairs, self.experts, tiling.size);
        let words = |n: usize| gpu.temporary(4 * n);
        let (order, places) = (words(routes.pairs)?, words(routes.pairs)?);
        let (tiles, halves) = (words(TILE_WORDS * most)?, gpu.temporary(2 * x.len())?);
        let params = BeginParams {
            pairs: count(FAMILY, routes.pairs)?,
            experts: count(FAMILY, self.experts)?,
            tile: count(FAMILY, tiling.size)?,
            most: count(FAMILY, most)?,
            cols: count(FAMILY, x.dims[1])?,
            bits: tiling.bits(0),
            flags: if gains.is_some() { PREPARE_NORM } else { 0 }
                | if tiling.is_wide(0) { PREPARE_WIDE } else { 0 },
            eps: read.norm.map_or(0.0, RmsNorm::eps),
        };
        let blocks = x.dims[0] * x.dims[1].div_ceil(PREPARE_COLS);
        gpu.launch(&Launch {
            family: FAMILY,
            kernel: "experts_begin",
            grid: [count(FAMILY, self.experts + blocks)?, 1, 1],
            threads: 256,
            operands: &[
                Operand::In(&routes.ids, 0),
                x.input(),
                // Gains that are not there are never read.
                gains.as_deref().map_or(x.input(), |gains| Operand::In(gains, 0)),
                Operand::Out(&order, 0),
                Operand::Out(&places, 0),
                Operand::Out(&tiles, 0),
                Operand::Out(&halves, 0),
            ],
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(Begun { halves, order, places, tiles, count: most })
    }

    /// Rows of `x` with the matrices of their experts, to rows of `width` outputs.
    fn multiply_tiles(
        &self,
        product: &TileProduct<'_>,
        (routes, begun): (&Routes, &Begun),
        tiling: Tiling,
        out: &Buffer,
        width: usize,
    ) -> Result<()> {
        let weight = &product.stack.weight;
        let rows = weight.rows() / self.experts;
        let (family, kernel, block) = tiling.kernel(product.map, weight.kernel().0);
        // With a gate two rows are one output.
        let block = if rows == width { block } else { block / 2 };
        let params = ExpertTileParams {
            rows: count(FAMILY, rows)?,
            cols: count(FAMILY, weight.stored_cols())?,
            group_shift: weight.group_shift(),
            scale_type: weight.scale_type,
            packed: u32::from(weight.packed),
            ..product.params
        };
        let [data, scales] = weight.operands();
        let weights = Operand::In(&routes.weights, 0);
        let launch = Launch {
            family,
            kernel: &kernel,
            grid: [count(FAMILY, begun.count)?, params.stride.div_ceil(block), 1],
            threads: THREADS,
            operands: &[
                data,
                scales,
                Operand::In(product.x, 0),
                Operand::In(&begun.tiles, 0),
                Operand::In(&begun.order, 0),
                // Not read where there is none, and by the second product.
                product.stack.bias.as_deref().map_or(weights, |bias| Operand::In(bias, 0)),
                weights,
                Operand::Out(out, 0),
            ],
            params: bytemuck::bytes_of(&params),
        };
        weight.gpu().launch_work(&launch, routes.pairs * rows * weight.cols())
    }
}

/// Pairs of a tile, if so many pairs of so many experts are to be multiplied by tiles. Most experts' pairs fit in
/// one, if experts are chosen by chance.
fn tile_size(fast: bool, pairs: usize, experts: usize) -> Option<usize> {
    let each = pairs.div_ceil(experts);
    match (fast, each) {
        (true, 0..=4) => Some(8),
        (true, 5..=10) => Some(16),
        (true, 11..=24) => Some(32),
        (true, _) => Some(64),
        // Until experts have two pairs each, tiles save no reading.
        (false, 0..=1) => None,
        (false, 2..=6) => Some(8),
        (false, _) => Some(32),
    }
}

/// The most tiles of so many pairs that experts can have.
fn most_tiles(pairs: usize, experts: usize, tile: usize) -> usize {
    pairs.min(pairs / tile + experts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_choice_has_more_tiles_than_are_launched() {
        let tiles = |counts: &[usize], tile: usize| -> usize {
            counts.iter().map(|n| n.div_ceil(tile)).sum()
        };
        let all: [&[usize]; 5] = [&[1, 0, 0], &[1, 1, 1], &[9, 9, 9], &[27, 0, 0], &[8, 8, 9]];
        for counts in all {
            for tile in [8, 16] {
                let most = most_tiles(counts.iter().sum(), counts.len(), tile);
                assert!(tiles(counts, tile) <= most, "{counts:?} {tile}");
            }
        }
        assert_eq!(most_tiles(64, 128, 8), 64);
        assert_eq!(most_tiles(16384, 128, 64), 384);
    }

    #[test]
    fn tiles_grow_with_an_experts_pairs() {
        let of = |fast, tokens: usize| tile_size(fast, 8 * tokens, 128);
        assert_eq!([2, 64, 128, 256, 2048].map(|t| of(true, t)), [8, 8, 16, 32, 64].map(Some));
        let any = [2, 16, 17, 96, 97].map(|t| of(false, t));
        assert_eq!(any, [None, None, Some(8), Some(8), Some(32)]);
    }

    #[test]
    fn maps_of_four_bits_are_multiplied_by_four_simdgroups_together() {
        let formats = Some([("q4_g64", 4), ("q8_g64", 8)]);
        let tiling = Tiling { formats, size: 64, wide: true };
        assert_eq!(tiling.kernel(0, "q4"), ("experts_wide", "experts_wide_q4_g64".into(), 128));
        assert_eq!(tiling.kernel(1, "q8"), ("experts_tile", "experts_tile_q8_g64_t64".into(), 128));
        let narrow = Tiling { wide: false, ..tiling };
        assert_eq!(narrow.kernel(0, "q4").1, "experts_tile_q4_g64_t64");
        let any = Tiling { formats: None, size: 8, wide: true };
        assert_eq!(any.kernel(0, "q4"), ("experts_matmul", "experts_matmul_q4_t8".into(), 64));
        assert_eq!([tiling.bits(1), any.bits(1)], [8, 0]);
    }
}
