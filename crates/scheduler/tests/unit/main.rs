//! One behaviour a test: chunks, order, preemption, cancellation, refusals, drafts.

mod drafts;
mod eviction;
mod whole;

use taper_base::{SeqId, TokenId};
use taper_scheduler::{
    Admission, AdmitError, BlockPool, CountingPool, NoRoom, Scheduler, SchedulerConfig, SeqOutcome,
    SeqWork, StepPlan,
};

fn config(tokens: u32, seqs: u32) -> SchedulerConfig {
    SchedulerConfig {
        max_num_batched_tokens: tokens,
        max_num_seqs: seqs,
        ..SchedulerConfig::default()
    }
}

fn request(id: u64, prompt: u32, max_new: u32) -> Admission {
    let prompt = (0..prompt).collect();
    Admission {
        id: SeqId(id),
        prompt,
        max_new,
        all_logits: false,
        client: None,
        priority: 0,
        cut_tokens: 0,
        whole: Vec::new(),
    }
}

/// Commits a token for each work that samples.
fn run(s: &mut Scheduler, pool: &mut dyn BlockPool, plan: &StepPlan) {
    let outcomes: Vec<SeqOutcome> = plan
        .works
        .iter()
        .filter(|w| w.samples)
        .map(|w| SeqOutcome { id: w.id, new_token: Some(1000), finished: false })
        .collect();
    s.commit(&outcomes, pool);
}

fn step(s: &mut Scheduler, pool: &mut dyn BlockPool) -> StepPlan {
    let plan = s.plan(pool);
    run(s, pool, &plan);
    plan
}

/// (id, start, len, samples)
fn short(plan: &StepPlan) -> Vec<(u64, u32, u32, bool)> {
    plan.works.iter().map(|w| (w.id.0, w.start, w.len, w.samples)).collect()
}

#[test]
fn a_long_prompt_runs_in_chunks_while_others_decode() {
    let mut pool = CountingPool::new(100, 4);
    let mut s = Scheduler::new(config(8, 4));
    s.admit(request(0, 2, 9), &pool).unwrap();
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 0, 2, true)]);
    s.admit(request(1, 20, 2), &pool).unwrap();
    s.admit(request(2, 3, 2), &pool).unwrap();
    // Half of the seven tokens that are left, rounded up, is the first prompt's.
    let plan = step(&mut s, &mut pool);
    assert_eq!(short(&plan), [(0, 2, 1, true), (2, 0, 3, true), (1, 0, 4, false)]);
    assert_eq!((plan.tokens(), plan.logit_rows()), (8, 2));
    let plan = step(&mut s, &mut pool);
    assert_eq!(short(&plan), [(0, 3, 1, true), (2, 3, 1, true), (1, 4, 6, false)]);
    // Sequence 2 has both of its tokens and is gone, without a word in the outcome.
    assert_eq!(s.running(), 2);
    assert_eq!(pool.held(SeqId(2)), 0);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 4, 1, true), (1, 10, 7, false)]);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 5, 1, true), (1, 17, 3, true)]);
}

#[test]
fn the_last_is_preempted_and_comes_back_first_with_its_tokens() {
    // Each takes two blocks to start; 0 then wants a third.
    let mut pool = CountingPool::new(6, 2);
    let mut s = Scheduler::new(config(16, 4));
    s.admit(request(0, 3, 9), &pool).unwrap();
    s.admit(request(1, 2, 5), &pool).unwrap();
    s.admit(request(2, 1, 5), &pool).unwrap();
    assert_eq!(step(&mut s, &mut pool).admitted.len(), 3);
    s.admit(request(3, 1, 1), &pool).unwrap();
    let mut preempted = Vec::new();
    let mut resumed = Vec::new();
    for _ in 0..60 {
        let plan = step(&mut s, &mut pool);
        preempted.extend(plan.preempted.iter().map(|id| id.0));
        for a in plan.admitted.iter().filter(|a| a.resumed) {
            let work = plan.works.iter().find(|w| w.id == a.id).unwrap();
            assert_eq!((work.start, a.cached_tokens), (0, 0));
            assert!(work.len > 1, "its generated tokens are computed again");
            resumed.push(a.id.0);
        }
        assert!(plan.preempted.is_empty() || plan.admitted.is_empty());
    }
    assert!(s.is_idle());
    assert_eq!(pool.free(), 6);
    assert_eq!(preempted[..2], [2, 1], "the newest first");
    assert_eq!(resumed[..2], [1, 2], "the oldest first");
}

