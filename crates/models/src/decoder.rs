//! The decoder-only transformer that the families share.

use crate::{
    Batch, KvSession, LoadOptions, Model, ModelError, ModelInfo,
    feed_forward::{ExpertSpec, FeedForward, Gated, size},
};
use taper_base::{LayerId, Phase};
use taper_kv_codecs::{Arithmetic, AttnParams};
use taper_tensor::{
    Embedding, Linear, LinearGroup, Projected, RmsNorm, RopeAngles, RopeTable, Tensor,
    ops::{self, Activation},
};
use taper_weights::Checkpoint;

/// What makes one family differ from another.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) family: &'static str,
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) max_positions: usize,
    pub(crate) norm_eps: f32,
    /// Added to every norm's weight: Gemma stores `w - 1`.
    pub(crate) norm_offset: f32,
    /// Norms after attention and feed-forward too, before the residual sum (Gemma).
    pub(crate) post_norms: bool,
    /// RMSNorm on each query and key head (Qwen 3, Gemma 3).
    pub(crate) qk_norm: bool,
    pub(crate) qkv_bias: bool,
    pub(crate) out_bias: bool,
    pub(crate) mlp_bias: bool,
    /// One tensor for query, key and value, and one for gate and up (Phi 3).
    pub(crate) fused: bool,
    pub(crate) activation: Activation,
    pub(crate) attn_scale: f32,
    pub(crate) attn_soft_cap: Option<f32>,
    /// A learned score without a value in every head's softmax (gpt-oss).
    pub(crate) attn_sinks: bool,
    pub(crate) logit_soft_cap: Option<f32>,
    pub(crate) embed_scale: Option<f32>,
    /// The output projection is the token table.
    pub(crate) tied: bool,
    pub(crate) ropes: Vec<RopeTable>,
    pub(crate) layers: Vec<LayerSpec>,
}

/// What makes one layer differ from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerSpec {
    /// Index into [`Spec::ropes`]; `None` leaves positions out (NoPE).
    pub(crate) rope: Option<usize>,
    /// Sliding window in tokens.
    pub(crate) window: Option<usize>,
    /// Experts instead of one feed-forward.
    pub(crate) experts: Option<ExpertSpec>,
}

/// A loaded decoder.
#[derive(Debug)]
pub(crate) struct Decoder {
    info: ModelInfo,
    spec: Spec,
    embed: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
}

#[derive(Debug)]
struct Layer {
    spec: LayerSpec,
    norm: RmsNorm,
    qkv: LinearGroup<3>,
    qk_norm: Option<(RmsNorm, RmsNorm)>,
    sinks: Option<Vec<f32>>,
    out: Linear,
    /// Gemma's norm of the attention's output.
    post_attn_norm: Option<RmsNorm>,
    mlp_norm: RmsNorm,
    mlp: FeedForward,
    /// Gemma's norm of the feed-forward's output.
    post_mlp_norm: Option<RmsNorm>,
}

impl Decoder {
    /// Builds the model from tensors named `{prefix}layers.0...` and `{prefix}embed_tokens`.
    pub(crate) fn load(
        spec: Spec,
        weights: &Checkpoint,
        root: &str,
        options: LoadOptions<'_>,
    ) -> Result<Self, ModelError> {
        let prefix = format!("{root}model.");
        let embed = weights.embedding(&format!("{prefix}embed_tokens"), spec.vocab, spec.hidden)?;
        let rounding = options.activations.rounding();
        let embed = match (options.gpu, rounding) {
            (Some(gpu), _) => embed.on(gpu, rounding.is_none())?,
            // Of a table that is no head too, rows are read now and then: it stays in its file.
            (None, Some(rounding)) if spec.tied => embed.pack(rounding),
            (None, _) => embed,
        };
        // Before the layers: while a matrix is repacked it is in memory twice, and this is the largest.
        let head = head(&spec, weights, &format!("{root}lm_head"), &embed, options)?;
        let layer = |(i, &layer): (usize, &LayerSpec)| {
            let layer = Layer::load(&spec, layer, weights, &format!("{prefix}layers.{i}"))?;
            layer.placed(options)
        };
        let layers = spec.layers.iter().enumerate().map(layer).collect::<Result<Vec<_>, _>>()?;
        let norm = norm(&spec, weights, &format!("{prefix}norm.weight"), spec.hidden)?;
        let prefill_apart =
            options.gpu.is_none() && options.activations.prefill_apart(spec.head_dim);
        let info = ModelInfo { prefill_apart, ..info(&spec, &embed, &layers, &head) };
        Ok(Self { info, spec, embed, layers, norm, head })
    }
}

