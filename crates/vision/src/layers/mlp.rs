//! Feed-forward layers.

use super::Linear;
use crate::{Fields, VisionError, weights::Weights};
use candle_core::{Result, Tensor};

/// What stands between two maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    /// GELU by the error function.
    Gelu,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
    /// `x sigmoid(1.702 x)`.
    QuickGelu,
    Silu,
    Relu,
}

impl Activation {
    /// By the field's name in transformers.
    pub(crate) fn read(
        fields: Fields<'_>,
        name: &str,
        default: &'static str,
    ) -> std::result::Result<Self, VisionError> {
        match fields.text_or(name, default)? {
            "gelu" => Ok(Self::Gelu),
            "gelu_pytorch_tanh" | "gelu_new" => Ok(Self::GeluTanh),
            "quick_gelu" => Ok(Self::QuickGelu),
            "silu" | "swish" => Ok(Self::Silu),
            "relu" => Ok(Self::Relu),
            other => Err(VisionError::Field {
                field: name.to_owned(),
                value: format!("{other:?}"),
                expected: "gelu, gelu_pytorch_tanh, quick_gelu, silu or relu is needed",
            }),
        }
    }

    pub(crate) fn forward(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Gelu => x.gelu_erf(),
            Self::GeluTanh => x.gelu(),
            Self::QuickGelu => x * candle_nn::ops::sigmoid(&(x * 1.702)?)?,
            Self::Silu => x.silu(),
            Self::Relu => x.relu(),
        }
    }
}

/// Two maps with an activation between, or three with a gate.
#[derive(Debug)]
pub(crate) struct Mlp {
    /// Where there is a gate, gate and up side by side.
    up: Linear,
    down: Linear,
    act: Activation,
    gated: bool,
}

impl Mlp {
    /// `names` are `[up, down]`, or `[gate, up, down]`.
    pub(crate) fn load(
        weights: &Weights<'_>,
        names: &[&str],
        sizes: [usize; 3],
        act: Activation,
    ) -> std::result::Result<Self, VisionError> {
        let [inputs, inner, outputs] = sizes;
        let (down, ups) = names.split_last().unwrap_or((&"", &[]));
        let down = Linear::load(weights, down, inner, outputs)?;
        let mut parts = Vec::new();
        for name in ups {
            parts.push(Linear::load(weights, name, inputs, inner)?);
        }
        let gated = parts.len() > 1;
        let up = if gated { Linear::join(&parts)? } else { parts.remove(0) };
        Ok(Self { up, down, act, gated })
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.up.forward(x)?;
        let x = if self.gated {
            let inner = x.dim(1)? / 2;
            let gate = self.act.forward(&x.narrow(1, 0, inner)?.contiguous()?)?;
            (gate * x.narrow(1, inner, inner)?)?
        } else {
            self.act.forward(&x)?
        };
        self.down.forward(&x)
    }
}
