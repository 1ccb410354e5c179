//! Layers that carry a state of fixed size from token to token, and what they share.
//!
//! Tokens are taken one after the other in prefill and in decoding, so every way of cutting a prompt gives
//! identical bits. What is independent (heads, channels, sequences) runs in parallel.

mod conv;
mod gated_delta;
mod mamba;
mod mamba2;
mod rg_lru;
mod short_conv;

use crate::{Result, Tensor, TensorError, gpu::GpuStates, host, tensor::GpuTensor};
use multiversion::multiversion;
use std::ops::Range;

pub use conv::{CausalConv, ConvShape};
pub use gated_delta::{
    GatedDelta, GatedDeltaInputs, GatedDeltaParams, GatedDeltaShape, OutputGate,
};
pub use mamba::{SelectiveScan, SelectiveScanInputs, SelectiveScanParams, SelectiveScanShape};
pub use mamba2::{GatedNorm, Mamba2, Mamba2Params, Mamba2Shape};
pub use rg_lru::{HeadGate, RgLru, RgLruParams, RgLruShape};
pub use short_conv::ShortConv;

/// Consecutive tokens of one sequence, and the state that the layer keeps for it.
#[derive(Debug)]
pub struct RecurrentSegment<'a> {
    /// The tokens' rows in the step.
    pub rows: Range<usize>,
    /// What the tokens before left, and where these leave theirs.
    pub state: &'a mut [f32],
}

/// Tokens of one sequence in a step, and the slots in which its state begins and goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecurrentRun {
    /// The tokens' rows in the step.
    pub rows: Range<usize>,
    /// The slot of what the tokens before left; `None` begins with zeros.
    pub from: Option<usize>,
    /// Where the state is left on the way, in order: the last cut is the run's end, in the slot that it began with
    /// if it began with one.
    pub cuts: Vec<RecurrentCut>,
}

/// Leaves the state after some rows of a run in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecurrentCut {
    /// Rows from the run's first on.
    pub rows: usize,
    /// The slot.
    pub slot: usize,
}

impl RecurrentRun {
    /// Checks that there are rows, and cuts that lead to their end.
    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        let ends: Vec<_> = self.cuts.iter().map(|cut| cut.rows).collect();
        let led =
            ends.is_sorted() && ends.first() > Some(&0) && ends.last() == Some(&self.rows.len());
        match led && !self.rows.is_empty() {
            true => Ok(()),
            false => {
                let expected = format!("cuts up to the end of {:?}", self.rows);
                Err(TensorError::shape(op, expected, &ends))
            }
        }
    }
}

/// The tokens of a step with the states of their sequences, where the step runs.
#[derive(Debug)]
pub enum Segments<'a, 's> {
    /// Parts of the step: one that another must follow comes in a later call.
    Host(&'a mut [RecurrentSegment<'s>]),
    /// The whole step.
    Gpu(GpuStates<'a>),
}

