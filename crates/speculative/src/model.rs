//! Drafts of a smaller model.

use crate::{Draft, DraftError, DraftInput, Drafter, likeliest::Likeliest};
use std::{collections::HashMap, sync::Arc};
use taper_base::{MAX_DRAFT_TOKENS, Phase, SeqId, TokenId};
use taper_kv_cache::{KvCache, KvCacheError, KvScheme, SeqRange};
use taper_models::{Batch, Model, ModelError, ModelInfo};
use taper_tensor::ops;

/// Tokens of a block of the drafts' own cache.
const BLOCK: usize = 32;
/// Tokens of prompts that are computed in a step, beside the other model's step: all sequences wait for them.
const CHUNK: usize = 512;
/// More tokens than these are computed before a sequence is drafted for; as many are new after a step.
const NEW: usize = 2 * MAX_DRAFT_TOKENS;
/// Why a model cannot draft for another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DraftModelError {
    /// Its states cannot go back to where they were before a draft.
    #[error("a model with recurrent layers ({family}) cannot draft")]
    Recurrent {
        /// The model's family.
        family: &'static str,
    },
    /// It has other tokens.
    #[error(
        "the draft model has {draft} logits a token and the model {target}: they have different vocabularies"
    )]
    Vocabulary {
        /// Logits of the draft model.
        draft: usize,
        /// Logits of the model that it would draft for.
        target: usize,
    },
}

/// Proposes what a smaller model thinks likeliest (Leviathan et al. 2022, arXiv 2211.17192), token after
/// token, for all sequences together, over a cache of its own.
#[derive(Debug)]
pub struct ModelDrafter {
    model: Arc<dyn Model>,
    cache: KvCache,
    /// Tokens of each sequence whose rows are in the cache.
    computed: HashMap<SeqId, Vec<TokenId>>,
}

/// Tables of vocabularies are padded to round numbers; no model pads by more.
const PADDING: usize = 1024;

impl ModelDrafter {
    /// Whether a model can draft for one of `target` logits a token.
    ///
    /// # Errors
    /// [`DraftModelError`]. That equal ids are equal tokens is for the caller to check.
    pub fn check(draft: &ModelInfo, target: usize) -> Result<(), DraftModelError> {
        if !draft.recurrent.is_empty() {
            return Err(DraftModelError::Recurrent { family: draft.family });
        }
        if draft.vocab.abs_diff(target) > PADDING.min(target / 8) {
            return Err(DraftModelError::Vocabulary { draft: draft.vocab, target });
        }
        Ok(())
    }

    /// Drafts with a model that [`Self::check`] lets pass. Its cache holds `tokens` tokens in the format of
    /// `scheme`; sequences that find no room draft nothing.
    #[must_use]
    pub fn new(model: Arc<dyn Model>, scheme: KvScheme, tokens: usize) -> Self {
        let mut config = model.info().cache(scheme, BLOCK, tokens.div_ceil(BLOCK));
        config.prefix_caching = false;
        Self { model, cache: KvCache::new(config), computed: HashMap::new() }
    }

    /// Computes tokens of some sequences, and gives the last token's logits of each to `read`.
    fn run(
        &mut self,
        works: &[(SeqId, usize, &[TokenId])],
        phase: Phase,
        mut read: impl FnMut(usize, &[f32]),
    ) -> Result<(), DraftError> {
        let (mut tokens, mut positions) = (Vec::new(), Vec::new());
        let (mut logits_at, mut ranges) = (Vec::new(), Vec::new());
        for &(seq, start, new) in works {
            tokens.extend_from_slice(new);
            positions.extend((start..start + new.len()).filter_map(|at| u32::try_from(at).ok()));
            logits_at.extend(u32::try_from(tokens.len().saturating_sub(1)).ok());
            ranges.push(SeqRange { seq, start, len: new.len() });
        }
        let phase = self.model.info().phase(phase);
        let (tokens, positions, logits_at) = (&tokens, &positions, &logits_at);
        let batch = Batch { tokens, positions, logits_at, phase, ..Batch::default() };
        let mut session = self.cache.session(&ranges).map_err(failed)?;
        let logits = self.model.forward(&batch, &mut session).map_err(failed)?;
        let vocab = self.model.info().vocab;
        ops::with_host_f32(&logits, |rows| {
            rows.chunks_exact(vocab).enumerate().for_each(|(i, row)| read(i, row));
        })
        .map_err(failed)
    }

