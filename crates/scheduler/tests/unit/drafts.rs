//! Drafted tokens in plans.

use super::{config, request, run, short, step};
use taper_base::{SeqId, TokenId};
use taper_scheduler::{BlockPool, CountingPool, Scheduler, SeqOutcome};

fn accept(s: &mut Scheduler, pool: &mut dyn BlockPool, id: u64, drafts: &[TokenId]) {
    s.accept(SeqId(id), drafts);
    s.commit(&[SeqOutcome { id: SeqId(id), new_token: Some(1000), finished: false }], pool);
}

#[test]
fn drafts_are_computed_with_the_next_step_and_kept_as_far_as_they_are_accepted() {
    let mut pool = CountingPool::new(100, 4);
    let mut s = Scheduler::new(config(32, 4));
    s.admit(request(0, 3, 12), &pool).unwrap();
    s.draft(SeqId(0), 3);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 0, 3, true)], "a prompt has none");
    s.draft(SeqId(0), 3);
    s.draft(SeqId(5), 3);
    let plan = s.plan(&mut pool);
    let work = plan.works[0];
    assert_eq!((work.start, work.len, work.known(), work.drafts), (3, 4, 1, 3));
    assert_eq!((work.samples, work.logit_rows), (true, 4));
    assert_eq!(pool.held(SeqId(0)), 2);
    // Two of three, and one that was sampled behind them: token 6.
    accept(&mut s, &mut pool, 0, &[7, 8]);
    assert_eq!(short(&s.plan(&mut pool)), [(0, 6, 1, true)], "drafts are for one step");
    s.draft(SeqId(0), 4);
    assert_eq!(short(&s.plan(&mut pool)), [(0, 6, 5, true)]);
    accept(&mut s, &mut pool, 0, &[]);
    // Of twelve tokens five are there: of six drafts behind the sixth, six can be used and no more.
    s.draft(SeqId(0), 9);
    assert_eq!(short(&s.plan(&mut pool)), [(0, 7, 7, true)]);
    accept(&mut s, &mut pool, 0, &[1; 6]);
    assert!(s.is_idle(), "all twelve are there");
    assert_eq!(pool.held(SeqId(0)), 0);
}

#[test]
fn drafts_leave_room_for_prompts_and_preempt_nobody() {
    let mut pool = CountingPool::new(4, 4);
    let mut s = Scheduler::new(config(8, 4));
    s.admit(request(0, 3, 9), &pool).unwrap();
    step(&mut s, &mut pool);
    s.admit(request(1, 4, 4), &pool).unwrap();
    s.draft(SeqId(0), 8);
    // Of the seven tokens that are left, half is for drafts.
    let plan = step(&mut s, &mut pool);
    assert_eq!(short(&plan), [(0, 3, 4, true), (1, 0, 4, true)]);
}

#[test]
fn a_draft_without_a_block_is_not_computed() {
    let mut pool = CountingPool::new(3, 4);
    let mut s = Scheduler::new(config(32, 4));
    s.admit(request(0, 3, 5), &pool).unwrap();
    s.admit(request(1, 3, 5), &pool).unwrap();
    step(&mut s, &mut pool);
    (0..2).for_each(|id| s.draft(SeqId(id), 2));
    let plan = step(&mut s, &mut pool);
    assert_eq!(short(&plan), [(0, 3, 3, true), (1, 3, 1, true)]);
    assert!(plan.preempted.is_empty() && pool.free() == 0);
}

#[test]
fn who_is_preempted_has_no_draft_any_more() {
    let mut pool = CountingPool::new(3, 2);
    let mut s = Scheduler::new(config(32, 4));
    s.admit(request(0, 1, 5), &pool).unwrap();
    s.admit(request(1, 1, 3), &pool).unwrap();
    step(&mut s, &mut pool);
    step(&mut s, &mut pool);
    (0..2).for_each(|id| s.draft(SeqId(id), 1));
    let mut plan = s.plan(&mut pool);
    assert_eq!(plan.preempted, [SeqId(1)]);
    while !s.is_idle() {
        run(&mut s, &mut pool, &plan);
        plan = s.plan(&mut pool);
        assert!(plan.works.iter().all(|work| work.drafts == 0));
    }
}

#[test]
fn a_step_without_an_outcome_forgets_its_drafts() {
    let mut pool = CountingPool::new(100, 4);
    let mut s = Scheduler::new(config(32, 4));
    s.admit(request(0, 3, 12), &pool).unwrap();
    step(&mut s, &mut pool);
    s.draft(SeqId(0), 3);
    s.plan(&mut pool);
    s.commit(&[], &mut pool);
    assert_eq!(short(&s.plan(&mut pool)), [(0, 3, 1, true)]);
}
