//! One step: a plan's tokens through the model, and each sequence's outcome.

use crate::{
    constrained::Constrained,
    pass::{self, Hidden, PassError},
    sequence::{Advance, Sequence},
    stats::{SharedStats, add, add_time},
};
use std::{
    any::Any,
    collections::{BTreeSet, HashMap},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};
use taper_base::{ErrorId, FinishReason, GenerationError, SeqId};
use taper_kv_cache::{KvCache, KvCacheError};
use taper_models::{Model, ModelError};
use taper_sampler::Choice;
use taper_scheduler::{SeqWork, StepPlan};
use taper_tensor::{Tensor, gpu, ops, pool};

/// What became of a sequence's part of a step.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// More of the prompt is to come.
    Continues,
    /// New tokens.
    Advanced(Advance),
    /// The prompt is done and nothing was to be generated.
    PromptOnly,
    /// The sequence cannot go on.
    Failed(GenerationError),
    /// Some of the sequence's earlier tokens could not be read from disk: they are to be computed again, and this work
    /// too.
    Lost,
}

/// Why a whole step failed.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Pass(#[from] PassError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("a kernel panicked: {message}")]
    Panic { message: String },
}

/// Runs a plan. Every work of it has an outcome. Hidden states go to `hidden`, where it is there.
pub(crate) fn run(
    model: &dyn Model,
    cache: &mut KvCache,
    sequences: &mut HashMap<SeqId, Sequence>,
    (plan, hidden): (&StepPlan, Option<&mut Vec<Hidden>>),
    stats: &SharedStats,
) -> Vec<(SeqWork, Outcome)> {
    let vocab = model.info().vocab;
    stats.step_begins(plan.tokens());
    let result = guarded(|| {
        let logits = logits_and_masks(model, cache, sequences, (plan, hidden), stats)?;
        let chosen = chosen_there(sequences, plan, &logits)?;
        let logits = rows_here(&logits, &chosen)?;
        Ok(outcomes(sequences, (plan, &cache.take_lost()), chosen, logits, vocab))
    });
    // Of a step that failed.
    cache.take_lost();
    stats.step_ends();
    match result {
        Ok(outcomes) => outcomes,
        Err(error) => {
            let id = ErrorId::random();
            tracing::error!(%id, %error, "a model step failed");
            add(&stats.failed_steps, 1);
            let source: Arc<dyn std::error::Error + Send + Sync> = Arc::new(error);
            let failed = |w: &SeqWork| {
                let source = Arc::clone(&source);
                (*w, Outcome::Failed(GenerationError::Step { id, source }))
            };
            plan.works.iter().map(failed).collect()
        }
    }
}

/// A panic inside a kernel or the sampler is a bug; it must not take the engine with it.
fn guarded<T>(step: impl FnOnce() -> Result<T, StepError>) -> Result<T, StepError> {
    caught(step).unwrap_or_else(|message| Err(StepError::Panic { message }))
}

/// What `f` returns, or what it panicked with.
pub(crate) fn caught<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| panic_text(&*panic).to_owned())
}

/// Why work over the cache failed beside a step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OverCacheError {
    #[error(transparent)]
    Cache(#[from] KvCacheError),
    #[error("a kernel panicked: {message}")]
    Panic { message: String },
}

/// Kernels run over the cache beside steps too: what one of them panics with fails a sequence, as in a step.
pub(crate) fn over_cache<T>(
    f: impl FnOnce() -> Result<T, KvCacheError>,
) -> Result<T, OverCacheError> {
    Ok(caught(f).map_err(|message| OverCacheError::Panic { message })??)
}

/// What a panic says.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown")
}

/// A plan's logits; beside the model, threads that it does not need find the tokens that the grammars of
/// its sequences allow.
fn logits_and_masks(
    model: &dyn Model,
    cache: &mut KvCache,
    sequences: &mut HashMap<SeqId, Sequence>,
    (plan, hidden): (&StepPlan, Option<&mut Vec<Hidden>>),
    stats: &SharedStats,
) -> Result<Tensor, PassError> {
    let sampled = plan.works.iter().filter(|work| work.samples);
    let taken = sampled.filter_map(|w| Some((w.id, sequences.get_mut(&w.id)?.take_grammar()?)));
    let mut grammars: Vec<_> = taken.collect();
    let prepare = |_, (_, grammar): &mut (SeqId, Constrained)| {
        let since = Instant::now();
        grammar.prepare();
        add_time(&stats.mask_nanos, since.elapsed());
    };
    let (logits, since) = pool::beside(&mut grammars, prepare, || {
        (pass::logits(model, cache, sequences, plan, hidden), Instant::now())
    });
    if !grammars.is_empty() {
        add_time(&stats.mask_wait_nanos, since.elapsed());
    }
    for (id, grammar) in grammars {
        if let Some(sequence) = sequences.get_mut(&id) {
            sequence.put_grammar(grammar);
        }
    }
    logits
}

