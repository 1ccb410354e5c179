//! The decoder-only transformer that the families share.

use crate::{
    Adapter, AdapterTargets, Batch, DraftHead, LoadOptions, Model, ModelError, ModelInfo,
    StateSession, StepImages,
    feed_forward::size,
    layer::Layer,
    mixers::{StateIds, Step},
    norms::Norm,
    per_layer::PerLayer,
    source::Source,
    spec::Spec,
    streaming::{StreamedExperts, Streams as ExpertStreams},
    streams::Streams,
};
use std::{borrow::Cow, sync::Arc};
use taper_base::TokenId;
use taper_kv_cache::KvHeads;
use taper_tensor::{
    ChangedRows, Embedding, Linear, Pass, Phase, RmsNorm, RopeAngles, RopeTable, Tensor, ops,
};

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
    per_layer: Option<PerLayer>,
    streams: Option<Streams>,
    layers: Vec<Layer>,
    norm: Norm,
    head: Linear,
    targets: AdapterTargets,
    experts: Option<StreamedExperts>,
    draft_head: Option<Arc<DraftHead>>,
}

impl Decoder {
    /// Builds the model from the tensors that are named as `names` says.
    pub(crate) fn load(
        spec: Spec,
        weights: Source<'_>,
        names: &Names,
        options: LoadOptions<'_>,
    ) -> Result<Self, ModelError> {
        let streams = options.experts.map(|own| (own, ExpertStreams::new(weights.checkpoint())));
        let weights = weights.streamed(streams.as_ref().map(|(_, streams)| streams));
        let mut model = Self::without_layers(spec, weights, names, options)?;
        let mut ids = StateIds::default();
        for i in 0..model.spec.layers.len() {
            let layer = model.layer(i, weights, names, &mut ids, options)?;
            let (parameters, bytes) = layer.size();
            model.info.parameters += parameters;
            model.info.weight_bytes += bytes;
            model.layers.push(layer);
        }
        let maps = model.layers.iter().flat_map(Layer::maps);
        let place = (names, model.spec.top, model.spec.layers.len());
        model.targets = AdapterTargets::new(maps, &model.head, place, options);
        if options.draft_head {
            let shared = (&model.embed, &model.head);
            let source = (weights.streamed(None), names.decoder.as_str());
            if let Some(head) = DraftHead::load(&model, shared, source, options)? {
                model.info.parameters += head.info().parameters;
                model.info.weight_bytes += head.info().weight_bytes;
                model.info.draft_heads = Some(head.kept());
                model.draft_head = Some(Arc::new(head));
            }
        }
        if let Some((own, streams)) = streams {
            let (experts, bytes) = streams.open(own, options, model.info.weight_bytes)?;
            model.info.weight_bytes += bytes;
            model.experts = Some(experts);
        }
        Ok(model)
    }

    /// The layer of this number; `ids` are of those before it.
    pub(crate) fn layer(
        &self,
        i: usize,
        weights: Source<'_>,
        names: &Names,
        ids: &mut StateIds,
        options: LoadOptions<'_>,
    ) -> Result<Layer, ModelError> {
        let (spec, limit) = (&self.spec, self.spec.layers.len());
        let bad = ModelError::Batch { what: "layers", expected: limit, got: i };
        let own = spec.layers.get(i).ok_or(bad)?;
        let (number, weights) = match spec.halves {
            Some(halves) => (i / 2, weights.with(halves[i % 2])),
            None => (i, weights),
        };
        let at = format!("{}{}.{number}", names.decoder, spec.top.layers);
        Layer::load(spec, (i, own), ids, weights, &at, options)
    }

