//! Runs a plan's tokens through the model: together, or prefill and decode one after the other
//! where the model computes them differently.

use crate::{media::Media, sequence::Sequence};
use std::{collections::HashMap, ops::Range};
use taper_base::{Phase, SeqId, TokenId};
use taper_kv_cache::{KvCache, KvCacheError, SeqRange};
use taper_kv_codecs::MutualSpan;
use taper_models::{Adapter, Batch, ImageRow, Model, ModelError, ModelInfo, StepImages};
use taper_scheduler::StepPlan;
use taper_tensor::{Tensor, ops};

/// Why there are no logits.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PassError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Cache(#[from] KvCacheError),
    #[error("the model gave {got} logits where {expected} were asked for")]
    Logits { expected: usize, got: usize },
}

/// What the output projection reads of the tokens of one call of the model.
#[derive(Debug)]
pub(crate) struct Hidden {
    pub(crate) ranges: Vec<SeqRange>,
    /// One after the other, `[t, hidden]`.
    pub(crate) rows: Tensor,
}

/// The tokens of one call of the model.
#[derive(Debug, Default)]
struct Pass<'a> {
    phase: Phase,
    tokens: Vec<TokenId>,
    positions: Vec<u32>,
    logits_at: Vec<u32>,
    /// Which of the plan's rows of logits these are.
    rows: Vec<usize>,
    ranges: Vec<SeqRange>,
    /// Of each token; empty where none has one.
    adapters: Vec<Option<&'a Adapter>>,
    /// Tokens that stand for rows of images.
    images: Vec<ImageRow<'a>>,
    /// Rotary positions of each token; empty where all are its position.
    axes: Vec<[u32; 3]>,
    /// Tokens that see each other.
    mutual: Vec<MutualSpan>,
}

/// Logits of the last `logit_rows` tokens of each work, one after the other. Hidden states of all tokens go to `hidden`,
/// where it is there.
pub(crate) fn logits(
    model: &dyn Model,
    cache: &mut KvCache,
    sequences: &HashMap<SeqId, Sequence>,
    plan: &StepPlan,
    mut hidden: Option<&mut Vec<Hidden>>,
) -> Result<Tensor, PassError> {
    let info = model.info();
    // A prompt that was preempted and the output that follows it are computed in this order.
    let phases: &[_] =
        if info.prefill_apart { &[Phase::Prefill, Phase::Decode] } else { &[Phase::Decode] };
    let passes = phases.iter().map(|&phase| Pass::new(info, phase, sequences, plan));
    let passes: Vec<_> = passes.filter(|pass| !pass.positions.is_empty()).collect();
    if let [pass] = passes.as_slice() {
        return pass.run(model, cache, hidden);
    }
    let rows = plan.logit_rows() as usize;
    let mut all = vec![0.0; rows * info.vocab];
    for pass in passes {
        let logits = pass.run(model, cache, hidden.as_deref_mut())?;
        ops::with_host_f32(&logits, |logits| {
            for (&row, from) in pass.rows.iter().zip(logits.chunks_exact(info.vocab)) {
                all[row * info.vocab..][..info.vocab].copy_from_slice(from);
            }
        })
        .map_err(ModelError::from)?;
    }
    Ok(Tensor::from_vec(all, &[rows, info.vocab]).map_err(ModelError::from)?)
}

impl<'a> Pass<'a> {
    fn new(
        info: &ModelInfo,
        phase: Phase,
        sequences: &'a HashMap<SeqId, Sequence>,
        plan: &StepPlan,
    ) -> Self {
        let mut pass = Self { phase, ..Self::default() };
        let mut row = 0;
        for work in &plan.works {
            let sequence = sequences.get(&work.id);
            let prompt = sequence.map_or(0, Sequence::prompt_len);
            let known = sequence.map_or([&[][..]; 2], |s| [s.tokens(), s.draft()]);
            let adapter = sequence.and_then(Sequence::adapter);
            let (start, end) = (work.start as usize, work.end() as usize);
            let own = match phase {
                Phase::Prefill => start..end.min(prompt),
                Phase::Decode if info.prefill_apart => start.max(prompt)..end,
                Phase::Decode => start..end,
            };
            let first_logits = end - work.logit_rows as usize;
            pass.push(work.id, known, own.clone(), first_logits, row);
            if adapter.is_some() || !pass.adapters.is_empty() {
                let before = pass.positions.len() - own.len();
                pass.adapters.resize(before, None);
                pass.adapters.resize(pass.positions.len(), adapter);
            }
            if let Some(media) = sequence.map(Sequence::media) {
                pass.push_media(media, own);
            }
            row += work.logit_rows as usize;
        }
        pass
    }

    /// Takes in the tokens `own` of a sequence and its draft, whose logits are the plan's rows `row..` from the token
    /// `first_logits` on.
    fn push(
        &mut self,
        seq: SeqId,
        known: [&[TokenId]; 2],
        own: Range<usize>,
        first_logits: usize,
        row: usize,
    ) {
        if own.is_empty() {
            return;
        }
        for at in own.clone().filter(|&at| at >= first_logits) {
            self.logits_at.push((self.positions.len() + at - own.start) as u32);
            self.rows.push(row + at - first_logits);
        }
        let mut before = 0;
        for part in known {
            let at = |i: usize| i.saturating_sub(before).min(part.len());
            self.tokens.extend_from_slice(&part[at(own.start)..at(own.end)]);
            before += part.len();
        }
        self.positions.extend(own.start as u32..own.end as u32);
        self.ranges.push(SeqRange { seq, start: own.start, len: own.len() });
    }

    /// What images bring to the tokens `own` of a sequence, which were taken in last.
    fn push_media(&mut self, media: &'a Media, own: Range<usize>) {
        let (all, before) = (self.positions.len(), self.positions.len() - own.len());
        self.images.extend(media.rows(own.clone(), before));
        self.mutual.extend(media.mutual(own.clone(), before));
        if media.turns() || !self.axes.is_empty() {
            let plain = self.positions[self.axes.len()..before].iter().map(|&at| [at; 3]);
            self.axes.extend(plain);
            self.axes.extend(own.map(|at| media.turn(at)));
            debug_assert_eq!(self.axes.len(), all);
        }
    }

    fn run(
        &self,
        model: &dyn Model,
        cache: &mut KvCache,
        hidden: Option<&mut Vec<Hidden>>,
    ) -> Result<Tensor, PassError> {
        let Self { phase, tokens, positions, logits_at, adapters, axes, images, mutual, .. } = self;
        let images = StepImages { axes, rows: images, mutual };
        let batch = Batch { tokens, positions, logits_at, phase: *phase, adapters, images };
        let mut session = cache.session(&self.ranges)?;
        let logits = match hidden {
            None => model.forward(&batch, &mut session)?,
            Some(hidden) => {
                let [logits, rows] = model.forward_hidden(&batch, &mut session)?;
                hidden.push(Hidden { ranges: self.ranges.clone(), rows });
                logits
            }
        };
        let expected = logits_at.len() * model.info().vocab;
        match logits.dims().iter().product() {
            got if got == expected => Ok(logits),
            got => Err(PassError::Logits { expected, got }),
        }
    }
}
