//! Heads for multi-token prediction, which draft from what a model's output projection reads (DeepSeek V3, arXiv
//! 2412.19437, section 2.2).
//!
//! Row `i` is of the model's last hidden state at token `i` and of the token after it:
//!
//! ```text
//! h = layer(map([norm(embedding of token i + 1), norm(hidden state of token i)]))
//! logits of token i + 2 = output projection of norm(h)
//! ```
//!
//! Where token `i + 2` is a draft too, `h` or `norm(h)` stands for the hidden state of token `i + 1`.

use crate::{
    Batch, LoadOptions, ModelError, ModelInfo, StateSession,
    decoder::{Decoder, angles, logits},
    feed_forward::size,
    layer::Layer,
    mixers::{StateIds, Step},
    norms::Norm,
    source::Source,
    spec::Spec,
};
use taper_kv_cache::KvHeads;
use taper_tensor::{Embedding, Linear, Pass, Tensor, join_heads, ops};

/// What a family calls the tensors of its head, and how it differs from others.
#[derive(Debug, Clone, Copy)]
struct Names {
    map: &'static str,
    embedding: &'static str,
    hidden: &'static str,
    /// The layer, below the head.
    layer: &'static str,
    norm: &'static str,
    /// The hidden state comes before the embedding.
    hidden_first: bool,
    /// What the output projection reads stands for the next hidden state, not what the norm before it reads.
    normed_back: bool,
    /// The first row's embedding is zero.
    first_is_zero: bool,
}

/// Qwen3-Next and Qwen 3.5 (vLLM's `qwen3_next_mtp.py`).
const QWEN: Names = Names {
    map: "fc",
    embedding: "pre_fc_norm_embedding",
    hidden: "pre_fc_norm_hidden",
    layer: "layers.0.",
    norm: "norm",
    hidden_first: false,
    normed_back: true,
    first_is_zero: false,
};
/// DeepSeek V3 and GLM 4.5 (vLLM's `deepseek_mtp.py`).
const DEEPSEEK: Names = Names {
    map: "eh_proj",
    embedding: "enorm",
    hidden: "hnorm",
    layer: "",
    norm: "shared_head.norm",
    hidden_first: false,
    normed_back: false,
    first_is_zero: true,
};
/// MiMo (vLLM's `mimo_mtp.py`).
const MIMO: Names = Names {
    map: "input_proj",
    embedding: "token_layernorm",
    hidden: "hidden_layernorm",
    layer: "",
    norm: "final_layernorm",
    hidden_first: true,
    normed_back: true,
    first_is_zero: true,
};

/// Where a checkpoint has a head that is known, and its names.
fn find(spec: &Spec, decoder: &str, weights: Source<'_>) -> Option<(String, Names)> {
    let after = format!("{decoder}{}.{}.", spec.top.layers, spec.layers.len());
    let places = [
        ("mtp.", QWEN),
        ("language_model.mtp.", QWEN),
        ("model.mtp.", QWEN),
        (after.as_str(), DEEPSEEK),
        ("model.mtp_layers.0.", MIMO),
    ];
    let whole = |(at, names): &&(&str, Names)| {
        let parts = [names.map, names.embedding, names.hidden, names.norm].map(str::to_owned);
        let layer = format!("{}input_layernorm", names.layer);
        let all = parts.into_iter().chain([layer]);
        all.into_iter().all(|name| weights.has(&format!("{at}{name}.weight")))
    };
    places.iter().find(whole).map(|(at, names)| ((*at).to_owned(), *names))
}

/// A head that drafts. It shares the token table and the output projection with its model, and has one layer with keys
/// and values of its own.
#[derive(Debug)]
pub struct DraftHead {
    info: ModelInfo,
    spec: Spec,
    embed: Embedding,
    names: Names,
    /// Of embeddings, and of hidden states.
    norms: [Norm; 2],
    map: Linear,
    layer: Layer,
    norm: Norm,
    output: Linear,
}

