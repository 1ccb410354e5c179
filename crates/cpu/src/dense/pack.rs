//! The layout that kernels of plain floats stream.
//!
//! ```text
//! f16, f32  [panel: 64 outputs][pair of inputs][2 inputs][64 outputs]
//! bf16      [panel: 64 outputs][32 inputs][4 tiles]
//! tile      [16 pairs of inputs][16 outputs][2 inputs]
//! ```
//! A tile is an AMX register. The lines of a pair, one of each tile, are called its block.
//! Outputs are padded to whole panels and inputs to a multiple of 32, with zeros. `bf16` is kept so only
//! where [`Coded`] does not pay.

use super::{
    DenseLevel,
    coded::{Coded, CodedPanel},
};
use crate::{
    AlignedBytes, Bytes, DType, DenseWeight,
    maps::MatrixLayout,
    pool,
    {Floats, RowSource, shared::SharedOut},
};
use half::{bf16, f16};

/// Outputs of a panel.
pub(super) const PANEL: usize = 64;
/// Elements of a block.
pub(super) const BLOCK: usize = 2 * PANEL;
/// Inputs of an AMX tile.
pub(super) const CHUNK: usize = 32;
/// Outputs of an AMX tile.
pub(super) const OUTPUTS: usize = 16;
/// Elements of a tile of weights.
pub(super) const TILE: usize = CHUNK * OUTPUTS;
/// Elements of a tile's line: a pair of inputs.
pub(super) const LINE: usize = 2 * OUTPUTS;

/// A matrix of `f32`, `f16` or `bf16` in the layout of the kernels.
#[derive(Debug)]
pub struct PackedDense {
    rows: usize,
    cols: usize,
    dtype: DType,
    data: Data,
}

#[derive(Debug)]
enum Data {
    Plain(Bytes),
    /// Weights of `bf16`, coded.
    Coded(Coded),
}

/// A panel's weights.
#[derive(Debug, Clone, Copy)]
pub(super) enum Panel<'a> {
    Plain(Floats<'a>),
    Coded(CodedPanel<'a>),
}

impl PackedDense {
    /// Repacks a matrix. The original is not kept.
    #[must_use]
    pub fn new(weight: &DenseWeight) -> Self {
        let codes = |from| DenseLevel::detect().codes() && Coded::pays(from, weight.cols());
        let coded = weight.floats().and_then(Floats::as_bf16).is_some_and(codes);
        Self::laid_out(weight, coded)
    }

    /// As [`Self::new`], in one layout or the other. Only `bf16` with whole chunks of inputs is coded.
    pub(super) fn laid_out(weight: &DenseWeight, coded: bool) -> Self {
        Self::laid_out_in(weight, coded, AlignedBytes::for_weights)
    }

    fn laid_out_in(weight: &DenseWeight, coded: bool, allocate: fn(usize) -> AlignedBytes) -> Self {
        let (rows, cols, dtype) = (weight.rows(), weight.cols(), weight.dtype());
        let data = match weight.floats() {
            Some(Floats::Bf16(from)) if coded => Data::Coded(Coded::new(from, cols)),
            Some(Floats::Bf16(from)) => Data::Plain(plain(from, cols, true, allocate).into()),
            Some(Floats::F16(from)) => Data::Plain(plain(from, cols, false, allocate).into()),
            Some(Floats::F32(from)) => Data::Plain(plain(from, cols, false, allocate).into()),
            None => Data::Plain(Bytes::from_vec(Vec::new())),
        };
        Self { rows, cols, dtype, data }
    }

    /// As [`Self::new`], with `bf16` in sixteen bits, in memory that `allocate` gives, of zeros.
    pub(crate) fn uncoded(weight: &DenseWeight, allocate: fn(usize) -> AlignedBytes) -> Self {
        Self::laid_out_in(weight, false, allocate)
    }

    /// A matrix that lies in `data`, of as many bytes as [`Self::bytes_of`] says.
    pub(crate) fn of((rows, cols): (usize, usize), dtype: DType, data: Bytes) -> Self {
        Self { rows, cols, dtype, data: Data::Plain(data) }
    }

    /// Bytes of a matrix that is not coded.
    pub(crate) fn bytes_of((rows, cols): (usize, usize), dtype: DType) -> usize {
        rows.div_ceil(PANEL) * panel_elements(cols) * dtype.size_in_bytes()
    }

    /// What its memory is, unless it is coded.
    pub(crate) fn layout(&self) -> Option<MatrixLayout> {
        let Self { rows, cols, dtype, .. } = *self;
        matches!(self.data, Data::Plain(_)).then_some(MatrixLayout::Dense { rows, cols, dtype })
    }

    /// Number of outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.data {
            Data::Plain(data) => data.len() as u64,
            Data::Coded(data) => data.bytes() as u64,
        }
    }

    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// Whether a level multiplies many rows with panels that were unpacked before, which takes so long
    /// beside its products that it is done once.
    pub(super) fn is_unpacked_for(&self, level: DenseLevel) -> bool {
        let fast = !matches!(level, DenseLevel::Avx512Bf16(_) | DenseLevel::Fma(_));
        matches!(self.data, Data::Coded(_)) && fast
    }

    /// The blocks of a panel.
    pub(super) fn panel(&self, panel: usize) -> Panel<'_> {
        let bytes = match &self.data {
            Data::Coded(data) => return Panel::Coded(data.panel(panel)),
            Data::Plain(data) => data.as_slice(),
        };
        let size = panel_elements(self.cols);
        let range = panel * size..(panel + 1) * size;
        Panel::Plain(match self.dtype {
            DType::F16 => Floats::F16(&bytemuck::cast_slice(bytes)[range]),
            DType::BF16 => Floats::Bf16(&bytemuck::cast_slice(bytes)[range]),
            _ => Floats::F32(&bytemuck::cast_slice(bytes)[range]),
        })
    }

    /// The memory of panels, from one on.
    pub(crate) fn memory(&self, panel: usize) -> &[u8] {
        let data = match &self.data {
            Data::Plain(data) => data.as_slice(),
            Data::Coded(data) => data.blocks(),
        };
        data.get(data.len() / self.panels().max(1) * panel..).unwrap_or_default()
    }

    /// A row as f32: what a token's embedding is.
    ///
    /// # Panics
    /// When `row` is not below [`Self::rows`] or `out` is not one row long.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "one row");
        let at = |k| place(row % PANEL, k, self.dtype == DType::BF16);
        let elements = out.iter_mut().enumerate();
        match self.panel(row / PANEL) {
            Panel::Plain(Floats::F32(x)) => elements.for_each(|(k, o)| *o = x[at(k)]),
            Panel::Plain(Floats::F16(x)) => elements.for_each(|(k, o)| *o = f16::to_f32(x[at(k)])),
            Panel::Plain(Floats::Bf16(x)) => {
                elements.for_each(|(k, o)| *o = bf16::to_f32(x[at(k)]));
            }
            Panel::Coded(panel) => panel.read_row(row % PANEL, out),
        }
    }
}

