//! Checks of activations, gates, norms by mean and deviation, and of rows taken apart, put together and mixed.

use super::{Pair, data::Rng};
use std::fmt;
use taper_tensor::{
    LayerNorm, Result, Tensor,
    gpu::Gpu,
    join_heads, match_rows, mix_streams,
    ops::{self, Activation, Xielu},
    sparse_gates, split_heads_at,
};

#[derive(Debug, Clone, Copy)]
pub(super) enum Case {
    /// Every activation of `[rows, cols]`.
    Activations { rows: usize, cols: usize },
    /// Gates of parts of so many elements.
    Gates { rows: usize, parts: usize, each: usize },
    /// Layer norms, and what else is made of a row's mean and spread.
    Layer { rows: usize, cols: usize },
    /// Heads of rows, of which the first `n` elements are taken.
    Heads { rows: usize, heads: usize, head: usize, n: usize },
    /// Streams of rows, and as many coefficients.
    Streams { rows: usize, outs: usize, ins: usize, width: usize },
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, cols) in [(1, 8), (3, 255), (2, 256), (1, 257), (5, 1024)] {
        cases.push(Case::Activations { rows, cols });
        cases.push(Case::Layer { rows, cols });
    }
    for (rows, parts, each) in [(1, 8, 1), (3, 4, 24), (2, 5, 64), (7, 1, 130)] {
        cases.push(Case::Gates { rows, parts, each });
    }
    for (rows, heads, head, n) in [(1, 1, 8, 4), (3, 2, 24, 16), (2, 5, 64, 32), (4, 3, 9, 4)] {
        cases.push(Case::Heads { rows, heads, head, n });
    }
    for (rows, outs, ins, width) in [(1, 4, 4, 8), (3, 4, 1, 100), (2, 3, 2, 257)] {
        cases.push(Case::Streams { rows, outs, ins, width });
    }
    cases
}

impl Case {
    pub(super) fn family(self) -> &'static str {
        match self {
            Self::Activations { .. } | Self::Gates { .. } => "gates",
            Self::Layer { .. } => "layer",
            Self::Heads { .. } | Self::Streams { .. } => "shapes",
        }
    }

    pub(super) fn run(self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        match self {
            Self::Activations { rows, cols } => activations(gpu, rng, &[rows, cols]),
            Self::Gates { rows, parts, each } => gates(gpu, rng, rows, parts, each),
            Self::Layer { rows, cols } => layer(gpu, rng, rows, cols),
            Self::Heads { rows, heads, head, n } => taken(gpu, rng, [rows, heads, head, n]),
            Self::Streams { rows, outs, ins, width } => streams(gpu, rng, [rows, outs, ins, width]),
        }
    }
}

/// What a function of some tensors gives on the GPU and on the host.
fn both<const N: usize>(
    gpu: &Gpu,
    tensors: [&Tensor; N],
    f: impl Fn([&Tensor; N]) -> Result<Tensor>,
) -> Result<Pair> {
    let there = tensors.iter().map(|x| x.to_gpu(gpu)).collect::<Result<Vec<_>>>()?;
    let mut at = there.iter();
    let there = tensors.map(|x| at.next().unwrap_or(x));
    Pair::of(&f(there)?, &f(tensors)?)
}

/// Numbers around the bends of curves: about normal ones, and neither large nor small ones alone.
fn moderate(rng: &mut Rng, dims: &[usize]) -> Result<Tensor> {
    let mut data = rng.vector(dims.iter().product());
    for (i, x) in data.iter_mut().enumerate() {
        *x *= [1.0, 4.0, 0.05, 12.0][i % 4];
    }
    Tensor::from_vec(data, dims)
}

fn activations(gpu: &Gpu, rng: &mut Rng, dims: &[usize]) -> Result<Vec<Pair>> {
    use Activation::{Gelu, GeluTanh, Relu2, Silu, SwigluOai};
    let (x, y) = (moderate(rng, dims)?, moderate(rng, dims)?);
    let mut pairs = Vec::new();
    for activation in [Silu, GeluTanh, Gelu, Relu2, SwigluOai] {
        pairs.push(both(gpu, [&x, &y], |[x, y]| ops::gated(activation, x, y))?);
        pairs.push(both(gpu, [&x], |[x]| ops::activate(activation, x))?);
    }
    pairs.push(both(gpu, [&x, &y], |[x, y]| ops::clamped_swiglu(x, y, 2.5))?);
    let curve = Xielu { alpha_p: 0.8, alpha_n: 1.3, beta: 0.5, eps: -1e-6 };
    pairs.push(both(gpu, [&x], |[x]| ops::xielu(curve, x))?);
    Ok(pairs)
}

