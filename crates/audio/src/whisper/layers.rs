//! What encoder and decoder are made of, on candle's tensors.

use crate::WhisperError;
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Result, Tensor, bail};
use rayon::prelude::*;
use taper_base::gelu as gelu_of;
use taper_tensor::cpu::RowSource;
use taper_weights::Checkpoint;

type Loaded<T> = std::result::Result<T, WhisperError>;

/// Elements that a thread takes at once.
const PIECE: usize = 1 << 14;
const EPS: f32 = 1e-5;

/// Tensors below one name.
#[derive(Debug, Clone)]
pub(super) struct Weights<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) prefix: String,
}

impl Weights<'_> {
    /// The tensors below a name in this one.
    pub(super) fn at(&self, name: impl std::fmt::Display) -> Self {
        Self { checkpoint: self.checkpoint, prefix: format!("{}{name}.", self.prefix) }
    }

    pub(super) fn tensor(&self, name: &str, shape: &[usize]) -> Loaded<Tensor> {
        let values = self.checkpoint.array(&format!("{}{name}", self.prefix), shape)?;
        Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
    }

    /// The matrix `name.weight`, of floats or quantized.
    pub(super) fn matrix(&self, name: &str, rows: usize, cols: usize) -> Loaded<Tensor> {
        let weight = self.checkpoint.weight(&format!("{}{name}", self.prefix), rows, cols)?;
        let mut values = vec![0.0; rows * cols];
        weight.read_rows(0, &mut values);
        Ok(Tensor::from_vec(values, (rows, cols), &Device::Cpu)?)
    }

    pub(super) fn linear(&self, name: &str, [inputs, outputs]: [usize; 2]) -> Loaded<Linear> {
        let bias = self.tensor(&format!("{name}.bias"), &[outputs])?;
        Ok(Linear { weight: self.matrix(name, outputs, inputs)?, bias: Some(bias) })
    }

    pub(super) fn norm(&self, name: &str, n: usize) -> Loaded<Norm> {
        let of = |part: &str| self.tensor(&format!("{name}.{part}"), &[n]);
        Ok(Norm { gain: of("weight")?, bias: of("bias")? })
    }
}

/// `x W^T + b`.
#[derive(Debug)]
pub(super) struct Linear {
    /// `[outputs, inputs]`.
    pub(super) weight: Tensor,
    pub(super) bias: Option<Tensor>,
}

impl Linear {
    /// `[rows, inputs]` to `[rows, outputs]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.matmul(&self.weight.t()?)?;
        self.bias.as_ref().map_or_else(|| Ok(y.clone()), |bias| y.broadcast_add(bias))
    }
}

/// Mean and variance over a row.
#[derive(Debug)]
pub(super) struct Norm {
    gain: Tensor,
    bias: Tensor,
}

impl Norm {
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        candle_nn::ops::layer_norm(&x.contiguous()?, &self.gain, &self.bias, EPS)
    }
}

/// Two maps with a GELU between.
#[derive(Debug)]
pub(super) struct Mlp {
    up: Linear,
    down: Linear,
}

impl Mlp {
    pub(super) fn load(weights: &Weights<'_>, width: usize, inner: usize) -> Loaded<Self> {
        let up = weights.linear("fc1", [width, inner])?;
        Ok(Self { up, down: weights.linear("fc2", [inner, width])? })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&gelu(&self.up.forward(x)?)?)
    }
}

/// Attention with several heads. Keys have no bias.
#[derive(Debug)]
pub(super) struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    heads: usize,
}

/// What is attended to: keys and values, `[heads, positions, width of a head]` each.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    pub(super) keys: Tensor,
    pub(super) values: Tensor,
}

impl Memory {
    /// The positions of both, one after another.
    pub(super) fn join(self, more: Self) -> Result<Self> {
        let keys = Tensor::cat(&[self.keys, more.keys], 1)?;
        Ok(Self { keys, values: Tensor::cat(&[self.values, more.values], 1)? })
    }
}

impl Attention {
    pub(super) fn load(weights: &Weights<'_>, width: usize, heads: usize) -> Loaded<Self> {
        let square = [width, width];
        Ok(Self {
            query: weights.linear("q_proj", square)?,
            key: Linear { weight: weights.matrix("k_proj", width, width)?, bias: None },
            value: weights.linear("v_proj", square)?,
            out: weights.linear("out_proj", square)?,
            heads,
        })
    }

    /// `[positions, width]` to `[heads, positions, width of a head]`.
    fn split(&self, x: &Tensor) -> Result<Tensor> {
        let (positions, width) = x.dims2()?;
        x.reshape((positions, self.heads, width / self.heads))?.transpose(0, 1)?.contiguous()
    }

    /// Keys and values of `[positions, width]`.
    pub(super) fn memory(&self, x: &Tensor) -> Result<Memory> {
        let keys = self.split(&self.key.forward(x)?)?;
        Ok(Memory { keys, values: self.split(&self.value.forward(x)?)? })
    }

    /// What each of the rows of `x` finds. `mask` is added to the scores, `[rows, positions]`.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        memory: &Memory,
        mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let scale = 1.0 / ((width / self.heads) as f64).sqrt();
        let queries = self.split(&(self.query.forward(x)? * scale)?)?;
        let mut scores = queries.matmul(&memory.keys.t()?)?;
        if let Some(mask) = mask {
            scores = scores.broadcast_add(mask)?;
        }
        let found = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&memory.values)?;
        self.out.forward(&found.transpose(0, 1)?.reshape((rows, width))?)
    }
}

/// GELU by the error function, in place, of a tensor that nobody else has: candle's own uses one thread.
pub(super) fn gelu(x: &Tensor) -> Result<Tensor> {
    x.inplace_op1(&Gelu)?;
    Ok(x.clone())
}

struct Gelu;

impl InplaceOp1 for Gelu {
    fn name(&self) -> &'static str {
        "gelu"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let (CpuStorage::F32(values), Some((start, end))) = (storage, layout.contiguous_offsets())
        else {
            bail!("gelu is for contiguous f32");
        };
        let pieces = values[start..end].par_chunks_mut(PIECE);
        pieces.for_each(|piece| piece.iter_mut().for_each(|x| *x = gelu_of(*x)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_is_candles() {
        let values: Vec<_> = (-40_000..40_000).map(|i| i as f32 * 2e-4).collect();
        let x = Tensor::from_vec(values, 80_000, &Device::Cpu).unwrap();
        let expected = x.gelu_erf().unwrap();
        let worst = (gelu(&x.copy().unwrap()).unwrap() - expected).unwrap().abs().unwrap();
        assert!(worst.max_all().unwrap().to_scalar::<f32>().unwrap() < 3e-6);
    }
}