    /// What is before and after the layers.
    pub(crate) fn without_layers(
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
        let per_layer =
            spec.per_layer.map(|own| PerLayer::load(&spec, own, weights, prefix, options));
        let per_layer = per_layer.transpose()?;
        let streams = spec.streams.map(|own| Streams::load(&spec, own, weights, prefix, options));
        let streams = streams.transpose()?;
        let offset = spec.last_norm_offset.unwrap_or(spec.norm_offset);
        let last = format!("{prefix}{}", top.norm);
        let norm = Norm::load_with(&spec, weights, &last, spec.hidden, (offset, spec.norm_eps))?;
        let plain = || RmsNorm::new(vec![1.0; spec.hidden], spec.norm_eps);
        let embed_norm = spec.embed_norm.then(plain);
        let table = |name| {
            let name = format!("{prefix}{name}");
            let table = weights.embedding(&name, spec.max_positions, spec.hidden)?;
            Ok::<_, ModelError>(match options.gpu {
                Some(_) => table.place(options.place())?,
                None => table,
            })
        };
        let positions = spec.learned_positions.map(table).transpose()?;
        let mut info = info(&spec, &embed, &head);
        let apart = |heads: KvHeads| options.precision.prefill_apart(heads.head_dim);
        info.prefill_apart = options.gpu.is_none()
            && spec.layers.iter().filter_map(|l| l.mixer.cached(&spec)).any(apart);
        let own = per_layer.as_ref().map(PerLayer::size);
        for (parameters, bytes) in own.into_iter().chain(streams.as_ref().map(Streams::size)) {
            (info.parameters, info.weight_bytes) =
                (info.parameters + parameters, info.weight_bytes + bytes);
        }
        if let Some(table) = &positions {
            let (rows, columns) = table.shape();
            info.parameters += (rows * columns) as u64;
            info.weight_bytes += table.bytes();
        }
        let place = (names, top, spec.layers.len());
        let targets = AdapterTargets::new(std::iter::empty(), &head, place, options);
        Ok(Self {
            targets,
            experts: None,
            draft_head: None,
            info,
            spec,
            embed,
            embed_norm,
            positions,
            per_layer,
            streams,
            layers: Vec::new(),
            norm,
            head,
        })
    }

    pub(crate) fn spec(&self) -> &Spec {
        &self.spec
    }

    /// What the first layer reads.
    pub(crate) fn begin(&self, batch: &Batch<'_>, phase: Phase) -> Result<Begun, ModelError> {
        let (expected, got) = (batch.tokens.len(), batch.positions.len());
        if expected != got {
            return Err(ModelError::Batch { what: "positions", expected, got });
        }
        let spec = &self.spec;
        batch.images.check(expected, spec.hidden)?;
        if spec.images.is_none() && !batch.images.rows.is_empty() {
            return Err(ModelError::NoImages { family: spec.family });
        }
        let ropes = angles(spec, batch.positions, batch.images.axes);
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
        if !batch.images.rows.is_empty() {
            x = batch.images.put(x)?;
        }
        let own = self.per_layer.as_ref();
        let inputs = own.map(|own| own.inputs(&self.own_tokens(batch), &x, phase));
        let inputs = inputs.transpose()?;
        if let Some(streams) = &self.streams {
            x = streams.begin(&x, phase)?;
        }
        Ok(Begun { x, ropes, inputs })
    }

    /// Tokens whose embeddings of each layer's own are read: an image's have those of the padding.
    fn own_tokens<'b>(&self, batch: &Batch<'b>) -> Cow<'b, [TokenId]> {
        if batch.images.rows.is_empty() {
            return Cow::Borrowed(batch.tokens);
        }
        let mut tokens = batch.tokens.to_vec();
        for row in batch.images.rows {
            tokens[row.token as usize] = self.spec.padding;
        }
        Cow::Owned(tokens)
    }

    /// What the head reads of the last layer's rows.
    pub(crate) fn end(&self, mut x: Tensor, phase: Phase) -> Result<Tensor, ModelError> {
        if let Some(streams) = &self.streams {
            x = streams.end(&x, phase)?;
        }
        self.norm.forward(&x)
    }

    /// Logits of rows that [`Self::end`] gives.
    pub(crate) fn logits(&self, x: &Tensor, pass: Pass<'_>) -> Result<Tensor, ModelError> {
        logits(&self.spec, &self.head, x, pass)
    }
}

