//! What is done to each element behind a product, in place, by all threads: candle's operations on a CPU use one thread
//! for it, and the platform's exponential.

use super::Activation;
use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};
use multiversion::multiversion;
use rayon::prelude::*;
use taper_base::{exp, gelu};

/// Rows that a thread takes at once hold about so many elements.
const PIECE: usize = 1 << 14;

/// Adds a bias to the rows of a tensor that nobody else has, and applies an activation.
pub(super) fn finish(x: &Tensor, bias: &[f32], act: Option<Activation>) -> Result<()> {
    x.inplace_op1(&Finish { bias, act })
}

/// Softmax over the last dimension of a tensor that nobody else has.
pub(super) fn softmax(x: &Tensor) -> Result<()> {
    x.inplace_op1(&Softmax)
}

struct Finish<'a> {
    bias: &'a [f32],
    act: Option<Activation>,
}

impl InplaceOp1 for Finish<'_> {
    fn name(&self) -> &'static str {
        "finish"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        by_rows(storage, layout, self.name(), |row| finish_row(row, self.bias, self.act))
    }
}

struct Softmax;

impl InplaceOp1 for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        by_rows(storage, layout, self.name(), softmax_row)
    }
}

fn by_rows(
    storage: &mut CpuStorage,
    layout: &Layout,
    name: &'static str,
    f: impl Fn(&mut [f32]) + Sync,
) -> Result<()> {
    let (CpuStorage::F32(values), Some((start, end))) = (storage, layout.contiguous_offsets())
    else {
        bail!("{name} is for contiguous f32");
    };
    let width = layout.dims().last().copied().unwrap_or(1).max(1);
    let rows = (PIECE / width).max(1) * width;
    values[start..end].par_chunks_mut(rows).for_each(|rows| rows.chunks_mut(width).for_each(&f));
    Ok(())
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
fn finish_row(row: &mut [f32], bias: &[f32], act: Option<Activation>) {
    if !bias.is_empty() {
        for (x, bias) in row.iter_mut().zip(bias) {
            *x += bias;
        }
    }
    match act {
        None => {}
        Some(Activation::Gelu) => row.iter_mut().for_each(|x| *x = gelu(*x)),
        Some(Activation::GeluTanh) => row.iter_mut().for_each(|x| *x = gelu_tanh(*x)),
        Some(Activation::QuickGelu) => row.iter_mut().for_each(|x| *x *= sigmoid(1.702 * *x)),
        Some(Activation::Silu) => row.iter_mut().for_each(|x| *x *= sigmoid(*x)),
        Some(Activation::Relu) => row.iter_mut().for_each(|x| *x = x.max(0.0)),
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
fn softmax_row(row: &mut [f32]) {
    // Several sums at once, so that they are computed in parallel.
    const LANES: usize = 16;
    let (heads, tail) = row.as_chunks::<LANES>();
    let mut most = [f32::NEG_INFINITY; LANES];
    for head in heads {
        for (most, x) in most.iter_mut().zip(head) {
            *most = most.max(*x);
        }
    }
    let most = most.iter().chain(tail).copied().fold(f32::NEG_INFINITY, f32::max);
    for x in row.iter_mut() {
        *x = exp(*x - most);
    }
    let (heads, tail) = row.as_chunks::<LANES>();
    let mut sums = [0f32; LANES];
    for head in heads {
        for (sum, x) in sums.iter_mut().zip(head) {
            *sum += x;
        }
    }
    let sum: f32 = sums.iter().chain(tail).sum();
    let share = 1.0 / sum;
    for x in row.iter_mut() {
        *x *= share;
    }
}

/// 1 / (1 + e^-x).
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let small = e / (1.0 + e);
    if x < 0.0 { small } else { 1.0 - small }
}

/// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    // (1 + tanh y) / 2 is the sigmoid of 2 y.
    const TWICE: f32 = 1.595_769;
    x * sigmoid(TWICE * (0.044_715 * x * x).mul_add(x, x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn rows() -> Tensor {
        let values = (-6000..6000).map(|i| i as f32 * 2.5e-3).collect();
        Tensor::from_vec(values, (40, 300), &Device::Cpu).unwrap()
    }

    fn worst(a: &Tensor, b: &Tensor) -> f32 {
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    #[test]
    fn activations_are_candles() {
        use Activation::{Gelu, GeluTanh, QuickGelu, Relu, Silu};
        let bias: Vec<_> = (0..300).map(|i| i as f32 * 1e-3).collect();
        for act in [Gelu, GeluTanh, QuickGelu, Silu, Relu] {
            let x = rows();
            let biased = x.broadcast_add(&Tensor::new(bias.as_slice(), &Device::Cpu).unwrap());
            let expected = act.by_candle(&biased.unwrap()).unwrap();
            finish(&x, &bias, Some(act)).unwrap();
            let worst = worst(&x, &expected);
            assert!(worst < 3e-6, "{act:?}: {worst}");
        }
    }

    #[test]
    fn softmax_is_candles() {
        let x = rows();
        let expected = candle_nn::ops::softmax_last_dim(&x).unwrap();
        softmax(&x).unwrap();
        assert!(worst(&x, &expected) < 1e-6);
        let one = Tensor::new(&[[-1e30f32], [7.0]], &Device::Cpu).unwrap();
        softmax(&one).unwrap();
        assert_eq!(one.to_vec2::<f32>().unwrap(), [[1.0], [1.0]]);
    }
}