    /// Makes room for a sequence, and says how many of its tokens but for the newest are to be computed yet; `None`
    /// where there is no room.
    fn missing(&mut self, seq: &DraftInput<'_>) -> Result<Option<usize>, DraftError> {
        let wanted = seq.tokens.len() + seq.most;
        let Some((_, known)) = seq.tokens.split_last() else { return Ok(None) };
        if wanted > self.model.info().max_positions || full(self.cache.grow(seq.id, wanted))? {
            return Ok(None);
        }
        let computed = self.computed.entry(seq.id).or_default();
        // Drafts that were rejected are overwritten.
        let common = computed.iter().zip(known).take_while(|(a, b)| a == b).count();
        computed.truncate(common);
        Ok(Some(known.len() - common))
    }

    /// Computes the next `count` tokens of a sequence.
    fn catch_up(&mut self, seq: &DraftInput<'_>, count: usize) -> Result<(), DraftError> {
        let computed = self.computed.entry(seq.id).or_default();
        let start = computed.len();
        let Some(next) = seq.tokens.get(start..start + count).filter(|next| !next.is_empty())
        else {
            return Ok(());
        };
        computed.extend_from_slice(next);
        let phase = if start < seq.prompt_len { Phase::Prefill } else { Phase::Decode };
        self.run(&[(seq.id, start, next)], phase, |_, _| {})
    }
}

pub(crate) fn full(room: Result<(), KvCacheError>) -> Result<bool, DraftError> {
    match room {
        Ok(()) => Ok(false),
        Err(KvCacheError::Full { .. }) => Ok(true),
        Err(error) => Err(failed(error)),
    }
}

pub(crate) fn failed(error: impl std::error::Error + Send + Sync + 'static) -> DraftError {
    DraftError::Failed(Arc::new(error))
}

impl Drafter for ModelDrafter {
    fn method(&self) -> &'static str {
        "draft_model"
    }

    fn prepare(&mut self, seqs: &[DraftInput<'_>]) -> Result<(), DraftError> {
        let mut left = CHUNK;
        for seq in seqs.iter().filter(|seq| seq.most > 0) {
            if let Some(missing) = self.missing(seq)?.filter(|missing| *missing > NEW) {
                let count = missing.min(left);
                self.catch_up(seq, count)?;
                left -= count;
            }
        }
        Ok(())
    }

    fn propose(&mut self, seqs: &[DraftInput<'_>]) -> Result<Vec<Draft>, DraftError> {
        let mut drafts = vec![Draft::default(); seqs.len()];
        let mut open = Vec::new();
        for (i, seq) in seqs.iter().enumerate().filter(|(_, seq)| seq.most > 0) {
            if let Some(&newest) = seq.tokens.last()
                && let Some(missing) = self.missing(seq)?.filter(|missing| *missing <= NEW)
            {
                self.catch_up(seq, missing)?;
                open.push((i, newest));
            }
        }
        let vocab = self.model.info().vocab;
        while !open.is_empty() {
            // Tokens of the other model's table may lie behind this one's.
            open.retain(|&(_, token)| (token as usize) < vocab);
            let next: Vec<_> = open.iter().map(|&(i, token)| (i, [token])).collect();
            let works = next.iter().map(|(i, token)| {
                let start = seqs[*i].tokens.len() - 1 + drafts[*i].tokens.len();
                (seqs[*i].id, start, &token[..])
            });
            let works: Vec<_> = works.collect();
            let mut chosen = vec![None; works.len()];
            if works.is_empty() {
                break;
            }
            self.run(&works, Phase::Decode, |at, row| chosen[at] = Likeliest::of(row))?;
            for (&(i, token), choice) in open.iter().zip(&chosen) {
                self.computed.entry(seqs[i].id).or_default().push(token);
                choice.iter().for_each(|choice| choice.extend(&mut drafts[i]));
            }
            let goes_on = |((i, _), choice): ((usize, TokenId), Option<Likeliest>)| {
                let more = choice?.goes_on() && drafts[i].tokens.len() < seqs[i].most;
                more.then_some((i, choice?.token))
            };
            open = open.into_iter().zip(chosen).filter_map(goes_on).collect();
        }
        Ok(drafts)
    }

    fn forget(&mut self, id: SeqId) {
        self.cache.release(id);
        self.computed.remove(&id);
    }

    fn expected(&self, class: usize) -> f32 {
        Likeliest::expected(class)
    }
}

impl From<ModelError> for DraftError {
    fn from(error: ModelError) -> Self {
        failed(error)
    }
}
