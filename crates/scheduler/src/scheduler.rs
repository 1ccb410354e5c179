//! The state machine: a queue, the running sequences in order of admission, and the plan at hand.

use crate::{Admission, AdmitError, Admitted, BlockPool, SeqOutcome, SeqWork, StepPlan};
use std::collections::VecDeque;
use taper_base::{SeqId, TokenId};

/// Share of the pool, in percent, that stays free when a sequence starts while others run: without
/// it the newcomer would take the last blocks and be preempted by the next decode.
const WATERMARK_PERCENT: u32 = 1;

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
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            max_num_batched_tokens: 2048,
            max_num_seqs: 256,
            max_logit_rows: 512,
            max_waiting: 1024,
        }
    }
}

#[derive(Debug)]
struct Seq {
    id: SeqId,
    /// Prompt, then output.
    tokens: Vec<TokenId>,
    prompt_len: u32,
    max_new: u32,
    all_logits: bool,
    /// Prompt tokens whose logits have been delivered.
    logits_done: u32,
    /// Leading tokens whose keys and values are in the cache. Below `len()` while it lives: the
    /// newest token is computed by the step that samples its successor.
    computed: u32,
    preempted_before: bool,
    planned: Option<SeqWork>,
}

impl Seq {
    fn len(&self) -> u32 {
        // Admission refuses what exceeds u32 tokens.
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    fn generated(&self) -> u32 {
        self.len() - self.prompt_len
    }

    fn remaining(&self) -> u32 {
        self.len() - self.computed
    }

    fn decodes(&self) -> bool {
        self.remaining() == 1 && self.generated() > 0
    }

    /// The largest chunk within the budgets, or `None` where they leave no token.
    fn chunk(&self, budget: &Budget) -> Option<SeqWork> {
        let mut len = self.remaining().min(budget.tokens);
        if self.all_logits {
            // Rows are wanted from `logits_done` on; tokens before it cost none.
            let free = self.logits_done.saturating_sub(self.computed);
            len = len.min(free.saturating_add(budget.rows));
        }
        let mut end = self.computed + len;
        let mut samples = end == self.len() && self.max_new > 0;
        if samples && budget.rows == 0 {
            (len, end, samples) = (len - 1, end - 1, false);
        }
        if len == 0 {
            return None;
        }
        let rows = if self.all_logits && self.logits_done < self.prompt_len {
            end.saturating_sub(self.computed.max(self.logits_done))
        } else {
            u32::from(samples)
        };
        Some(SeqWork { id: self.id, start: self.computed, len, samples, logit_rows: rows })
    }
}

/// What is left of a step.
#[derive(Debug)]
struct Budget {
    tokens: u32,
    rows: u32,
}

impl Budget {
    fn spend(&mut self, work: &SeqWork) {
        self.tokens -= work.len;
        self.rows -= work.logit_rows;
    }
}

/// Continuous batching: [`admit`](Self::admit) at any time, then [`plan`](Self::plan), run it,
/// [`commit`](Self::commit), and again. [`cancel`](Self::cancel) at any moment between two calls.
///
/// The same pool must be passed to every call, and nothing else may take its blocks.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    waiting: VecDeque<Seq>,
    /// In order of admission: the oldest is preempted last.
    running: Vec<Seq>,
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
        };
        Self { config, waiting: VecDeque::new(), running: Vec::new() }
    }

    /// The limits in use.
    #[must_use]
    pub fn config(&self) -> &SchedulerConfig {
        &self.config
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
        let Admission { id, prompt, max_new, all_logits } = admission;
        if prompt.is_empty() {
            return Err(AdmitError::EmptyPrompt { id });
        }
        let need_tokens = prompt.len() as u64 + u64::from(max_new);
        let capacity_tokens = u64::from(pool.total()) * u64::from(pool.block_tokens());
        let Some(prompt_len) = u32::try_from(prompt.len())
            .ok()
            .filter(|_| need_tokens <= capacity_tokens && need_tokens <= u64::from(u32::MAX))
        else {
            return Err(AdmitError::NeverFits { need_tokens, capacity_tokens });
        };
        if self.running.iter().chain(&self.waiting).any(|s| s.id == id) {
            return Err(AdmitError::DuplicateId { id });
        }
        if self.waiting.len() >= self.config.max_waiting as usize {
            return Err(AdmitError::QueueFull { limit: self.config.max_waiting });
        }
        self.waiting.push_back(Seq {
            id,
            tokens: prompt,
            prompt_len,
            max_new,
            all_logits,
            logits_done: 0,
            computed: 0,
            preempted_before: false,
            planned: None,
        });
        Ok(())
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
        self.plan_decodes(pool, &mut budget, &mut plan);
        for seq in self.running.iter_mut().filter(|s| !s.decodes()) {
            // Blocks of a prefill were reserved when it started.
            seq.planned = seq.chunk(&budget);
            if let Some(work) = seq.planned {
                budget.spend(&work);
                plan.works.push(work);
            }
        }
        // Whoever was preempted in this step would come straight back otherwise.
        if plan.preempted.is_empty() {
            self.start_waiting(pool, &mut budget, &mut plan);
        }
        plan
    }

    fn plan_decodes(&mut self, pool: &mut dyn BlockPool, budget: &mut Budget, plan: &mut StepPlan) {
        let mut i = 0;
        // Victims come from the end and this walk from the front: no victim has work already.
        while i < self.running.len() {
            let seq = &mut self.running[i];
            if seq.decodes() {
                if pool.grow(seq.id, seq.len()).is_err() {
                    self.preempt_newest(pool, plan);
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

    fn preempt_newest(&mut self, pool: &mut dyn BlockPool, plan: &mut StepPlan) {
        if let Some(mut seq) = self.running.pop() {
            pool.release(seq.id);
            seq.computed = 0;
            seq.preempted_before = true;
            plan.preempted.push(seq.id);
            self.waiting.push_front(seq);
        }
    }

    fn start_waiting(
        &mut self,
        pool: &mut dyn BlockPool,
        budget: &mut Budget,
        plan: &mut StepPlan,
    ) {
        while self.running.len() < self.config.max_num_seqs as usize && budget.tokens > 0 {
            let Some(mut seq) = self.waiting.pop_front() else { break };
            if self.prefix_is_coming(&seq, pool) {
                self.waiting.push_front(seq);
                break;
            }
            let Some((cached, work)) = self.try_start(&mut seq, pool, budget) else {
                self.waiting.push_front(seq);
                break;
            };
            budget.spend(&work);
            plan.works.push(work);
            let resumed = seq.preempted_before;
            plan.admitted.push(Admitted { id: seq.id, cached_tokens: cached, resumed });
            self.running.push(seq);
        }
    }

    /// A running prompt begins like this one and computes what both have in common: it is waited
    /// for, not computed twice. Prompts make progress in every step, so nobody waits for ever.
    fn prefix_is_coming(&self, seq: &Seq, pool: &dyn BlockPool) -> bool {
        let unit = pool.prefix_tokens() as usize;
        if unit == 0 || seq.all_logits {
            return false;
        }
        self.running.iter().any(|other| {
            let common = other.tokens.iter().zip(&seq.tokens).take_while(|(a, b)| a == b).count();
            // The last token of a sequence is never taken from the cache.
            let common = common.min(seq.tokens.len() - 1) / unit * unit;
            common > other.computed as usize
        })
    }

    /// Reserves the blocks of the whole prefill and plans its first chunk, or changes nothing.
    fn try_start(
        &self,
        seq: &mut Seq,
        pool: &mut dyn BlockPool,
        budget: &Budget,
    ) -> Option<(u32, SeqWork)> {
        let cached = if seq.all_logits && seq.logits_done < seq.prompt_len {
            0 // Tokens from the cache have no logits.
        } else {
            // The last token is computed in any case: its logits choose the next one.
            let reusable = &seq.tokens[..seq.tokens.len() - 1];
            pool.adopt_prefix(seq.id, reusable).min(seq.len() - 1)
        };
        seq.computed = cached;
        let block = pool.block_tokens();
        let need = seq.len().div_ceil(block).saturating_sub(cached / block);
        // Alone, a sequence must start whatever it leaves free, or it would wait for ever.
        let reserve = if self.running.is_empty() {
            0
        } else {
            pool.total().div_ceil(100 / WATERMARK_PERCENT)
        };
        let work = seq.chunk(budget).filter(|_| need.saturating_add(reserve) <= pool.free());
        let started = work.filter(|_| pool.grow(seq.id, seq.len()).is_ok());
        if started.is_none() {
            pool.release(seq.id);
            seq.computed = 0;
        }
        seq.planned = started;
        started.map(|work| (cached, work))
    }

    /// Records that the last plan ran.
    ///
    /// Every work of it counts as computed. A work that samples needs an outcome with its token;
    /// without one its last token is planned again. Outcomes of sequences that are gone are
    /// ignored. A sequence that has all of its `max_new` tokens ends whatever its outcome says.
    pub fn commit(&mut self, outcomes: &[SeqOutcome], pool: &mut dyn BlockPool) {
        for seq in &mut self.running {
            let Some(work) = seq.planned else { continue };
            seq.computed = work.end();
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