impl Layer {
    fn load(
        spec: &Spec,
        layer: LayerSpec,
        weights: &Checkpoint,
        at: &str,
    ) -> Result<Self, ModelError> {
        let (q, kv) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
        let hidden = spec.hidden;
        let attn = format!("{at}.self_attn");
        let gains = |name: &str| norm(spec, weights, &format!("{at}.{name}.weight"), hidden);
        let qk_norm = spec.qk_norm.then(|| {
            let one =
                |side| norm(spec, weights, &format!("{attn}.{side}_norm.weight"), spec.head_dim);
            Ok::<_, ModelError>((one("q")?, one("k")?))
        });
        let sinks = spec.attn_sinks.then(|| weights.vector(&format!("{attn}.sinks"), spec.heads));
        let qkv = parts(
            spec,
            weights,
            hidden,
            spec.qkv_bias,
            &attn,
            "qkv_proj",
            [("q_proj", q), ("k_proj", kv), ("v_proj", kv)],
        )?;
        let mlp = format!("{at}.mlp");
        let mlp = match layer.experts {
            Some(experts) => FeedForward::experts(spec, experts, weights, &mlp)?,
            None => FeedForward::Dense(gated(spec, weights, &mlp)?),
        };
        let post = "post_attention_layernorm";
        let (post_attn_norm, mlp_norm, post_mlp_norm) = if spec.post_norms {
            let mlp_norm = gains("pre_feedforward_layernorm")?;
            (Some(gains(post)?), mlp_norm, Some(gains("post_feedforward_layernorm")?))
        } else {
            (None, gains(post)?, None)
        };
        Ok(Self {
            spec: layer,
            norm: gains("input_layernorm")?,
            qkv: LinearGroup::new(qkv)?,
            qk_norm: qk_norm.transpose()?,
            sinks: sinks.transpose()?,
            out: weights.linear(&format!("{attn}.o_proj"), q, hidden, spec.out_bias)?,
            post_attn_norm,
            mlp_norm,
            mlp,
            post_mlp_norm,
        })
    }