fn panel_elements(cols: usize) -> usize {
    PANEL * cols.next_multiple_of(CHUNK)
}

/// Rows of `cols` elements in the plain layout.
fn plain<E: bytemuck::Pod + Send + Sync>(
    from: &[E],
    cols: usize,
    tiles: bool,
    allocate: fn(usize) -> AlignedBytes,
) -> AlignedBytes {
    let (panels, size) = (from.len().div_ceil(PANEL * cols.max(1)), panel_elements(cols));
    let mut data = allocate(panels * size * size_of::<E>());
    let to = SharedOut::new(bytemuck::cast_slice_mut(data.as_mut_slice()));
    pool::run(panels, |panel| {
        // SAFETY: each task has its own panel, of zeros.
        let to: &mut [E] = unsafe { to.slice(panel * size, size) };
        let from = &from[panel * PANEL * cols..];
        // Some inputs of all rows, then the next: what is written to stays in the cache.
        for first in (0..cols).step_by(CHUNK) {
            let inputs = first..(first + CHUNK).min(cols);
            for (row, from) in from.chunks_exact(cols).take(PANEL).enumerate() {
                put_row(&from[inputs.clone()], row, tiles, &mut to[first * PANEL..]);
            }
        }
    });
    data
}

/// Where input `k` of output `row` stands in a panel, of tiles or not.
fn place(row: usize, k: usize, tiles: bool) -> usize {
    if tiles { tile_line(k / 2, row) + k % 2 } else { k * PANEL + row }
}

/// Where a pair of inputs of output `row` stands in a panel of tiles.
pub(super) fn tile_line(pair: usize, row: usize) -> usize {
    let (chunk, line) = (pair / OUTPUTS, pair % OUTPUTS);
    chunk * CHUNK * PANEL + row / OUTPUTS * TILE + line * LINE + row % OUTPUTS * 2
}

/// Writes at most a chunk's inputs of a row to their positions.
pub(super) fn put_row<E: Copy>(from: &[E], row: usize, tiles: bool, to: &mut [E]) {
    for (k, &x) in from.iter().enumerate() {
        to[place(row, k, tiles)] = x;
    }
}
