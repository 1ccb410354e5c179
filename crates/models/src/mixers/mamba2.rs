//! Mamba 2 between its projections.

use super::{Mixer, Out, Step, convolution};
use crate::{LoadOptions, ModelError, StateSession, norms::Input, source::Source, spec::Spec};
use taper_tensor::{
    ConvShape, GatedNorm, Linear, LinearGroup, Mamba2, Mamba2Params, Mamba2Shape, Tensor,
};

/// What makes one family's Mamba 2 differ from another's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Mamba2Spec {
    pub(crate) shape: Mamba2Shape,
    /// Whether the projections have biases.
    pub(crate) bias: bool,
    pub(crate) conv_bias: bool,
    /// The least and the largest time step.
    pub(crate) time_step: (f32, f32),
    /// Factors of the gate, the channels, the inputs, the readers and the time steps.
    pub(crate) factors: Option<[f32; 5]>,
    pub(crate) norm: StateNorm,
}

/// Where the output's norm is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateNorm {
    /// There is a gate only.
    None,
    AfterGate,
    BeforeGate,
}

/// A layer's recurrence.
#[derive(Debug)]
pub(crate) struct StateSpace {
    /// Counted among layers with recurrent states.
    id: usize,
    projection: LinearGroup<1>,
    mamba: Mamba2,
    out: Linear,
}

impl StateSpace {
    /// The layer's recurrence below `at`.
    pub(crate) fn load(
        model: &Spec,
        spec: Mamba2Spec,
        id: usize,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let (at, shape, inner) = (format!("{at}.mamba"), spec.shape, spec.shape.inner());
        let conv = ConvShape { channels: shape.channels(), kernel: shape.kernel };
        let heads = |name: &str| weights.flat(&format!("{at}.{name}"), shape.heads);
        let bias = || weights.vector(&format!("{at}.conv1d.bias"), conv.channels);
        let norm = |before_gate| {
            let gains = weights.flat(&format!("{at}.norm.weight"), inner)?;
            Ok::<_, ModelError>(GatedNorm { gains, eps: model.norm_eps, before_gate })
        };
        let params = Mamba2Params {
            conv: convolution(weights, &format!("{at}.conv1d"), conv)?,
            conv_bias: spec.conv_bias.then(bias).transpose()?,
            a_log: heads("A_log")?,
            dt_bias: heads("dt_bias")?,
            skip: heads("D")?,
            time_step: spec.time_step,
            factors: spec.factors,
            norm: match spec.norm {
                StateNorm::None => None,
                StateNorm::AfterGate => Some(norm(false)?),
                StateNorm::BeforeGate => Some(norm(true)?),
            },
        };
        let (hidden, bias) = (model.hidden, spec.bias);
        let projection =
            weights.linear(&format!("{at}.in_proj"), hidden, shape.projected(), bias)?;
        Ok(Self {
            id,
            projection: LinearGroup::new([projection])?,
            mamba: Mamba2::new(shape, params)?,
            out: weights.linear(&format!("{at}.out_proj"), inner, hidden, bias)?,
        })
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let place = options.place();
        let (projection, out) = (self.projection.place(place)?, self.out.place(place)?);
        Ok(Self { projection, out, ..self })
    }
}

impl Mixer for StateSpace {
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let [x] = &self.projection.forward_normed(&input.x, input.norm, step.pass)?;
        self.mamba.forward(x, |run| Ok::<_, ModelError>(state.recur(self.id, run)?))
    }

    fn out(&self) -> Out<'_> {
        Out::One(&self.out)
    }

    fn maps(&self) -> Vec<&Linear> {
        self.projection.parts().iter().chain([&self.out]).collect()
    }
}
