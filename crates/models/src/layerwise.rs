//! A model run layer by layer: each layer over all of a text before the next, with one layer's weights at a time.

use crate::{
    Batch, LoadOptions, ModelError,
    decoder::{Begun, Decoder, Names},
    families::{Described, described},
    layer::Layer,
    mixers::{StateIds, Step},
    source::Source,
};
use taper_base::{Phase, SeqId, TokenId};
use taper_kv_cache::{KvCache, KvConfig, SeqRange};
use taper_tensor::{Pass, Tensor, ops};
use taper_weights::Checkpoint;

const PASS: Pass<'static> = Pass { phase: Phase::Decode, changes: None };

/// The sequences of a text before some layer.
#[derive(Debug)]
pub(crate) struct Layerwise {
    model: Decoder,
    names: Names,
    cache: KvCache,
    /// Whether layers read what others have cached, so that all of it is kept.
    sharing: bool,
    sequences: Vec<Sequence>,
    next: usize,
    ids: StateIds,
}

/// What was before a layer.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    next: usize,
    ids: StateIds,
    rows: Vec<Tensor>,
}

#[derive(Debug)]
struct Sequence {
    positions: Vec<u32>,
    begun: Begun,
}

impl Layerwise {
    /// Sequences before the first layer; empty ones are left out.
    pub(crate) fn new(weights: &Checkpoint, text: &[Vec<TokenId>]) -> Result<Self, ModelError> {
        let Described { spec, names, .. } = described(weights, LoadOptions::EXACT, false)?;
        let source = Source::new(weights, spec.renames, spec.inputs_first);
        let sharing = spec.storing() < spec.layers.len();
        let model = Decoder::without_layers(spec, source, &names, LoadOptions::EXACT)?;
        let begin = |tokens: &Vec<TokenId>| {
            let positions: Vec<u32> = (0..tokens.len() as u32).collect();
            let (tokens, logits_at, phase) = (tokens.as_slice(), &[][..], Phase::Decode);
            let batch =
                Batch { tokens, positions: &positions, logits_at, phase, ..Batch::default() };
            let begun = model.begin(&batch, phase)?;
            Ok(Sequence { positions, begun })
        };
        let sequences = text.iter().filter(|tokens| !tokens.is_empty()).map(begin);
        let sequences: Vec<_> = sequences.collect::<Result<_, ModelError>>()?;
        let cache = cache(&model, &sequences, sharing)?;
        let ids = StateIds::default();
        Ok(Self { model, names, cache, sharing, sequences, next: 0, ids })
    }

    /// Layers in all.
    pub(crate) fn layers(&self) -> usize {
        self.model.spec().layers.len()
    }

    /// Sequences in all.
    pub(crate) fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Runs the next layer, of these weights, over all sequences, for who watches them; `each` is called after every
    /// one.
    pub(crate) fn look(
        &mut self,
        weights: &Checkpoint,
        each: &mut dyn FnMut(),
    ) -> Result<(), ModelError> {
        let (layer, _) = self.load(weights)?;
        for i in 0..self.sequences.len() {
            self.run(&layer, i)?;
            each();
        }
        Ok(())
    }

    /// Goes on to what the next layer, of these weights, makes of all sequences.
    pub(crate) fn advance(
        &mut self,
        weights: &Checkpoint,
        each: &mut dyn FnMut(),
    ) -> Result<(), ModelError> {
        let (layer, ids) = self.load(weights)?;
        for i in 0..self.sequences.len() {
            self.sequences[i].begun.x = self.run(&layer, i)?;
            each();
        }
        (self.next, self.ids) = (self.next + 1, ids);
        Ok(())
    }