#[test]
fn cancel_between_plan_and_commit() {
    let mut pool = CountingPool::new(10, 4);
    let mut s = Scheduler::new(config(16, 4));
    for id in 0..3 {
        s.admit(request(id, 4, 4), &pool).unwrap();
    }
    let plan = s.plan(&mut pool);
    assert_eq!(plan.works.len(), 3);
    assert!(s.cancel(SeqId(1), &mut pool));
    assert!(!s.cancel(SeqId(1), &mut pool));
    assert_eq!(pool.held(SeqId(1)), 0);
    // The same id again, before the outcome of its former owner comes in.
    s.admit(request(1, 2, 4), &pool).unwrap();
    run(&mut s, &mut pool, &plan);
    assert_eq!((s.running(), s.waiting()), (2, 1));
    let plan = step(&mut s, &mut pool);
    assert_eq!(short(&plan), [(0, 4, 1, true), (2, 4, 1, true), (1, 0, 2, true)]);
    // One that waits.
    s.admit(request(9, 4, 4), &pool).unwrap();
    assert!(s.cancel(SeqId(9), &mut pool));
    for id in 0..3 {
        assert!(s.cancel(SeqId(id), &mut pool));
    }
    assert!(s.is_idle());
    assert_eq!(pool.free(), pool.total());
    assert!(s.plan(&mut pool).is_empty());
}

#[test]
fn refusals() {
    let pool = CountingPool::new(4, 4);
    let mut s = Scheduler::new(SchedulerConfig { max_waiting: 2, ..config(8, 2) });
    let never = AdmitError::NeverFits { need_tokens: 17, capacity_tokens: 16 };
    assert_eq!(s.admit(request(0, 10, 7), &pool), Err(never));
    let never = AdmitError::NeverFits { need_tokens: 1 + (1 << 32) - 1, capacity_tokens: 16 };
    assert_eq!(s.admit(request(0, 1, u32::MAX), &pool), Err(never));
    assert_eq!(s.admit(request(0, 0, 1), &pool), Err(AdmitError::EmptyPrompt { id: SeqId(0) }));
    s.admit(request(0, 10, 6), &pool).unwrap();
    assert_eq!(s.admit(request(0, 1, 1), &pool), Err(AdmitError::DuplicateId { id: SeqId(0) }));
    s.admit(request(1, 1, 1), &pool).unwrap();
    assert_eq!(s.admit(request(2, 1, 1), &pool), Err(AdmitError::QueueFull { limit: 2 }));
    assert_eq!((s.waiting(), s.running()), (2, 0));
}

#[test]
fn a_newcomer_leaves_room_unless_alone() {
    let mut pool = CountingPool::new(4, 4);
    let mut s = Scheduler::new(config(64, 4));
    s.admit(request(0, 8, 1), &pool).unwrap();
    s.admit(request(1, 8, 1), &pool).unwrap();
    assert_eq!(step(&mut s, &mut pool).works.len(), 1, "no block would be left");
    assert_eq!(step(&mut s, &mut pool).works.len(), 1);
    s.admit(request(2, 15, 1), &pool).unwrap();
    assert_eq!(short(&step(&mut s, &mut pool)), [(2, 0, 15, true)], "alone it takes all");
    assert!(s.is_idle());
}

#[test]
fn prompt_logits_limit_the_chunk_and_are_asked_for_once() {
    let mut pool = CountingPool::new(3, 4);
    let mut s = Scheduler::new(SchedulerConfig { max_logit_rows: 4, ..config(64, 2) });
    s.admit(request(0, 1, 10), &pool).unwrap();
    step(&mut s, &mut pool);
    s.admit(Admission { all_logits: true, ..request(1, 4, 4) }, &pool).unwrap();
    let work = |start, len, samples, logit_rows| SeqWork {
        id: SeqId(1),
        start,
        len,
        samples,
        logit_rows,
        drafts: 0,
    };
    assert_eq!(step(&mut s, &mut pool).works[1], work(0, 3, false, 3));
    assert_eq!(step(&mut s, &mut pool).works[1], work(3, 1, true, 1));
    assert_eq!(step(&mut s, &mut pool).works[1], work(4, 1, true, 1));
    // 0 grows until 1 has to go, and 1 comes back without rows for its prompt.
    let back = (0..30)
        .map(|_| step(&mut s, &mut pool))
        .find_map(|p| p.admitted.first().map(|_| p.works[p.works.len() - 1]))
        .unwrap();
    assert_eq!((back.id, back.start, back.samples, back.logit_rows), (SeqId(1), 0, true, 1));
    assert!(back.len > 4);
}

