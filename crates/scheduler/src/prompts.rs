//! How prompts share a step, and when those in the queue start.

use crate::{
    Admitted, BlockPool, Scheduler, StepPlan,
    sequence::{Budget, Place, Seq},
};

/// Share of the pool, in percent, that stays free when a sequence starts while others run: without
/// it the newcomer would take the last blocks and be preempted by the next decode.
const WATERMARK_PERCENT: u32 = 1;

/// Who may still start in this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Starts {
    /// Nobody.
    Closed,
    /// The first in the queue.
    First,
    /// Others too, where the first could start beside them.
    Any,
}

impl Scheduler {
    /// Gives prompts what the decodes left of a step.
    ///
    /// Half is for the first prompt of the queue's order, so that it advances whatever comes after
    /// it. The rest goes to the prompts that are done soonest: a short one does not wait for the
    /// long ones.
    ///
    /// Where a step is for one prompt `alone`, nobody starts who would come before it.
    pub(crate) fn plan_prompts(
        &mut self,
        pool: &mut dyn BlockPool,
        mut budget: Budget,
        alone: bool,
        plan: &mut StepPlan,
    ) {
        // Whoever was preempted in this step would come straight back otherwise.
        let mut starts = match plan.preempted.is_empty() && !alone {
            true => self.start_first(pool, &budget, plan),
            false => Starts::Closed,
        };
        let first = self.running.iter().find(|s| s.reads_prompt());
        let first = first.map(|s| (s.place, s.remaining(), s.least()));
        let mut kept = first.map(|(place, tokens, least)| (place, budget.split(tokens, least)));
        for place in self.prompts_by_rank(starts) {
            if let Some((_, half)) = kept.take_if(|(own, _)| *own == place) {
                budget.join(half);
            }
            if budget.tokens == 0 {
                match kept {
                    Some(_) => continue,
                    None => break,
                }
            }
            if self.running.binary_search_by_key(&place, |s| s.place).is_err() {
                starts = self.start_in_turn(place, starts, pool, &budget, plan);
            }
            if let Ok(i) = self.running.binary_search_by_key(&place, |s| s.place)
                && let Some(work) = self.running[i].chunk(&budget)
            {
                self.running[i].planned = Some(work);
                budget.spend(&work);
                plan.works.push(work);
            }
        }
    }