    /// Where and as it will run.
    fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let rounding = options.activations.rounding();
        let exact = rounding.is_none();
        let mlp = self.mlp.placed(options)?;
        let (qkv, out) = match (options.gpu, rounding) {
            (Some(gpu), _) => (self.qkv.on(gpu, exact)?, self.out.on(gpu, exact)?),
            (None, None) => (self.qkv, self.out),
            (None, Some(rounding)) => (self.qkv.pack(rounding), self.out.pack(rounding)),
        };
        Ok(Self { qkv, out, mlp, ..self })
    }

    /// Weights in all, and bytes they take.
    fn size(&self) -> (u64, u64) {
        let (parameters, bytes) = size(self.qkv.parts().iter().chain([&self.out]));
        let (more, more_bytes) = self.mlp.size();
        (parameters + more, bytes + more_bytes)
    }

    /// Attention's result for the rows of `kept`, or all, and these rows of `x`: what its projection is added
    /// to.
    fn attention(
        &self,
        model: &Spec,
        id: LayerId,
        (x, kept): (&Tensor, Option<&[u32]>),
        ropes: &[RopeAngles],
        kv: &mut dyn KvSession,
        phase: Phase,
    ) -> Result<(Tensor, Tensor), ModelError> {
        let (t, d) = (x.dims()[0], model.head_dim);
        let [q, k, v] = self.qkv.forward_normed(x, &self.norm, phase)?;
        let rows = Projected {
            q: &q,
            k: &k,
            v: &v,
            head_dim: d,
            norms: self.qk_norm.as_ref().map(|(q, k)| (q, k)),
            rope: self.spec.rope.map(|rope| &ropes[rope]),
            // Rows are chosen from it first where not all are kept.
            next: kept.is_none().then_some(&self.out),
        };
        let params = AttnParams {
            scale: model.attn_scale,
            window: self.spec.window,
            soft_cap: model.attn_soft_cap,
            sinks: self.sinks.as_deref(),
            arithmetic: match phase {
                Phase::Prefill => Arithmetic::Rounded,
                Phase::Decode => Arithmetic::Exact,
            },
        };
        let attended = kv.attend(id, &rows, &params)?;
        let attended = attended.reshape((t, model.heads * d))?;
        match kept {
            Some(rows) => Ok((ops::take_rows(&attended, rows)?, ops::take_rows(x, rows)?)),
            None => Ok((attended, x.clone())),
        }
    }

    /// The layer's output for the rows of `kept`, or all. The norm of the layer after it is `next` to read
    /// that.
    fn forward(
        &self,
        model: &Spec,
        id: LayerId,
        (x, kept, next): (&Tensor, Option<&[u32]>, Option<&RmsNorm>),
        ropes: &[RopeAngles],
        kv: &mut dyn KvSession,
        phase: Phase,
    ) -> Result<Tensor, ModelError> {
        let (attended, x) = self.attention(model, id, (x, kept), ropes, kv, phase)?;
        if x.dims()[0] == 0 {
            return Ok(x);
        }
        let norms = (
            self.post_attn_norm.as_ref(),
            matches!(self.mlp, FeedForward::Dense(_)).then_some(&self.mlp_norm),
        );
        let x = add_output(&self.out, &attended, &x, norms, phase)?;
        match &self.mlp {
            FeedForward::Dense(Gated { gate_up, down }) => {
                let (norm, activation) = (&self.mlp_norm, model.activation);
                let inner =
                    |residual| gate_up.forward_down(down, &x, norm, activation, residual, phase);
                match &self.post_mlp_norm {
                    Some(norm) => Ok(ops::add(&x, &norm.forward(&inner(None)?)?)?),
                    None => Ok(inner(Some((&x, next)))?),
                }
            }
            FeedForward::Experts(e) => e.forward_add(&x, &self.mlp_norm, model.activation),
        }
    }
}

/// `residual + norm(linear(x))`. Another norm may be `next` to read it.
fn add_output(
    linear: &Linear,
    x: &Tensor,
    residual: &Tensor,
    (norm, next): (Option<&RmsNorm>, Option<&RmsNorm>),
    phase: Phase,
) -> Result<Tensor, ModelError> {
    match norm {
        Some(norm) => Ok(ops::add(residual, &norm.forward(&linear.forward(x, phase)?)?)?),
        None => Ok(linear.forward_add(x, residual, next, phase)?),
    }
}

impl Model for Decoder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn forward(&self, batch: &Batch<'_>, kv: &mut dyn KvSession) -> Result<Tensor, ModelError> {
        let (expected, got) = (batch.tokens.len(), batch.positions.len());
        if expected != got {
            return Err(ModelError::Batch { what: "positions", expected, got });
        }
        let (spec, phase) = (&self.spec, self.info.phase(batch.phase));
        let ropes: Vec<_> = spec.ropes.iter().map(|r| r.angles(batch.positions)).collect();
        let mut x = self.embed.forward(batch.tokens)?;
        if let Some(scale) = spec.embed_scale {
            x = ops::scale(&x, scale)?;
        }
        let all = batch.logits_at.iter().copied().eq(0..batch.tokens.len() as u32);
        for (id, layer) in (0u16..).map(LayerId).zip(&self.layers) {
            let next = self.layers.get(usize::from(id.0) + 1).map(|layer| &layer.norm);
            // Of the last layer nobody reads the other rows, once it has their keys and values.
            let kept = (next.is_none() && !all).then_some(batch.logits_at);
            x = layer.forward(spec, id, (&x, kept, next), &ropes, kv, phase)?;
        }
        let logits = self.head.forward_few(&self.norm.forward(&x)?, phase)?;
        match spec.logit_soft_cap {
            Some(cap) => Ok(ops::soft_cap(&logits, cap)?),
            None => Ok(logits),
        }
    }
}

