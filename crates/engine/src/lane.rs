//! Requests over one cache: their scheduler, and their steps.

mod loading;

use crate::{
    adapters::salt,
    media,
    pace::{Company, Pace},
    pool::{Pool, blocks},
    sequence::{Advance, Sequence, internal},
    speculation::{Speculation, Speculator},
    stats::{Gauges, SharedStats, add, set},
    step::{self, Outcome},
    worker::{Shared, Submission},
};
use loading::Loading;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use taper_base::{Drafting, Event, GenerationError, SeqId, SubmitError};
use taper_kv_cache::{KvCache, KvConfig};
use taper_scheduler::{
    Admission, AdmitError, Scheduler, SchedulerConfig, SeqOutcome, SeqWork, StepPlan,
};

/// A cache and the requests that run over it.
pub(crate) struct Lane {
    /// Which of the engine's.
    index: usize,
    cache: KvCache,
    scheduler: Scheduler,
    pace: Pace,
    /// Drafts tokens; or why none are drafted.
    speculator: Result<Speculator, String>,
    sequences: HashMap<SeqId, Sequence>,
    /// Requests whose prefixes are being read from disk.
    loading: HashMap<SeqId, Loading>,
    /// Units that were requested of the disk and have not come.
    flying: usize,
    /// When the disk last gave a unit, to whomever.
    disk_answered: Instant,
    /// When there was last something to do.
    busy: Instant,
    /// Whether there is memory that may be returned to the system after a while without requests.
    holds_memory: bool,
}

/// Why nothing is drafted any more.
const DRAFTER_FAILED: &str = "the drafter has failed";

impl Lane {
    pub(crate) fn new(
        index: usize,
        kv: KvConfig,
        limits: SchedulerConfig,
        speculation: Option<&Speculation>,
        shared: &Shared,
    ) -> Self {
        set(&shared.stats.lanes[index].kv_blocks_total, kv.blocks);
        let step = kv.exact.map_or(u32::MAX, |room| blocks(room.step_tokens));
        let max_num_batched_tokens = limits.max_num_batched_tokens.min(step);
        let limits = SchedulerConfig { max_num_batched_tokens, ..limits };
        let mut cache = KvCache::new(kv);
        if let Some((tier, model)) = &shared.disk {
            cache = cache.with_disk(Arc::clone(tier), model);
            if let Some(hot_tokens) = shared.hot_tokens {
                cache = cache.with_hot_tokens(hot_tokens);
            }
            if let Some(Some(room)) = shared.resident.get(index) {
                cache = cache.with_resident(*room);
            }
        }
        let (sequences, loading) = (HashMap::new(), HashMap::new());
        let scheduler = Scheduler::new(limits);
        let pace = Pace::new(max_num_batched_tokens);
        let off = || "it is turned off".to_owned();
        let speculator = speculation.ok_or_else(off);
        let speculator = speculator.and_then(|own| Speculator::new(own, &*shared.model, &cache));
        Self {
            index,
            cache,
            scheduler,
            pace,
            speculator,
            sequences,
            loading,
            flying: 0,
            disk_answered: Instant::now(),
            busy: Instant::now(),
            holds_memory: false,
        }
    }

    /// Whether tokens are drafted.
    pub(crate) fn drafting(&self) -> Drafting {
        match &self.speculator {
            Ok(speculator) => speculator.drafting(),
            Err(reason) => Drafting::Off { reason: reason.clone() },
        }
    }

    /// There is nothing to do; what is being loaded will be heard of.
    pub(crate) fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// How long this may stay idle before the next [`Self::turn`]; `None` is for ever.
    pub(crate) fn next_turn(&self, shared: &Shared) -> Option<Duration> {
        if !self.loading.is_empty() {
            return Some(Duration::from_millis(500));
        }
        let idle = shared.idle.filter(|_| self.holds_memory)?;
        Some(idle.after.saturating_sub(self.busy.elapsed()))
    }

