//! The real-gated linear recurrent unit of Griffin (De et al., arXiv 2402.19427): each channel keeps one number,
//! which gates of the channel's head let go and write. RecurrentGemma has it in most layers.
//!
//! Heads need no other, so heads and sequences run in parallel.

use super::{
    Part, RecurrentSegment, RunSegments, check_segments, rows_of, rows_there, sigmoid, softplus,
};
use crate::{
    Result, Tensor, TensorError,
    gpu::{Resident, recurrent::Lru},
    host, pool,
    tensor::GpuTensor,
};
use multiversion::multiversion;

/// Sizes of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RgLruShape {
    /// Heads, each with gates of its own.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
}

impl RgLruShape {
    /// Channels of all heads; elements of the state, too.
    #[must_use]
    pub fn width(self) -> usize {
        self.heads * self.head_dim
    }
}

/// A gate: a map of each head's channels to themselves.
#[derive(Debug, Clone)]
pub struct HeadGate {
    /// `[heads, inputs, outputs]`.
    pub weights: Vec<f32>,
    /// `[heads, outputs]`.
    pub bias: Vec<f32>,
}

/// The parameters of a layer.
#[derive(Debug, Clone)]
pub struct RgLruParams {
    /// What of the input is written.
    pub input: HeadGate,
    /// What of the state is let go.
    pub recurrent: HeadGate,
    /// How fast a channel is let go at most, before its softplus.
    pub rates: Vec<f32>,
}

/// The recurrence of a layer, between its convolution and its output's gate.
#[derive(Debug, Clone)]
pub struct RgLru {
    shape: RgLruShape,
    input: Gate,
    recurrent: Gate,
    /// `-8 softplus(rates)`.
    rates: Resident,
}

/// [`HeadGate`] as it is applied.
#[derive(Debug, Clone)]
struct Gate {
    weights: Resident,
    bias: Resident,
}

const OP: &str = "rg-lru";

impl RgLru {
    /// A layer's recurrence.
    ///
    /// # Errors
    /// Sizes of zero, or parameters of another length.
    pub fn new(shape: RgLruShape, params: RgLruParams) -> Result<Self> {
        let RgLruParams { input, recurrent, rates } = params;
        let (width, dim) = (shape.width(), shape.head_dim);
        let gate = |gate: &HeadGate| [gate.weights.len(), gate.bias.len()];
        let lengths = [gate(&input), gate(&recurrent), [rates.len(), rates.len()]];
        if width == 0 || lengths != [[width * dim, width], [width * dim, width], [width, width]] {
            let expected = format!("gates [{}, {dim}, {dim}], rates [{width}]", shape.heads);
            return Err(TensorError::shape(OP, expected, &lengths.concat()));
        }
        let rates = rates.iter().map(|&rate| -8.0 * softplus(rate)).collect();
        let [input, recurrent] = [input, recurrent].map(|HeadGate { weights, bias }| Gate {
            weights: Resident::new(weights),
            bias: Resident::new(bias),
        });
        Ok(Self { shape, input, recurrent, rates: Resident::new(rates) })
    }

    /// Sizes of the layer.
    #[must_use]
    pub fn shape(&self) -> RgLruShape {
        self.shape
    }

    /// Numbers in both gates.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.input.weights.host().len() + self.recurrent.weights.host().len()
    }

    /// What every channel keeps after each token. `first` tells of tokens that begin their sequence: they are
    /// written whole. `over` calls what it is given with the step's segments: each token once, those of one sequence
    /// in their order.
    ///
    /// # Shapes
    /// `x [t, width]` and `t` flags -> `[t, width]`.
    ///
    /// # Errors
    /// Shapes that do not fit, or an error of `over`.
    pub fn forward<E: From<TensorError>>(
        &self,
        x: &Tensor,
        first: &[bool],
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let (t, _) = host::dims2(OP, x)?;
        let width = self.shape.width();
        if x.gpu().is_some() {
            return self.forward_there(rows_there(OP, x, t, width)?, over);
        }
        let x = rows_of(OP, x, t, width)?;
        if first.len() != t {
            return Err(TensorError::shape(OP, format!("{t} flags"), &[first.len()]).into());
        }
        let mut out = vec![0.0; t * width];
        over(&mut |segments| self.run((&x, first), segments.on_host(OP)?, &mut out))?;
        Ok(Tensor::from_vec(out, &[t, width])?)
    }

    /// [`Self::forward`] on a GPU, where a sequence begins when its state does.
    fn forward_there<E: From<TensorError>>(
        &self,
        x: &GpuTensor,
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let lru = Lru {
            dim: self.shape.head_dim,
            input: [&self.input.weights, &self.input.bias],
            recurrent: [&self.recurrent.weights, &self.recurrent.bias],
            rates: &self.rates,
        };
        let out = GpuTensor::new(x.gpu(), &x.dims)?;
        over(&mut |segments| {
            let states = segments.on_gpu(OP)?;
            states.check(OP, x.dims[0], self.shape.width())?;
            lru.launch(x, &states, &out)
        })?;
        Ok(out.into())
    }

    /// Segments of different sequences.
    fn run(
        &self,
        rows: (&[f32], &[bool]),
        segments: &mut [RecurrentSegment<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let width = self.shape.width();
        check_segments(OP, segments, out.len() / width, width)?;
        let mixed = vec![Vec::new(); segments.len()];
        let mut heads = Part::all(segments, &mixed, 0, (self.shape.head_dim, 1));
        pool::for_each(&mut heads, |_, head| self.recur(rows, head));
        Part::gather(heads, width, out);
        Ok(())
    }

    /// A head over its segment, token by token.
    fn recur(&self, (x, first): (&[f32], &[bool]), job: &mut Part<'_>) {
        let (width, dim) = (self.shape.width(), self.shape.head_dim);
        let rates = &self.rates.host()[job.columns.clone()];
        let (mut write, mut leave) = (vec![0.0; dim], vec![0.0; dim]);
        for (row, out) in job.rows.clone().zip(job.out.chunks_exact_mut(dim)) {
            let x = &x[row * width..][job.columns.clone()];
            self.input.apply(job.index, x, &mut write);
            self.recurrent.apply(job.index, x, &mut leave);
            for (i, out) in out.iter_mut().enumerate() {
                let log = rates[i] * sigmoid(leave[i]);
                let (keep, scale) = match first[row] {
                    true => (0.0, 1.0),
                    false => (log.exp(), (1.0 - (2.0 * log).exp()).sqrt()),
                };
                let state = &mut job.state[i];
                *state = keep * *state + x[i] * sigmoid(write[i]) * scale;
                *out = *state;
            }
        }
    }
}

