//! Attention over the KV cache, with what the families add to it.

use super::{Mixer, Step};
use crate::{
    LoadOptions, ModelError, StateSession,
    decoder::{norm, parts},
    feed_forward::size,
    spec::{AttentionSpec, Spec},
};
use taper_base::{LayerId, Phase};
use taper_kv_codecs::{Arithmetic, AttnParams};
use taper_tensor::{Linear, LinearGroup, Projected, RmsNorm, Tensor, ops};
use taper_weights::Checkpoint;

/// A layer's attention.
#[derive(Debug)]
pub(crate) struct Attention {
    spec: AttentionSpec,
    /// Counted among layers with keys and values.
    id: LayerId,
    qkv: LinearGroup<3>,
    /// Of each head, and of all heads together.
    qk_norm: Option<(RmsNorm, RmsNorm)>,
    qk_norm_whole: Option<(RmsNorm, RmsNorm)>,
    sinks: Option<Vec<f32>>,
    out: Linear,
}

impl Attention {
    pub(crate) fn load(
        model: &Spec,
        spec: AttentionSpec,
        id: u16,
        weights: &Checkpoint,
        at: &str,
    ) -> Result<Self, ModelError> {
        let (q, kv) = (model.heads * model.head_dim, model.kv_heads * model.head_dim);
        let attn = format!("{at}.self_attn");
        let norms = |(q, k)| {
            let one = |side, n| norm(model, weights, &format!("{attn}.{side}_norm.weight"), n);
            Ok::<_, ModelError>((one("q", q)?, one("k", k)?))
        };
        let qk_norm = model.qk_norm.then(|| norms((model.head_dim, model.head_dim)));
        let qk_norm_whole = model.qk_norm_whole.then(|| norms((q, kv)));
        let sinks = model.attn_sinks.then(|| weights.vector(&format!("{attn}.sinks"), model.heads));
        // The gate's rows are beside the query's, head by head.
        let q_rows = if model.gated_attention { 2 * q } else { q };
        let names = [("q_proj", q_rows), ("k_proj", kv), ("v_proj", kv)];
        let qkv = parts(model, weights, model.hidden, model.qkv_bias, &attn, "qkv_proj", names)?;
        Ok(Self {
            spec,
            id: LayerId(id),
            qkv: LinearGroup::new(qkv)?,
            qk_norm: qk_norm.transpose()?,
            qk_norm_whole: qk_norm_whole.transpose()?,
            sinks: sinks.transpose()?,
            out: weights.linear(&format!("{attn}.o_proj"), q, model.hidden, model.out_bias)?,
        })
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let place = options.place();
        let (qkv, out) = (self.qkv.place(place)?, self.out.place(place)?);
        Ok(Self { qkv, out, ..self })
    }
}

impl Mixer for Attention {
    fn mix(
        &self,
        x: &Tensor,
        norm: &RmsNorm,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let (model, t, d) = (step.spec, x.dims()[0], step.spec.head_dim);
        let [q, k, v] = self.qkv.forward_normed(x, norm, step.phase)?;
        let (q, k) = match &self.qk_norm_whole {
            Some((q_norm, k_norm)) => (q_norm.forward(&q)?, k_norm.forward(&k)?),
            None => (q, k),
        };
        let (q, gate) = match model.gated_attention {
            true => {
                let [q, gate] = ops::split_heads(&q, d)?;
                (q, Some(gate))
            }
            false => (q, None),
        };
        let rows = Projected {
            q: &q,
            k: &k,
            v: &v,
            head_dim: d,
            norms: self.qk_norm.as_ref().map(|(q, k)| (q, k)),
            rope: self.spec.rope.map(|rope| &step.ropes[rope]),
            next: (step.whole && gate.is_none()).then_some(&self.out),
        };
        let params = AttnParams {
            scale: model.attn_scale,
            window: self.spec.window,
            soft_cap: model.attn_soft_cap,
            sinks: self.sinks.as_deref(),
            arithmetic: match step.phase {
                Phase::Prefill => Arithmetic::Rounded,
                Phase::Decode => Arithmetic::Exact,
            },
        };
        let attended = state.attend(self.id, &rows, &params)?.reshape(&[t, model.heads * d])?;
        Ok(match gate {
            Some(gate) => ops::mul_sigmoid(&attended, &gate)?,
            None => attended,
        })
    }

    fn out(&self) -> &Linear {
        &self.out
    }

    fn size(&self) -> (u64, u64) {
        size(self.qkv.parts().iter().chain([&self.out]))
    }
}
