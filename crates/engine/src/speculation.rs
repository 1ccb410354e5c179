//! What drafts tokens, and how many of them a step verifies.

use crate::{
    pass::Hidden,
    sequence::Sequence,
    stats::{SharedStats, add, add_time},
    step::caught,
};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use taper_base::{Drafting, MAX_DRAFT_TOKENS, SeqId};
use taper_kv_cache::{KvCache, KvScheme, SeqRange};
use taper_models::Model;
use taper_scheduler::{Scheduler, SeqWork, StepPlan};
use taper_speculative::{
    Computed, Controller, Costs, DraftError, DraftInput, Drafter, MtpDrafter, Proposal,
    SuffixDrafter, Verified,
};
use taper_tensor::ops;

/// Makes the drafter of a model and of a cache of so many tokens; `None` where the model lacks what it takes.
type Make = dyn Fn(&dyn Model, usize) -> Option<Box<dyn Drafter>> + Send + Sync;

/// How an engine drafts tokens.
#[derive(Clone)]
pub struct Speculation {
    drafter: Arc<Make>,
    reads_head: bool,
    most: u32,
    steady: bool,
}

impl fmt::Debug for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reads_head, most, steady, .. } = self;
        let mut debug = f.debug_struct("Speculation");
        debug
            .field("reads_head", reads_head)
            .field("most", most)
            .field("steady", steady)
            .finish_non_exhaustive()
    }
}

impl Speculation {
    /// Drafts of what followed earlier in the same sequence ([`SuffixDrafter`]).
    #[must_use]
    pub fn suffix() -> Self {
        Self::new(|| Box::<SuffixDrafter>::default())
    }

    /// Drafts of what followed earlier, from matches of `shortest` tokens on.
    #[must_use]
    pub fn ngram(shortest: usize) -> Self {
        Self::new(move || Box::new(SuffixDrafter::new(shortest)))
    }

    /// Drafts of the model's own head for multi-token prediction ([`MtpDrafter`]), which is to be loaded with it
    /// ([`taper_models::LoadOptions::draft_head`]).
    #[must_use]
    pub fn mtp() -> Self {
        let make = |model: &dyn Model, tokens| {
            let head = Arc::clone(model.draft_head()?);
            Some(Box::new(MtpDrafter::new(head, KvScheme::default(), tokens)) as Box<_>)
        };
        let most = MAX_DRAFT_TOKENS as u32;
        Self { drafter: Arc::new(make), reads_head: true, most, steady: false }
    }

    /// Drafts of a drafter; each KV cache of the engine gets one of its own.
    #[must_use]
    pub fn new(drafter: impl Fn() -> Box<dyn Drafter> + Send + Sync + 'static) -> Self {
        let make = move |_: &dyn Model, _| Some(drafter());
        let most = MAX_DRAFT_TOKENS as u32;
        Self { drafter: Arc::new(make), reads_head: false, most, steady: false }
    }

    /// Whether the model's own head drafts.
    #[must_use]
    pub fn reads_head(&self) -> bool {
        self.reads_head
    }

    /// Drafts at most so many tokens at a time, and never more than [`MAX_DRAFT_TOKENS`].
    #[must_use]
    pub fn most(self, most: u32) -> Self {
        Self { most: most.min(MAX_DRAFT_TOKENS as u32), ..self }
    }

    /// Tokens of the longest draft.
    pub(crate) fn longest(&self) -> u32 {
        self.most
    }

    /// Verifies all that is drafted, whether it saves time or not: for tests and measurements.
    #[must_use]
    pub fn steady(self) -> Self {
        Self { steady: true, ..self }
    }
}

/// The drafts of the sequences over one cache.
#[derive(Debug)]
pub(crate) struct Speculator {
    drafter: Box<dyn Drafter>,
    controller: Controller,
    most: usize,
    steady: bool,
    vocab: u32,
    /// Classes of the drafts that were proposed for this step.
    classes: HashMap<SeqId, usize>,
    /// What became of the sequences of this step so far.
    verified: Vec<Verified>,
    /// Tokens of each sequence that this step has computed and that stay, with those before.
    computed: HashMap<SeqId, usize>,
    /// Time that the proposals of this step took, and getting ready for some.
    spent: [Duration; 2],
}

impl Speculator {
    /// What drafts over a cache; or why nothing does.
    pub(crate) fn new(
        speculation: &Speculation,
        model: &dyn Model,
        cache: &KvCache,
    ) -> Result<Self, String> {
        if let Some(reason) = cache.cannot_rewind() {
            return Err(reason.to_owned());
        }
        let &Speculation { ref drafter, most, steady, .. } = speculation;
        let tokens = cache.config().blocks * cache.config().geometry.block_tokens;
        let drafter = drafter(model, tokens).ok_or("the model has no head that drafts")?;
        let vocab = u32::try_from(model.info().vocab).unwrap_or(u32::MAX);
        Ok(Self {
            drafter,
            controller: Controller::default(),
            most: most as usize,
            steady,
            vocab,
            classes: HashMap::new(),
            verified: Vec::new(),
            computed: HashMap::new(),
            spent: [Duration::ZERO; 2],
        })
    }

