//! The recurrent block of Griffin: a convolution and a gated linear recurrence beside a gate (RecurrentGemma).

use super::{Mixer, Out, Step, convolution};
use crate::{
    LoadOptions, ModelError, StateSession, feed_forward::size, norms::Input, source::Source,
    spec::Spec,
};
use taper_tensor::{
    CausalConv, ConvShape, HeadGate, Linear, LinearGroup, RgLru, RgLruParams, RgLruShape, Tensor,
    ops,
};

/// Sizes of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GriffinSpec {
    pub(crate) shape: RgLruShape,
    /// Tokens that the convolution sees.
    pub(crate) kernel: usize,
}

impl GriffinSpec {
    pub(crate) fn conv(&self) -> ConvShape {
        ConvShape { channels: self.shape.width(), kernel: self.kernel }
    }
}

/// A layer's recurrence.
#[derive(Debug)]
pub(crate) struct Griffin {
    /// That of the convolution's state among layers with recurrent states; the recurrence's is the next.
    id: usize,
    /// What is convolved, and the gate.
    projections: LinearGroup<2>,
    conv: CausalConv,
    lru: RgLru,
    out: Linear,
}

impl Griffin {
    /// The layer's recurrence below `at`.
    pub(crate) fn load(
        model: &Spec,
        spec: GriffinSpec,
        id: usize,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let at = format!("{at}.recurrent");
        let RgLruShape { heads, head_dim } = spec.shape;
        let width = spec.shape.width();
        let linear = |name: &str, inputs, outputs| {
            weights.linear(&format!("{at}.{name}"), inputs, outputs, true)
        };
        let gate = |name: &str| {
            let (name, dims) = (format!("{at}.rg_lru.{name}_gate"), [heads, head_dim]);
            Ok::<_, ModelError>(HeadGate {
                weights: weights.array(&format!("{name}_weight"), &[heads, head_dim, head_dim])?,
                bias: weights.array(&format!("{name}_bias"), &dims)?,
            })
        };
        let params = RgLruParams {
            input: gate("input")?,
            recurrent: gate("recurrent")?,
            rates: weights.vector(&format!("{at}.rg_lru.recurrent_param"), width)?,
        };
        let weight = convolution(weights, &format!("{at}.conv_1d"), spec.conv())?;
        let bias = weights.vector(&format!("{at}.conv_1d.bias"), width)?;
        let (x, y) =
            (linear("linear_x", model.hidden, width)?, linear("linear_y", model.hidden, width)?);
        Ok(Self {
            id,
            projections: LinearGroup::new([x, y])?,
            conv: CausalConv::new(spec.conv(), &weight, Some(bias), false)?,
            lru: RgLru::new(spec.shape, params)?,
            out: linear("linear_out", width, model.hidden)?,
        })
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let place = options.place();
        let (projections, out) = (self.projections.place(place)?, self.out.place(place)?);
        Ok(Self { projections, out, ..self })
    }
}

impl Mixer for Griffin {
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let [x, y] = &self.projections.forward_normed(&input.x, input.norm, step.pass)?;
        let width = self.lru.shape().width();
        let x = &self
            .conv
            .forward(x, 0..width, |run| Ok::<_, ModelError>(state.recur(self.id, run)?))?;
        let first: Vec<_> = step.positions.iter().map(|&position| position == 0).collect();
        let kept = self
            .lru
            .forward(x, &first, |run| Ok::<_, ModelError>(state.recur(self.id + 1, run)?))?;
        Ok(ops::gated(step.spec.activation, y, &kept)?)
    }

    fn out(&self) -> Out<'_> {
        Out::One(&self.out)
    }

    fn maps(&self) -> Vec<&Linear> {
        self.projections.parts().iter().chain([&self.out]).collect()
    }

    fn size(&self) -> (u64, u64) {
        let (parameters, bytes) = size(self.maps());
        let gates = self.lru.parameters() as u64;
        (parameters + gates, bytes + 4 * gates)
    }
}
