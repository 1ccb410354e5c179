//! Attention over the KV cache, with what the families add to it.

use super::{Mixer, Out, Step};
use crate::{
    LoadOptions, ModelError, StateSession,
    decoder::parts,
    norms::Input,
    source::Source,
    spec::{AttentionGate, AttentionSpec, FusedQkv, QkNorm, Spec},
};
use taper_base::{LayerId, Phase};
use taper_kv_codecs::{Arithmetic, AttnParams};
use taper_tensor::{Linear, LinearGroup, Projected, RmsNorm, Sinks, Tensor, norm_rope, ops};

/// A layer's attention.
#[derive(Debug)]
pub(crate) struct Attention {
    spec: AttentionSpec,
    /// Counted among layers with keys and values.
    id: LayerId,
    qkv: LinearGroup<3>,
    /// Of queries and of keys.
    qk_norm: Option<(RmsNorm, RmsNorm)>,
    sinks: Option<Sinks>,
    /// Of what the output projection reads.
    out_norm: Option<RmsNorm>,
    /// The gate's projection, if it has its own.
    gate: Option<LinearGroup<1>>,
    out: Linear,
}

impl Attention {
    pub(crate) fn load(
        model: &Spec,
        spec: AttentionSpec,
        id: u16,
        weights: Source<'_>,
        at: &str,
    ) -> Result<Self, ModelError> {
        let heads = spec.heads.unwrap_or(model.heads);
        let kv_heads = spec.stored_kv_heads.unwrap_or(model.kv_heads);
        let value_dim = model.value_dim.unwrap_or(model.head_dim);
        let (q, kv) = (heads * model.head_dim, kv_heads * model.head_dim);
        let attn = format!("{at}.self_attn");
        let has_sinks = model.attn_sinks || (model.window_sinks && spec.window.is_some());
        let sinks = has_sinks.then(|| weights.vector(&format!("{attn}.sinks"), heads));
        // The gate's rows are beside the query's, head by head.
        let beside = model.attention_gate == Some(AttentionGate::InQuery);
        let q_rows = if beside { 2 * q } else { q };
        let names = [("q_proj", q_rows), ("k_proj", kv), ("v_proj", kv_heads * value_dim)];
        let qkv = match model.fused_qkv {
            Some(FusedQkv::Groups) => grouped(model, weights, &attn)?,
            other => {
                let fused = other.map(|_| "qkv_proj");
                parts(weights, model.hidden, model.qkv_bias, &attn, fused, names)?
            }
        };
        let order = spec.rope.filter(|_| model.interleaved).map(|rope| {
            let turned = 2 * model.ropes.get(rope).map_or(0, |rope| rope.pairs());
            halves(model.head_dim, turned)
        });
        let [q_proj, k_proj, v_proj] = qkv;
        let (q_proj, k_proj) = match &order {
            Some(order) => (sorted(&q_proj, order)?, sorted(&k_proj, order)?),
            None => (q_proj, k_proj),
        };
        let (k_proj, v_proj) = match model.kv_heads / kv_heads.max(1) {
            1 => (k_proj, v_proj),
            times => {
                let k_proj = repeated(&k_proj, model.head_dim, times)?;
                (k_proj, repeated(&v_proj, value_dim, times)?)
            }
        };
        let gate_rows = match model.attention_gate {
            Some(AttentionGate::Projected | AttentionGate::Softplus) => Some(q),
            Some(AttentionGate::ProjectedHead | AttentionGate::SoftplusHead) => Some(heads),
            Some(AttentionGate::InQuery) | None => None,
        };
        let out_norm = model.sub_norms.then(|| {
            let gains = weights.vector(&format!("{attn}.attn_sub_norm.weight"), q)?;
            Ok::<_, ModelError>(RmsNorm::new(gains, model.norm_eps))
        });
        let gate = |rows| {
            let gate = weights.linear(&format!("{attn}.gate_proj"), model.hidden, rows, false)?;
            Ok::<_, ModelError>(LinearGroup::new([gate])?)
        };
        Ok(Self {
            spec,
            id: LayerId(id),
            qkv: LinearGroup::new([q_proj, k_proj, v_proj])?,
            qk_norm: match (model.qk_norm, spec.rope) {
                (Some(QkNorm::RotatedPlain), None) => None,
                _ => qk_norm(model, weights, &attn, (heads, order.as_deref()))?,
            },
            sinks: sinks.transpose()?.map(Sinks::new),
            out_norm: out_norm.transpose()?,
            gate: gate_rows.map(gate).transpose()?,
            out: weights.linear(
                &format!("{attn}.o_proj"),
                heads * value_dim,
                model.hidden,
                model.out_bias,
            )?,
        })
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let place = options.place();
        let (qkv, out) = (self.qkv.place(place)?, self.out.place(place)?);
        let gate = self.gate.map(|gate| gate.place(place)).transpose()?;
        Ok(Self { qkv, out, gate, ..self })
    }

