//! Random admissions, cancellations and outcomes, against what must hold in every step.
#![allow(clippy::unwrap_used)] // helpers of tests are not seen as tests

use proptest::prelude::*;
use std::{collections::BTreeMap, ops::Range};
use taper_base::SeqId;
use taper_scheduler::{
    Admission, AdmitError, BlockPool, CountingPool, Scheduler, SchedulerConfig, SeqOutcome,
    StepPlan,
};

#[derive(Debug, Clone)]
enum Call {
    Admit {
        prompt: u32,
        max_new: u32,
        all_logits: bool,
        /// Where tokens that are computed together begin and how many they are, of so many.
        whole: Option<(u32, u32)>,
    },
    /// Cancels the sequence that this index hits, between plan and commit or outside.
    Cancel { index: usize, mid_step: bool },
    /// The sequence hit ends early.
    Step { ends: Option<usize> },
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        3 => (1u32..30, 0u32..40, prop::bool::weighted(0.2), prop::option::weighted(0.3, (0u32..30, 1u32..30)))
            .prop_map(|(prompt, max_new, all_logits, whole)| Call::Admit { prompt, max_new, all_logits, whole }),
        1 => (any::<usize>(), any::<bool>())
            .prop_map(|(index, mid_step)| Call::Cancel { index, mid_step }),
        8 => prop::option::weighted(0.1, any::<usize>()).prop_map(|ends| Call::Step { ends }),
    ];
    prop::collection::vec(call, 1..150)
}

fn configs() -> impl Strategy<Value = SchedulerConfig> {
    (1u32..40, 1u32..9, 1u32..30, 1u32..12).prop_map(|(tokens, seqs, rows, waiting)| {
        SchedulerConfig {
            max_num_batched_tokens: tokens,
            max_num_seqs: seqs,
            max_logit_rows: rows,
            max_waiting: waiting,
            eviction: None,
        }
    })
}

/// What the engine would know of a sequence.
#[derive(Debug, Clone)]
struct Known {
    prompt: u32,
    max_new: u32,
    all_logits: bool,
    whole: Option<Range<u32>>,
    generated: u32,
    /// Tokens whose keys are in the cache.
    computed: u32,
    holds_blocks: bool,
    prompt_rows: u32,
}

impl Known {
    fn len(&self) -> u32 {
        self.prompt + self.generated
    }
    fn decodes(&self) -> bool {
        self.holds_blocks && self.generated > 0 && self.computed + 1 == self.len()
    }
}

struct World {
    scheduler: Scheduler,
    pool: CountingPool,
    live: BTreeMap<SeqId, Known>,
    next_id: u64,
    plans: Vec<StepPlan>,
}

impl World {
    fn new(config: SchedulerConfig, pool: CountingPool) -> Self {
        let scheduler = Scheduler::new(config);
        Self { scheduler, pool, live: BTreeMap::new(), next_id: 0, plans: Vec::new() }
    }

    fn hit(&self, index: usize) -> Option<SeqId> {
        let n = self.live.len();
        (n > 0).then(|| self.live.keys().copied().nth(index % n)).flatten()
    }

    fn admit(&mut self, prompt: u32, max_new: u32, all_logits: bool) {
        self.admit_with(prompt, max_new, all_logits, None);
    }

