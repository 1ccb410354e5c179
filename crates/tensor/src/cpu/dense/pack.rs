//! The layout that kernels of plain floats stream.
//!
//! ```text
//! weight  [panel: 64 outputs][pair of inputs] blocks, one after the other
//! block   bf16:      [64 outputs][2 inputs]
//!         f16, f32:  [2 inputs][64 outputs]
//! ```
//! A register of 64 bytes holds a pair of inputs of sixteen `bf16` outputs, a line of an AMX tile.
//! Outputs are padded to whole panels and inputs to a multiple of 32, with zeros. `bf16` is kept so only
//! where [`Coded`] does not pay.

use super::{
    DenseLevel,
    coded::{Coded, CodedPanel},
};
use crate::{
    AlignedBytes, DType, DenseWeight,
    cpu::{Floats, RowSource, shared::SharedOut},
    pool,
};
use half::{bf16, f16};

/// Outputs of a panel.
pub(super) const PANEL: usize = 64;
/// Elements of a block.
pub(super) const BLOCK: usize = 2 * PANEL;
/// Inputs of an AMX tile.
pub(super) const CHUNK: usize = 32;

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
    Plain(AlignedBytes),
    /// Of `bf16`.
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
        let codes =
            |from| DenseLevel::detect().rounds(DType::BF16) && Coded::pays(from, weight.cols());
        let coded = weight.floats().and_then(Floats::as_bf16).is_some_and(codes);
        Self::laid_out(weight, coded)
    }

    /// As [`Self::new`], in one layout or the other. Only `bf16` with whole chunks of inputs is coded.
    pub(super) fn laid_out(weight: &DenseWeight, coded: bool) -> Self {
        let (rows, cols, dtype) = (weight.rows(), weight.cols(), weight.dtype());
        let data = match weight.floats() {
            Some(Floats::Bf16(from)) if coded => Data::Coded(Coded::new(from, cols)),
            Some(Floats::Bf16(from)) => Data::Plain(plain(from, cols, true)),
            Some(Floats::F16(from)) => Data::Plain(plain(from, cols, false)),
            Some(Floats::F32(from)) => Data::Plain(plain(from, cols, false)),
            None => Data::Plain(AlignedBytes::zeroed(0)),
        };
        Self { rows, cols, dtype, data }
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
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
fn plain<E: bytemuck::Pod + Send + Sync>(from: &[E], cols: usize, pairs: bool) -> AlignedBytes {
    let (panels, size) = (from.len().div_ceil(PANEL * cols.max(1)), panel_elements(cols));
    let mut data = AlignedBytes::for_weights(panels * size * size_of::<E>());
    let to = SharedOut::new(bytemuck::cast_slice_mut(data.as_mut_slice()));
    pool::run(panels, |panel| {
        // SAFETY: each task has its own panel, of zeros.
        let to: &mut [E] = unsafe { to.slice(panel * size, size) };
        let from = &from[panel * PANEL * cols..];
        // Some inputs of all rows, then the next: what is written to stays in the cache.
        for first in (0..cols).step_by(CHUNK) {
            let inputs = first..(first + CHUNK).min(cols);
            for (row, from) in from.chunks_exact(cols).take(PANEL).enumerate() {
                put_row(&from[inputs.clone()], row, pairs, &mut to[first * PANEL..]);
            }
        }
    });
    data
}

/// Where input `k` of output `row` stands in a panel.
fn place(row: usize, k: usize, pairs: bool) -> usize {
    k / 2 * BLOCK + if pairs { row * 2 + k % 2 } else { k % 2 * PANEL + row }
}

/// Writes some inputs of a row to its place in their blocks.
pub(super) fn put_row<E: Copy>(from: &[E], row: usize, pairs: bool, to: &mut [E]) {
    let (whole, last) = from.as_chunks::<2>();
    let (blocks, _) = to.as_chunks_mut::<BLOCK>();
    let first = place(row, 0, pairs);
    for (pair, block) in whole.iter().zip(blocks.iter_mut()) {
        if pairs {
            block[first..first + 2].copy_from_slice(pair);
        } else {
            block[first] = pair[0];
            block[first + PANEL] = pair[1];
        }
    }
    if let (Some(&last), Some(block)) = (last.first(), blocks.get_mut(whole.len())) {
        block[first] = last;
    }
}