    /// Queries, keys and values, and what gates the result, `[t, heads * head_dim]` or `[t, heads]`.
    fn project(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
    ) -> Result<([Tensor; 3], Option<Tensor>), ModelError> {
        let Input { x, norm } = input;
        let [q, k, v] = self.qkv.forward_normed(x, *norm, step.pass)?;
        let (q, gate) = match (step.spec.attention_gate, &self.gate) {
            (Some(AttentionGate::InQuery), _) => {
                let [q, gate] = ops::split_heads(&q, step.spec.head_dim)?;
                (q, Some(gate))
            }
            (_, Some(gate)) => {
                let [gate] = gate.forward_normed(x, *norm, step.pass)?;
                (q, Some(gate))
            }
            _ => (q, None),
        };
        let q = match self.spec.q_scale {
            Some(scale) => {
                let factors: Vec<_> = step.positions.iter().map(|&p| scale.at(p)).collect();
                ops::scale_rows(&q, &factors)?
            }
            None => q,
        };
        Ok(([q, k, v], gate))
    }
}

/// Queries, keys and values of one tensor that has them head by head of keys.
fn grouped(model: &Spec, weights: Source<'_>, attn: &str) -> Result<[Linear; 3], ModelError> {
    let (d, groups) = (model.head_dim, model.kv_heads);
    let shared = model.heads / groups.max(1);
    let all = (model.heads + 2 * groups) * d;
    let whole = weights.linear(&format!("{attn}.qkv_proj"), model.hidden, all, model.qkv_bias)?;
    // Of every group, so many heads from the one at `first` on.
    let take = |first: usize, heads: usize| {
        let group = |g: usize| (g * (shared + 2) + first) * d;
        let rows: Vec<_> = (0..groups).flat_map(|g| group(g)..group(g) + heads * d).collect();
        whole.take_outputs(&rows)
    };
    Ok([take(0, shared)?, take(shared, 1)?, take(shared + 1, 1)?])
}

/// Norms of queries and keys. Weights are in the `order` that rows of a head were brought to.
fn qk_norm(
    model: &Spec,
    weights: Source<'_>,
    attn: &str,
    (heads, order): (usize, Option<&[usize]>),
) -> Result<Option<(RmsNorm, RmsNorm)>, ModelError> {
    let (d, eps) = (model.head_dim, model.norm_eps);
    let (q, k) = match model.qk_norm {
        None => return Ok(None),
        Some(QkNorm::HeadPlain | QkNorm::RotatedPlain) => {
            let plain = RmsNorm::new(vec![1.0; d], eps);
            return Ok(Some((plain.clone(), plain)));
        }
        Some(QkNorm::Head | QkNorm::Rotated) => (d, d),
        Some(QkNorm::Whole) => (heads * d, model.kv_heads * d),
    };
    let one = |side, n| {
        let mut gains = weights.vector(&format!("{attn}.{side}_norm.weight"), n)?;
        gains.iter_mut().for_each(|g| *g += model.norm_offset);
        if let Some(order) = order {
            let heads = gains.chunks_exact(d);
            gains = heads.flat_map(|head| order.iter().map(|&i| head[i])).collect();
        }
        Ok::<_, ModelError>(RmsNorm::new(gains, eps))
    };
    Ok(Some((one("q", q)?, one("k", k)?)))
}

/// The order of a head's rows in which pairs of neighbours, of the first `turned`, become pairs of halves.
pub(super) fn halves(head_dim: usize, turned: usize) -> Vec<usize> {
    let turned = turned.min(head_dim);
    let firsts = (0..turned).step_by(2);
    firsts.clone().chain(firsts.map(|i| i + 1)).chain(turned..head_dim).collect()
}

