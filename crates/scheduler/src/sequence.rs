//! A sequence in the queue or running, and what a step has left for it.

use crate::{Admission, EvictionSchedule, SeqWork};
use std::ops::Range;
use taper_base::{SeqId, TokenId};

/// Where a sequence stands in the order of service: the lower, the earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) priority: i32,
    pub(crate) turn: u64,
    /// The order of arrival.
    pub(crate) arrival: u64,
}

/// A running sequence computes what another one begins with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Awaited {
    /// The one that runs.
    pub(crate) place: Place,
    /// It computes their common tokens up to here.
    pub(crate) until: u32,
}

#[derive(Debug)]
pub(crate) struct Seq {
    pub(crate) id: SeqId,
    pub(crate) place: Place,
    pub(crate) client: Option<u64>,
    /// Prompt, then output.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) prompt_len: u32,
    pub(crate) max_new: u32,
    pub(crate) all_logits: bool,
    /// See [`Admission::cut_tokens`].
    pub(crate) cut_tokens: u32,
    /// See [`Admission::whole`].
    pub(crate) whole: Vec<Range<u32>>,
    /// Prompt tokens whose logits have been delivered.
    pub(crate) logits_done: u32,
    /// Leading tokens whose keys and values are in the cache. Below `len()` while it lives: the
    /// newest token is computed by the step that samples its successor.
    pub(crate) computed: u32,
    /// Tokens that the last step added: the sampled one, and those that follow from it.
    pub(crate) newest: u32,
    /// Tokens that are drafted for the next plan.
    pub(crate) drafted: u32,
    /// Tokens of the last plan's drafts that were accepted.
    pub(crate) accepted: u32,
    /// When rows leave the cache.
    pub(crate) eviction: Option<EvictionSchedule>,
    /// Rows that have left the cache.
    pub(crate) evicted: u32,
    pub(crate) preempted_before: bool,
    /// Found once, as comparing long prompts in every step takes time.
    pub(crate) awaited: Option<Awaited>,
    pub(crate) planned: Option<SeqWork>,
}

