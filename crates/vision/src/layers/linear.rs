//! Linear maps.

use crate::{VisionError, weights::Weights};
use candle_core::{Result, Tensor};

/// `x W^T + b`, the bias where the file has one.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
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
        Ok(Self { weight, bias })
    }

    /// `weight` is `[outputs, inputs]`.
    pub(crate) fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias }
    }

    /// Maps side by side as one, which reads its input once.
    pub(crate) fn join(parts: &[Self]) -> Result<Self> {
        let weights: Vec<_> = parts.iter().map(|p| &p.weight).collect();
        let weight = Tensor::cat(&weights, 0)?;
        if parts.iter().all(|p| p.bias.is_none()) {
            return Ok(Self { weight, bias: None });
        }
        let bias = |p: &Self| match &p.bias {
            Some(bias) => Ok(bias.clone()),
            None => Tensor::zeros(p.weight.dim(0)?, p.weight.dtype(), p.weight.device()),
        };
        let biases = parts.iter().map(bias).collect::<Result<Vec<_>>>()?;
        Ok(Self { weight, bias: Some(Tensor::cat(&biases, 0)?) })
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.matmul(&self.weight.t()?)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}
