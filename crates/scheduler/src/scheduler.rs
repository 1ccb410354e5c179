//! The state machine: a queue, the running sequences, and the plan at hand.

use crate::{
    Admission, AdmitError, BlockPool, DueEviction, EvictionSchedule, SeqOutcome, StepPlan,
    sequence::{Budget, Place, Seq},
};
use std::collections::VecDeque;
use taper_base::{SeqId, TokenId};

/// Later arrivals that may overtake a sequence for each other one that its client has open.
const CLIENT_STEP: u64 = 256;

/// Limits of a step and of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Tokens computed in one step, at most.
    pub max_num_batched_tokens: u32,
    /// Sequences that run at a time, at most.
    pub max_num_seqs: u32,
    /// Rows of logits in one step, at most; it bounds the chunks of [`Admission::all_logits`].
    pub max_logit_rows: u32,
    /// Length of the queue from which on admission is refused. Preempted sequences wait there too.
    pub max_waiting: u32,
    /// When rows leave the KV cache; `None` keeps all.
    pub eviction: Option<EvictionSchedule>,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            max_num_batched_tokens: 2048,
            max_num_seqs: 256,
            max_logit_rows: 512,
            max_waiting: 1024,
            eviction: None,
        }
    }
}

/// Continuous batching: [`admit`](Self::admit) at any time, then [`plan`](Self::plan), run it,
/// [`commit`](Self::commit), and again. [`cancel`](Self::cancel) at any moment between two calls.
///
/// Every call must get one and the same pool, and nothing else may take its blocks.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    /// In the order of the queue: see [`Self::next_place`].
    pub(crate) waiting: VecDeque<Seq>,
    /// In the order of the queue: the first is preempted last.
    pub(crate) running: Vec<Seq>,
    /// Sequences admitted so far.
    arrivals: u64,
    prompt_tokens: u32,
}

impl Scheduler {
    /// An idle scheduler.
    ///
    /// Each limit is at least 1, and `max_num_seqs` is lowered to the other limits of a step: were
    /// it higher, decodes could fill every step and a prompt never advance. [`Self::config`] tells
    /// what is in use.
    #[must_use]
    pub fn new(config: SchedulerConfig) -> Self {
        let tokens = config.max_num_batched_tokens.max(1);
        let rows = config.max_logit_rows.max(1);
        let config = SchedulerConfig {
            max_num_batched_tokens: tokens,
            max_num_seqs: config.max_num_seqs.max(1).min(tokens).min(rows),
            max_logit_rows: rows,
            max_waiting: config.max_waiting.max(1),
            ..config
        };
        let (waiting, running) = (VecDeque::new(), Vec::new());
        Self { config, waiting, running, arrivals: 0, prompt_tokens: u32::MAX }
    }

