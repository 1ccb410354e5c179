//! Attention whose layers differ in their heads, and of which some read the keys and values of a layer before
//! them (Gemma 4). Queries, keys and values are normed, and scores are not scaled.

use super::{Mixer, Out, Step};
use crate::{
    LoadOptions, ModelError, StateSession,
    norms::Input,
    source::Source,
    spec::{SharingSpec, Spec, Values},
};
use taper_base::{LayerId, Phase};
use taper_kv_codecs::{Arithmetic, AttnParams};
use taper_tensor::{Linear, LinearGroup, Projected, RmsNorm, Tensor, norm_rope};

/// A layer's attention.
#[derive(Debug)]
pub(crate) struct Sharing {
    spec: SharingSpec,
    /// Whose keys and values are read, counted among layers that keep such.
    id: LayerId,
    q_norm: RmsNorm,
    projections: Projections,
    out: Linear,
}

/// What a layer computes of its input.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one a layer")]
enum Projections {
    /// Queries only: keys and values are another layer's.
    Queries(LinearGroup<1>),
    /// Queries and keys, of which the values are another norm.
    Keys(LinearGroup<2>, [RmsNorm; 2]),
    /// Queries, keys and values.
    All(LinearGroup<3>, [RmsNorm; 2]),
}

impl Sharing {
    /// The layer below `at`, which keeps its keys and values as layer `id` unless it reads those of another.
    pub(crate) fn load(
        model: &Spec,
        spec: SharingSpec,
        id: u16,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let at = format!("{at}.self_attn");
        let SharingSpec { heads, kv_heads, head_dim, .. } = spec;
        let linear = |name: &str, heads: usize| {
            weights.linear(&format!("{at}.{name}"), model.hidden, heads * head_dim, false)
        };
        let norm = |name: &str| {
            let gains = weights.vector(&format!("{at}.{name}.weight"), head_dim)?;
            Ok::<_, ModelError>(RmsNorm::new(gains, model.norm_eps))
        };
        let q = linear("q_proj", heads)?;
        let norms = || Ok::<_, ModelError>([norm("k_norm")?, plain(head_dim, model.norm_eps)]);
        let (id, projections) = match spec.values {
            Values::Of(layer) => (layer, Projections::Queries(LinearGroup::new([q])?)),
            Values::Keys => {
                let maps = LinearGroup::new([q, linear("k_proj", kv_heads)?])?;
                (id, Projections::Keys(maps, norms()?))
            }
            Values::Own => {
                let maps = [q, linear("k_proj", kv_heads)?, linear("v_proj", kv_heads)?];
                (id, Projections::All(LinearGroup::new(maps)?, norms()?))
            }
        };
        let out = weights.linear(&format!("{at}.o_proj"), heads * head_dim, model.hidden, false)?;
        Ok(Self { spec, id: LayerId(id), q_norm: norm("q_norm")?, projections, out })
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let place = options.place();
        let projections = match self.projections {
            Projections::Queries(maps) => Projections::Queries(maps.place(place)?),
            Projections::Keys(maps, norms) => Projections::Keys(maps.place(place)?, norms),
            Projections::All(maps, norms) => Projections::All(maps.place(place)?, norms),
        };
        Ok(Self { projections, out: self.out.place(place)?, ..self })
    }

    /// Stores the step's keys and values, raw as they come, and attends.
    fn attend(
        &self,
        [q, k, v]: [&Tensor; 3],
        [k_norm, v_norm]: &[RmsNorm; 2],
        (step, params): (&Step<'_>, &AttnParams<'_>),
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let SharingSpec { kv_heads, head_dim, rope, .. } = self.spec;
        let t = v.dims()[0];
        let heads = v.reshape(&[t * kv_heads, head_dim])?;
        let v = v_norm.forward(&heads)?.reshape(&[t, kv_heads * head_dim])?;
        let rows = Projected {
            q,
            k,
            v: &v,
            head_dim,
            norms: Some((&self.q_norm, k_norm)),
            rope: Some(&step.ropes[rope]),
            next: None,
        };
        Ok(state.attend(self.id, &rows, params)?)
    }
}

/// A norm without weights.
fn plain(n: usize, eps: f32) -> RmsNorm {
    RmsNorm::new(vec![1.0; n], eps)
}

impl Mixer for Sharing {
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let SharingSpec { heads, head_dim, window, rope, .. } = self.spec;
        let params = AttnParams {
            scale: 1.0,
            window,
            chunk: None,
            mutual: step.mutual(window),
            soft_cap: None,
            sinks: None,
            value_dim: None,
            arithmetic: match step.pass.phase {
                Phase::Prefill => Arithmetic::Rounded,
                Phase::Decode => Arithmetic::Exact,
            },
        };
        let Input { x, norm } = input;
        let attended = match &self.projections {
            Projections::Queries(maps) => {
                let [q] = maps.forward_normed(x, *norm, step.pass)?;
                let norm = Some(&self.q_norm);
                let [q, _] =
                    norm_rope([(&q, norm), (&q, norm)], head_dim, Some(&step.ropes[rope]))?;
                state.attend_stored(self.id, &q, step.rows, &params)?
            }
            Projections::Keys(maps, norms) => {
                let [q, k] = maps.forward_normed(x, *norm, step.pass)?;
                self.attend([&q, &k, &k], norms, (step, &params), state)?
            }
            Projections::All(maps, norms) => {
                let [q, k, v] = maps.forward_normed(x, *norm, step.pass)?;
                self.attend([&q, &k, &v], norms, (step, &params), state)?
            }
        };
        Ok(attended.reshape(&[x.dims()[0], heads * head_dim])?)
    }

    fn out(&self) -> Out<'_> {
        Out::One(&self.out)
    }

    fn maps(&self) -> Vec<&Linear> {
        let maps: Vec<&Linear> = match &self.projections {
            Projections::Queries(maps) => maps.parts().iter().collect(),
            Projections::Keys(maps, _) => maps.parts().iter().collect(),
            Projections::All(maps, _) => maps.parts().iter().collect(),
        };
        maps.into_iter().chain([&self.out]).collect()
    }
}
