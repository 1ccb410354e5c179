//! Multi-head latent attention (DeepSeek-AI, arXiv 2405.04434): all heads share the keys and values of one
//! latent a token.
//!
//! ```text
//! cached of a token: [rotated k_pe (rope) | latent (kv_lora)], as one head of keys
//! a head's query:    [rotated q_pe (rope) | K q_nope (kv_lora)]
//! a head's result:   V (weighted sum of latents)
//! ```
//! `K` and `V` are a head's parts of `kv_b_proj`, which prompts would otherwise apply to every cached token.
//! Prompts are computed in the same form as all other tokens, so that no bit depends on how they are cut.

use super::{Mixer, Out, Step, attention::halves};
use crate::{
    LoadOptions, ModelError, StateSession,
    feed_forward::size,
    norms::Input,
    source::Source,
    spec::{LatentSpec, Spec},
};
use taper_base::{LayerId, Phase};
use taper_kv_codecs::{Arithmetic, AttnParams};
use taper_tensor::{HeadMaps, Linear, LinearGroup, Projected, RmsNorm, Tensor, Weight, ops};

/// A layer's attention over latents.
#[derive(Debug)]
pub(crate) struct Latent {
    spec: LatentSpec,
    /// Counted among layers with keys and values.
    id: LayerId,
    /// Queries, or what [`Self::queries`] makes them of, and the latent beside the key of positions.
    inputs: LinearGroup<2>,
    queries: Option<(RmsNorm, LinearGroup<1>)>,
    latent_norm: RmsNorm,
    /// Of queries to latents, `K`.
    absorb: HeadMaps,
    /// Of latents to results, `V`.
    expand: HeadMaps,
    out: Linear,
}

impl Latent {
    pub(crate) fn load(
        model: &Spec,
        spec: LatentSpec,
        id: u16,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let at = format!("{at}.self_attn");
        let LatentSpec { heads, kv_lora, rope, .. } = spec;
        let (key, bias) = (spec.nope + rope, spec.bias);
        let linear = |name: &str, inputs, outputs, bias| {
            weights.linear(&format!("{at}.{name}"), inputs, outputs, bias)
        };
        let norm = |name: &str, n: usize, factor: f32| {
            let mut gains = weights.vector(&format!("{at}.{name}.weight"), n)?;
            gains.iter_mut().for_each(|gain| *gain *= factor);
            Ok::<_, ModelError>(RmsNorm::new(gains, spec.norm_eps))
        };
        let order = |first| rows_by_halves(first, rope, spec.interleaved);
        let (input, queries) = match spec.q_lora {
            Some(rank) => {
                let up = linear("q_b_proj", rank, heads * key, false)?;
                let up = LinearGroup::new([sorted(&up, &order(spec.nope))?])?;
                let norm = norm("q_a_layernorm", rank, spec.factors[0])?;
                (linear("q_a_proj", model.hidden, rank, bias)?, Some((norm, up)))
            }
            None => {
                let q = linear("q_proj", model.hidden, heads * key, false)?;
                (sorted(&q, &order(spec.nope))?, None)
            }
        };
        let latent = linear("kv_a_proj_with_mqa", model.hidden, kv_lora + rope, bias)?;
        let latent = sorted(&latent, &order(kv_lora))?;
        let (absorb, expand) = per_head(spec, weights, &at)?;
        Ok(Self {
            spec,
            id: LayerId(id),
            inputs: LinearGroup::new([input, latent])?,
            queries,
            latent_norm: norm("kv_a_layernorm", kv_lora, spec.factors[1])?,
            absorb,
            expand,
            out: linear("o_proj", heads * spec.value, model.hidden, bias)?,
        })
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let place = options.place();
        let (inputs, out) = (self.inputs.place(place)?, self.out.place(place)?);
        let (absorb, expand) = (self.absorb.place(place)?, self.expand.place(place)?);
        let queries = match self.queries {
            Some((norm, up)) => Some((norm, up.place(place)?)),
            None => None,
        };
        Ok(Self { inputs, queries, absorb, expand, out, ..self })
    }

