//! Linear maps.

use super::{Activation, inplace};
use crate::{VisionError, weights::Weights};
use candle_core::{Result, Tensor};

/// `x W^T + b`, the bias where the file has one.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    /// The bias on the host, where the weight is there too.
    host: Vec<f32>,
}

impl Linear {
    pub(crate) fn load(
        weights: &Weights<'_>,
        name: &str,
        inputs: usize,
        outputs: usize,
    ) -> std::result::Result<Self, VisionError> {
        let weight = weights.matrix(name, outputs, inputs)?;
        let bias = format!("{name}.bias");
        let bias = weights.has(&bias).then(|| weights.tensor(&bias, &[outputs])).transpose()?;
        Ok(Self::new(weight, bias)?)
    }

    /// `weight` is `[outputs, inputs]`.
    pub(crate) fn new(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let host = match &bias {
            Some(bias) if bias.device().is_cpu() => bias.to_vec1()?,
            _ => Vec::new(),
        };
        Ok(Self { weight, bias, host })
    }

    /// Maps side by side as one, which reads its input once.
    pub(crate) fn join(parts: &[Self]) -> Result<Self> {
        let weights: Vec<_> = parts.iter().map(|p| &p.weight).collect();
        let weight = Tensor::cat(&weights, 0)?;
        if parts.iter().all(|p| p.bias.is_none()) {
            return Self::new(weight, None);
        }
        let bias = |p: &Self| match &p.bias {
            Some(bias) => Ok(bias.clone()),
            None => Tensor::zeros(p.weight.dim(0)?, p.weight.dtype(), p.weight.device()),
        };
        let biases = parts.iter().map(bias).collect::<Result<Vec<_>>>()?;
        Self::new(weight, Some(Tensor::cat(&biases, 0)?))
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.apply(x, None)
    }

    /// As [`Self::forward`], with an activation.
    pub(crate) fn forward_act(&self, x: &Tensor, act: Activation) -> Result<Tensor> {
        self.apply(x, Some(act))
    }

    fn apply(&self, x: &Tensor, act: Option<Activation>) -> Result<Tensor> {
        let y = x.matmul(&self.weight.t()?)?;
        if y.device().is_cpu() {
            inplace::finish(&y, &self.host, act)?;
            return Ok(y);
        }
        let y = match &self.bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        };
        act.map_or_else(|| Ok(y.clone()), |act| act.by_candle(&y))
    }
}