fn gates(gpu: &Gpu, rng: &mut Rng, rows: usize, parts: usize, each: usize) -> Result<Vec<Pair>> {
    let (x, gate) = (rng.tensor(&[rows, parts * each])?, moderate(rng, &[rows, parts])?);
    let factors = rng.vector(rows);
    let columns = rng.tensor(&[1, parts * each])?;
    Ok(vec![
        both(gpu, [&x, &gate], |[x, gate]| ops::mul_sigmoid(x, gate))?,
        both(gpu, [&x, &gate], |[x, gate]| ops::mul_softplus(x, gate))?,
        both(gpu, [&x], |[x]| ops::scale_rows(x, &factors))?,
        both(gpu, [&x, &columns], |[x, columns]| ops::scale_columns(x, columns))?,
    ])
}

fn layer(gpu: &Gpu, rng: &mut Rng, rows: usize, cols: usize) -> Result<Vec<Pair>> {
    let (x, like) = (rng.tensor(&[rows, cols])?, rng.tensor(&[rows, cols])?);
    let (gains, bias) = (rng.vector(cols), rng.vector(cols));
    let plain = LayerNorm::new(gains.clone(), None, 1e-5)?;
    let norm = LayerNorm::new(gains, Some(bias), 1e-5)?;
    // Rows far from zero, whose squares would cancel.
    let far = Tensor::from_vec(x.to_vec()?.iter().map(|x| 20.0 + x).collect(), x.dims())?;
    Ok(vec![
        both(gpu, [&x], |[x]| plain.forward(x))?,
        both(gpu, [&far], |[x]| norm.forward(x))?,
        both(gpu, [&x], |[x]| sparse_gates(x, 0.7))?,
        both(gpu, [&x, &like], |[x, like]| match_rows(x, like, 1e-5))?,
        both(gpu, [&x, &like], |[x, like]| match_rows(x, like, 2.0))?,
    ])
}

fn taken(gpu: &Gpu, rng: &mut Rng, [rows, heads, head, n]: [usize; 4]) -> Result<Vec<Pair>> {
    let (x, y) = (rng.tensor(&[rows, heads * head])?, rng.tensor(&[rows, heads * n])?);
    Ok(vec![
        both(gpu, [&x], |[x]| Ok(split_heads_at(x, head, n)?[0].clone()))?,
        both(gpu, [&x], |[x]| Ok(split_heads_at(x, head, n)?[1].clone()))?,
        both(gpu, [&x], |[x]| ops::resize_heads(x, head, n))?,
        both(gpu, [&x], |[x]| ops::resize_heads(x, head, head + n))?,
        both(gpu, [&x], |[x]| ops::columns(x, n..heads * head))?,
        both(gpu, [&x, &y], |[x, y]| join_heads(x, y, heads))?,
        both(gpu, [&x, &y], |[x, y]| ops::join_columns(&[x, y, x]))?,
    ])
}

fn streams(gpu: &Gpu, rng: &mut Rng, [rows, outs, ins, width]: [usize; 4]) -> Result<Vec<Pair>> {
    let (x, y) = (rng.tensor(&[rows, outs * width])?, rng.tensor(&[rows, ins * width])?);
    let own = moderate(rng, &[rows, outs * ins])?;
    let alike = moderate(rng, &[1, outs * ins])?;
    let mix = |plus: f32| move |[x, y, c]: [&Tensor; 3]| mix_streams(x, y, c, plus, width);
    Ok(vec![both(gpu, [&x, &y, &own], mix(0.0))?, both(gpu, [&x, &y, &alike], mix(1.0))?])
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Activations { rows, cols } => write!(f, "activation {rows}x{cols}"),
            Self::Gates { rows, parts, each } => write!(f, "gate_parts {rows}x{parts}x{each}"),
            Self::Layer { rows, cols } => write!(f, "layer_norm {rows}x{cols}"),
            Self::Heads { rows, heads, head, n } => {
                write!(f, "take_parts {rows}x{heads}x{head}, {n} first")
            }
            Self::Streams { rows, outs, ins, width } => {
                write!(f, "mix_streams {rows}x{outs}x{ins}x{width}")
            }
        }
    }
}