/// A map with the rows of every head in an order.
pub(super) fn sorted(map: &Linear, order: &[usize]) -> Result<Linear, ModelError> {
    let heads = (0..map.out_features()).step_by(order.len().max(1));
    let rows: Vec<_> = heads.flat_map(|head| order.iter().map(move |i| head + i)).collect();
    Ok(map.take_outputs(&rows)?)
}

/// A map with every head's rows so many times, one after the other.
fn repeated(map: &Linear, head_dim: usize, times: usize) -> Result<Linear, ModelError> {
    let heads = (0..map.out_features()).step_by(head_dim.max(1));
    let head = |first| std::iter::repeat_n(first..first + head_dim, times).flatten();
    let rows: Vec<_> = heads.flat_map(head).collect();
    Ok(map.take_outputs(&rows)?)
}

impl Mixer for Attention {
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let (model, t, d) = (step.spec, input.x.dims()[0], step.spec.head_dim);
        let ([mut q, mut k, mut v], gate) = self.project(input, step)?;
        if let Some(scale) = model.value_scale {
            v = ops::scale(&v, scale)?;
        }
        if let Some(n) = model.value_dim {
            v = ops::resize_heads(&v, n, d)?;
        }
        let mut rope = self.spec.rope.map(|rope| &step.ropes[rope]);
        let mut norms = self.qk_norm.as_ref().map(|(q, k)| (q, k));
        match (model.qk_norm, norms) {
            (Some(QkNorm::Whole), Some((q_norm, k_norm))) => {
                (q, k, norms) = (q_norm.forward(&q)?, k_norm.forward(&k)?, None);
            }
            (Some(QkNorm::Rotated | QkNorm::RotatedPlain), Some((q_norm, k_norm))) => {
                let rotated = norm_rope([(&q, None), (&k, None)], d, rope)?;
                let [q_heads, k_heads] = rotated;
                q = q_norm.forward(&q_heads)?.reshape(q.dims())?;
                k = k_norm.forward(&k_heads)?.reshape(k.dims())?;
                (rope, norms) = (None, None);
            }
            _ => {}
        }
        let plain = gate.is_none() && self.out_norm.is_none() && model.value_dim.is_none();
        // Changes read the rows too.
        let alone = step.whole && plain && !step.pass.changes(&self.out);
        let next = alone.then_some(&self.out);
        let rows = Projected { q: &q, k: &k, v: &v, head_dim: d, norms, rope, next };
        let params = AttnParams {
            scale: model.attn_scale,
            window: self.spec.window,
            chunk: self.spec.chunk,
            mutual: step.mutual(self.spec.window),
            soft_cap: model.attn_soft_cap,
            sinks: self.sinks.as_ref(),
            value_dim: None,
            arithmetic: match step.pass.phase {
                Phase::Prefill => Arithmetic::Rounded,
                Phase::Decode => Arithmetic::Exact,
            },
        };
        let heads = self.spec.heads.unwrap_or(model.heads);
        let attended = state.attend(self.id, &rows, &params)?.reshape(&[t, heads * d])?;
        let attended = match model.value_dim {
            Some(n) => ops::resize_heads(&attended, d, n)?,
            None => attended,
        };
        let softplus = matches!(
            model.attention_gate,
            Some(AttentionGate::Softplus | AttentionGate::SoftplusHead)
        );
        let attended = match gate {
            Some(gate) if softplus => ops::mul_softplus(&attended, &gate)?,
            Some(gate) => ops::mul_sigmoid(&attended, &gate)?,
            None => attended,
        };
        Ok(match &self.out_norm {
            Some(norm) => norm.forward(&attended)?,
            None => attended,
        })
    }

    fn out(&self) -> Out<'_> {
        Out::One(&self.out)
    }

    fn maps(&self) -> Vec<&Linear> {
        let gate = self.gate.iter().flat_map(LinearGroup::parts);
        self.qkv.parts().iter().chain([&self.out]).chain(gate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_halves() {
        assert_eq!(halves(8, 8), [0, 2, 4, 6, 1, 3, 5, 7]);
        assert_eq!(halves(8, 4), [0, 2, 1, 3, 4, 5, 6, 7]);
        assert_eq!(halves(4, 0), [0, 1, 2, 3]);
    }
}