/// What a GPU that has the logits chooses, for each of their rows: four bytes of a row come back, and a
/// few more for log probabilities, instead of all. `None` for rows that are wanted here: the logits are
/// here, or somebody wants more of them than a token and its log probabilities.
fn chosen_there(
    sequences: &HashMap<SeqId, Sequence>,
    plan: &StepPlan,
    logits: &Tensor,
) -> Result<Vec<Option<Choice>>, StepError> {
    let mut chosen = vec![None; plan.logit_rows() as usize];
    if logits.gpu().is_none() {
        return Ok(chosen);
    }
    let (mut row, mut draws) = (0, Vec::new());
    for work in &plan.works {
        let sequence = sequences.get(&work.id).filter(|_| work.logit_rows == 1 && work.samples);
        draws.extend(sequence.and_then(Sequence::on_device).map(|draw| (row, draw)));
        row += work.logit_rows as usize;
    }
    if !draws.is_empty() {
        let sampled = gpu::sample(logits, &draws).map_err(ModelError::from)?;
        for ((row, _), sampled) in draws.iter().zip(sampled) {
            chosen[*row] = sampled.map(|s| Choice::of_device(s.token, s.logits.as_ref()));
        }
    }
    Ok(chosen)
}

/// The rows that nothing is chosen from yet, on the host.
fn rows_here(logits: &Tensor, chosen: &[Option<Choice>]) -> Result<Vec<f32>, ModelError> {
    let open = (0u32..).zip(chosen).filter(|(_, choice)| choice.is_none());
    let open: Vec<_> = open.map(|(row, _)| row).collect();
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let all = open.len() == chosen.len();
    let rows = if all { logits.clone() } else { ops::take_rows(logits, &open)? };
    Ok(ops::with_host_f32(&rows, <[f32]>::to_vec)?)
}

/// From choices made on a GPU, one a row, and the other rows.
fn outcomes(
    sequences: &mut HashMap<SeqId, Sequence>,
    (plan, lost): (&StepPlan, &BTreeSet<SeqId>),
    chosen: Vec<Option<Choice>>,
    mut logits: Vec<f32>,
    vocab: usize,
) -> Vec<(SeqWork, Outcome)> {
    let (mut rest, mut chosen) = (logits.as_mut_slice(), chosen.into_iter());
    let mut parts = Vec::with_capacity(plan.works.len());
    for work in &plan.works {
        let mut there = chosen.by_ref().take(work.logit_rows as usize).collect::<Vec<_>>();
        let (choice, n) = match there.as_mut_slice() {
            [choice @ Some(_)] => (choice.take(), 0),
            rows => (None, rows.len()),
        };
        let (own, tail) = rest.split_at_mut(n * vocab);
        parts.push((work, choice, own));
        rest = tail;
    }
    let mut outcomes = Vec::with_capacity(parts.len());
    let mut sampling = HashMap::new();
    for (work, choice, rows) in parts {
        if lost.contains(&work.id) {
            outcomes.push((*work, Outcome::Lost));
            continue;
        }
        let Some(sequence) = sequences.get_mut(&work.id) else { continue };
        let first = (work.end() - work.logit_rows) as usize;
        let outcome = match sequence.observe_prompt(first, rows.chunks_exact(vocab)) {
            Err(error) => Outcome::Failed(error),
            Ok(()) if work.samples => {
                // Of the newest token and its draft.
                let wanted = (1 + work.drafts as usize) * vocab;
                let from = rows.len().saturating_sub(wanted);
                sampling.insert(work.id, (outcomes.len(), choice, &mut rows[from..]));
                Outcome::Continues
            }
            Ok(()) if work.end() as usize == sequence.tokens().len() => Outcome::PromptOnly,
            Ok(()) => Outcome::Continues,
        };
        outcomes.push((*work, outcome));
    }
    let sequences = sequences.iter_mut();
    let due = sequences.filter_map(|(id, s)| Some((s, sampling.remove(id)?, None)));
    let mut due: Vec<_> = due.collect();
    let advance = |(sequence, (_, choice, rows), done): &mut (&mut Sequence, _, _)| {
        let (choice, rows): (&mut Option<Choice>, &mut &mut [f32]) = (choice, rows);
        *done = Some(sequence.advance(choice.take(), rows, vocab));
    };
    // Of few rows each is shared out among the threads; grammars are not.
    match due.len() < pool::threads() && !due.iter().any(|(s, ..)| s.is_constrained()) {
        true => due.iter_mut().for_each(advance),
        false => pool::for_each(&mut due, |_, due| advance(due)),
    }
    for (_, (at, ..), done) in due {
        outcomes[at].1 = match done {
            Some(advance) => Outcome::Advanced(advance),
            None => Outcome::Continues,
        };
    }
    outcomes
}