    /// Queries and keys as the cache sees them, before they are rotated: `[t, heads * (rope + kv_lora)]` and
    /// `[t, rope + kv_lora]`.
    fn project(&self, input: &Input<'_>, step: &Step<'_>) -> Result<[Tensor; 2], ModelError> {
        let [q, kv] = self.inputs.forward_normed(&input.x, input.norm, step.pass)?;
        let q = match &self.queries {
            Some((norm, up)) => {
                let [q] = up.forward_normed(&q, Some(norm), step.pass)?;
                q
            }
            None => q,
        };
        let q = match self.spec.q_scale {
            Some(scale) => {
                let factors: Vec<_> = step.positions.iter().map(|&p| scale.at(p)).collect();
                ops::scale_rows(&q, &factors)?
            }
            None => q,
        };
        // What is rotated comes first.
        Ok([self.absorb.forward(&q, step.pass.phase)?, self.latent_norm.forward_latent(&kv)?])
    }
}

/// Each head's maps of `kv_b_proj`, which MLX's files have apart: of queries to latents, and of latents to
/// results.
fn per_head(
    spec: LatentSpec,
    weights: Source<'_>,
    at: &str,
) -> Result<(HeadMaps, HeadMaps), ModelError> {
    let LatentSpec { heads, kv_lora, nope, value, .. } = spec;
    let apart = format!("{at}.embed_q");
    if weights.has(&format!("{apart}.weight")) {
        let absorb = weights.stacked(&apart, heads, (nope, kv_lora), false)?.all()?;
        let expand =
            weights.stacked(&format!("{at}.unembed_out"), heads, (kv_lora, value), false)?.all()?;
        return Ok((HeadMaps::new(absorb)?, HeadMaps::new(expand)?));
    }
    let rows = heads * (nope + value);
    let both: Weight = weights.weight(&format!("{at}.kv_b_proj"), rows, kv_lora)?;
    let (mut absorb, mut expand) = (Vec::with_capacity(heads), Vec::with_capacity(heads));
    for first in (0..rows).step_by(nope + value) {
        absorb.push(Linear::new(both.row_range(first, nope)?.transposed()?));
        expand.push(Linear::new(both.row_range(first + nope, value)?));
    }
    Ok((HeadMaps::new(absorb)?, HeadMaps::new(expand)?))
}

/// The order of a head's rows in which its last `rope`, after `first` others, are rotated by halves.
fn rows_by_halves(first: usize, rope: usize, interleaved: bool) -> Vec<usize> {
    let turned = halves(rope, if interleaved { rope } else { 0 });
    (0..first).chain(turned.into_iter().map(|i| first + i)).collect()
}

/// A map with the rows of every head in an order.
fn sorted(map: &Linear, order: &[usize]) -> Result<Linear, ModelError> {
    if order.iter().copied().eq(0..order.len()) {
        return Ok(map.clone());
    }
    super::attention::sorted(map, order)
}

impl Mixer for Latent {
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let LatentSpec { heads, kv_lora, .. } = self.spec;
        let (t, cached) = (input.x.dims()[0], self.spec.cached());
        let [q, k] = self.project(input, step)?;
        let rows = Projected {
            q: &q,
            k: &k,
            // The latent is the key's end.
            v: &k,
            head_dim: cached,
            norms: None,
            rope: self.spec.angles.map(|rope| &step.ropes[rope]),
            next: None,
        };
        let params = AttnParams {
            scale: self.spec.scale,
            window: None,
            chunk: None,
            mutual: step.mutual(None),
            soft_cap: None,
            sinks: None,
            value_dim: Some(kv_lora),
            arithmetic: match step.pass.phase {
                Phase::Prefill => Arithmetic::Rounded,
                Phase::Decode => Arithmetic::Exact,
            },
        };
        let latents = state.attend(self.id, &rows, &params)?.reshape(&[t, heads * kv_lora])?;
        Ok(self.expand.forward(&latents, step.pass.phase)?)
    }

    fn out(&self) -> Out<'_> {
        Out::One(&self.out)
    }

    /// Those that heads have of `kv_b_proj` read a row a head.
    fn maps(&self) -> Vec<&Linear> {
        let queries = self.queries.iter().flat_map(|(_, up)| up.parts());
        self.inputs.parts().iter().chain(queries).chain([&self.out]).collect()
    }

    fn size(&self) -> (u64, u64) {
        let (elements, bytes) = size(self.maps());
        let heads = [&self.absorb, &self.expand];
        let more = |of: fn(&HeadMaps) -> u64| heads.iter().map(|maps| of(maps)).sum::<u64>();
        (elements + more(HeadMaps::elements), bytes + more(HeadMaps::bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_rotated_is_sorted() {
        assert_eq!(rows_by_halves(2, 4, true), [0, 1, 2, 4, 3, 5]);
        assert_eq!(rows_by_halves(2, 4, false), [0, 1, 2, 3, 4, 5]);
    }
}
