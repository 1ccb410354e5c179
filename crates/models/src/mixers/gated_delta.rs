//! Gated DeltaNet between its projections (Qwen 3.5).

use super::{Mixer, Step};
use crate::{
    LoadOptions, ModelError, StateSession, feed_forward::size, norms::Input, source::Source,
    spec::Spec,
};
use taper_tensor::{
    GatedDelta, GatedDeltaInputs, GatedDeltaParams, GatedDeltaShape, Linear, LinearGroup,
    OutputGate, Tensor,
};

/// A layer's recurrence.
#[derive(Debug)]
pub(crate) struct GatedDeltaNet {
    /// Counted among layers with recurrent states.
    id: usize,
    /// Queries, keys and values in one; the output's gate; and what is written and kept, per head.
    projections: LinearGroup<4>,
    delta: GatedDelta,
    out: Linear,
}

impl GatedDeltaNet {
    pub(crate) fn load(
        model: &Spec,
        shape: GatedDeltaShape,
        id: usize,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let at = format!("{at}.linear_attn");
        let heads = shape.value_heads;
        let linear = |name: &str, rows: usize| {
            weights.linear(&format!("{at}.{name}"), model.hidden, rows, false)
        };
        let projections = LinearGroup::new([
            linear("in_proj_qkv", shape.channels())?,
            linear("in_proj_z", shape.values())?,
            linear("in_proj_b", heads)?,
            linear("in_proj_a", heads)?,
        ])?;
        let params = GatedDeltaParams {
            conv: conv(weights, &at, shape)?,
            a_log: weights.vector(&format!("{at}.A_log"), heads)?,
            dt_bias: weights.vector(&format!("{at}.dt_bias"), heads)?,
            decay_floor: None,
            write: 1.0,
            gate: OutputGate::Silu,
            // This norm alone is stored as it is applied.
            norm: weights.vector(&format!("{at}.norm.weight"), shape.value_dim)?,
            norm_eps: model.norm_eps,
        };
        let delta = GatedDelta::new(shape, params)?;
        let out = weights.linear(&format!("{at}.out_proj"), shape.values(), model.hidden, false)?;
        Ok(Self { id, projections, delta, out })
    }

    /// As it will run; there is no GPU for it.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let place = options.place();
        let (projections, out) = (self.projections.place(place)?, self.out.place(place)?);
        Ok(Self { projections, out, ..self })
    }
}

/// The convolution, `[channels, 1, kernel]` in Hugging Face's files and `[channels, kernel, 1]` in MLX's.
fn conv(weights: Source<'_>, at: &str, shape: GatedDeltaShape) -> Result<Vec<f32>, ModelError> {
    let name = format!("{at}.conv1d.weight");
    let (channels, kernel) = (shape.channels(), shape.kernel);
    let mlx = weights.floats(&name)?.1 == [channels, kernel, 1];
    let stored = if mlx { [channels, kernel, 1] } else { [channels, 1, kernel] };
    Ok(weights.array(&name, &stored)?)
}

impl Mixer for GatedDeltaNet {
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let [qkv, z, b, a] = &self.projections.forward_normed(&input.x, input.norm, step.phase)?;
        let inputs = GatedDeltaInputs { qkv, z, b, a };
        self.delta.forward(inputs, |run| Ok::<_, ModelError>(state.recur(self.id, run)?))
    }

    fn out(&self) -> &Linear {
        &self.out
    }

    fn size(&self) -> (u64, u64) {
        size(self.projections.parts().iter().chain([&self.out]))
    }
}