impl<'a, 's> Segments<'a, 's> {
    /// Segments for a step that runs on the host.
    fn on_host(self, op: &'static str) -> Result<&'a mut [RecurrentSegment<'s>]> {
        match self {
            Self::Host(segments) => Ok(segments),
            Self::Gpu(_) => Err(TensorError::Device { op, device: "cpu".into() }),
        }
    }

    /// States for a step that runs on a GPU.
    fn on_gpu(self, op: &'static str) -> Result<GpuStates<'a>> {
        match self {
            Self::Gpu(states) => Ok(states),
            Self::Host(_) => Err(TensorError::Device { op, device: "gpu".into() }),
        }
    }
}

/// Calls a function with segments of the step, as often as the cache must cut it.
pub type RunSegments<'a> = dyn FnMut(Segments<'_, '_>) -> Result<()> + 'a;

/// Checks that segments are rows of a step of `t`, and their states `len` long.
fn check_segments(
    op: &'static str,
    segments: &[RecurrentSegment<'_>],
    t: usize,
    len: usize,
) -> Result<()> {
    for RecurrentSegment { rows, state } in segments {
        if state.len() != len || rows.end > t || rows.is_empty() {
            let expected = format!("rows of {t} and a state of {len}");
            return Err(TensorError::shape(op, expected, &[rows.start, rows.end, state.len()]));
        }
    }
    Ok(())
}

/// The elements of a tensor that must be `[t, width]` on the host.
fn rows_of(op: &'static str, x: &Tensor, t: usize, width: usize) -> Result<Vec<f32>> {
    match *x.dims() == [t, width] {
        true => host::read(x, <[f32]>::to_vec),
        false => Err(TensorError::shape(op, format!("[{t}, {width}]"), x.dims())),
    }
}

/// A tensor that must be `[t, width]` on a GPU.
fn rows_there<'a>(
    op: &'static str,
    x: &'a Tensor,
    t: usize,
    width: usize,
) -> Result<&'a GpuTensor> {
    match x.on_gpu() {
        Some(there) if *x.dims() == [t, width] => Ok(there),
        Some(_) => Err(TensorError::shape(op, format!("[{t}, {width}]"), x.dims())),
        None => Err(TensorError::Device { op, device: "cpu".into() }),
    }
}

/// Some columns of every row of a matrix.
#[derive(Debug, Clone)]
struct Columns<'a> {
    data: &'a [f32],
    width: usize,
    range: Range<usize>,
}

impl<'a> Columns<'a> {
    /// All columns.
    fn all(data: &'a [f32], width: usize) -> Self {
        Self { data, width, range: 0..width }
    }

    fn row(&self, at: usize) -> &'a [f32] {
        &self.data[at * self.width..][self.range.clone()]
    }

    /// The columns of all rows, side by side.
    fn to_vec(&self) -> Vec<f32> {
        let rows = self.data.chunks_exact(self.width.max(1));
        rows.flat_map(|row| &row[self.range.clone()]).copied().collect()
    }
}

/// A head of a segment, or some of its channels: what no other task needs.
#[derive(Debug)]
struct Part<'a> {
    /// Counted among those of a layer.
    index: usize,
    rows: Range<usize>,
    /// The segment's rows after the convolution.
    mixed: &'a [f32],
    state: &'a mut [f32],
    /// Columns of the layer's output.
    columns: Range<usize>,
    /// `[rows, columns]`.
    out: Vec<f32>,
}

impl<'a> Part<'a> {
    /// Parts of `size` output columns each (the last may have fewer) of segments whose states have this many
    /// elements before the parts', and `depth` elements a column.
    fn all(
        segments: &'a mut [RecurrentSegment<'_>],
        mixed: &'a [Vec<f32>],
        history: usize,
        (size, depth): (usize, usize),
    ) -> Vec<Self> {
        let mut parts = Vec::new();
        for (segment, mixed) in segments.iter_mut().zip(mixed) {
            let (_, states) = segment.state.split_at_mut(history);
            for (index, state) in states.chunks_mut(size * depth).enumerate() {
                let columns = index * size..index * size + state.len() / depth;
                let out = vec![0.0; segment.rows.len() * columns.len()];
                let rows = segment.rows.clone();
                parts.push(Part { index, rows, mixed, state, columns, out });
            }
        }
        parts
    }

    /// Copies what parts computed to the layer's output, rows of `width`.
    fn gather(parts: Vec<Self>, width: usize, out: &mut [f32]) {
        for Part { rows, columns, out: own, .. } in parts {
            for (row, own) in rows.zip(own.chunks_exact(columns.len())) {
                out[row * width..][columns.clone()].copy_from_slice(own);
            }
        }
    }
}

/// `ln(1 + exp(x))`, as torch computes it.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `sums += weights * x`, element by element.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn add_product(sums: &mut [f32], weights: &[f32], x: &[f32]) {
    for ((sum, w), x) in sums.iter_mut().zip(weights).zip(x) {
        *sum += w * x;
    }
}

#[cfg(test)]
mod noise;