    fn admit_with(
        &mut self,
        prompt: u32,
        max_new: u32,
        all_logits: bool,
        whole: Option<(u32, u32)>,
    ) {
        let whole = whole.map(|(start, n)| start % prompt..(start % prompt + n).min(prompt));
        let id = SeqId(self.next_id);
        self.next_id += 1;
        let prompt_tokens = (0..prompt).collect();
        let admission = Admission {
            id,
            prompt: prompt_tokens,
            max_new,
            all_logits,
            client: None,
            priority: 0,
            cut_tokens: 0,
            whole: whole.iter().cloned().collect(),
        };
        let capacity = self.pool.total() * self.pool.block_tokens();
        match self.scheduler.admit(admission, &self.pool) {
            Ok(()) => {
                assert!(prompt + max_new <= capacity);
                let known = Known {
                    prompt,
                    max_new,
                    all_logits,
                    whole,
                    generated: 0,
                    computed: 0,
                    holds_blocks: false,
                    prompt_rows: 0,
                };
                self.live.insert(id, known);
            }
            Err(AdmitError::NeverFits { .. }) => assert!(prompt + max_new > capacity),
            Err(AdmitError::TooManyAtOnce { tokens, most }) => {
                let config = self.scheduler.config();
                let rows = if all_logits { config.max_logit_rows } else { u32::MAX };
                assert_eq!(most, config.max_num_batched_tokens.min(rows));
                assert!(tokens > most && whole.is_some_and(|whole| whole.len() as u32 == tokens));
            }
            Err(AdmitError::QueueFull { limit }) => {
                assert!(self.scheduler.waiting() >= limit as usize);
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn cancel(&mut self, index: usize) -> Option<SeqId> {
        let id = self.hit(index)?;
        assert!(self.scheduler.cancel(id, &mut self.pool));
        self.live.remove(&id);
        Some(id)
    }

    /// Plans, checks, perhaps cancels one, commits.
    fn step(&mut self, ends: Option<usize>, cancel: Option<usize>) {
        let decoding: Vec<SeqId> =
            self.live.iter().filter(|(_, k)| k.decodes()).map(|(id, _)| *id).collect();
        let plan = self.scheduler.plan(&mut self.pool);
        self.check(&plan, &decoding);
        if let Some(index) = cancel {
            self.cancel(index);
        }
        let ends = ends.and_then(|i| self.hit(i));
        let mut outcomes = Vec::new();
        for w in &plan.works {
            let Some(k) = self.live.get_mut(&w.id) else { continue };
            k.computed = w.end();
            k.generated += u32::from(w.samples);
            let finished = ends == Some(w.id);
            if w.samples || finished {
                let new_token = w.samples.then_some(w.end());
                outcomes.push(SeqOutcome { id: w.id, new_token, finished });
            }
            let complete = k.generated == k.max_new && k.computed >= k.prompt;
            if complete || finished {
                self.live.remove(&w.id);
            }
        }
        self.scheduler.commit(&outcomes, &mut self.pool);
        let held: Vec<SeqId> =
            self.live.iter().filter(|(_, k)| k.holds_blocks).map(|(id, _)| *id).collect();
        for (id, _) in self.live.iter().filter(|(_, k)| !k.holds_blocks) {
            assert_eq!(self.pool.held(*id), 0, "it waits and holds blocks");
        }
        let sum: u32 = held.iter().map(|id| self.pool.held(*id)).sum();
        assert_eq!(self.pool.total() - self.pool.free(), sum, "blocks of nobody");
        assert_eq!(self.scheduler.running(), held.len());
        assert_eq!(self.scheduler.waiting(), self.live.len() - held.len());
        self.plans.push(plan);
    }

    fn check(&mut self, plan: &StepPlan, decoding: &[SeqId]) {
        let config = *self.scheduler.config();
        assert!(plan.tokens() <= config.max_num_batched_tokens);
        assert!(plan.logit_rows() <= config.max_logit_rows);
        assert!(self.scheduler.running() <= config.max_num_seqs as usize);
        for id in &plan.preempted {
            let k = self.live.get_mut(id).unwrap();
            assert!(k.holds_blocks);
            (k.holds_blocks, k.computed) = (false, 0);
        }
        for a in &plan.admitted {
            let k = self.live.get_mut(&a.id).unwrap();
            assert!(!k.holds_blocks);
            k.holds_blocks = true;
            assert!(plan.works.iter().any(|w| w.id == a.id));
        }
        self.check_first(plan, decoding);
        let mut ids: Vec<SeqId> = plan.works.iter().map(|w| w.id).collect();
        let alone = plan.works.iter().any(|w| {
            let whole = self.live[&w.id].whole.as_ref();
            whole.is_some_and(|whole| (w.start..w.end()).contains(&whole.start.max(w.start)))
        });
        for id in decoding {
            assert!(alone || ids.contains(id) || plan.preempted.contains(id), "{id:?} stalls");
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), plan.works.len(), "two works of one sequence");
        for w in &plan.works {
            let k = self.live.get_mut(&w.id).unwrap();
            assert!(k.holds_blocks && w.len > 0);
            assert_eq!(w.start, k.computed, "in order, without gap, once");
            let whole = k.whole.clone().unwrap_or_default();
            assert!(w.end() <= whole.start || w.end() >= whole.end, "cut");
            assert!(w.end() <= k.len());
            assert!(self.pool.held(w.id) * self.pool.block_tokens() >= w.end());
            assert_eq!(w.samples, w.end() == k.len() && k.max_new > 0);
            if k.all_logits && k.prompt_rows < k.prompt {
                assert_eq!(w.logit_rows, w.end().saturating_sub(w.start.max(k.prompt_rows)));
                k.prompt_rows = k.prompt_rows.max(w.end());
            } else {
                assert_eq!(w.logit_rows, u32::from(w.samples));
            }
        }
    }

    /// The first prompt by arrival has half of what the decodes leave, whatever came after it.
    fn check_first(&self, plan: &StepPlan, decoding: &[SeqId]) {
        let decodes = plan.works.iter().filter(|w| decoding.contains(&w.id)).count() as u32;
        let left = self.scheduler.config().max_num_batched_tokens - decodes;
        let prompts = self.live.iter().filter(|(id, k)| k.holds_blocks && !decoding.contains(id));
        let Some((id, k)) = prompts.min_by_key(|(id, _)| **id) else { return };
        let len = plan.works.iter().find(|w| w.id == *id).map_or(0, |w| w.len);
        let owed = if k.all_logits || k.whole.is_some() { 1 } else { left.div_ceil(2) };
        assert!(len >= owed.min(k.len() - k.computed), "{id:?} has {len} of {left} tokens");
    }

    /// Without new ones, all end. The oldest advances in every step, so that the tokens of all,
    /// each computed again for every other sequence at worst, bound the steps.
    fn drain(&mut self) {
        let tokens: u32 = self.live.values().map(|k| k.prompt + k.max_new).sum();
        let bound = (tokens + 1) * (self.live.len() as u32 + 1);
        for _ in 0..bound {
            if self.scheduler.is_idle() {
                break;
            }
            self.step(None, None);
            let plan = self.plans.last().unwrap();
            assert!(!plan.is_empty(), "no progress");
        }
        assert!(self.scheduler.is_idle(), "someone starves");
        assert!(self.live.is_empty());
        assert_eq!(self.pool.free(), self.pool.total());
    }
}

fn play(config: SchedulerConfig, pool: CountingPool, calls: &[Call]) -> Vec<StepPlan> {
    let mut world = World::new(config, pool);
    for call in calls {
        match *call {
            Call::Admit { prompt, max_new, all_logits, whole } => {
                world.admit_with(prompt, max_new, all_logits, whole);
            }
            Call::Cancel { index, mid_step: true } => world.step(None, Some(index)),
            Call::Cancel { index, mid_step: false } => {
                world.cancel(index);
            }
            Call::Step { ends } => world.step(ends, None),
        }
    }
    world.drain();
    world.plans
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn holds_in_every_step(
        config in configs(),
        (blocks, block_tokens) in (4u32..40, 1u32..5),
        calls in calls(),
    ) {
        let pool = CountingPool::new(blocks, block_tokens);
        let plans = play(config, pool.clone(), &calls);
        prop_assert_eq!(plans, play(config, pool, &calls), "the same calls give the same plans");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whoever is there when a stream of shorter prompts begins is done within a bound that does not
    /// depend on the stream.
    #[test]
    fn a_stream_of_shorter_prompts_starves_nobody(
        first in prop::collection::vec((1u32..400, 1u32..10), 1..6),
        stream in prop::collection::vec((1u32..30, 1u32..4), 1..4),
        tokens in 16u32..64,
        blocks in 120u32..400,
    ) {
        let config = SchedulerConfig {
            max_num_batched_tokens: tokens,
            max_num_seqs: 8,
            max_logit_rows: 64,
            max_waiting: 1000,
            eviction: None,
        };
        let mut world = World::new(config, CountingPool::new(blocks, 4));
        for &(prompt, max_new) in &first {
            world.admit(prompt, max_new, false);
        }
        // Half of what at most eight decodes leave is the first prompt's. Each may be computed again
        // for every one before it, and waits once for those of the stream that run.
        let own: u32 = first.iter().map(|(prompt, new)| 2 * prompt / (tokens - 8) + new + 10).sum();
        let bound = own * (1 + first.len() as u32);
        for _ in 0..bound {
            for &(prompt, max_new) in &stream {
                world.admit(prompt, max_new, false);
            }
            world.step(None, None);
        }
        let left = world.live.keys().filter(|id| id.0 < first.len() as u64).count();
        prop_assert_eq!(left, 0);
    }

    /// With room for all, a prompt that is shorter than half a step and than what is left of the others is
    /// computed in the step after it came.
    #[test]
    fn a_short_prompt_waits_for_one_step(
        long in prop::collection::vec(6000u32..8000, 1..12),
        short in 1u32..=100,
        steps in 0usize..20,
    ) {
        let config = SchedulerConfig { max_num_batched_tokens: 256, ..SchedulerConfig::default() };
        let mut world = World::new(config, CountingPool::new(10_000, 32));
        for prompt in long {
            world.admit(prompt, 50, false);
        }
        (0..steps).for_each(|_| world.step(None, None));
        let id = SeqId(world.next_id);
        world.admit(short, 1, false);
        world.step(None, None);
        prop_assert!(!world.live.contains_key(&id), "it has its token");
    }
}

/// A long request ends, however many short ones come after it.
#[test]
fn a_stream_of_newcomers_starves_nobody() {
    let config = SchedulerConfig {
        max_num_batched_tokens: 8,
        max_num_seqs: 8,
        max_logit_rows: 8,
        max_waiting: 4,
        eviction: None,
    };
    let mut world = World::new(config, CountingPool::new(20, 4));
    for _ in 0..4 {
        world.admit(1, 5, false);
    }
    world.step(None, None);
    let long = SeqId(world.next_id);
    world.admit(40, 10, true);
    let mut steps = 0;
    while world.live.contains_key(&long) {
        world.admit(1, 5, false);
        world.admit(1, 5, false);
        world.step(None, None);
        steps += 1;
        assert!(steps < 80);
    }
    world.drain();
}