    /// One step, if there is anything to do.
    pub(crate) fn turn(&mut self, shared: &Shared) {
        self.check_loading(shared);
        if self.is_idle() {
            return self.give_back(shared);
        }
        (self.busy, self.holds_memory) = (Instant::now(), true);
        self.cancel_closed(shared);
        let company = match self.sequences.len() {
            ..=1 => Company::Alone,
            _ if self.scheduler.decodes() => Company::Outputs,
            _ => Company::Prompts,
        };
        self.scheduler.limit_prompts(self.pace.tokens(company));
        let since = Instant::now();
        let plan = self.plan(shared);
        self.announce(&plan, shared);
        self.update_gauges(shared);
        if !plan.is_empty() {
            self.step(&plan, shared);
            // Decodes have one token each, and their drafts.
            let prompts = plan.works.iter().map(SeqWork::known).filter(|&len| len > 1).sum();
            let decoded = plan.works.iter().any(|work| work.known() == 1);
            self.pace.learn(prompts, decoded, since.elapsed());
            if let Ok(speculator) = &mut self.speculator {
                speculator.learn(&plan, since.elapsed());
            }
            self.update_gauges(shared);
        }
    }

    /// Drafts tokens, and plans a step.
    fn plan(&mut self, shared: &Shared) -> StepPlan {
        let Self { speculator, scheduler, sequences, cache, .. } = self;
        let drafted = match speculator {
            Ok(speculator) => speculator.draft(scheduler, sequences, cache, &shared.stats),
            Err(_) => true,
        };
        if !drafted {
            *speculator = Err(DRAFTER_FAILED.to_owned());
        }
        let plan = scheduler.plan(&mut Pool(cache));
        if let Ok(speculator) = speculator {
            speculator.planned(&plan, sequences, cache);
        }
        plan
    }

    /// Gives memory back after some time without requests.
    fn give_back(&mut self, shared: &Shared) {
        let Some(idle) = shared.idle.filter(|_| self.holds_memory && self.loading.is_empty())
        else {
            return;
        };
        if self.busy.elapsed() >= idle.after {
            self.cache.give_back(idle.keep_bytes);
            self.holds_memory = false;
            self.update_gauges(shared);
        }
    }

    /// Ends every request. The cache is not asked: it may be in any state.
    pub(crate) fn end_all(&mut self, last: &Event, shared: &Shared) {
        let loading = self.loading.drain().map(|(_, loading)| loading.sequence);
        let all = self.sequences.drain().map(|(_, sequence)| sequence).chain(loading);
        all.for_each(|mut sequence| sequence.end(Some(last.clone())));
        let Gauges { running, waiting, kv_blocks_used, .. } = &shared.stats.lanes[self.index];
        [running, waiting, kv_blocks_used].into_iter().for_each(|gauge| set(gauge, 0));
    }

    pub(crate) fn admit(&mut self, id: SeqId, submission: Submission, shared: &Shared) {
        let Submission { request, adapter, max_new, recall, .. } = &submission;
        // `submit` has refused what the cache refuses.
        if let Err(error) = self.cache.set_recall(id, *recall) {
            tracing::error!(%error, "a request attends to all pages");
        }
        let info = shared.model.info();
        let own = media::salt(request, info.ahead).or_else(|| request.cache_salt.clone());
        self.cache.set_salt(id, salt(adapter.as_ref(), own.as_ref()));
        let (prompt, client, max_new) = (request.prompt.clone(), request.client, *max_new);
        let priority = request.priority;
        let vocab = u32::try_from(info.vocab).unwrap_or(u32::MAX);
        let sequence = Sequence::new(submission, &shared.eos, vocab, (info.images, info.ahead));
        self.cache.set_images(id, sequence.media().spans());
        let all_logits = sequence.wants_prompt_logprobs();
        let (cut_tokens, whole) = (sequence.cut_tokens(), sequence.media().whole().to_vec());
        let admission =
            Admission { id, prompt, max_new, all_logits, client, priority, cut_tokens, whole };
        let units = match admission.prompt.split_last() {
            // The last token is computed in any case, and with all logits every one.
            Some((_, reusable)) if !all_logits => self.cache.on_disk(id, reusable),
            _ => Vec::new(),
        };
        let Some(&(last, _)) = units.last() else {
            return self.queue(sequence, admission);
        };
        self.loading.insert(id, Loading::new(sequence, admission, units.into(), last));
        self.load_more(shared);
        self.update_gauges(shared);
    }

    fn queue(&mut self, mut sequence: Sequence, admission: Admission) {
        let id = admission.id;
        match self.scheduler.admit(admission, &Pool(&mut self.cache)) {
            Ok(()) => {
                self.sequences.insert(id, sequence);
            }
            // `submit` has checked what the scheduler checks; this is for a rule it lacks.
            Err(error) => {
                self.cache.forget(id);
                sequence.end(Some(Event::Failed(refusal(error))));
            }
        }
    }

