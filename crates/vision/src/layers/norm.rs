//! Norms over a row.

use crate::{VisionError, weights::Weights};
use candle_core::{DType, Device, Result, Tensor};

/// Which norm a tower has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum NormKind {
    /// Mean and variance, with gain and bias.
    Layer,
    /// Root mean square, with gain.
    Rms,
}

/// A norm with its gains.
#[derive(Debug)]
pub(crate) struct Norm {
    gain: Tensor,
    /// `None` for a root mean square.
    bias: Option<Tensor>,
    eps: f32,
}

impl Norm {
    pub(crate) fn load(
        weights: &Weights<'_>,
        name: &str,
        n: usize,
        kind: NormKind,
        eps: f64,
    ) -> std::result::Result<Self, VisionError> {
        let gain = weights.tensor(&format!("{name}.weight"), &[n])?;
        let bias = match kind {
            NormKind::Rms => None,
            NormKind::Layer => Some(weights.tensor(&format!("{name}.bias"), &[n])?),
        };
        Ok(Self { gain, bias, eps: eps as f32 })
    }

    /// The root mean square with gains that are stored less 1.
    pub(crate) fn from_one(
        weights: &Weights<'_>,
        name: &str,
        n: usize,
        eps: f64,
    ) -> std::result::Result<Self, VisionError> {
        let norm = Self::load(weights, name, n, NormKind::Rms, eps)?;
        Ok(Self { gain: (norm.gain + 1.0)?, ..norm })
    }

    /// The root mean square without gains.
    pub(crate) fn plain(n: usize, eps: f64, device: &Device) -> Result<Self> {
        let gain = Tensor::ones(n, DType::F32, device)?;
        Ok(Self { gain, bias: None, eps: eps as f32 })
    }

    /// Over the last dimension.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.contiguous()?;
        match &self.bias {
            Some(bias) => candle_nn::ops::layer_norm(&x, &self.gain, bias, self.eps),
            None => candle_nn::ops::rms_norm(&x, &self.gain, self.eps),
        }
    }
}