    pub(crate) fn drafting(&self) -> Drafting {
        let method = self.drafter.method().to_owned();
        Drafting::On { method, most: self.most as u32 }
    }

    /// Drafts tokens for the sequences that will decode, so many in all as the cache can take back. `false`: the
    /// drafter has failed for good.
    pub(crate) fn draft(
        &mut self,
        scheduler: &mut Scheduler,
        sequences: &mut HashMap<SeqId, Sequence>,
        cache: &KvCache,
        stats: &SharedStats,
    ) -> bool {
        let since = Instant::now();
        for id in self.classes.drain().map(|(id, _)| id) {
            sequences.get_mut(&id).into_iter().for_each(|s| s.cut_draft(0));
        }
        self.verified.clear();
        self.computed.clear();
        let decoding: Vec<_> = scheduler.decoding().collect();
        let room = cache.draft_room().unwrap_or(usize::MAX);
        // Of more sequences nothing is drafted, so nothing is kept for it.
        let may = self.steady || Costs::measures(decoding.len());
        let inputs = decoding.iter().filter(|_| may).filter_map(|&id| {
            let sequence = sequences.get(&id).filter(|s| s.max_draft_tokens() != Some(0))?;
            let asked = sequence.max_draft_tokens().map_or(self.most, |most| most as usize);
            let most =
                if self.steady { self.most } else { self.controller.most(id, decoding.len()) };
            Some(DraftInput {
                id,
                prediction: sequence.prediction(),
                tokens: sequence.tokens(),
                prompt_len: sequence.prompt_len(),
                most: most.min(asked).min(self.most).min(room),
            })
        });
        let inputs: Vec<_> = inputs.collect();
        let drafts = drafting(|| {
            self.drafter.prepare(&inputs)?;
            let preparing = since.elapsed();
            let drafts = self.drafter.propose(&inputs)?;
            self.spent = [since.elapsed().saturating_sub(preparing), preparing];
            Ok(drafts)
        });
        let Some(mut drafts) = drafts else { return false };
        let proposed = drafts.iter().map(|draft| draft.tokens.len()).sum();
        self.controller.learn_proposals(proposed, self.spent[0]);
        let mut proposals = Vec::new();
        for (input, draft) in inputs.iter().zip(&mut drafts) {
            // Tokens of a prediction may be no tokens of the model.
            let known = draft.tokens.iter().take_while(|&&token| token < self.vocab).count();
            draft.tokens.truncate(known.min(input.most));
            let (id, class) = (input.id, draft.class);
            proposals.push(Proposal { id, len: draft.tokens.len(), class });
        }
        let depths = self.depths(scheduler, (decoding.len(), room), &proposals);
        let ids: Vec<_> = proposals.iter().map(|proposal| proposal.id).collect();
        for ((id, mut draft), depth) in ids.into_iter().zip(drafts).zip(depths) {
            if draft.tokens.is_empty() {
                continue;
            }
            self.classes.insert(id, draft.class);
            draft.tokens.truncate(depth);
            scheduler.draft(id, depth as u32);
            sequences.get_mut(&id).into_iter().for_each(|s| s.set_draft(draft.tokens.clone()));
        }
        add_time(&stats.draft_nanos, since.elapsed());
        true
    }

    /// How many tokens of each proposal are verified.
    fn depths(
        &mut self,
        scheduler: &Scheduler,
        (decoding, mut room): (usize, usize),
        proposals: &[Proposal],
    ) -> Vec<usize> {
        if self.steady {
            let cut = |proposal: &Proposal| {
                let len = proposal.len.min(room);
                room -= len;
                len
            };
            return proposals.iter().map(cut).collect();
        }
        let step = scheduler.config().max_num_batched_tokens as usize;
        let room = room.min(step.saturating_sub(decoding) / 2);
        let Self { controller, drafter, .. } = self;
        controller.choose(decoding, room, proposals, &|class| drafter.expected(class))
    }

    /// Cuts drafts to what is planned of them, and has the cache ready to take them back.
    pub(crate) fn planned(
        &self,
        plan: &StepPlan,
        sequences: &mut HashMap<SeqId, Sequence>,
        cache: &mut KvCache,
    ) {
        for work in plan.works.iter().filter(|work| self.classes.contains_key(&work.id)) {
            sequences.get_mut(&work.id).into_iter().for_each(|s| s.cut_draft(work.drafts));
            if work.drafts > 0 {
                cache.may_rewind(work.id, (work.start + work.known()) as usize);
            }
        }
    }

