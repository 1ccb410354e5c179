//! Mixtures of experts.

mod products;
mod route;
mod tiles;

use super::{Buffer, Gpu, GpuWeight, ops};
use crate::{
    Linear, Result, RmsNorm, Tensor, TensorError, ops::Activation, routing::Router,
    tensor::GpuTensor,
};
pub(super) use products::{AddExpertsParams, ExpertParams, ExpertSumParams};
use route::Routes;
pub(super) use route::{RouteParams, ScoredParams};
use std::sync::Arc;
pub(super) use tiles::{BeginParams, ExpertTileParams};

/// Most experts that a router chooses among.
const MAX_EXPERTS: usize = 1024;

/// What experts make of what they read, beside their products.
#[derive(Debug, Clone, Copy)]
pub struct ExpertKind {
    /// What is between their products.
    pub activation: Activation,
    /// It is SwiGLU whose result is at most this, and the other factor as far from zero (Step 3.5).
    pub limit: Option<f32>,
    /// A weight multiplies what its expert reads, not what it gives (Llama 4).
    pub weighs_input: bool,
    /// The sum of all results is multiplied by it.
    pub scale: f32,
}

/// The maps of an expert.
#[derive(Debug, Clone, Copy)]
pub struct ExpertMaps<'a> {
    /// Gate and up projection, or the up projection alone.
    pub first: &'a [Linear],
    /// The way back.
    pub down: &'a Linear,
}

/// What experts read, and what their results are added to.
#[derive(Debug, Clone, Copy)]
pub struct ExpertsInput<'a> {
    /// `[t, hidden]`.
    pub x: &'a Tensor,
    /// What they read `x` through.
    pub norm: Option<&'a RmsNorm>,
    /// The router's outputs, `[t, experts]`. Those after the last expert that has maps give back what they read
    /// (LongCat).
    pub logits: &'a Tensor,
    /// What the expert of every token gives, `[t, hidden]`, and what its sigmoid multiplies that with, `[t, 1]`.
    pub shared: Option<(&'a Tensor, Option<&'a Tensor>)>,
    /// `[t, hidden]`.
    pub residual: Option<&'a Tensor>,
}

/// The experts of a layer on a GPU, their matrices one below the other.
#[derive(Debug, Clone)]
pub struct StackedExperts {
    first: Stack,
    down: Stack,
    gated: bool,
    kind: ExpertKind,
    experts: usize,
    exact: bool,
}

/// A map of every expert.
#[derive(Debug, Clone)]
struct Stack {
    weight: GpuWeight,
    bias: Option<Arc<Buffer>>,
}

/// [`ExpertsInput`] on the GPU.
struct Read<'a> {
    x: &'a GpuTensor,
    norm: Option<&'a RmsNorm>,
    /// Whether tokens may choose experts that give back what they read.
    idle: bool,
    shared: Option<(&'a GpuTensor, Option<&'a GpuTensor>)>,
    residual: Option<&'a GpuTensor>,
}

impl StackedExperts {
    /// Copies experts to a GPU. Unless they are to be `exact`, products of many rows may round weights and activations
    /// to f16.
    ///
    /// # Errors
    /// There is none or more than 1024, their formats or shapes differ, some maps have biases and others none, or there
    /// is no room.
    pub fn new(
        gpu: &Gpu,
        experts: &[ExpertMaps<'_>],
        kind: ExpertKind,
        exact: bool,
    ) -> Result<Self> {
        let n = experts.len();
        if n == 0 || n > MAX_EXPERTS {
            return Err(TensorError::shape("experts", "1 to 1024 experts", &[n]));
        }
        let of_each = experts[0].first.len();
        let firsts: Vec<_> = experts.iter().flat_map(|expert| expert.first).collect();
        let downs: Vec<_> = experts.iter().map(|expert| expert.down).collect();
        let (first, down) = (Stack::new(gpu, &firsts, exact)?, Stack::new(gpu, &downs, exact)?);
        let (hidden, inner) = (first.weight.cols(), down.weight.cols());
        let rows = [first.weight.rows(), down.weight.rows()];
        if !first.weight.is_whole() {
            return Err(TensorError::shape("experts", "rows of a multiple of 32", &[hidden]));
        }
        if ![1, 2].contains(&of_each) || rows != [of_each * n * inner, n * hidden] {
            return Err(TensorError::shape("experts", "maps there and back", &rows));
        }
        Ok(Self { first, down, gated: of_each == 2, kind, experts: n, exact })
    }

    /// Number of weights of all experts.
    #[must_use]
    pub fn elements(&self) -> u64 {
        let of = |stack: &Stack| (stack.weight.rows() * stack.weight.cols()) as u64;
        of(&self.first) + of(&self.down)
    }

    /// Bytes of the weights of all experts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of = |stack: &Stack| {
            stack.weight.bytes() + stack.bias.as_ref().map_or(0, |bias| bias.len() as u64)
        };
        of(&self.first) + of(&self.down)
    }

    /// `residual + Σ weight · expert(x)` over the experts of each row that `router` chooses, by ascending expert, and
    /// over the expert of every token. Of equal experts the first is taken.
    ///
    /// # Shapes
    /// As [`ExpertsInput`] has them -> `[t, hidden]`.
    ///
    /// # Errors
    /// Another shape, more experts chosen than there are, or a tensor that is not on the GPU.
    pub fn forward(&self, router: &Router, input: &ExpertsInput<'_>) -> Result<Tensor> {
        let (t, n) = crate::host::dims2("experts", input.logits)?;
        if n < self.experts || n > MAX_EXPERTS {
            let expected = format!("[t, at least {}]", self.experts);
            return Err(TensorError::shape("experts", expected, &[t, n]));
        }
        let hidden = self.hidden();
        let there = |x| self.there(x, [t, hidden]);
        let logits = self.there(input.logits, [t, n])?;
        let shared = match input.shared {
            Some((x, gate)) => {
                let gate = gate.map(|gate| self.there(gate, [t, 1])).transpose()?;
                Some((there(x)?, gate))
            }
            None => None,
        };
        let residual = input.residual.map(there).transpose()?;
        let (x, idle) = (there(input.x)?, n > self.experts);
        // What idle experts give back is normed.
        let normed = input.norm.filter(|_| idle).map(|norm| ops::rms_norm(x, norm)).transpose()?;
        let (x, norm) = normed.as_ref().map_or((x, input.norm), |x| (x, None));
        let read = Read { x, norm, idle, shared, residual };
        let routes = route::route(logits, router)?;
        let chosen = router.routing.chosen;
        let y = match self.tiling(t, chosen) {
            None => self.one_by_one(&read, &routes, chosen)?,
            Some(tiling) => {
                let (y, places) = self.by_tiles(&read, &routes, chosen, tiling)?;
                self.add(&read, (&y, &places), &routes, chosen)?
            }
        };
        Ok(y.into())
    }

    fn hidden(&self) -> usize {
        self.first.weight.cols()
    }

    fn there<'a>(&self, x: &'a Tensor, shape: [usize; 2]) -> Result<&'a GpuTensor> {
        if *x.dims() != shape {
            return Err(TensorError::shape("experts", format!("{shape:?}"), x.dims()));
        }
        match x.on_gpu() {
            Some(x) if x.gpu().is(self.first.weight.gpu()) => Ok(x),
            _ => Err(TensorError::Device { op: "experts", device: "cpu".into() }),
        }
    }
}

