//! LFM2's short convolution between its projections.

use super::{Mixer, Out, Step, convolution};
use crate::{LoadOptions, ModelError, StateSession, norms::Input, source::Source, spec::Spec};
use taper_tensor::{ConvShape, Linear, LinearGroup, ShortConv, Tensor};

/// What makes one model's short convolutions differ from another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShortConvSpec {
    pub(crate) shape: ConvShape,
    /// Whether convolution and projections have biases.
    pub(crate) bias: bool,
}

/// A layer's convolution.
#[derive(Debug)]
pub(crate) struct GatedConv {
    /// Counted among layers with recurrent states.
    id: usize,
    /// Both gates and what is convolved.
    projection: LinearGroup<1>,
    conv: ShortConv,
    out: Linear,
}

impl GatedConv {
    /// The layer's convolution below `at`.
    pub(crate) fn load(
        model: &Spec,
        spec: ShortConvSpec,
        id: usize,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let (at, hidden) = (format!("{at}.conv"), model.hidden);
        let ShortConvSpec { shape, bias } = spec;
        let n = shape.channels;
        let weight = convolution(weights, &format!("{at}.conv"), shape)?;
        let conv_bias = || weights.vector(&format!("{at}.conv.bias"), n);
        let conv_bias = bias.then(conv_bias).transpose()?;
        let projection = weights.linear(&format!("{at}.in_proj"), hidden, 3 * n, bias)?;
        Ok(Self {
            id,
            projection: LinearGroup::new([projection])?,
            conv: ShortConv::new(shape, &weight, conv_bias)?,
            out: weights.linear(&format!("{at}.out_proj"), n, hidden, bias)?,
        })
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let place = options.place();
        let (projection, out) = (self.projection.place(place)?, self.out.place(place)?);
        Ok(Self { projection, out, ..self })
    }
}

impl Mixer for GatedConv {
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let [bcx] = &self.projection.forward_normed(&input.x, input.norm, step.pass)?;
        self.conv.forward(bcx, |run| Ok::<_, ModelError>(state.recur(self.id, run)?))
    }

    fn out(&self) -> Out<'_> {
        Out::One(&self.out)
    }

    fn maps(&self) -> Vec<&Linear> {
        self.projection.parts().iter().chain([&self.out]).collect()
    }
}
