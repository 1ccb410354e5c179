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

    /// Of a tensor that nobody else has, which is used up.
    pub(crate) fn forward(self, x: &Tensor) -> Result<Tensor> {
        if !x.device().is_cpu() {
            return self.by_candle(x);
        }
        super::inplace::finish(x, &[], Some(self))?;
        Ok(x.clone())
    }

    /// By candle's own operations, on any device.
    pub(crate) fn by_candle(self, x: &Tensor) -> Result<Tensor> {
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
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    act: Activation,
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
        let map = |name: &str| Linear::load(weights, name, inputs, inner);
        let (gate, up, down) = match *names {
            [gate, up, down] => (Some(map(gate)?), map(up)?, down),
            [up, down] => (None, map(up)?, down),
            _ => {
                let count = names.len();
                let error = format!("{count} maps are no feed-forward layer");
                return Err(candle_core::Error::Msg(error).into());
            }
        };
        Ok(Self { gate, up, down: Linear::load(weights, down, inner, outputs)?, act })
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = match &self.gate {
            Some(gate) => (gate.forward_act(x, self.act)? * self.up.forward(x)?)?,
            None => self.up.forward_act(x, self.act)?,
        };
        self.down.forward(&x)
    }
}