    /// Whether the drafter is to get the hidden states of a step.
    pub(crate) fn reads_hidden(
        &self,
        plan: &StepPlan,
        sequences: &HashMap<SeqId, Sequence>,
    ) -> bool {
        let drafts = |work: &SeqWork| sequences.get(&work.id).is_some_and(Sequence::takes_drafts);
        let may = self.steady || Costs::measures(plan.works.len());
        may && self.drafter.reads_hidden() && plan.works.iter().any(drafts)
    }

    /// The step has computed so many tokens of a sequence that stay, with those before.
    pub(crate) fn computed(&mut self, id: SeqId, tokens: usize) {
        self.computed.insert(id, tokens);
    }

    /// Gives the drafter the hidden states of a step, of what stays of it. `false`: it has failed for good.
    pub(crate) fn observe(
        &mut self,
        hidden: &[Hidden],
        sequences: &HashMap<SeqId, Sequence>,
        stats: &SharedStats,
    ) -> bool {
        let since = Instant::now();
        let Self { drafter, computed, spent, .. } = self;
        let done = drafting(|| {
            // A step may have two passes over the tokens of a sequence, the earlier ones first.
            hidden.iter().try_for_each(|Hidden { ranges, rows }| {
                let given =
                    |rows: &[f32]| drafter.observe(&staying(ranges, rows, computed, sequences));
                let given = ops::with_host_f32(rows, given);
                given.unwrap_or_else(|error| Err(DraftError::Failed(Arc::new(error))))
            })
        });
        spent[1] += since.elapsed();
        add_time(&stats.draft_nanos, since.elapsed());
        done.is_some()
    }

    /// Takes in what became of a sequence.
    pub(crate) fn advanced(&mut self, work: &SeqWork, accepted: usize, stats: &SharedStats) {
        let (id, drafted) = (work.id, work.drafts as usize);
        let class = self.classes.get(&id).copied();
        self.verified.push(Verified { id, class, drafted, accepted });
        if drafted > 0 {
            add(&stats.drafts, 1);
            add(&stats.draft_tokens, drafted);
            for position in stats.accepted_per_position.iter().take(accepted) {
                position.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Learns from a step that took so long, if all of it was decoding, a known token a sequence.
    pub(crate) fn learn(&mut self, plan: &StepPlan, took: Duration) {
        let plain = |work: &SeqWork| work.samples && work.known() == 1;
        if plan.works.len() == self.verified.len() && plan.works.iter().all(plain) {
            let Self { controller, drafter, verified, spent, .. } = self;
            let [proposing, preparing] = *spent;
            let took = took.saturating_sub(proposing + preparing);
            controller.learn(verified, (took, proposing), &|class| drafter.expected(class));
        }
    }

    /// A sequence has ended.
    pub(crate) fn forget(&mut self, id: SeqId) {
        self.drafter.forget(id);
        self.controller.forget(id);
    }
}

/// Hidden states of the tokens that stay, of the sequences that take drafts: of the `rows` of these ranges, where so
/// many tokens of each sequence are `computed`.
fn staying<'a>(
    ranges: &[SeqRange],
    rows: &'a [f32],
    computed: &HashMap<SeqId, usize>,
    sequences: &'a HashMap<SeqId, Sequence>,
) -> Vec<Computed<'a>> {
    let width = rows.len() / ranges.iter().map(|range| range.len).sum::<usize>().max(1);
    let (mut staying, mut rest) = (Vec::new(), rows);
    for &SeqRange { seq: id, start, len } in ranges {
        let (own, after) = rest.split_at(len * width);
        rest = after;
        let stay = computed.get(&id).map_or(0, |end| end.saturating_sub(start).min(len));
        let sequence = sequences.get(&id).filter(|sequence| stay > 0 && sequence.takes_drafts());
        staying.extend(sequence.map(|sequence| {
            let (tokens, hidden) = (sequence.tokens(), &own[..stay * width]);
            Computed { id, tokens, start, hidden }
        }));
    }
    staying
}

/// What a drafter gives; `None` where it has failed, which is logged.
fn drafting<T>(f: impl FnOnce() -> Result<T, DraftError>) -> Option<T> {
    match caught(f) {
        Ok(Ok(done)) => Some(done),
        Ok(Err(error)) => {
            tracing::error!(%error, "no more tokens are drafted");
            None
        }
        Err(panic) => {
            tracing::error!(panic, "no more tokens are drafted");
            None
        }
    }
}