/// The output projection: the token table, or a matrix of its own.
fn head(
    spec: &Spec,
    weights: &Checkpoint,
    name: &str,
    embed: &Embedding,
    options: LoadOptions<'_>,
) -> Result<Linear, ModelError> {
    let head = match spec.tied {
        true => embed.as_linear(),
        false => weights.linear(name, spec.hidden, spec.vocab, false)?,
    };
    let rounding = options.activations.rounding();
    Ok(match (options.gpu, rounding) {
        (Some(gpu), _) => head.on(gpu, rounding.is_none())?,
        (None, None) => head,
        (None, Some(rounding)) => head.pack(rounding),
    })
}

/// A norm with the family's offset.
fn norm(spec: &Spec, weights: &Checkpoint, name: &str, n: usize) -> Result<RmsNorm, ModelError> {
    let mut gains = weights.vector(name, n)?;
    gains.iter_mut().for_each(|g| *g += spec.norm_offset);
    Ok(RmsNorm::new(gains, spec.norm_eps))
}

/// The feed-forward below `at`.
fn gated(spec: &Spec, weights: &Checkpoint, at: &str) -> Result<Gated, ModelError> {
    let (hidden, inner, bias) = (spec.hidden, spec.intermediate, spec.mlp_bias);
    let names = [("gate_proj", inner), ("up_proj", inner)];
    let gate_up = parts(spec, weights, hidden, bias, at, "gate_up_proj", names)?;
    let down = weights.linear(&format!("{at}.down_proj"), inner, hidden, bias)?;
    Ok(Gated { gate_up: LinearGroup::new(gate_up)?, down })
}

/// Projections of one input: tensors of their own, or row ranges of a fused one.
fn parts<const N: usize>(
    spec: &Spec,
    weights: &Checkpoint,
    inputs: usize,
    bias: bool,
    at: &str,
    fused: &str,
    names: [(&str, usize); N],
) -> Result<[Linear; N], ModelError> {
    let whole = if spec.fused {
        let rows = names.iter().map(|(_, rows)| rows).sum();
        Some(weights.weight(&format!("{at}.{fused}"), rows, inputs)?)
    } else {
        None
    };
    let mut first = 0;
    let mut loaded = Vec::with_capacity(N);
    for (name, rows) in names {
        loaded.push(match &whole {
            Some(whole) => Linear::new(whole.row_range(first, rows)?),
            None => weights.linear(&format!("{at}.{name}"), inputs, rows, bias)?,
        });
        first += rows;
    }
    let got = loaded.len();
    loaded.try_into().map_err(|_| ModelError::Batch { what: "projections", expected: N, got })
}

fn info(spec: &Spec, embed: &Embedding, layers: &[Layer], head: &Linear) -> ModelInfo {
    let own_head = (!spec.tied).then(|| size([head]));
    let sizes = layers.iter().map(Layer::size).chain(own_head);
    let (parameters, bytes) = sizes.fold((0, 0), |(p, b), (more, bytes)| (p + more, b + bytes));
    let (vocab, hidden) = embed.shape();
    ModelInfo {
        family: spec.family,
        layers: spec.layers.len(),
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        hidden: spec.hidden,
        vocab: spec.vocab,
        max_positions: spec.max_positions,
        parameters: (vocab * hidden) as u64 + parameters,
        weight_bytes: embed.bytes() + bytes,
        prefill_apart: false,
    }
}