impl DraftHead {
    /// The head that a checkpoint has for a model, if it has one that is known.
    pub(crate) fn load(
        model: &Decoder,
        (embed, output): (&Embedding, &Linear),
        (weights, decoder): (Source<'_>, &str),
        options: LoadOptions<'_>,
    ) -> Result<Option<Self>, ModelError> {
        let spec = model.spec().clone();
        let Some((at, names)) = find(&spec, decoder, weights) else { return Ok(None) };
        let Some(&own) = spec.layers.iter().rfind(|layer| layer.mixer.attends()) else {
            return Ok(None);
        };
        let Some(heads) = own.mixer.cached(&spec) else { return Ok(None) };
        let hidden = spec.hidden;
        let norm = |name: &str| Norm::load(&spec, weights, &format!("{at}{name}"), hidden);
        let norms = [norm(names.embedding)?, norm(names.hidden)?];
        let last = norm(names.norm)?;
        let map = weights.linear(&format!("{at}{}", names.map), 2 * hidden, hidden, false)?;
        let (index, ids) = (spec.layers.len(), &mut StateIds::default());
        let layer = format!("{at}{}", names.layer);
        let layer = layer.trim_end_matches('.');
        let layer = Layer::load(&spec, (index, &own), ids, weights, layer, options)?;
        let mut head = Self {
            info: info(model, heads),
            embed: embed.clone(),
            names,
            norms,
            map: map.place(options.place())?,
            layer,
            norm: last,
            output: output.clone(),
            spec,
        };
        let ((parameters, bytes), (more, more_bytes)) = (size([&head.map]), head.layer.size());
        (head.info.parameters, head.info.weight_bytes) = (parameters + more, bytes + more_bytes);
        Ok(Some(head))
    }

    /// What it is, as a model of one layer: its cache is [`ModelInfo::cache`]'s.
    #[must_use]
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// What its cache keeps.
    pub(crate) fn kept(&self) -> KvHeads {
        let ModelInfo { kv_heads, head_dim, .. } = self.info;
        let plain = KvHeads { kv_heads, head_dim, values_in_keys: false };
        self.info.layer_heads.first().copied().unwrap_or(plain)
    }

    /// Runs rows of some sequences. Row `i` has token `i + 1`, position `i`, and the hidden state of token `i`.
    ///
    /// # Shapes
    /// `hidden [t, hidden]` -> hidden states `[logits_at.len(), hidden]` and their logits `[logits_at.len(), vocab]`,
    /// f32.
    ///
    /// # Errors
    /// A token outside of the vocabulary, hidden states of another shape, or a session that was opened for other rows.
    pub fn forward(
        &self,
        batch: &Batch<'_>,
        hidden: &Tensor,
        state: &mut dyn StateSession,
    ) -> Result<[Tensor; 2], ModelError> {
        let (spec, t) = (&self.spec, batch.tokens.len());
        for (what, got) in [
            ("positions", batch.positions.len()),
            ("hidden states", hidden.dims().first().copied().unwrap_or_default()),
        ] {
            if got != t {
                return Err(ModelError::Batch { what, expected: t, got });
            }
        }
        let pass = Pass { phase: self.info.phase(batch.phase), changes: None };
        let mut embedded = self.embed.forward(batch.tokens)?;
        if let Some(scale) = spec.embed_scale {
            embedded = ops::scale(&embedded, scale)?;
        }
        if self.names.first_is_zero {
            embedded = without_first(embedded, batch.positions)?;
        }
        let [embedding, before] = &self.norms;
        let (embedded, hidden) = (embedding.forward(&embedded)?, before.forward(hidden)?);
        let (a, b) = if self.names.hidden_first { (hidden, embedded) } else { (embedded, hidden) };
        let x = self.map.forward(&join_heads(&a, &b, 1)?, pass)?;
        let ropes = angles(spec, batch.positions, &[]);
        let all = batch.logits_at.iter().copied().eq(0..t as u32);
        let step = Step {
            spec,
            ropes: &ropes,
            inputs: None,
            rows: None,
            positions: batch.positions,
            pass,
            kept: pass,
            whole: true,
            mutual: &[],
        };
        let x = self.layer.forward(&step, (&x, (!all).then_some(batch.logits_at), None), state)?;
        let h = self.norm.forward(&x)?;
        let logits = logits(spec, &self.output, &h, pass)?;
        Ok([if self.names.normed_back { h } else { x }, logits])
    }
}

/// Embeddings with zeros where the position is 0.
fn without_first(x: Tensor, positions: &[u32]) -> Result<Tensor, ModelError> {
    let width = x.dims().last().copied().unwrap_or_default();
    if !positions.contains(&0) {
        return Ok(x);
    }
    let dims = x.dims().to_vec();
    let mut rows = ops::with_host_f32(&x, <[f32]>::to_vec)?;
    let first = rows.chunks_exact_mut(width.max(1)).zip(positions).filter(|(_, at)| **at == 0);
    first.for_each(|(row, _)| row.fill(0.0));
    Ok(Tensor::from_vec(rows, &dims)?)
}

/// What a cache and a session must know of the head of a model, whose layer keeps `heads`.
fn info(model: &Decoder, heads: KvHeads) -> ModelInfo {
    let KvHeads { kv_heads, head_dim, .. } = heads;
    let layer_heads = if heads.values_in_keys { vec![heads] } else { Vec::new() };
    let (layers, recurrent) = (1, Vec::new());
    let whole = crate::Model::info(model).clone();
    ModelInfo { layers, recurrent, kv_heads, head_dim, layer_heads, ..whole }
}
