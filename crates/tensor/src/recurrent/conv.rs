//! A causal convolution over each channel of a sequence. Its state is the last inputs.

use super::{Columns, RecurrentSegment, RunSegments, add_product, check_segments};
use crate::{
    Result, Tensor, TensorError,
    cpu::silu_mul_row,
    gpu::{Resident, recurrent::Conv},
    host, pool,
    tensor::GpuTensor,
};
use std::ops::Range;

/// Sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvShape {
    /// Channels, each of which is convolved alone.
    pub channels: usize,
    /// Tokens that an output sees, its own included.
    pub kernel: usize,
}

impl ConvShape {
    /// Elements of the state: the last inputs, `[kernel - 1, channels]`.
    #[must_use]
    pub fn state_len(self) -> usize {
        self.kernel.saturating_sub(1) * self.channels
    }
}

/// A depthwise causal convolution: `y_t[c] = Σ_j w[c, j] x_{t - kernel + 1 + j}[c] + bias[c]`, with a SiLU
/// after it or without.
#[derive(Debug, Clone)]
pub struct CausalConv {
    shape: ConvShape,
    /// `[kernel, channels]`.
    weights: Resident,
    bias: Resident,
    silu: bool,
    /// As many as channels.
    ones: Vec<f32>,
}

const OP: &str = "causal convolution";

impl CausalConv {
    /// A convolution with weights `[channels, kernel]`.
    ///
    /// # Errors
    /// Sizes of zero, or weights or bias of another length.
    pub fn new(
        shape: ConvShape,
        weights: &[f32],
        bias: Option<Vec<f32>>,
        silu: bool,
    ) -> Result<Self> {
        let ConvShape { channels, kernel } = shape;
        let bias = bias.unwrap_or_else(|| vec![0.0; channels]);
        let sizes = [weights.len(), bias.len()];
        if channels == 0 || kernel == 0 || sizes != [channels * kernel, channels] {
            let expected = format!("weights [{channels}, {kernel}] and as many biases as channels");
            return Err(TensorError::shape(OP, expected, &sizes));
        }
        let column = |j: usize| weights.iter().skip(j).step_by(kernel).copied();
        let weights = (0..kernel).flat_map(column).collect();
        let (weights, bias) = (Resident::new(weights), Resident::new(bias));
        Ok(Self { shape, weights, bias, silu, ones: vec![1.0; channels] })
    }

    /// Sizes of the convolution.
    #[must_use]
    pub fn shape(&self) -> ConvShape {
        self.shape
    }

    /// Convolves some columns of `x`. `over` calls what it is given with the step's segments: each token
    /// once, those of one sequence in their order.
    ///
    /// # Shapes
    /// `x [t, n]` -> `[t, channels]`.
    ///
    /// # Errors
    /// Shapes that do not fit, or an error of `over`.
    pub fn forward<E: From<TensorError>>(
        &self,
        x: &Tensor,
        columns: Range<usize>,
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let (t, width) = host::dims2(OP, x)?;
        let channels = self.shape.channels;
        if columns.len() != channels || columns.end > width {
            let expected = format!("{channels} columns of [{t}, {width}]");
            return Err(TensorError::shape(OP, expected, &[columns.start, columns.end]).into());
        }
        if let Some(x) = x.on_gpu() {
            return self.forward_there(x, (columns.start, None), over);
        }
        let x = x.to_host()?;
        let input = Columns { data: x.as_slice(), width, range: columns };
        let mut out = vec![0.0; t * channels];
        over(&mut |segments| {
            let segments = segments.on_host(OP)?;
            check_segments(OP, segments, t, self.shape.state_len())?;
            for RecurrentSegment { rows, state } in segments {
                let own = self.run(&input, rows, state, |_| ());
                out[rows.start * channels..rows.end * channels].copy_from_slice(&own);
            }
            Ok(())
        })?;
        Ok(Tensor::from_vec(out, &[t, channels])?)
    }

