//! One step: a plan's tokens through the model, and each sequence's outcome.

use crate::{
    sequence::Sequence,
    stats::{SharedStats, add},
};
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};
use taper_base::{FinishReason, GenerationError, SeqId, TokenId};
use taper_kv_cache::{KvCache, KvCacheError, SeqRange};
use taper_models::{Batch, Model, ModelError};
use taper_sampler::Choice;
use taper_scheduler::{SeqWork, StepPlan};
use taper_tensor::{Tensor, gpu, ops, pool};

/// What became of a sequence's part of a step.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// More of the prompt is to come.
    Continues,
    /// A new token, and whether it was the last.
    Token { choice: Choice },
    /// The prompt is done and nothing was to be generated.
    PromptOnly,
    /// The sequence cannot go on.
    Failed(GenerationError),
}

/// Why a whole step failed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Cache(#[from] KvCacheError),
    #[error("the model gave {got} logits where {expected} were asked for")]
    Logits { expected: usize, got: usize },
    #[error("a kernel panicked: {message}")]
    Panic { message: String },
}

/// Runs a plan. Every work of it has an outcome.
pub(crate) fn run(
    model: &dyn Model,
    cache: &mut KvCache,
    sequences: &mut HashMap<SeqId, Sequence>,
    plan: &StepPlan,
    stats: &SharedStats,
) -> Vec<(SeqWork, Outcome)> {
    let vocab = model.info().vocab;
    let result = guarded(|| {
        let logits = forward(model, cache, sequences, plan)?;
        if let Some(tokens) = chosen_there(sequences, plan, &logits)? {
            return Ok(greedy(sequences, plan, &tokens));
        }
        let logits = ops::with_host_f32(&logits, <[f32]>::to_vec).map_err(ModelError::from)?;
        let expected = plan.logit_rows() as usize * vocab;
        if logits.len() != expected {
            return Err(StepError::Logits { expected, got: logits.len() });
        }
        Ok(outcomes(sequences, plan, logits, vocab))
    });
    add(&stats.steps, 1);
    match result {
        Ok(outcomes) => outcomes,
        Err(error) => {
            tracing::error!(%error, "a model step failed");
            let source: Arc<dyn std::error::Error + Send + Sync> = Arc::new(error);
            let failed = |w: &SeqWork| {
                let source = Arc::clone(&source);
                (*w, Outcome::Failed(GenerationError::Step { source }))
            };
            plan.works.iter().map(failed).collect()
        }
    }
}

/// A panic inside a kernel or the sampler is a bug; it must not take the engine with it.
fn guarded<T>(step: impl FnOnce() -> Result<T, StepError>) -> Result<T, StepError> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("unknown");
        Err(StepError::Panic { message: text.to_owned() })
    })
}

/// Logits of the last `logit_rows` tokens of each work, one after the other.
fn forward(
    model: &dyn Model,
    cache: &mut KvCache,
    sequences: &HashMap<SeqId, Sequence>,
    plan: &StepPlan,
) -> Result<Tensor, StepError> {
    let (mut tokens, mut positions, mut logits_at) = (Vec::new(), Vec::new(), Vec::new());
    let mut ranges = Vec::with_capacity(plan.works.len());
    for work in &plan.works {
        let (start, end) = (work.start as usize, work.end() as usize);
        let known = sequences.get(&work.id).map_or(&[][..], Sequence::tokens);
        tokens.extend_from_slice(known.get(start..end).unwrap_or_default());
        positions.extend(work.start..work.end());
        let rows = tokens.len().saturating_sub(work.logit_rows as usize)..tokens.len();
        logits_at.extend(rows.map(|i| i as u32));
        ranges.push(SeqRange { seq: work.id, start, len: end - start });
    }
    let batch = Batch { tokens: &tokens, positions: &positions, logits_at: &logits_at };
    let mut session = cache.session(&ranges)?;
    Ok(model.forward(&batch, &mut session)?)
}

/// The tokens that a GPU chooses, one a row of logits, if it can: four bytes of each row come back
/// instead of all. `None` where the rows are wanted: on the host, for anything but the likeliest token,
/// and when a row has none.
fn chosen_there(
    sequences: &HashMap<SeqId, Sequence>,
    plan: &StepPlan,
    logits: &Tensor,
) -> Result<Option<Vec<TokenId>>, StepError> {
    let plain = |work: &SeqWork| {
        let greedy = sequences.get(&work.id).is_some_and(Sequence::is_greedy);
        work.logit_rows == 0 || work.logit_rows == 1 && work.samples && greedy
    };
    if logits.gpu().is_none() || !plan.works.iter().all(plain) || plan.logit_rows() == 0 {
        return Ok(None);
    }
    let tokens = gpu::argmax(logits).map_err(ModelError::from)?;
    Ok((!tokens.contains(&TokenId::MAX)).then_some(tokens))
}

/// Outcomes of works whose tokens are chosen.
fn greedy(
    sequences: &HashMap<SeqId, Sequence>,
    plan: &StepPlan,
    tokens: &[TokenId],
) -> Vec<(SeqWork, Outcome)> {
    let mut tokens = tokens.iter();
    let one = |work: &SeqWork| {
        let token = (work.logit_rows > 0).then(|| tokens.next()).flatten();
        let len = sequences.get(&work.id)?.tokens().len();
        let outcome = match token {
            Some(&token) => Outcome::Token { choice: Choice { token, logprobs: None } },
            None if work.end() as usize == len => Outcome::PromptOnly,
            None => Outcome::Continues,
        };
        Some((*work, outcome))
    };
    plan.works.iter().filter_map(one).collect()
}

fn outcomes(
    sequences: &mut HashMap<SeqId, Sequence>,
    plan: &StepPlan,
    mut logits: Vec<f32>,
    vocab: usize,
) -> Vec<(SeqWork, Outcome)> {
    let mut rest = logits.as_mut_slice();
    let mut parts = Vec::with_capacity(plan.works.len());
    for work in &plan.works {
        let (own, tail) = rest.split_at_mut(work.logit_rows as usize * vocab);
        parts.push((work, own));
        rest = tail;
    }
    let mut outcomes = Vec::with_capacity(parts.len());
    let mut sampling = Vec::new();
    for (work, rows) in parts {
        let Some(sequence) = sequences.get_mut(&work.id) else { continue };
        let first = (work.end() - work.logit_rows) as usize;
        let outcome = match sequence.observe_prompt(first, rows.chunks_exact(vocab)) {
            Err(error) => Outcome::Failed(error),
            Ok(()) if work.samples => {
                let from = rows.len().saturating_sub(vocab);
                sampling.push((outcomes.len(), work.id, &mut rows[from..]));
                Outcome::Continues
            }
            Ok(()) if work.end() as usize == sequence.tokens().len() => Outcome::PromptOnly,
            Ok(()) => Outcome::Continues,
        };
        outcomes.push((*work, outcome));
    }
    let sequences = &*sequences;
    let mut chosen: Vec<_> = sampling.into_iter().map(|work| (work, None)).collect();
    pool::for_each(&mut chosen, |_, ((_, id, row), choice)| {
        *choice = sequences.get(id).map(|sequence| sequence.choose(row));
    });
    for ((at, ..), choice) in chosen {
        outcomes[at].1 = match choice {
            Some(Ok(choice)) => Outcome::Token { choice },
            Some(Err(error)) => Outcome::Failed(error),
            None => Outcome::Continues,
        };
    }
    outcomes
}

/// How a sequence that generates nothing ends.
pub(crate) const PROMPT_ONLY: FinishReason = FinishReason::Length;
