//! Heads for multi-token prediction, which draft from what a model's output projection reads (DeepSeek V3, arXiv
//! 2412.19437, section 2.2).
//!
//! Row `i` is of the model's last hidden state at token `i` and of the token after it:
//!
//! ```text
//! x = map([norm(embedding of token i + 1), norm(hidden state of token i)])
//! h = norm(layer(x))          its logits say what token i + 2 is
//! ```
//!
//! Where token `i + 2` is a draft too, `h` stands for its hidden state.

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

/// Where checkpoints of Qwen have it.
const PLACES: [&str; 3] = ["mtp.", "language_model.mtp.", "model.mtp."];

/// A head that drafts. It shares the token table and the output projection with its model, and has one layer with keys
/// and values of its own.
#[derive(Debug)]
pub struct DraftHead {
    info: ModelInfo,
    spec: Spec,
    embed: Embedding,
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
        weights: Source<'_>,
        options: LoadOptions<'_>,
    ) -> Result<Option<Self>, ModelError> {
        let spec = model.spec().clone();
        let first = |place: &&&str| weights.has(&format!("{place}layers.0.input_layernorm.weight"));
        let Some(&at) = PLACES.iter().find(first) else { return Ok(None) };
        let Some(&own) = spec.layers.iter().rfind(|layer| layer.mixer.attends()) else {
            return Ok(None);
        };
        let Some(heads) = own.mixer.cached(&spec) else { return Ok(None) };
        let hidden = spec.hidden;
        let norm = |name: &str| Norm::load(&spec, weights, &format!("{at}{name}"), hidden);
        let norms = [norm("pre_fc_norm_embedding")?, norm("pre_fc_norm_hidden")?];
        let last = norm("norm")?;
        let map = weights.linear(&format!("{at}fc"), 2 * hidden, hidden, false)?;
        let (index, ids) = (spec.layers.len(), &mut StateIds::default());
        let layer = format!("{at}layers.0");
        let layer = Layer::load(&spec, (index, &own), ids, weights, &layer, options)?;
        let mut head = Self {
            info: info(model, heads),
            embed: embed.clone(),
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
        let [embedding, before] = &self.norms;
        let both = join_heads(&embedding.forward(&embedded)?, &before.forward(hidden)?, 1)?;
        let x = self.map.forward(&both, pass)?;
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
        };
        let x = self.layer.forward(&step, (&x, (!all).then_some(batch.logits_at), None), state)?;
        let h = self.norm.forward(&x)?;
        let logits = logits(spec, &self.output, &h, pass)?;
        Ok([h, logits])
    }
}

/// What a cache and a session must know of the head of a model, whose layer keeps `heads`.
fn info(model: &Decoder, heads: KvHeads) -> ModelInfo {
    let KvHeads { kv_heads, head_dim, .. } = heads;
    let layer_heads = if heads.values_in_keys { vec![heads] } else { Vec::new() };
    let (layers, recurrent) = (1, Vec::new());
    let whole = crate::Model::info(model).clone();
    ModelInfo { layers, recurrent, kv_heads, head_dim, layer_heads, ..whole }
}
