//! The layout that kernels of plain floats stream.
//!
//! ```text
//! weight  [panel: 64 outputs][pair of inputs] blocks, one after the other
//! block   bf16:      [64 outputs][2 inputs]
//!         f16, f32:  [2 inputs][64 outputs]
//! ```
//! A register of 64 bytes holds a pair of inputs of sixteen `bf16` outputs, a line of an AMX tile.
//! Outputs are padded to whole panels and inputs to a multiple of 32, with zeros.

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
    data: AlignedBytes,
}

impl PackedDense {
    /// Repacks a matrix. The original is not kept.
    #[must_use]
    pub fn new(weight: &DenseWeight) -> Self {
        let (rows, cols, dtype) = (weight.rows(), weight.cols(), weight.dtype());
        let elements = rows.div_ceil(PANEL) * PANEL * cols.next_multiple_of(CHUNK);
        let data = AlignedBytes::for_weights(elements * dtype.size_in_bytes());
        let mut packed = Self { rows, cols, dtype, data };
        match weight.floats() {
            Some(Floats::Bf16(from)) => packed.fill(from, true),
            Some(Floats::F16(from)) => packed.fill(from, false),
            Some(Floats::F32(from)) => packed.fill(from, false),
            None => {}
        }
        packed
    }

    fn fill<E: bytemuck::Pod + Send + Sync>(&mut self, from: &[E], pairs: bool) {
        let (rows, cols, size) = (self.rows, self.cols, self.panel_elements());
        let to = SharedOut::new(bytemuck::cast_slice_mut(self.data.as_mut_slice()));
        pool::run(rows.div_ceil(PANEL), |panel| {
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
        self.data.len() as u64
    }

    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    fn panel_elements(&self) -> usize {
        PANEL * self.cols.next_multiple_of(CHUNK)
    }

    /// The blocks of a panel.
    pub(super) fn panel(&self, panel: usize) -> Floats<'_> {
        let range = panel * self.panel_elements()..(panel + 1) * self.panel_elements();
        let bytes = self.data.as_slice();
        match self.dtype {
            DType::F16 => Floats::F16(&bytemuck::cast_slice(bytes)[range]),
            DType::BF16 => Floats::Bf16(&bytemuck::cast_slice(bytes)[range]),
            _ => Floats::F32(&bytemuck::cast_slice(bytes)[range]),
        }
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
            Floats::F32(x) => elements.for_each(|(k, o)| *o = x[at(k)]),
            Floats::F16(x) => elements.for_each(|(k, o)| *o = f16::to_f32(x[at(k)])),
            Floats::Bf16(x) => elements.for_each(|(k, o)| *o = bf16::to_f32(x[at(k)])),
        }
    }
}

/// Where input `k` of output `row` stands in a panel.
fn place(row: usize, k: usize, pairs: bool) -> usize {
    k / 2 * BLOCK + if pairs { row * 2 + k % 2 } else { k % 2 * PANEL + row }
}

fn put_row<E: Copy>(from: &[E], row: usize, pairs: bool, to: &mut [E]) {
    let (whole, last) = from.as_chunks::<2>();
    let (blocks, _) = to.as_chunks_mut::<BLOCK>();
    let second = if pairs { 1 } else { PANEL };
    let first = place(row, 0, pairs);
    for (pair, block) in whole.iter().zip(blocks.iter_mut()) {
        block[first] = pair[0];
        block[first + second] = pair[1];
    }
    if let (Some(&last), Some(block)) = (last.first(), blocks.get_mut(whole.len())) {
        block[first] = last;
    }
}