/// What an output projection makes of rows.
pub(crate) fn logits(
    spec: &Spec,
    head: &Linear,
    x: &Tensor,
    pass: Pass<'_>,
) -> Result<Tensor, ModelError> {
    let mut logits = head.forward_few(x, pass)?;
    if let Some(scale) = spec.logit_scale {
        logits = ops::scale(&logits, scale)?;
    }
    match spec.logit_soft_cap {
        Some(cap) => Ok(ops::soft_cap(&logits, cap)?),
        None => Ok(logits),
    }
}

/// A batch before the layers.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) x: Tensor,
    /// Of each of the model's tables.
    pub(crate) ropes: Vec<RopeAngles>,
    /// Inputs of each layer's own.
    pub(crate) inputs: Option<Tensor>,
}

impl Decoder {
    /// Whether tokens see those after them.
    pub(crate) fn is_bidirectional(&self) -> bool {
        self.spec.bidirectional
    }

    /// What the output projection reads of the rows whose logits are wanted.
    ///
    /// # Shapes
    /// `[logits_at.len(), hidden]`
    pub(crate) fn hidden(
        &self,
        batch: &Batch<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let (spec, phase) = (&self.spec, self.info.phase(batch.phase));
        let changes = changes(batch)?;
        let changes_kept = changes.as_ref().map(|changes| changes.take(batch.logits_at));
        let pass = Pass { phase, changes: changes.as_ref() };
        let kept_pass = Pass { phase, changes: changes_kept.as_ref() };
        let Begun { mut x, ropes, inputs } = self.begin(batch, phase)?;
        let inputs = inputs.as_ref();
        let all = batch.logits_at.iter().copied().eq(0..batch.tokens.len() as u32);
        let positions = batch.positions;
        let step = Step {
            spec,
            ropes: &ropes,
            inputs,
            rows: None,
            positions,
            mutual: batch.images.mutual,
            pass,
            kept: kept_pass,
            whole: true,
        };
        let storing = if all { self.layers.len() } else { spec.storing() };
        let (layers, readers) = self.layers.split_at(storing);
        // Of the last layer nobody reads the other rows, once it has their keys and values.
        let kept = (readers.is_empty() && !all).then_some(batch.logits_at);
        x = run(layers, &step, (x, kept), batch.images, state)?;
        if !readers.is_empty() {
            x = ops::take_rows(&x, batch.logits_at)?;
        }
        if !readers.is_empty() && !batch.logits_at.is_empty() {
            let rows = batch.logits_at;
            let positions = rows.iter().filter_map(|&row| positions.get(row as usize));
            let positions: Vec<u32> = positions.copied().collect();
            let axes = rows.iter().filter_map(|&row| batch.images.axes.get(row as usize));
            let axes: Vec<_> = axes.copied().collect();
            let ropes = angles(spec, &positions, &axes);
            let inputs = inputs.map(|inputs| ops::take_rows(inputs, rows)).transpose()?;
            let (ropes, positions) = (ropes.as_slice(), positions.as_slice());
            let (inputs, rows) = (inputs.as_ref(), Some(rows));
            let step = Step { ropes, inputs, rows, positions, pass: kept_pass, ..step };
            x = run(readers, &step, (x, None), StepImages::default(), state)?;
        }
        self.end(x, phase)
    }
}

impl Model for Decoder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn adapter_targets(&self) -> Option<&AdapterTargets> {
        Some(&self.targets)
    }

    fn experts(&self) -> Option<StreamedExperts> {
        self.experts.clone()
    }

    fn forward(
        &self,
        batch: &Batch<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let changes = changes(batch)?.map(|changes| changes.take(batch.logits_at));
        let pass = Pass { phase: self.info.phase(batch.phase), changes: changes.as_ref() };
        self.logits(&self.hidden(batch, state)?, pass)
    }

    fn draft_head(&self) -> Option<&Arc<DraftHead>> {
        self.draft_head.as_ref()
    }

    fn forward_hidden(
        &self,
        batch: &Batch<'_>,
        state: &mut dyn StateSession,
    ) -> Result<[Tensor; 2], ModelError> {
        let changes = changes(batch)?.map(|changes| changes.take(batch.logits_at));
        let pass = Pass { phase: self.info.phase(batch.phase), changes: changes.as_ref() };
        let every: Vec<u32> = (0u32..).take(batch.tokens.len()).collect();
        let hidden = self.hidden(&Batch { logits_at: &every, ..*batch }, state)?;
        let logits = self.logits(&ops::take_rows(&hidden, batch.logits_at)?, pass)?;
        Ok([logits, hidden])
    }
}