    fn cancel_closed(&mut self, shared: &Shared) {
        let closed = self.sequences.iter().filter(|(_, s)| s.is_closed());
        for id in closed.map(|(&id, _)| id).collect::<Vec<_>>() {
            add(&shared.stats.cancelled, 1);
            self.end(id, None, shared);
        }
    }

    /// Forgets a sequence that the scheduler may still know. Its last event goes out when nothing
    /// of it is left: who has read it finds the room free and the gauges settled.
    fn end(&mut self, id: SeqId, last: Option<Event>, shared: &Shared) {
        self.scheduler.cancel(id, &mut Pool(&mut self.cache));
        self.cache.forget(id);
        if let Ok(speculator) = &mut self.speculator {
            speculator.forget(id);
        }
        if let Some(mut sequence) = self.sequences.remove(&id) {
            if last.is_some() {
                self.update_gauges(shared);
            }
            sequence.end(last);
        }
    }

    fn announce(&mut self, plan: &StepPlan, shared: &Shared) {
        add(&shared.stats.preemptions, plan.preempted.len());
        for admitted in plan.admitted.iter().filter(|a| !a.resumed) {
            if let Some(sequence) = self.sequences.get_mut(&admitted.id) {
                sequence.begins(admitted.cached_tokens);
            }
        }
    }

    fn step(&mut self, plan: &StepPlan, shared: &Shared) {
        let stats = &*shared.stats;
        let mut hidden = match &self.speculator {
            Ok(own) => own.reads_hidden(plan, &self.sequences).then(Vec::new),
            Err(_) => None,
        };
        let asked = (plan, hidden.as_mut());
        let results = step::run(&*shared.model, &mut self.cache, &mut self.sequences, asked, stats);
        self.count_recall(stats);
        let mut outcomes = Vec::new();
        let (mut ended, mut appended) = (Vec::new(), Vec::new());
        for (work, outcome) in results {
            let outcome = self.settle(&work, outcome, stats);
            let Some(sequence) = self.sequences.get_mut(&work.id) else { continue };
            let (new_token, last) = match outcome {
                Outcome::Continues => continue,
                Outcome::Lost => {
                    add(&stats.preemptions, 1);
                    self.scheduler.preempt(work.id, &mut Pool(&mut self.cache));
                    continue;
                }
                Outcome::PromptOnly => {
                    sequence.prompt_done();
                    (None, Some(Event::Finished(step::PROMPT_ONLY)))
                }
                Outcome::Failed(error) => (None, Some(Event::Failed(error))),
                Outcome::Advanced(Advance { tokens, drafted, accepted, last, .. }) => {
                    // The newest token is never counted as computed, also where it was drafted.
                    let kept = accepted.min(tokens.len().saturating_sub(1));
                    let ids: Vec<_> = tokens.iter().map(|token| token.id).collect();
                    self.scheduler.accept(work.id, &ids[..kept]);
                    if last.is_none() && ids.len() > kept + 1 {
                        appended.push((work.id, ids[kept + 1..].to_vec()));
                    }
                    sequence.report(tokens, drafted, accepted);
                    (ids.get(kept).copied(), last)
                }
            };
            outcomes.push(SeqOutcome { id: work.id, new_token, finished: last.is_some() });
            ended.extend(last.map(|event| (work.id, event)));
        }
        self.scheduler.commit(&outcomes, &mut Pool(&mut self.cache));
        appended.iter().for_each(|(id, tokens)| self.scheduler.append(*id, tokens));
        ended.into_iter().for_each(|(id, event)| self.end(id, Some(event), shared));
        if let (Some(hidden), Ok(speculator)) = (hidden, &mut self.speculator)
            && !speculator.observe(&hidden, &self.sequences, stats)
        {
            self.speculator = Err(DRAFTER_FAILED.to_owned());
        }
        self.evict(shared);
    }

    /// Evicts rows of the sequences that have as many as they may.
    fn evict(&mut self, shared: &Shared) {
        let Some(evictor) = &shared.evictor else { return };
        let done = evictor.run(&mut self.scheduler, &mut self.cache);
        add(&shared.stats.kv_evictions, done.evictions);
        add(&shared.stats.kv_evicted_tokens, done.rows);
        add(&shared.stats.preemptions, done.preempted);
        for (id, error) in done.failed {
            let error = internal(Arc::new(error), "rows cannot be evicted");
            self.end(id, Some(Event::Failed(error)), shared);
        }
    }