    /// Convolves columns of `x` on its GPU, from the first on, with the first columns of gates before and after.
    pub(super) fn forward_there<E: From<TensorError>>(
        &self,
        x: &GpuTensor,
        (column, gates): (usize, Option<[usize; 2]>),
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let shape = self.shape;
        let out = GpuTensor::new(x.gpu(), &[x.dims[0], shape.channels])?;
        let (weights, bias, silu) = (&self.weights, &self.bias, self.silu);
        let conv = Conv { shape, weights, bias, silu, column, gates };
        over(&mut |segments| {
            let states = segments.on_gpu(OP)?;
            states.check(OP, x.dims[0], shape.state_len())?;
            conv.launch(x, &states, &out)
        })?;
        Ok(out.into())
    }

    /// Weights `[kernel, channels]` and biases.
    pub(super) fn parameters(&self) -> (&Resident, &Resident) {
        (&self.weights, &self.bias)
    }

    /// Convolves rows of `input` after those in the state, and leaves the last rows there: `[rows, channels]`.
    /// `finish` changes each row at the end.
    pub(super) fn run(
        &self,
        input: &Columns<'_>,
        rows: &Range<usize>,
        state: &mut [f32],
        finish: impl Fn(&mut [f32]) + Sync,
    ) -> Vec<f32> {
        let ConvShape { channels, kernel } = self.shape;
        let (before, kept) = (&*state, kernel - 1);
        let row = |at: usize| match at.checked_sub(kept) {
            Some(own) => input.row(rows.start + own),
            None => &before[at * channels..][..channels],
        };
        let mut out = vec![0.0; rows.len() * channels];
        let mut each: Vec<_> = out.chunks_exact_mut(channels).collect();
        pool::for_each(&mut each, |i, out| {
            let mut sums = self.bias.host().to_vec();
            for (j, weights) in self.weights.host().chunks_exact(channels).enumerate() {
                add_product(&mut sums, weights, row(i + j));
            }
            match self.silu {
                true => silu_mul_row(&sums, &self.ones, out),
                false => out.copy_from_slice(&sums),
            }
            finish(out);
        });
        let last: Vec<f32> = (rows.len()..rows.len() + kept).flat_map(row).copied().collect();
        state.copy_from_slice(&last);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Segments, noise},
        *,
    };

    const SHAPE: ConvShape = ConvShape { channels: 3, kernel: 4 };

    fn conv(silu: bool) -> CausalConv {
        let bias = Some(noise::noise(3, 2));
        CausalConv::new(SHAPE, &noise::noise(12, 1), bias, silu).unwrap()
    }

    #[test]
    fn every_cut_gives_identical_bits() {
        for silu in [false, true] {
            noise::check_cuts(SHAPE.state_len(), |t, over| {
                let x = Tensor::from_vec(noise::noise(t * 5, 3), &[t, 5])?;
                conv(silu).forward(&x, 1..4, over)?.to_vec()
            });
        }
    }

    #[test]
    fn each_channel_is_convolved_alone() {
        let x = Tensor::from_vec(vec![1.0, 10.0, 2.0, 20.0, 3.0, 30.0], &[3, 2]).unwrap();
        let shape = ConvShape { channels: 2, kernel: 2 };
        let conv =
            CausalConv::new(shape, &[1.0, 2.0, 0.0, 1.0], Some(vec![0.5, 0.0]), false).unwrap();
        let mut state = vec![4.0, 40.0];
        let out = conv.forward(&x, 0..2, |run| {
            run(Segments::Host(&mut [RecurrentSegment { rows: 0..3, state: &mut state }]))
        });
        let out: Result<Tensor> = out;
        let want = [4.0 + 2.0 + 0.5, 10.0, 1.0 + 4.0 + 0.5, 20.0, 2.0 + 6.0 + 0.5, 30.0];
        assert_eq!(out.unwrap().to_vec().unwrap(), want);
        assert_eq!(state, [3.0, 30.0]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let x = Tensor::from_vec(vec![0.0; 8], &[2, 4]).unwrap();
        let out = conv(true).forward(&x, 2..5, |_| Ok::<_, TensorError>(()));
        assert!(matches!(out, Err(TensorError::Shape { op: OP, .. })));
        assert!(CausalConv::new(SHAPE, &[0.0; 11], None, true).is_err());
        assert!(CausalConv::new(SHAPE, &[0.0; 12], Some(vec![0.0; 2]), true).is_err());
        let none = ConvShape { channels: 3, kernel: 0 };
        assert!(CausalConv::new(none, &[], None, true).is_err());
    }
}