impl Gate {
    /// A head's outputs, before their sigmoid.
    fn apply(&self, head: usize, x: &[f32], out: &mut [f32]) {
        let dim = x.len();
        out.copy_from_slice(&self.bias.host()[head * dim..][..dim]);
        add_rows(&self.weights.host()[head * dim * dim..][..dim * dim], x, out);
    }
}

/// `out += xᵀ W` with `W [inputs, outputs]`, summed over inputs in their order.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn add_rows(weights: &[f32], x: &[f32], out: &mut [f32]) {
    for (row, x) in weights.chunks_exact(out.len()).zip(x) {
        for (out, w) in out.iter_mut().zip(row) {
            *out += x * w;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::noise::{check_cuts, cut, difference, noise},
        *,
    };

    const SHAPE: RgLruShape = RgLruShape { heads: 3, head_dim: 4 };

    fn params() -> RgLruParams {
        let gate = |seed| HeadGate { weights: noise(48, seed), bias: noise(12, seed + 1) };
        RgLruParams { input: gate(1), recurrent: gate(3), rates: noise(12, 5) }
    }

    fn input(t: usize) -> Tensor {
        Tensor::from_vec(noise(t * 12, 10), &[t, 12]).unwrap()
    }

    #[test]
    fn every_cut_gives_identical_bits() {
        let layer = RgLru::new(SHAPE, params()).unwrap();
        check_cuts(SHAPE.width(), |t, over| {
            let first: Vec<_> = (0..t).map(|i| i == 0).collect();
            layer.forward(&input(t), &first, over)?.to_vec()
        });
    }

    #[test]
    fn what_is_kept_is_the_sum_of_what_was_written() {
        let (t, p) = (30, params());
        let mut state = vec![0.0; 12];
        let first: Vec<_> = (0..t).map(|i| i == 0).collect();
        let layer = RgLru::new(SHAPE, p.clone()).unwrap();
        let got: Result<Tensor> =
            layer.forward(&input(t), &first, |run| cut(run, &[t], &mut state));
        let x = input(t).to_vec().unwrap();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let gate = |gate: &HeadGate, i: usize, c: usize| {
            let (head, out) = (c / 4, c % 4);
            let term = |k: usize| {
                f64::from(x[i * 12 + head * 4 + k])
                    * f64::from(gate.weights[head * 16 + k * 4 + out])
            };
            sigmoid(f64::from(gate.bias[c]) + (0..4).map(term).sum::<f64>())
        };
        let log = |i: usize, c: usize| {
            -8.0 * f64::from(p.rates[c]).exp().ln_1p() * gate(&p.recurrent, i, c)
        };
        let mut want = Vec::new();
        for i in 0..t {
            for c in 0..12 {
                let written = |j: usize| {
                    let scale = if j == 0 { 1.0 } else { (1.0 - (2.0 * log(j, c)).exp()).sqrt() };
                    let left: f64 = (j + 1..=i).map(|l| log(l, c)).sum();
                    f64::from(x[j * 12 + c]) * gate(&p.input, j, c) * scale * left.exp()
                };
                want.push((0..=i).map(written).sum::<f64>());
            }
        }
        assert!(difference(&got.unwrap().to_vec().unwrap(), &want) < 1e-5);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let layer = RgLru::new(SHAPE, params()).unwrap();
        let out = layer.forward(&input(2), &[true], |_| Ok::<_, TensorError>(()));
        assert!(matches!(out, Err(TensorError::Shape { op: OP, .. })));
        let short = RgLruParams { rates: vec![0.0; 3], ..params() };
        assert!(RgLru::new(SHAPE, short).is_err());
        assert!(RgLru::new(RgLruShape { heads: 0, ..SHAPE }, params()).is_err());
    }
}