impl Stack {
    fn new(gpu: &Gpu, linears: &[&Linear], exact: bool) -> Result<Self> {
        let weights: Vec<_> = linears.iter().filter_map(|l| l.stored()).collect();
        let stacked = match weights.len() == linears.len() {
            true => GpuWeight::stack(gpu, &weights, exact)?,
            false => None,
        };
        let expected = "matrices of one format, all with biases or all without";
        let wrong = || TensorError::shape("experts", expected, &[linears.len()]);
        let weight = stacked.ok_or_else(wrong)?;
        let biases: Vec<_> = linears.iter().filter_map(|l| l.bias()).collect();
        let bias = match biases.len() {
            0 => None,
            n if n == linears.len() => {
                let bytes = 4 * biases.iter().map(|bias| bias.len()).sum::<usize>();
                let buffer = gpu.allocate(bytes)?;
                buffer.write(0, bytemuck::cast_slice(&biases.concat()))?;
                Some(Arc::new(buffer))
            }
            _ => return Err(wrong()),
        };
        Ok(Self { weight, bias })
    }
}

#[cfg(all(test, feature = "gpu-host"))]
#[allow(clippy::unwrap_used, reason = "these are tests")]
mod tests {
    use super::*;
    use crate::{Bytes, DType, DenseWeight, Weight, gpu::FakeOptions};

    fn linear(rows: usize, cols: usize) -> Linear {
        let bytes = Bytes::from_vec(vec![0; 2 * rows * cols]);
        Linear::new(Weight::Dense(DenseWeight::new((rows, cols), DType::BF16, bytes).unwrap()))
    }

    fn biased(rows: usize, cols: usize) -> Linear {
        linear(rows, cols).with_bias(DType::F32, Bytes::from_vec(vec![0; 4 * rows])).unwrap()
    }

    #[test]
    fn experts_that_do_not_fit_are_refused() {
        let (gpu, _) = Gpu::fake(None, FakeOptions::default()).unwrap();
        let kind = ExpertKind {
            activation: Activation::Silu,
            limit: None,
            weighs_input: false,
            scale: 1.0,
        };
        let new = |experts: &[(Vec<Linear>, Linear)]| {
            let maps: Vec<_> =
                experts.iter().map(|(first, down)| ExpertMaps { first, down }).collect();
            StackedExperts::new(&gpu, &maps, kind, true)
        };
        let pair = || vec![linear(48, 64), linear(48, 64)];
        let good = new(&[(pair(), biased(64, 48)), (pair(), biased(64, 48))]).unwrap();
        assert_eq!(good.elements(), 2 * 3 * 48 * 64);
        // Rows of 48 are stored with zeros after them.
        assert_eq!(good.bytes(), 2 * 2 * (2 * 48 * 64 + 64 * 64) + 2 * 4 * 64);
        assert!(new(&[]).is_err(), "none");
        assert!(new(&[(pair(), linear(64, 48)), (pair(), biased(64, 48))]).is_err(), "a bias");
        assert!(new(&[(vec![linear(48, 64)], linear(64, 32))]).is_err(), "another way back");
        let three = vec![linear(48, 64), linear(48, 64), linear(48, 64)];
        assert!(new(&[(three, linear(64, 48))]).is_err(), "three maps");
        let narrow = vec![linear(64, 48), linear(64, 48)];
        assert!(new(&[(narrow, linear(48, 64))]).is_err(), "rows of 48 that are read");
    }
}