    /// The name of the tensor that the head is, and what it reads once all layers have run.
    pub(crate) fn ends(&self, weights: &Checkpoint) -> Result<(String, Vec<Tensor>), ModelError> {
        let spec = self.model.spec();
        let source = Source::new(weights, spec.renames, spec.inputs_first);
        let name = match spec.tied {
            true => source.own(&format!("{}{}", self.names.decoder, spec.top.embed)),
            false => source.own(&self.names.head),
        };
        let end = |s: &Sequence| self.model.end(s.begun.x.clone(), Phase::Decode);
        let rows = self.sequences.iter().map(end).collect::<Result<_, _>>()?;
        Ok((format!("{name}.weight"), rows))
    }

    /// Logits of every `step`th row once all layers have run, `[rows, vocab]`.
    pub(crate) fn logits(&self, step: usize) -> Result<Vec<f32>, ModelError> {
        let mut all = Vec::new();
        for s in &self.sequences {
            let rows: Vec<u32> = (0..s.positions.len() as u32).step_by(step.max(1)).collect();
            let x = ops::take_rows(&self.model.end(s.begun.x.clone(), Phase::Decode)?, &rows)?;
            let logits = self.model.logits(&x, PASS)?;
            ops::with_host_f32(&logits, |logits| all.extend_from_slice(logits))?;
        }
        Ok(all)
    }

    /// Whether layers are left to run.
    pub(crate) fn is_before_end(&self) -> bool {
        self.next < self.layers()
    }

    /// Size of the vocabulary.
    pub(crate) fn vocab(&self) -> usize {
        self.model.spec().vocab
    }

    /// Where the sequences are: before which layer, and their rows.
    pub(crate) fn place(&self) -> Place {
        let rows = self.sequences.iter().map(|s| s.begun.x.clone()).collect();
        Place { next: self.next, ids: self.ids, rows }
    }

    /// Goes back, or on, to a place.
    pub(crate) fn go_to(&mut self, place: &Place) {
        (self.next, self.ids) = (place.next, place.ids);
        for (sequence, rows) in self.sequences.iter_mut().zip(&place.rows) {
            sequence.begun.x = rows.clone();
        }
    }

    fn load(&self, weights: &Checkpoint) -> Result<(Layer, StateIds), ModelError> {
        let spec = self.model.spec();
        let source = Source::new(weights, spec.renames, spec.inputs_first);
        let mut ids = self.ids;
        let layer =
            self.model.layer(self.next, source, &self.names, &mut ids, LoadOptions::EXACT)?;
        Ok((layer, ids))
    }

    fn run(&mut self, layer: &Layer, i: usize) -> Result<Tensor, ModelError> {
        let Sequence { positions, begun } = &self.sequences[i];
        let len = positions.len();
        let seq = SeqId(if self.sharing { i as u64 } else { 0 });
        if !self.sharing {
            self.cache.release(seq);
        }
        self.cache.grow(seq, len)?;
        let mut session = self.cache.session(&[SeqRange { seq, start: 0, len }])?;
        let step = Step {
            spec: self.model.spec(),
            ropes: &begun.ropes,
            inputs: begun.inputs.as_ref(),
            rows: None,
            positions,
            mutual: &[],
            pass: PASS,
            kept: PASS,
            whole: true,
        };
        layer.forward(&step, (&begun.x, None, None), &mut session)
    }
}

/// Room for the longest sequence, or for all.
fn cache(model: &Decoder, all: &[Sequence], sharing: bool) -> Result<KvCache, ModelError> {
    use crate::Model as _;
    let size = KvConfig::BLOCK_TOKENS;
    let blocks = all.iter().map(|s| s.positions.len().div_ceil(size));
    let blocks: usize = if sharing { blocks.sum() } else { blocks.max().unwrap_or(0) };
    let info = model.info();
    let codec = taper_kv_codecs::parse("f32").map_err(taper_kv_cache::KvCacheError::from)?;
    let slots = if sharing { all.len() } else { 1 };
    let config = info.cache(codec, size, blocks + 1);
    Ok(KvCache::new(KvConfig { recurrent: info.states(slots.max(1), 0), ..config }))
}