    /// Prompts that run, and those that may start, the one that is done soonest first.
    fn prompts_by_rank(&self, starts: Starts) -> Vec<Place> {
        let running = self.running.iter().filter(|s| s.reads_prompt());
        let waiting = self.waiting.iter().filter(|_| starts != Starts::Closed);
        let mut ranks: Vec<_> = running.chain(waiting).map(Seq::rank).collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, _, place)| place).collect()
    }

    /// Starts the first in the queue if it comes before every prompt that runs. Says who else may
    /// start: nobody passes one that waits for room.
    fn start_first(
        &mut self,
        pool: &mut dyn BlockPool,
        budget: &Budget,
        plan: &mut StepPlan,
    ) -> Starts {
        let Some(at) = self.first_that_can_start(pool) else {
            return Starts::Any;
        };
        let place = self.waiting[at].place;
        let precedes = |s: &Seq| s.reads_prompt() && s.place < place;
        if self.running.iter().any(precedes) || self.start(at, 0, pool, budget, plan) {
            Starts::Any
        } else {
            Starts::Closed
        }
    }

    /// Starts one in the queue, if it is the next one and there is room.
    fn start_in_turn(
        &mut self,
        place: Place,
        starts: Starts,
        pool: &mut dyn BlockPool,
        budget: &Budget,
        plan: &mut StepPlan,
    ) -> Starts {
        let Ok(at) = self.waiting.binary_search_by_key(&place, |s| s.place) else { return starts };
        if starts == Starts::Closed || self.prefix_is_coming(at, pool) {
            return starts;
        }
        let Some(first) = self.first_that_can_start(pool) else { return starts };
        if at == first {
            return if self.start(at, 0, pool, budget, plan) { starts } else { Starts::Closed };
        }
        let first = &self.waiting[first];
        let first = first.rows(first.len()).div_ceil(pool.block_tokens());
        let slots = self.running.len() + 2 <= self.config.max_num_seqs as usize;
        if starts == Starts::Any && slots && self.start(at, first, pool, budget, plan) {
            Starts::Any
        } else {
            Starts::First
        }
    }

    /// The first in the queue that does not wait for another's prefix.
    fn first_that_can_start(&mut self, pool: &dyn BlockPool) -> Option<usize> {
        (0..self.waiting.len()).find(|&at| !self.prefix_is_coming(at, pool))
    }

    /// A running prompt begins like this one and computes what both have in common: it is waited
    /// for, not computed twice. Every prompt that runs advances in the end, so nobody waits for
    /// ever; those behind it in the queue need not wait with it.
    fn prefix_is_coming(&mut self, at: usize, pool: &dyn BlockPool) -> bool {
        let unit = pool.prefix_tokens();
        let running = &self.running;
        let seq = &mut self.waiting[at];
        if unit == 0 || seq.all_logits {
            return false;
        }
        seq.awaited = seq.awaited.filter(|awaited| {
            let found = running.binary_search_by_key(&awaited.place, |s| s.place);
            found.is_ok_and(|i| running[i].computed < awaited.until)
        });
        if seq.awaited.is_none() {
            let mut others = running.iter().filter(|other| pool.may_share(other.id, seq.id));
            seq.awaited = others.find_map(|other| seq.awaits(other, unit));
        }
        seq.awaited.is_some()
    }

    /// Moves one from the queue to those that run, with the blocks of its whole prefill, or changes
    /// nothing. `others` blocks stay free beside them.
    fn start(
        &mut self,
        at: usize,
        others: u32,
        pool: &mut dyn BlockPool,
        budget: &Budget,
        plan: &mut StepPlan,
    ) -> bool {
        if self.running.len() >= self.config.max_num_seqs as usize {
            return false;
        }
        // Alone, a sequence must start whatever it leaves free, or it would wait for ever.
        let watermark = match self.running.is_empty() {
            true => 0,
            false => pool.total().div_ceil(100 / WATERMARK_PERCENT),
        };
        let Some(mut seq) = self.waiting.remove(at) else { return false };
        let Some(cached_tokens) = reserve(&mut seq, others.saturating_add(watermark), pool, budget)
        else {
            self.waiting.insert(at, seq);
            return false;
        };
        let resumed = seq.preempted_before;
        plan.admitted.push(Admitted { id: seq.id, cached_tokens, resumed });
        let at = self.running.partition_point(|other| other.place < seq.place);
        self.running.insert(at, seq);
        true
    }
}

/// Takes what is in the cache of a sequence and the blocks of its whole prefill, or nothing if fewer
/// than `spare` blocks would stay free or the step has nothing left for it. Returns the tokens that
/// were in the cache.
fn reserve(seq: &mut Seq, spare: u32, pool: &mut dyn BlockPool, budget: &Budget) -> Option<u32> {
    let cached = if seq.all_logits && seq.logits_done < seq.prompt_len {
        0 // Tokens from the cache have no logits.
    } else {
        let reusable = seq.reusable();
        pool.adopt_prefix(seq.id, &seq.tokens[..reusable as usize]).min(reusable)
    };
    seq.computed = cached;
    let block = pool.block_tokens();
    let rows = seq.rows(seq.len());
    let need = rows.div_ceil(block).saturating_sub(cached / block);
    let fits = need.saturating_add(spare) <= pool.free() && seq.chunk(budget).is_some();
    if fits && pool.grow(seq.id, rows).is_ok() {
        return Some(cached);
    }
    pool.release(seq.id);
    seq.computed = 0;
    None
}