    /// The limits in use.
    #[must_use]
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
    }

    /// Tokens of prompts in each step from now on, at least 1 and at most; `max_num_batched_tokens`
    /// bounds them besides. No limit at first.
    pub fn limit_prompts(&mut self, tokens: u32) {
        self.prompt_tokens = tokens.max(1);
    }

    /// Nothing waits and nothing runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Sequences that hold blocks.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Whether a sequence that holds blocks has its prompt behind it.
    #[must_use]
    pub fn decodes(&self) -> bool {
        self.running.iter().any(Seq::decodes)
    }

    /// Sequences in the queue, preempted ones included.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Queues a sequence.
    ///
    /// # Errors
    /// It can never run, or there is no room in the queue; nothing changes.
    pub fn admit(&mut self, admission: Admission, pool: &dyn BlockPool) -> Result<(), AdmitError> {
        let Admission { id, ref prompt, max_new, all_logits, client, priority, .. } = admission;
        let whole = admission.whole.as_slice();
        if prompt.is_empty() {
            return Err(AdmitError::EmptyPrompt { id });
        }
        let all = prompt.len() as u64 + u64::from(max_new);
        let first = |e: EvictionSchedule| {
            u64::from(e.first(u32::try_from(prompt.len()).unwrap_or(u32::MAX)))
        };
        let need_tokens = self.config.eviction.map_or(all, |e| all.min(first(e)));
        let capacity_tokens = u64::from(pool.total()) * u64::from(pool.block_tokens());
        let Some(prompt_len) = u32::try_from(prompt.len())
            .ok()
            .filter(|_| need_tokens <= capacity_tokens && all <= u64::from(u32::MAX))
        else {
            return Err(AdmitError::NeverFits { need_tokens, capacity_tokens });
        };
        let rows = if all_logits { self.config.max_logit_rows } else { u32::MAX };
        let most = self.config.max_num_batched_tokens.min(rows);
        let tokens = whole.iter().map(|tokens| tokens.end - tokens.start).max().unwrap_or(0);
        if tokens > most {
            return Err(AdmitError::TooManyAtOnce { tokens, most });
        }
        if self.running.iter().chain(&self.waiting).any(|s| s.id == id) {
            return Err(AdmitError::DuplicateId { id });
        }
        if self.waiting.len() >= self.config.max_waiting as usize {
            return Err(AdmitError::QueueFull { limit: self.config.max_waiting });
        }
        let place = self.next_place(client, priority);
        self.enqueue(Seq::new(admission, prompt_len, place, self.config.eviction));
        Ok(())
    }

    /// Places follow the order of arrival, but each open sequence of a client moves its next one
    /// back by [`CLIENT_STEP`] arrivals. So the queue is shared among clients, and still nobody is
    /// overtaken without end by others of its priority.
    fn next_place(&mut self, client: Option<u64>, priority: i32) -> Place {
        let arrival = self.arrivals;
        self.arrivals += 1;
        let all = self.running.iter().chain(&self.waiting);
        let open = all.filter(|s| client.is_some() && s.client == client).count() as u64;
        Place { priority, turn: arrival + open * CLIENT_STEP, arrival }
    }

    pub(crate) fn enqueue(&mut self, seq: Seq) {
        let at = self.waiting.partition_point(|other| other.place < seq.place);
        self.waiting.insert(at, seq);
    }

    /// What the next step computes; empty when there is nothing to do.
    ///
    /// A plan that was not committed is void, and its tokens are planned again.
    pub fn plan(&mut self, pool: &mut dyn BlockPool) -> StepPlan {
        let mut plan = StepPlan::default();
        let mut budget =
            Budget { tokens: self.config.max_num_batched_tokens, rows: self.config.max_logit_rows };
        for seq in &mut self.running {
            seq.planned = None;
        }
        let first = self.running.iter().find(|seq| seq.reads_prompt());
        let alone = first.is_some_and(|seq| !seq.fits_beside(self.decoded(), &budget));
        let least = first.or(self.waiting.front()).map_or(1, Seq::least);
        // Tokens that are computed together have a step for themselves where there is no room beside the others.
        if !alone {
            let together = first.is_some_and(|seq| seq.least() > 1);
            self.plan_decodes(pool, &mut budget, &mut plan);
            if !together {
                self.plan_drafts(pool, &mut budget, &mut plan);
            }
        }
        self.running.iter_mut().for_each(|seq| seq.drafted = 0);
        budget.tokens = budget.tokens.min(self.prompt_tokens.max(least));
        self.plan_prompts(pool, budget, alone, &mut plan);
        plan
    }

    /// Tokens that decodes have in a step.
    fn decoded(&self) -> u32 {
        self.running.iter().filter(|seq| seq.decodes()).map(Seq::remaining).sum()
    }

    fn plan_decodes(&mut self, pool: &mut dyn BlockPool, budget: &mut Budget, plan: &mut StepPlan) {
        let mut i = 0;
        // Victims come from the end and this walk from the front: no victim has work already.
        while i < self.running.len() {
            let seq = &mut self.running[i];
            if seq.decodes() {
                if pool.grow(seq.id, seq.rows(seq.len())).is_err() {
                    plan.preempted.extend(self.preempt_last(pool));
                    continue;
                }
                seq.planned = seq.chunk(budget);
                if let Some(work) = seq.planned {
                    budget.spend(&work);
                    plan.works.push(work);
                }
            }
            i += 1;
        }
    }

    /// Adds drafts to the decodes, where there are blocks for them. They have half of what the decodes
    /// leave at most, so that prompts advance, and nobody is preempted for them.
    fn plan_drafts(&mut self, pool: &mut dyn BlockPool, budget: &mut Budget, plan: &mut StepPlan) {
        let mut half = Budget { tokens: budget.tokens / 2, rows: budget.rows / 2 };
        let decodes = self.running.iter_mut().filter(|seq| seq.planned.is_some());
        for (seq, work) in decodes.zip(&mut plan.works) {
            let with = seq.with_drafts(*work, &half);
            if with.drafts == 0 || pool.grow(seq.id, seq.rows(seq.len() + with.drafts)).is_err() {
                continue;
            }
            for budget in [&mut half, &mut *budget] {
                budget.tokens -= with.drafts;
                budget.rows -= with.drafts;
            }
            *work = with;
            seq.planned = Some(with);
        }
    }

    /// As [`Self::preempt`], of the sequence that is last in the order of the queue. `None`: none runs.
    pub fn preempt_last(&mut self, pool: &mut dyn BlockPool) -> Option<SeqId> {
        let seq = self.running.pop()?;
        let id = seq.id;
        self.requeue(seq, pool);
        Some(id)
    }

    /// Puts a sequence that ran back into the queue, without its blocks.
    fn requeue(&mut self, mut seq: Seq, pool: &mut dyn BlockPool) {
        pool.release(seq.id);
        (seq.computed, seq.evicted, seq.drafted, seq.planned) = (0, 0, 0, None);
        seq.preempted_before = true;
        self.enqueue(seq);
    }

    /// Rows that leave the cache before the next plan. Whoever has evicted them says so with
    /// [`Self::evicted`], or preempts one: all of them at once may be due again in the same way for ever.
    pub fn due(&self) -> impl Iterator<Item = DueEviction> {
        let due = self.running.iter().filter(|seq| seq.due() > 0);
        due.map(|seq| DueEviction {
            id: seq.id,
            tokens: seq.computed,
            rows: seq.computed - seq.evicted,
            evict: seq.due(),
            prompt: seq.prompt_len,
        })
    }

    /// Records that the rows that were due have left the cache. The sequence keeps blocks for as many rows as it
    /// will have at its next eviction.
    pub fn evicted(&mut self, id: SeqId) {
        if let Some(seq) = self.running.iter_mut().find(|s| s.id == id) {
            seq.evicted += seq.due();
        }
    }

    /// Takes a running sequence's blocks away, at any moment; a plan that was not committed has no effect on it then. It
    /// is computed again later, with the same evictions. Returns whether there was one.
    pub fn preempt(&mut self, id: SeqId, pool: &mut dyn BlockPool) -> bool {
        let Some(at) = self.running.iter().position(|s| s.id == id) else { return false };
        let seq = self.running.remove(at);
        self.requeue(seq, pool);
        true
    }

    /// Sequences that will decode in the next step, unless they are preempted.
    pub fn decoding(&self) -> impl Iterator<Item = SeqId> {
        self.running.iter().filter(|seq| seq.decodes()).map(|seq| seq.id)
    }

    /// Says that so many tokens are drafted for a sequence, from the next one to be sampled on. The next plan
    /// computes them with it, as many as it has room for, if it decodes.
    pub fn draft(&mut self, id: SeqId, tokens: u32) {
        if let Some(seq) = self.running.iter_mut().find(|s| s.id == id) {
            seq.drafted = tokens;
        }
    }

    /// Records which of the last plan's drafts were accepted: the first ones of a work, and fewer than are
    /// to be generated. They are now the sequence's, before what [`Self::commit`] adds, which is to be called
    /// next.
    pub fn accept(&mut self, id: SeqId, tokens: &[TokenId]) {
        let Some(seq) = self.running.iter_mut().find(|s| s.id == id) else { return };
        let Some(work) = seq.planned else { return };
        let tokens = &tokens[..tokens.len().min(work.drafts as usize)];
        seq.tokens.extend_from_slice(tokens);
        // No more than `drafts`, which is a `u32`.
        seq.accepted = tokens.len() as u32;
    }

    /// Records that the last plan ran.
    ///
    /// Every work of it counts as computed, without the drafts that were not accepted. A work that samples needs an outcome with its token;
    /// without one its last token is planned again. Outcomes of sequences that are gone are
    /// ignored. A sequence that has all of its `max_new` tokens ends whatever its outcome says.
    pub fn commit(&mut self, outcomes: &[SeqOutcome], pool: &mut dyn BlockPool) {
        for seq in &mut self.running {
            let Some(work) = seq.planned else { continue };
            seq.computed = work.end() - work.drafts + std::mem::take(&mut seq.accepted);
            if seq.all_logits {
                seq.logits_done = seq.logits_done.max(work.end().min(seq.prompt_len));
            }
        }
        let mut ended = Vec::new();
        for outcome in outcomes {
            let Some(seq) = self.running.iter_mut().find(|s| s.id == outcome.id) else { continue };
            let sampled = seq.planned.is_some_and(|w| w.samples);
            if let Some(token) = outcome.new_token.filter(|_| sampled) {
                seq.tokens.push(token);
                seq.newest = 1;
                seq.planned = None; // One token a work, whatever the outcomes hold.
            }
            if outcome.finished {
                ended.push(seq.id);
            }
        }
        self.running.retain_mut(|seq| {
            seq.planned = None;
            let complete = seq.generated() >= seq.max_new && seq.computed >= seq.prompt_len;
            let ends = complete || ended.contains(&seq.id);
            if ends {
                pool.release(seq.id);
            } else {
                seq.computed = seq.computed.min(seq.len() - 1);
            }
            !ends
        });
    }

    /// Adds tokens that follow the newest one without being sampled. The next step computes them
    /// with it and samples what comes after them; a sequence that is gone is left alone.
    ///
    /// To be called between [`Self::commit`] and [`Self::plan`], with fewer tokens than `max_new`
    /// leaves.
    pub fn append(&mut self, id: SeqId, tokens: &[TokenId]) {
        let Some(seq) = self.running.iter_mut().find(|s| s.id == id) else { return };
        let room = seq.max_new.saturating_sub(seq.generated() + 1) as usize;
        let tokens = &tokens[..tokens.len().min(room)];
        seq.tokens.extend_from_slice(tokens);
        // No more than `room`, which is a `u32`.
        seq.newest += tokens.len() as u32;
    }

    /// Drops a sequence, at any moment, a step under way included. Returns whether there was one.
    pub fn cancel(&mut self, id: SeqId, pool: &mut dyn BlockPool) -> bool {
        if let Some(i) = self.running.iter().position(|s| s.id == id) {
            self.running.remove(i);
            pool.release(id);
            return true;
        }
        let before = self.waiting.len();
        self.waiting.retain(|s| s.id != id);
        self.waiting.len() < before
    }
}
