//! Gated DeltaNet and Kimi Delta Attention between their projections.

use super::{Mixer, Out, Step, convolution};
use crate::{LoadOptions, ModelError, StateSession, norms::Input, source::Source, spec::Spec};
use taper_tensor::{
    ConvShape, GatedDelta, GatedDeltaInputs, GatedDeltaParams, GatedDeltaShape, Linear,
    LinearGroup, OutputGate, Pass, Tensor, ops,
};

/// What makes one family's delta rule differ from another's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DeltaSpec {
    pub(crate) shape: GatedDeltaShape,
    pub(crate) layout: DeltaLayout,
    /// What is written of a value, at most.
    pub(crate) write: f32,
    /// Added to the mean square of a head's output.
    pub(crate) norm_eps: f32,
}

/// Which tensors a layer is projected by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeltaLayout {
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a` (Qwen 3.5).
    Split,
    /// `in_proj_qkvz` and `in_proj_ba`, whose rows are in groups of a key head (Qwen3-Next).
    Grouped,
    /// One tensor for each, and a convolution each for queries, keys and values (OLMo Hybrid).
    Single,
    /// One tensor for each, too, but gate and decays go through two small projections each (Kimi Linear).
    LowRank,
}

impl DeltaSpec {
    /// As Qwen has it.
    pub(crate) fn qwen(shape: GatedDeltaShape, layout: DeltaLayout, norm_eps: f32) -> Self {
        Self { shape, layout, write: 1.0, norm_eps }
    }
}

/// A layer's recurrence.
#[derive(Debug)]
pub(crate) struct GatedDeltaNet {
    /// Counted among layers with recurrent states.
    id: usize,
    projections: Projections,
    delta: GatedDelta,
    out: Linear,
}

/// What gives queries, keys and values, the output's gate, and what is written and kept.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one a layer")]
enum Projections {
    /// Queries, keys and values in one.
    Joined(LinearGroup<4>),
    Single(LinearGroup<6>),
    /// Gate and decays go through second projections.
    LowRank(LinearGroup<6>, [Linear; 2]),
}

impl GatedDeltaNet {
    /// The layer's recurrence below `at`.
    pub(crate) fn load(
        model: &Spec,
        spec: DeltaSpec,
        id: usize,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let (at, shape) = (format!("{at}.linear_attn"), spec.shape);
        let single = matches!(spec.layout, DeltaLayout::Single | DeltaLayout::LowRank);
        let (norm, out) = if single { ("o_norm", "o_proj") } else { ("norm", "out_proj") };
        let gate = match spec.layout {
            DeltaLayout::LowRank => OutputGate::Sigmoid,
            _ => OutputGate::Silu,
        };
        let params = GatedDeltaParams {
            conv: if single { convs(weights, &at, shape)? } else { conv(weights, &at, shape)? },
            a_log: weights.flat(&format!("{at}.A_log"), shape.value_heads)?,
            dt_bias: weights.flat(&format!("{at}.dt_bias"), shape.decays())?,
            write: spec.write,
            gate,
            // This norm alone is stored as it is applied.
            norm: weights.vector(&format!("{at}.{norm}.weight"), shape.value_dim)?,
            norm_eps: spec.norm_eps,
        };
        let out = format!("{at}.{out}");
        Ok(Self {
            id,
            projections: Projections::load(model, spec, weights, &at)?,
            delta: GatedDelta::new(shape, params)?,
            out: weights.linear(&out, shape.values(), model.hidden, false)?,
        })
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let place = options.place();
        let projections = match self.projections {
            Projections::Joined(all) => Projections::Joined(all.place(place)?),
            Projections::Single(all) => Projections::Single(all.place(place)?),
            Projections::LowRank(all, [gate, decay]) => {
                Projections::LowRank(all.place(place)?, [gate.place(place)?, decay.place(place)?])
            }
        };
        Ok(Self { projections, out: self.out.place(place)?, ..self })
    }
}

impl Projections {
    fn load(
        model: &Spec,
        spec: DeltaSpec,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let (shape, hidden) = (spec.shape, model.hidden);
        let (heads, values) = (shape.value_heads, shape.values());
        let keys = shape.key_heads * shape.key_dim;
        let linear = |name: &str, inputs: usize, rows: usize| {
            weights.linear(&format!("{at}.{name}"), inputs, rows, false)
        };
        let own = |name: &str, rows: usize| linear(name, hidden, rows);
        Ok(match spec.layout {
            DeltaLayout::Split => Self::Joined(LinearGroup::new([
                own("in_proj_qkv", shape.channels())?,
                own("in_proj_z", values)?,
                own("in_proj_b", heads)?,
                own("in_proj_a", heads)?,
            ])?),
            DeltaLayout::Grouped => {
                let Groups { qkv, z, b, a } = Groups::of(shape);
                let ba = own("in_proj_ba", b.len() + a.len())?;
                // A GGUF file has the first of the two sorted.
                let (qkv, z) = if weights.has(&format!("{at}.in_proj_qkv.weight")) {
                    (own("in_proj_qkv", qkv.len())?, own("in_proj_z", z.len())?)
                } else {
                    let qkvz = own("in_proj_qkvz", qkv.len() + z.len())?;
                    (qkvz.take_outputs(&qkv)?, qkvz.take_outputs(&z)?)
                };
                let (b, a) = (ba.take_outputs(&b)?, ba.take_outputs(&a)?);
                Self::Joined(LinearGroup::new([qkv, z, b, a])?)
            }
            DeltaLayout::Single => Self::Single(LinearGroup::new([
                own("q_proj", keys)?,
                own("k_proj", keys)?,
                own("v_proj", values)?,
                own("g_proj", values)?,
                own("b_proj", heads)?,
                own("a_proj", heads)?,
            ])?),
            DeltaLayout::LowRank => {
                let rank = shape.value_dim;
                let all = LinearGroup::new([
                    own("q_proj", keys)?,
                    own("k_proj", keys)?,
                    own("v_proj", values)?,
                    own("g_a_proj", rank)?,
                    own("b_proj", heads)?,
                    own("f_a_proj", rank)?,
                ])?;
                let gate = linear("g_b_proj", rank, values)?;
                Self::LowRank(all, [gate, linear("f_b_proj", rank, shape.decays())?])
            }
        })
    }

    /// Queries, keys and values in one, then what gates, what is written and what is kept.
    fn forward(&self, input: &Input<'_>, pass: Pass<'_>) -> Result<[Tensor; 4], ModelError> {
        let (x, norm) = (&input.x, input.norm);
        Ok(match self {
            Self::Joined(all) => all.forward_normed(x, norm, pass)?,
            Self::Single(all) => {
                let [q, k, v, z, b, a] = all.forward_normed(x, norm, pass)?;
                [ops::join_columns(&[&q, &k, &v])?, z, b, a]
            }
            Self::LowRank(all, [gate, decay]) => {
                let [q, k, v, z, b, a] = all.forward_normed(x, norm, pass)?;
                let (z, a) = (gate.forward(&z, pass)?, decay.forward(&a, pass)?);
                [ops::join_columns(&[&q, &k, &v])?, z, b, a]
            }
        })
    }

    fn linears(&self) -> Vec<&Linear> {
        match self {
            Self::Joined(all) => all.parts().iter().collect(),
            Self::Single(all) => all.parts().iter().collect(),
            Self::LowRank(all, more) => all.parts().iter().chain(more).collect(),
        }
    }
}

/// Rows of `in_proj_qkvz` and `in_proj_ba` by what they give. Both have them in groups of a key head, whose
/// queries, keys, values and gates, or writes and decays, follow one another.
struct Groups {
    qkv: Vec<usize>,
    z: Vec<usize>,
    b: Vec<usize>,
    a: Vec<usize>,
}

impl Groups {
    fn of(shape: GatedDeltaShape) -> Self {
        let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim, .. } = shape;
        let heads = value_heads / key_heads;
        let own = heads * value_dim;
        let parts = |group: usize, from: usize, n: usize| {
            let starts = (0..key_heads).map(move |head| head * group + from);
            starts.flat_map(move |start| start..start + n).collect::<Vec<_>>()
        };
        let group = 2 * key_dim + 2 * own;
        let [q, k] = [0, key_dim].map(|from| parts(group, from, key_dim));
        let [v, z] = [2 * key_dim, 2 * key_dim + own].map(|from| parts(group, from, own));
        let [b, a] = [0, heads].map(|from| parts(2 * heads, from, heads));
        Self { qkv: [q, k, v].concat(), z, b, a }
    }
}

/// The convolution of all channels.
fn conv(weights: Source<'_>, at: &str, shape: GatedDeltaShape) -> Result<Vec<f32>, ModelError> {
    let conv = ConvShape { channels: shape.channels(), kernel: shape.kernel };
    convolution(weights, &format!("{at}.conv1d"), conv)
}

/// The convolutions of queries, keys and values, one below the other, or those that a file has so already.
fn convs(weights: Source<'_>, at: &str, shape: GatedDeltaShape) -> Result<Vec<f32>, ModelError> {
    if weights.has(&format!("{at}.conv1d.weight")) {
        return conv(weights, at, shape);
    }
    let (keys, kernel) = (shape.key_heads * shape.key_dim, shape.kernel);
    let mut all = Vec::with_capacity(shape.channels() * kernel);
    for (name, channels) in [("q", keys), ("k", keys), ("v", shape.values())] {
        let (hub, mlx) = (format!("{at}.{name}_conv1d"), format!("{at}.{name}_conv.conv"));
        let found = if weights.has(&format!("{mlx}.weight")) { mlx } else { hub };
        all.extend(convolution(weights, &found, ConvShape { channels, kernel })?);
    }
    Ok(all)
}

impl Mixer for GatedDeltaNet {
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let [qkv, z, b, a] = &self.projections.forward(input, step.pass)?;
        let inputs = GatedDeltaInputs { qkv, z, b, a };
        self.delta.forward(inputs, |run| Ok::<_, ModelError>(state.recur(self.id, run)?))
    }

    fn out(&self) -> Out<'_> {
        Out::One(&self.out)
    }

    fn maps(&self) -> Vec<&Linear> {
        self.projections.linears().into_iter().chain([&self.out]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_groups_are_sorted_by_what_they_give() {
        let shape = GatedDeltaShape {
            key_heads: 2,
            value_heads: 4,
            key_dim: 1,
            value_dim: 2,
            kernel: 4,
            decay_per_key: false,
        };
        let Groups { qkv, z, b, a } = Groups::of(shape);
        assert_eq!(qkv, [0, 10, 1, 11, 2, 3, 4, 5, 12, 13, 14, 15]);
        assert_eq!(z, [6, 7, 8, 9, 16, 17, 18, 19]);
        assert_eq!((b, a), (vec![0, 1, 4, 5], vec![2, 3, 6, 7]));
    }
}