impl Seq {
    pub(crate) fn new(
        admission: Admission,
        prompt_len: u32,
        place: Place,
        eviction: Option<EvictionSchedule>,
    ) -> Self {
        let Admission { id, prompt, max_new, all_logits, client, cut_tokens, whole, .. } =
            admission;
        Self {
            id,
            place,
            client,
            tokens: prompt,
            prompt_len,
            max_new,
            all_logits,
            cut_tokens,
            whole,
            logits_done: 0,
            computed: 0,
            newest: 0,
            drafted: 0,
            accepted: 0,
            eviction,
            evicted: 0,
            preempted_before: false,
            awaited: None,
            planned: None,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        // Admission refuses what exceeds u32 tokens.
        u32::try_from(self.tokens.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn generated(&self) -> u32 {
        self.len() - self.prompt_len
    }

    pub(crate) fn remaining(&self) -> u32 {
        self.len() - self.computed
    }

    /// Tokens up to which a work may go: there rows leave the cache.
    pub(crate) fn limit(&self) -> u32 {
        self.eviction.map_or(u32::MAX, |e| e.next(self.prompt_len, self.computed))
    }

    /// Rows of the first `tokens` tokens, as many of them as come before the next eviction.
    pub(crate) fn rows(&self, tokens: u32) -> u32 {
        tokens.min(self.limit()).saturating_sub(self.evicted)
    }

    /// Leading tokens that another sequence, or an earlier run of this one, may have left in the cache: no row of
    /// them may have seen an eviction.
    pub(crate) fn reusable(&self) -> u32 {
        // The last token is computed in any case: its logits choose the next one.
        let first = self.eviction.map_or(u32::MAX, |e| e.first(self.prompt_len));
        self.len().min(first).saturating_sub(1)
    }

    /// Rows that are to leave the cache now.
    pub(crate) fn due(&self) -> u32 {
        let evicted = self.eviction.map_or(0, |e| e.evicted(self.prompt_len, self.computed));
        evicted.saturating_sub(self.evicted)
    }

    pub(crate) fn decodes(&self) -> bool {
        self.generated() > 0 && self.remaining() <= self.newest.max(1)
    }

    /// Adds drafts to a work that samples: no more than are drafted, than the sequence may still have
    /// before the token that is sampled behind them, and than the budgets leave.
    pub(crate) fn with_drafts(&self, work: SeqWork, budget: &Budget) -> SeqWork {
        let room = self.max_new.saturating_sub(self.generated() + 1);
        let room = room.min(self.limit().saturating_sub(work.end()));
        let drafts = self.drafted.min(room).min(budget.tokens).min(budget.rows);
        let drafts = if work.samples { drafts } else { 0 };
        let (len, logit_rows) = (work.len + drafts, work.logit_rows + drafts);
        SeqWork { len, logit_rows, drafts, ..work }
    }

    /// Which of two prompts comes first in what a step has left: the one that is done sooner, of
    /// those of one priority.
    pub(crate) fn rank(&self) -> (i32, u32, Place) {
        (self.place.priority, self.remaining(), self.place)
    }

    /// What `other` is about to compute of the tokens that both begin with: they will be in the
    /// cache, in whole units of `unit` tokens.
    ///
    /// Only who came earlier is waited for, as later ones come without end, and nobody of a higher
    /// number of priority, as others may keep it from advancing.
    pub(crate) fn awaits(&self, other: &Self, unit: u32) -> Option<Awaited> {
        let whole = |n: u32| n.min(self.reusable()).min(other.reusable() + 1) / unit * unit;
        let (own, its) = (self.place, other.place);
        let later = its.arrival >= own.arrival || its.priority > own.priority;
        if later || whole(other.len()) <= other.computed {
            return None;
        }
        let common = other.tokens.iter().zip(&self.tokens).take_while(|(a, b)| a == b).count();
        let until = whole(u32::try_from(common).unwrap_or(u32::MAX));
        (until > other.computed).then_some(Awaited { place: other.place, until })
    }

    /// Tokens up to where a work has to end.
    fn until_cut(&self) -> u32 {
        match self.cut_tokens {
            0 => u32::MAX,
            _ if self.computed < self.prompt_len => self.prompt_len - self.computed,
            cut => cut - self.computed % cut,
        }
    }

    /// The last place up to `end` that is not inside of tokens that are computed together.
    fn uncut(&self, end: u32) -> u32 {
        let at = self.whole.partition_point(|tokens| tokens.end <= end);
        let cut = self.whole.get(at).filter(|tokens| tokens.start < end);
        cut.map_or(end, |tokens| tokens.start.max(self.computed))
    }

    /// Whether it runs and has some of its prompt before it, or of what it had when it was preempted, and no work yet.
    pub(crate) fn reads_prompt(&self) -> bool {
        self.planned.is_none() && !self.decodes()
    }

    /// Whether what the next work has at least fits a step beside so many other tokens.
    pub(crate) fn fits_beside(&self, others: u32, budget: &Budget) -> bool {
        let rows = if self.all_logits { budget.rows } else { u32::MAX };
        let least = self.least();
        least == 1 || least.saturating_add(others) <= budget.tokens.min(rows)
    }

    /// Tokens that the next work has at least: those that are computed together with the next one.
    pub(crate) fn least(&self) -> u32 {
        let at = self.whole.partition_point(|tokens| tokens.end <= self.computed);
        let next = self.whole.get(at).filter(|tokens| tokens.start <= self.computed);
        next.map_or(1, |tokens| tokens.end - self.computed)
    }

    /// The largest chunk within the budgets, or `None` where they leave no token.
    pub(crate) fn chunk(&self, budget: &Budget) -> Option<SeqWork> {
        let mut len = self.remaining().min(budget.tokens).min(self.until_cut());
        len = len.min(self.limit() - self.computed);
        if self.all_logits {
            // Rows are wanted from `logits_done` on; tokens before it cost none.
            let free = self.logits_done.saturating_sub(self.computed);
            len = len.min(free.saturating_add(budget.rows));
        }
        let mut end = self.computed + len;
        let mut samples = end == self.len() && self.max_new > 0;
        if samples && budget.rows == 0 {
            (end, samples) = (end - 1, false);
        }
        let whole = self.uncut(end);
        samples &= whole == end;
        (len, end) = (whole - self.computed, whole);
        if len == 0 {
            return None;
        }
        let rows = if self.all_logits && self.logits_done < self.prompt_len {
            end.saturating_sub(self.computed.max(self.logits_done))
        } else {
            u32::from(samples)
        };
        let (id, start) = (self.id, self.computed);
        Some(SeqWork { id, start, len, samples, logit_rows: rows, drafts: 0 })
    }
}

/// What is left of a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) tokens: u32,
    pub(crate) rows: u32,
}

impl Budget {
    pub(crate) fn spend(&mut self, work: &SeqWork) {
        self.tokens -= work.len;
        self.rows -= work.logit_rows;
    }

    /// Takes half away, rounded up, but no more than `tokens`, and returns it. Where that is less than `least`, it is as
    /// much as that, or all.
    pub(crate) fn split(&mut self, tokens: u32, least: u32) -> Self {
        let share = |all: u32| all.div_ceil(2).max(least).min(all);
        let half = Self { tokens: share(self.tokens).min(tokens), rows: share(self.rows) };
        self.tokens -= half.tokens;
        self.rows -= half.rows;
        half
    }

    pub(crate) fn join(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.rows += other.rows;
    }
}
