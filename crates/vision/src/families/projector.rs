//! Two maps from a tower to a language model, with a norm before them where there is one.

use crate::{
    VisionError,
    layers::{Activation, Linear, Norm, NormKind},
    weights::Weights,
};
use candle_core::{Result, Tensor};

/// `linear_2(act(linear_1(norm(x))))`.
#[derive(Debug)]
pub(super) struct Projector {
    norm: Option<Norm>,
    maps: [Linear; 2],
    act: Activation,
}

impl Projector {
    /// `sizes` are inputs, elements between, outputs.
    pub(super) fn load(
        weights: &Weights<'_>,
        [inputs, inner, outputs]: [usize; 3],
        act: Activation,
        normed: bool,
    ) -> std::result::Result<Self, VisionError> {
        let norm = || Norm::load(weights, "layer_norm", inputs, NormKind::Layer, 1e-5);
        Ok(Self {
            norm: normed.then(norm).transpose()?,
            maps: [
                Linear::load(weights, "linear_1", inputs, inner)?,
                Linear::load(weights, "linear_2", inner, outputs)?,
            ],
            act,
        })
    }

    /// `[rows, inputs]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = match &self.norm {
            Some(norm) => norm.forward(x)?,
            None => x.clone(),
        };
        self.maps[1].forward(&self.maps[0].forward_act(&x, self.act)?)
    }
}