/// How a sequence that generates nothing ends.
pub(crate) const PROMPT_ONLY: FinishReason = FinishReason::Length;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Submission;
    use crate::{listener::Listener, open::Open};
    use taper_base::{Event, EventSink, GenRequest, SamplingParams, TokenSet};

    struct Nobody;

    impl EventSink for Nobody {
        fn send(&mut self, _: Event) {}

        fn is_closed(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_panic_over_the_cache_is_an_error() {
        assert_eq!(over_cache(|| Ok(7)).unwrap(), 7);
        let full = over_cache::<()>(|| Err(KvCacheError::Full { needed: 1, free: 0 }));
        assert!(matches!(full, Err(OverCacheError::Cache(KvCacheError::Full { .. }))));
        let panic = over_cache::<()>(|| panic!("a fault that a test has planted"));
        assert!(panic.unwrap_err().to_string().contains("planted"));
    }

    /// Some rows are chosen from elsewhere and some here, of works with one row, with several and with
    /// none: each outcome is its own work's.
    #[test]
    fn choices_of_a_device_and_of_the_host_do_not_mix() {
        let sequence = |prompt: Vec<u32>, prompt_logprobs| {
            let request = GenRequest {
                prompt,
                sampling: SamplingParams::greedy(),
                prompt_logprobs,
                ..GenRequest::default()
            };
            let ticket = Arc::new(Open::new(1)).enter(None).unwrap();
            let listener = Listener::new(Box::new(Nobody), ticket);
            let submission =
                Submission { request, max_new: 9, listener, adapter: None, recall: None };
            Sequence::new(submission, &TokenSet::default(), 4, (None, None))
        };
        let mut sequences: HashMap<_, _> = [
            (SeqId(1), sequence(vec![1, 2], None)),
            (SeqId(2), sequence(vec![1; 8], None)),
            (SeqId(3), sequence(vec![3, 2, 1], Some(0))),
            (SeqId(4), sequence(vec![0], None)),
        ]
        .into();
        let work = |id, len, logit_rows| SeqWork {
            id: SeqId(id),
            start: 0,
            len,
            samples: logit_rows > 0,
            logit_rows,
            drafts: 0,
        };
        let works = vec![work(1, 2, 1), work(2, 5, 0), work(3, 3, 3), work(4, 1, 1)];
        let plan = StepPlan { works, ..StepPlan::default() };
        let there = |token| Some(Choice { token, logprobs: None });
        let peak = |at: usize| (0..4).map(move |i| if i == at { 5.0 } else { 0.0 });
        let chosen = |outcomes: Vec<(SeqWork, Outcome)>| -> Vec<_> {
            let token = |outcome: &Outcome| match outcome {
                Outcome::Advanced(advance) => advance.tokens.first().map(|token| token.id),
                _ => None,
            };
            outcomes.iter().map(|(work, outcome)| (work.id.0, token(outcome))).collect()
        };
        let lost = BTreeSet::new();
        // Of the third, all rows are here, and its last one chooses.
        let rows = [0, 1, 2].into_iter().flat_map(peak).collect();
        let choices = vec![there(3), None, None, None, there(1)];
        let got = chosen(outcomes(&mut sequences, (&plan, &lost), choices, rows, 4));
        assert_eq!(got, [(1, Some(3)), (2, None), (3, Some(2)), (4, Some(1))]);
        let rows = [1, 0, 1, 2, 3].into_iter().flat_map(peak).collect();
        let got = chosen(outcomes(&mut sequences, (&plan, &lost), vec![None; 5], rows, 4));
        assert_eq!(got, [(1, Some(1)), (2, None), (3, Some(2)), (4, Some(3))]);
        // Nothing is chosen for one that lost a page, and others have their own rows still.
        let lost = [SeqId(3)].into();
        let rows = [1, 0, 1, 2, 3].into_iter().flat_map(peak).collect();
        let got = chosen(outcomes(&mut sequences, (&plan, &lost), vec![None; 5], rows, 4));
        assert_eq!(got, [(1, Some(1)), (2, None), (3, None), (4, Some(3))]);
    }
}