#[test]
fn a_prompt_alone_computes_and_ends() {
    let mut pool = CountingPool::new(3, 4);
    let mut s = Scheduler::new(config(3, 2));
    s.admit(Admission { all_logits: true, ..request(1, 5, 0) }, &pool).unwrap();
    let plan = step(&mut s, &mut pool);
    assert_eq!((short(&plan), plan.logit_rows()), (vec![(1, 0, 3, false)], 3));
    let plan = step(&mut s, &mut pool);
    assert_eq!((short(&plan), plan.logit_rows()), (vec![(1, 3, 2, false)], 2));
    assert!(s.is_idle());
    assert_eq!(pool.free(), 3);
}

#[test]
fn a_plan_without_commit_or_without_a_token_is_planned_again() {
    let mut pool = CountingPool::new(8, 4);
    let mut s = Scheduler::new(config(8, 2));
    s.admit(request(0, 5, 3), &pool).unwrap();
    let first = s.plan(&mut pool);
    let again = s.plan(&mut pool);
    assert_eq!(first.works, again.works);
    s.commit(&[], &mut pool);
    assert_eq!(short(&s.plan(&mut pool)), [(0, 4, 1, true)]);
}

#[test]
fn limits_are_made_consistent() {
    let s = Scheduler::new(SchedulerConfig {
        max_num_batched_tokens: 16,
        max_num_seqs: 64,
        max_logit_rows: 0,
        max_waiting: 0,
        eviction: None,
    });
    let c = s.config();
    assert_eq!((c.max_num_seqs, c.max_logit_rows, c.max_waiting), (1, 1, 1));
    assert_eq!(c.max_num_batched_tokens, 16);
}

/// A pool that finds the first block of every prompt.
#[derive(Debug)]
struct Sharing(CountingPool, Vec<TokenId>);

impl BlockPool for Sharing {
    fn total(&self) -> u32 {
        self.0.total()
    }
    fn free(&self) -> u32 {
        self.0.free()
    }
    fn block_tokens(&self) -> u32 {
        self.0.block_tokens()
    }
    fn grow(&mut self, id: SeqId, tokens: u32) -> Result<(), NoRoom> {
        self.0.grow(id, tokens)
    }
    fn release(&mut self, id: SeqId) {
        self.0.release(id);
    }
    fn adopt_prefix(&mut self, id: SeqId, tokens: &[TokenId]) -> u32 {
        self.1 = tokens.to_vec();
        let whole = tokens.len() as u32 / 4 * 4;
        self.0.grow(id, whole).map_or(0, |()| whole)
    }
}

#[test]
fn an_adopted_prefix_is_not_computed_but_its_last_token_is() {
    let mut pool = Sharing(CountingPool::new(8, 4), Vec::new());
    let mut s = Scheduler::new(config(64, 4));
    s.admit(request(0, 8, 2), &pool).unwrap();
    let plan = step(&mut s, &mut pool);
    assert_eq!(pool.1, [0, 1, 2, 3, 4, 5, 6], "the last token is never looked up");
    assert_eq!(short(&plan), [(0, 4, 4, true)]);
    assert_eq!(plan.admitted[0].cached_tokens, 4);
    // With logits wanted for every token, nothing can be skipped.
    s.admit(Admission { all_logits: true, ..request(1, 8, 2) }, &pool).unwrap();
    let plan = step(&mut s, &mut pool);
    assert_eq!(short(&plan), [(0, 8, 1, true), (1, 0, 8, true)]);
    // Does not fit: what it adopted goes back.
    s.admit(request(2, 20, 2), &pool).unwrap();
    step(&mut s, &mut pool);
    assert_eq!((s.waiting(), pool.0.held(SeqId(2))), (1, 0));
}

/// A pool that says prefixes are reused by the block, and finds none.
#[derive(Debug)]
struct Forgetful(CountingPool);

impl BlockPool for Forgetful {
    fn total(&self) -> u32 {
        self.0.total()
    }
    fn free(&self) -> u32 {
        self.0.free()
    }
    fn block_tokens(&self) -> u32 {
        self.0.block_tokens()
    }
    fn grow(&mut self, id: SeqId, tokens: u32) -> Result<(), NoRoom> {
        self.0.grow(id, tokens)
    }
    fn release(&mut self, id: SeqId) {
        self.0.release(id);
    }
    fn prefix_tokens(&self) -> u32 {
        self.0.block_tokens()
    }
}