/// Which rows of a step go through which adapters; `None` where none does.
fn changes<'a>(batch: &Batch<'a>) -> Result<Option<ChangedRows<'a>>, ModelError> {
    let (expected, got) = (batch.tokens.len(), batch.adapters.len());
    if got != 0 && got != expected {
        return Err(ModelError::Batch { what: "adapters", expected, got });
    }
    let rows = batch.adapters.iter().map(|own| own.map(Adapter::changes));
    Ok(Some(ChangedRows::new(rows)).filter(|changes| !changes.is_empty()))
}

/// Angles of a step's tokens, of each of the model's tables.
pub(crate) fn angles(spec: &Spec, positions: &[u32], axes: &[[u32; 3]]) -> Vec<RopeAngles> {
    let of = |table: &RopeTable| match axes {
        [] => table.angles(positions),
        axes => table.angles_of_axes(axes),
    };
    spec.ropes.iter().map(of).collect()
}

/// What consecutive layers make of the stream, with what images add behind the first ones; the last gives the rows of `kept`, or all.
fn run(
    layers: &[Layer],
    step: &Step<'_>,
    (mut x, kept): (Tensor, Option<&[u32]>),
    images: StepImages<'_>,
    state: &mut dyn StateSession,
) -> Result<Tensor, ModelError> {
    let depth = images.depth();
    for (i, layer) in layers.iter().enumerate() {
        let next = layers.get(i + 1);
        let kept = kept.filter(|_| next.is_none());
        // What is added to below is not normed yet.
        let next = next.and_then(Layer::first_norm).filter(|_| i >= depth);
        x = layer.forward(step, (&x, kept, next), state)?;
        if i < depth {
            x = images.add_behind(i, x, kept)?;
        }
    }
    Ok(x)
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
        true => embed.as_linear().named(name),
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
    // GGUF files have them apart where Hugging Face's have one.
    let there = |name: &str| weights.has(&format!("{at}.{name}.weight"));
    let fused = fused.filter(|fused| there(fused) || !there(names[0].0));
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

/// What a model is, without its layers' weights.
fn info(spec: &Spec, embed: &Embedding, head: &Linear) -> ModelInfo {
    let (parameters, bytes) = if spec.tied { (0, 0) } else { size([head]) };
    let (vocab, hidden) = embed.shape();
    let cached: Vec<_> = spec.layers.iter().filter_map(|l| l.mixer.cached(spec)).collect();
    let (kv_heads, head_dim) = match cached.first() {
        Some(heads) => (heads.kv_heads, heads.head_dim),
        None => (spec.kv_heads, spec.head_dim),
    };
    let plain = KvHeads { kv_heads, head_dim, values_in_keys: false };
    let alike = cached.iter().all(|heads| *heads == plain);
    let recurrent: Vec<_> = spec.layers.iter().flat_map(|layer| layer.mixer.states()).collect();
    ModelInfo {
        family: spec.family,
        layers: cached.len(),
        recurrent,
        heads: spec.heads,
        kv_heads,
        head_dim,
        layer_heads: if alike { Vec::new() } else { cached },
        hidden: spec.hidden,
        vocab: spec.vocab,
        max_positions: spec.max_positions,
        parameters: (vocab * hidden) as u64 + parameters,
        weight_bytes: embed.bytes() + bytes,
        prefill_apart: false,
        draft_heads: None,
        images: spec.images,
        ahead: spec.ahead,
    }
}
