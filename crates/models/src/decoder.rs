//! The decoder-only transformer that the families share.

use crate::{
    Batch, LoadOptions, Model, ModelError, ModelInfo, StateSession,
    feed_forward::{FeedForward, Gated, size},
    mixers::{self, Mixer, StateIds, Step},
    spec::{LayerSpec, MixerSpec, Spec},
};
use taper_base::Phase;
use taper_tensor::{Embedding, Linear, LinearGroup, RmsNorm, Tensor, ops};
use taper_weights::Checkpoint;

/// What a checkpoint calls its tensors.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// Before `layers.0...` and `embed_tokens`, with its dot.
    pub(crate) decoder: String,
    /// The output projection.
    pub(crate) head: String,
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
    norm: RmsNorm,
    mixer: Box<dyn Mixer>,
    /// Gemma's norm of the attention's output.
    post_attn_norm: Option<RmsNorm>,
    mlp_norm: RmsNorm,
    mlp: FeedForward,
    /// Gemma's norm of the feed-forward's output.
    post_mlp_norm: Option<RmsNorm>,
}

impl Decoder {
    /// Builds the model from the tensors that are named as `names` says.
    pub(crate) fn load(
        spec: Spec,
        weights: &Checkpoint,
        names: &Names,
        options: LoadOptions<'_>,
    ) -> Result<Self, ModelError> {
        let prefix = &names.decoder;
        let embed = weights.embedding(&format!("{prefix}embed_tokens"), spec.vocab, spec.hidden)?;
        // Of a table that is no head too, rows are read now and then: on the CPU it stays in its file.
        let embed = match options.gpu.is_some() || spec.tied {
            true => embed.place(options.place())?,
            false => embed,
        };
        // Before the layers: while a matrix is repacked it is in memory twice, and this is the largest.
        let head = head(&spec, weights, &names.head, &embed, options)?;
        let mut ids = StateIds::default();
        let layer = |(i, &layer): (usize, &LayerSpec)| {
            let at = format!("{prefix}layers.{i}");
            Layer::load(&spec, layer, &mut ids, weights, &at, options)
        };
        let layers = spec.layers.iter().enumerate().map(layer).collect::<Result<Vec<_>, _>>()?;
        let norm = norm(&spec, weights, &format!("{prefix}norm.weight"), spec.hidden)?;
        let prefill_apart = options.gpu.is_none() && options.precision.prefill_apart(spec.head_dim);
        let info = ModelInfo { prefill_apart, ..info(&spec, &embed, &layers, &head) };
        Ok(Self { info, spec, embed, layers, norm, head })
    }
}

impl Layer {
    fn load(
        spec: &Spec,
        layer: LayerSpec,
        ids: &mut StateIds,
        weights: &Checkpoint,
        at: &str,
        options: LoadOptions<'_>,
    ) -> Result<Self, ModelError> {
        let gains = |name: &str| norm(spec, weights, &format!("{at}.{name}.weight"), spec.hidden);
        let mlp = match layer.experts {
            Some(experts) => {
                let block = format!("{at}.{}", experts.names.block);
                FeedForward::experts(spec, experts, weights, &block)?
            }
            None => FeedForward::Dense(gated(spec, weights, &format!("{at}.mlp"))?),
        };
        let post = "post_attention_layernorm";
        let (post_attn_norm, mlp_norm, post_mlp_norm) = if spec.post_norms {
            let mlp_norm = gains("pre_feedforward_layernorm")?;
            (Some(gains(post)?), mlp_norm, Some(gains("post_feedforward_layernorm")?))
        } else {
            (None, gains(post)?, None)
        };
        Ok(Self {
            norm: gains("input_layernorm")?,
            mixer: mixers::load(spec, layer, ids, weights, at, options)?,
            post_attn_norm,
            mlp_norm,
            mlp: mlp.placed(options)?,
            post_mlp_norm,
        })
    }

    /// Weights in all, and bytes they take.
    fn size(&self) -> (u64, u64) {
        let (parameters, bytes) = self.mixer.size();
        let (more, more_bytes) = self.mlp.size();
        (parameters + more, bytes + more_bytes)
    }

    /// The layer's output for the rows of `kept`, or all. The norm of the layer after it is `next` to read
    /// that.
    fn forward(
        &self,
        step: &Step<'_>,
        (x, kept, next): (&Tensor, Option<&[u32]>, Option<&RmsNorm>),
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let (model, phase) = (step.spec, step.phase);
        // Rows are chosen before the output projection where not all are kept.
        let step = Step { whole: kept.is_none(), ..*step };
        let mixed = self.mixer.mix(x, &self.norm, &step, state)?;
        let (mixed, x) = match kept {
            Some(rows) => (ops::take_rows(&mixed, rows)?, ops::take_rows(x, rows)?),
            None => (mixed, x.clone()),
        };
        if x.dims()[0] == 0 {
            return Ok(x);
        }
        let norms = (
            self.post_attn_norm.as_ref(),
            matches!(self.mlp, FeedForward::Dense(_)).then_some(&self.mlp_norm),
        );
        let x = match model.branch_scale {
            Some(scale) => {
                let mixed = self.mixer.out().forward(&mixed, phase)?;
                ops::add(&x, &ops::scale(&mixed, scale)?)?
            }
            None => add_output(self.mixer.out(), &mixed, &x, norms, phase)?,
        };
        match &self.mlp {
            FeedForward::Dense(Gated { gate_up, down }) => {
                let (norm, activation) = (&self.mlp_norm, model.activation);
                let inner =
                    |residual| gate_up.forward_down(down, &x, norm, activation, residual, phase);
                match (&self.post_mlp_norm, model.branch_scale) {
                    (Some(norm), _) => Ok(ops::add(&x, &norm.forward(&inner(None)?)?)?),
                    (None, Some(scale)) => Ok(ops::add(&x, &ops::scale(&inner(None)?, scale)?)?),
                    (None, None) => Ok(inner(Some((&x, next)))?),
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

    fn forward(
        &self,
        batch: &Batch<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
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
        let step = Step { spec, ropes: &ropes, phase, whole: true };
        for (i, layer) in self.layers.iter().enumerate() {
            let next = self.layers.get(i + 1).map(|layer| &layer.norm);
            // Of the last layer nobody reads the other rows, once it has their keys and values.
            let kept = (next.is_none() && !all).then_some(batch.logits_at);
            x = layer.forward(&step, (&x, kept, next), state)?;
        }
        let mut logits = self.head.forward_few(&self.norm.forward(&x)?, phase)?;
        if let Some(scale) = spec.logit_scale {
            logits = ops::scale(&logits, scale)?;
        }
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
    Ok(head.place(options.place())?)
}

/// A norm with the family's offset.
pub(crate) fn norm(
    spec: &Spec,
    weights: &Checkpoint,
    name: &str,
    n: usize,
) -> Result<RmsNorm, ModelError> {
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
pub(crate) fn parts<const N: usize>(
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
    let state = |layer: &LayerSpec| match layer.mixer {
        MixerSpec::Attention(_) => None,
        MixerSpec::GatedDelta(shape) => Some(shape.state_len()),
    };
    let recurrent: Vec<_> = spec.layers.iter().filter_map(state).collect();
    ModelInfo {
        family: spec.family,
        layers: spec.layers.len() - recurrent.len(),
        recurrent,
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