    /// Counts what a work did, takes back drafts that were not accepted, and publishes the rest.
    fn settle(&mut self, work: &SeqWork, outcome: Outcome, stats: &SharedStats) -> Outcome {
        let Some(sequence) = self.sequences.get(&work.id) else { return outcome };
        if matches!(outcome, Outcome::Lost) {
            return outcome;
        }
        add(&stats.prompt_tokens, sequence.prompt_tokens(work.start, work.end()));
        let mut computed = work.end();
        match &outcome {
            // Rows of a failed step may not be there.
            Outcome::Failed(_) | Outcome::Lost => return outcome,
            Outcome::Advanced(advance) => {
                add(&stats.generation_tokens, advance.tokens.len());
                add(&stats.forced_tokens, advance.forced);
                add(&stats.masked_tokens, advance.masked);
                if let Some(Event::Failed(_)) = advance.last {
                    return outcome;
                }
                computed = work.start + work.known() + advance.accepted as u32;
                if let Ok(speculator) = &mut self.speculator {
                    speculator.advanced(work, advance.accepted, stats);
                }
            }
            Outcome::Continues | Outcome::PromptOnly => {}
        }
        if work.drafts > 0
            && let Err(error) = step::over_cache(|| self.cache.rewind(work.id, computed as usize))
        {
            return Outcome::Failed(internal(Arc::new(error), "drafts cannot be taken back"));
        }
        if let Ok(speculator) = &mut self.speculator {
            speculator.computed(work.id, computed as usize);
        }
        self.cache.publish(work.id, &sequence.tokens()[..computed as usize]);
        outcome
    }

    fn update_gauges(&self, shared: &Shared) {
        let gauges: &Gauges = &shared.stats.lanes[self.index];
        set(&gauges.running, self.scheduler.running());
        set(&gauges.waiting, self.scheduler.waiting() + self.loading.len());
        let usage = self.cache.usage();
        set(&gauges.kv_blocks_used, usage.used_blocks);
        set(&gauges.kv_blocks_idle, usage.idle_blocks);
        set(&gauges.kv_cold_blocks, usage.cold_blocks);
        set(&gauges.kv_exact_blocks_used, usage.promised_exact_blocks);
        set(&gauges.kv_exact_blocks_total, usage.total_exact_blocks);
        gauges.step_prompt_tokens.store(self.pace.tokens(Company::Outputs), Ordering::Relaxed);
        let exact = usage.exact_blocks as u64 * usage.bytes_per_exact_block;
        gauges.kv_exact_bytes.store(exact, Ordering::Relaxed);
        gauges.kv_used_bytes.store(usage.used_bytes(), Ordering::Relaxed);
    }

    /// Counts what the cache has done for sequences that leave pages out since it was last asked.
    fn count_recall(&mut self, stats: &SharedStats) {
        stats.recall.add(&self.cache.take_recall_counts());
    }
}

/// What the scheduler's refusal means to whoever asked.
fn refusal(error: AdmitError) -> GenerationError {
    GenerationError::NotAdmitted(match error {
        AdmitError::QueueFull { limit } => SubmitError::QueueFull { limit },
        AdmitError::NeverFits { need_tokens, capacity_tokens } => {
            SubmitError::NeverFits { need: need_tokens, capacity: capacity_tokens }
        }
        AdmitError::TooManyAtOnce { tokens, most } => SubmitError::TooManyAtOnce { tokens, most },
        AdmitError::EmptyPrompt { .. } => SubmitError::EmptyPrompt,
        AdmitError::DuplicateId { .. } => {
            return internal(Arc::new(error), "the scheduler refused a request");
        }
    })
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_by_the_scheduler_is_no_failed_step() {
        let never = AdmitError::NeverFits { need_tokens: 9, capacity_tokens: 8 };
        let expected = SubmitError::NeverFits { need: 9, capacity: 8 };
        assert!(matches!(refusal(never), GenerationError::NotAdmitted(e) if e == expected));
        let full = refusal(AdmitError::QueueFull { limit: 3 });
        let expected = SubmitError::QueueFull { limit: 3 };
        assert!(matches!(full, GenerationError::NotAdmitted(e) if e == expected));
        let bug = refusal(AdmitError::DuplicateId { id: SeqId(1) });
        assert!(matches!(bug, GenerationError::Internal { .. }));
    }
}
