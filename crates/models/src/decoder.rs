//! The decoder-only transformer that the families share.

use crate::{
    Batch, LoadOptions, Model, ModelError, ModelInfo, StateSession,
    feed_forward::size,
    layer::Layer,
    mixers::{StateIds, Step},
    norms::Norm,
    source::Source,
    spec::{LayerSpec, Spec},
};
use taper_tensor::{Embedding, Linear, RmsNorm, Tensor, ops};

/// What a checkpoint calls its tensors.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// Before the layers and the token table, with its dot.
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
    embed_norm: Option<RmsNorm>,
    positions: Option<Embedding>,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
}

impl Decoder {
    /// Builds the model from the tensors that are named as `names` says.
    pub(crate) fn load(
        spec: Spec,
        weights: Source<'_>,
        names: &Names,
        options: LoadOptions<'_>,
    ) -> Result<Self, ModelError> {
        let (prefix, top) = (&names.decoder, spec.top);
        let embed = format!("{prefix}{}", top.embed);
        let embed = weights.embedding(&embed, spec.vocab, spec.hidden)?;
        // Of a table that is no head too, rows are read now and then: on the CPU it stays in its file.
        let embed = match options.gpu.is_some() || spec.tied {
            true => embed.place(options.place())?,
            false => embed,
        };
        // Before the layers: while a matrix is repacked it is in memory twice, and this is the largest.
        let head = head(&spec, weights, &names.head, &embed, options)?;
        let mut ids = StateIds::default();
        let layer = |(i, layer): (usize, &LayerSpec)| {
            let at = format!("{prefix}{}.{i}", top.layers);
            Layer::load(&spec, layer, &mut ids, weights, &at, options)
        };
        let layers = spec.layers.iter().enumerate().map(layer).collect::<Result<Vec<_>, _>>()?;
        let offset = spec.last_norm_offset.unwrap_or(spec.norm_offset);
        let last = format!("{prefix}{}", top.norm);
        let norm = Norm::load_with(&spec, weights, &last, spec.hidden, (offset, spec.norm_eps))?;
        let plain = || RmsNorm::new(vec![1.0; spec.hidden], spec.norm_eps);
        let embed_norm = spec.embed_norm.then(plain);
        let table = |name| {
            let name = format!("{prefix}{name}");
            Ok::<_, ModelError>(weights.embedding(&name, spec.max_positions, spec.hidden)?)
        };
        let positions = spec.learned_positions.map(table).transpose()?;
        let prefill_apart = options.gpu.is_none() && options.precision.prefill_apart(spec.head_dim);
        let mut info = ModelInfo { prefill_apart, ..info(&spec, &embed, &layers, &head) };
        if let Some(table) = &positions {
            let (rows, columns) = table.shape();
            info.parameters += (rows * columns) as u64;
            info.weight_bytes += table.bytes();
        }
        Ok(Self { info, spec, embed, embed_norm, positions, layers, norm, head })
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
        if let Some(norm) = &self.embed_norm {
            x = norm.forward(&x)?;
        }
        if let Some(table) = &self.positions {
            x = ops::add(&x, &table.forward(batch.positions)?)?;
        }
        let all = batch.logits_at.iter().copied().eq(0..batch.tokens.len() as u32);
        let positions = batch.positions;
        let step = Step { spec, ropes: &ropes, positions, phase, whole: true };
        for (i, layer) in self.layers.iter().enumerate() {
            let next = self.layers.get(i + 1);
            // Of the last layer nobody reads the other rows, once it has their keys and values.
            let kept = (next.is_none() && !all).then_some(batch.logits_at);
            let next = next.and_then(Layer::first_norm);
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
    weights: Source<'_>,
    name: &str,
    embed: &Embedding,
    options: LoadOptions<'_>,
) -> Result<Linear, ModelError> {
    let head = match spec.tied {
        true => embed.as_linear(),
        false => weights.linear(name, spec.hidden, spec.vocab, spec.head_bias)?,
    };
    Ok(head.place(options.place())?)
}

/// Projections of one input: tensors of their own, or row ranges of a fused one.
pub(crate) fn parts<const N: usize>(
    weights: Source<'_>,
    inputs: usize,
    bias: bool,
    at: &str,
    fused: Option<&str>,
    names: [(&str, usize); N],
) -> Result<[Linear; N], ModelError> {
    let all = names.iter().map(|(_, rows)| rows).sum();
    let whole = fused.map(|fused| weights.linear(&format!("{at}.{fused}"), inputs, all, bias));
    let whole = whole.transpose()?;
    let mut first = 0;
    let mut loaded = Vec::with_capacity(N);
    for (name, rows) in names {
        loaded.push(match &whole {
            Some(whole) => whole.outputs(first, rows)?,
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
    let attends = |layer: &&LayerSpec| layer.mixer.attends();
    let recurrent: Vec<_> = spec.layers.iter().flat_map(|layer| layer.mixer.states()).collect();
    ModelInfo {
        family: spec.family,
        layers: spec.layers.iter().filter(attends).count(),
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