#[test]
fn a_prompt_waits_for_the_common_part_of_one_that_is_being_computed() {
    let mut pool = Forgetful(CountingPool::new(100, 4));
    let mut s = Scheduler::new(config(8, 4));
    // Sequence 1 begins with the first 10 tokens of sequence 0: two blocks of them count.
    s.admit(request(0, 20, 2), &pool).unwrap();
    s.admit(
        Admission {
            prompt: [&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], &[99; 9][..]].concat(),
            ..request(1, 1, 2)
        },
        &pool,
    )
    .unwrap();
    // Nobody else waits with it.
    s.admit(Admission { prompt: vec![77; 3], ..request(2, 1, 2) }, &pool).unwrap();
    assert_eq!(short(&step(&mut s, &mut pool)), [(2, 0, 3, true), (0, 0, 5, false)]);
    assert_eq!(short(&step(&mut s, &mut pool)), [(2, 3, 1, true), (0, 5, 7, false)]);
    // Both blocks are computed; the third step has room for it.
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 12, 8, true)]);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 20, 1, true), (1, 0, 7, false)]);
}

#[test]
fn only_who_came_earlier_is_waited_for() {
    let mut pool = Forgetful(CountingPool::new(100, 4));
    let mut s = Scheduler::new(config(8, 4));
    s.admit(request(0, 20, 1), &pool).unwrap();
    step(&mut s, &mut pool);
    // It waits for eight tokens of sequence 0, and is then about to start.
    let prompt = [&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], &[99; 40][..]].concat();
    s.admit(Admission { prompt: prompt.clone(), ..request(1, 1, 1) }, &pool).unwrap();
    // The common prefix of these and sequence 1 is their whole prompt, which they compute themselves.
    let mut steps = 0;
    for id in 2.. {
        let same = Admission { prompt: prompt[..4].to_vec(), ..request(id, 1, 1) };
        s.admit(same, &pool).unwrap();
        if step(&mut s, &mut pool).admitted.iter().any(|a| a.id == SeqId(1)) {
            break;
        }
        steps += 1;
        assert!(steps < 8, "a stream of later prompts holds it up");
    }
}

#[test]
fn a_second_choice_of_a_long_prompt_holds_up_nobody() {
    let mut pool = Forgetful(CountingPool::new(100, 4));
    let mut s = Scheduler::new(config(16, 4));
    s.admit(request(0, 100, 2), &pool).unwrap();
    s.admit(request(1, 100, 2), &pool).unwrap();
    s.admit(Admission { prompt: vec![77; 3], ..request(2, 1, 1) }, &pool).unwrap();
    assert_eq!(short(&step(&mut s, &mut pool)), [(2, 0, 3, true), (0, 0, 13, false)]);
}

#[test]
fn a_prompt_whose_logits_are_all_wanted_waits_for_nobody() {
    let mut pool = Forgetful(CountingPool::new(100, 4));
    let mut s = Scheduler::new(config(12, 4));
    s.admit(request(0, 8, 2), &pool).unwrap();
    s.admit(Admission { all_logits: true, ..request(1, 8, 2) }, &pool).unwrap();
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 0, 8, true), (1, 0, 4, false)]);
}

#[test]
fn a_short_prompt_behind_long_ones_runs_in_the_next_step() {
    let mut pool = CountingPool::new(10_000, 32);
    let mut s = Scheduler::new(config(512, 256));
    for id in 0..6 {
        let prompt = (0..6000).map(|t| id as u32 * 6000 + t).collect();
        s.admit(Admission { prompt, ..request(id, 1, 20) }, &pool).unwrap();
    }
    step(&mut s, &mut pool);
    s.admit(request(6, 1, 1), &pool).unwrap();
    let plan = step(&mut s, &mut pool);
    assert_eq!(short(&plan), [(6, 0, 1, true), (0, 512, 511, false)]);
    // Long ones of one length do not slow each other down: they run one after the other.
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 1023, 512, false)]);
    assert_eq!(s.running(), 1);
}

#[test]
fn nobody_passes_one_that_waits_for_room() {
    let mut pool = CountingPool::new(20, 4);
    let mut s = Scheduler::new(config(8, 4));
    s.admit(request(0, 40, 1), &pool).unwrap();
    step(&mut s, &mut pool);
    // Nine blocks are free beside the watermark. This one needs them all, and is not yet its turn.
    s.admit(request(1, 36, 1), &pool).unwrap();
    s.admit(request(2, 1, 1), &pool).unwrap();
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 8, 8, false)]);
    // One of eight blocks leaves room for both.
    assert!(s.cancel(SeqId(1), &mut pool));
    s.admit(request(3, 32, 1), &pool).unwrap();
    s.admit(request(4, 1, 1), &pool).unwrap();
    assert_eq!(short(&step(&mut s, &mut pool)), [(2, 0, 1, true), (0, 16, 7, false)]);
    assert_eq!(short(&step(&mut s, &mut pool)), [(4, 0, 1, true), (0, 23, 7, false)]);
}

#[test]
fn choices_of_one_client_do_not_hold_up_another_client() {
    let mut pool = CountingPool::new(10_000, 4);
    let mut s = Scheduler::new(SchedulerConfig { max_waiting: 2000, ..config(64, 8) });
    for id in 0..1280 {
        let client = Some(id / 128);
        s.admit(Admission { client, ..request(id, 2, 4) }, &pool).unwrap();
    }
    s.admit(Admission { client: Some(99), ..request(5000, 2, 4) }, &pool).unwrap();
    let (mut started, mut ahead) = (false, 0);
    while !started {
        let plan = step(&mut s, &mut pool);
        for admitted in plan.admitted {
            match admitted.id == SeqId(5000) {
                true => started = true,
                false => ahead += u32::from(!started),
            }
        }
    }
    assert!(ahead < 50, "{ahead} of 1280 came first");
}

#[test]
fn prompts_are_limited_besides_and_decodes_are_not() {
    let mut pool = CountingPool::new(100, 4);
    let mut s = Scheduler::new(config(16, 4));
    s.admit(request(0, 2, 9), &pool).unwrap();
    step(&mut s, &mut pool);
    s.admit(request(1, 20, 2), &pool).unwrap();
    s.limit_prompts(3);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 2, 1, true), (1, 0, 3, false)]);
    s.limit_prompts(0);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 3, 1, true), (1, 3, 1, false)]);
    s.limit_prompts(u32::MAX);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 4, 1, true), (1, 4, 15, false)]);
}

#[test]
fn tokens_that_were_not_sampled_are_computed_with_the_next_step() {
    let mut pool = CountingPool::new(100, 4);
    let mut s = Scheduler::new(config(8, 4));
    s.admit(request(0, 3, 12), &pool).unwrap();
    s.admit(request(1, 2, 9), &pool).unwrap();
    step(&mut s, &mut pool);
    s.append(SeqId(0), &[7, 8, 9]);
    s.append(SeqId(5), &[1]);
    // The sampled token and the three after it, before any prompt.
    s.admit(request(2, 9, 1), &pool).unwrap();
    let plan = step(&mut s, &mut pool);
    assert_eq!(short(&plan), [(0, 3, 4, true), (1, 2, 1, true), (2, 0, 3, false)]);
    let plan = step(&mut s, &mut pool);
    assert_eq!(short(&plan)[..2], [(0, 7, 1, true), (1, 3, 1, true)]);
    // Never more than the sequence may have: six are there, and of twelve one is to be sampled.
    s.append(SeqId(0), &[1; 20]);
    let plan = s.plan(&mut pool);
    assert_eq!(short(&plan)[0], (0, 8, 6, true));
}

#[test]
fn lower_priorities_come_first_and_are_preempted_last() {
    let mut pool = CountingPool::new(6, 2);
    let mut s = Scheduler::new(config(16, 2));
    let of = |id, priority| Admission { priority, ..request(id, 4, 6) };
    s.admit(of(0, 0), &pool).unwrap();
    step(&mut s, &mut pool);
    s.admit(of(1, 5), &pool).unwrap();
    s.admit(of(2, -1), &pool).unwrap();
    // One place is free, and who came later takes it.
    let plan = step(&mut s, &mut pool);
    assert_eq!(plan.admitted.iter().map(|a| a.id.0).collect::<Vec<_>>(), [2]);
    // Two of them do not fit to their ends: the one of the higher number gives way.
    let (mut preempted, mut order) = (Vec::new(), Vec::new());
    while !s.is_idle() {
        let plan = step(&mut s, &mut pool);
        preempted.extend(plan.preempted.iter().map(|id| id.0));
        order.extend(plan.admitted.iter().map(|a| a.id.0));
    }
    assert_eq!(preempted, [0]);
    assert_eq!(order, [0, 1]);
}

/// Also between a plan and its commit, which then says nothing of it.
#[test]
fn a_sequence_that_is_preempted_is_computed_again() {
    let mut pool = CountingPool::new(100, 4);
    let mut s = Scheduler::new(config(16, 4));
    (0..2).for_each(|id| s.admit(request(id, 6, 9), &pool).unwrap());
    step(&mut s, &mut pool);
    let plan = s.plan(&mut pool);
    assert!(s.preempt(SeqId(0), &mut pool));
    run(&mut s, &mut pool, &plan);
    let again = s.plan(&mut pool);
    assert_eq!(short(&again), [(1, 7, 1, true), (0, 0, 7, true)]);
    assert!(again.admitted[0].resumed);
}
