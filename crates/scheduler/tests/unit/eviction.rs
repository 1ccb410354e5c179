//! Rows leave where the schedule says, whatever else runs.

use super::*;
use taper_scheduler::EvictionSchedule;

const SCHEDULE: EvictionSchedule =
    EvictionSchedule { keep: 16, every: 8, unit: 4, keep_prompt: false };

fn evicting(tokens: u32, seqs: u32) -> Scheduler {
    Scheduler::new(SchedulerConfig { eviction: Some(SCHEDULE), ..config(tokens, seqs) })
}

/// Evicts what is due: (id, tokens, rows that go).
fn evict(s: &mut Scheduler) -> Vec<(u64, u32, u32)> {
    let due: Vec<_> = s.due().collect();
    due.iter().for_each(|due| s.evicted(due.id));
    due.iter().map(|due| (due.id.0, due.tokens, due.evict)).collect()
}

#[test]
fn a_long_prompt_is_computed_whole_and_then_cut() {
    let mut pool = CountingPool::new(20, 4);
    let mut s = evicting(16, 4);
    s.admit(request(0, 37, 30), &pool).unwrap();
    let mut seen = Vec::new();
    let mut rows = Vec::new();
    while !s.is_idle() {
        step(&mut s, &mut pool);
        rows.extend(s.due().map(|due| due.rows));
        seen.extend(evict(&mut s));
    }
    assert_eq!(seen, [(0, 37, 24), (0, 45, 8), (0, 53, 8), (0, 61, 8)]);
    assert_eq!(rows, [37, 21, 21, 21]);
}

#[test]
fn drafts_and_forced_tokens_end_where_rows_leave() {
    let mut pool = CountingPool::new(20, 4);
    let mut s = evicting(64, 4);
    s.admit(request(0, 22, 30), &pool).unwrap();
    step(&mut s, &mut pool);
    assert_eq!(evict(&mut s), []);
    s.draft(SeqId(0), 8);
    let plan = s.plan(&mut pool);
    assert_eq!((plan.works[0].start, plan.works[0].len, plan.works[0].drafts), (22, 2, 1));
    s.accept(SeqId(0), &[5]);
    run(&mut s, &mut pool, &plan);
    assert_eq!(evict(&mut s), [(0, 24, 8)]);
    // Eleven forced tokens: those up to the next eviction first, which sample nothing.
    s.append(SeqId(0), &[6; 11]);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 24, 8, false)]);
    assert_eq!(evict(&mut s), [(0, 32, 8)]);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 32, 4, true)]);
}

#[test]
fn who_is_preempted_loses_the_same_rows_again() {
    let mut pool = CountingPool::new(10, 4);
    let mut s = evicting(16, 4);
    s.admit(request(0, 10, 60), &pool).unwrap();
    let mut first = Vec::new();
    for _ in 0..40 {
        if first.len() == 2 {
            break;
        }
        step(&mut s, &mut pool);
        first.extend(evict(&mut s));
    }
    assert_eq!(first, [(0, 24, 8), (0, 32, 8)]);
    assert!(s.preempt(SeqId(0), &mut pool) && !s.preempt(SeqId(0), &mut pool));
    assert_eq!((pool.held(SeqId(0)), s.waiting()), (0, 1));
    let (mut again, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        if again.len() == 3 {
            break;
        }
        ends.extend(step(&mut s, &mut pool).works.iter().map(SeqWork::end));
        again.extend(evict(&mut s));
    }
    assert_eq!(again, [(0, 24, 8), (0, 32, 8), (0, 40, 8)]);
    assert_eq!(ends[..3], [16, 24, 32], "a work ends at an eviction");
}

#[test]
fn an_output_may_be_longer_than_the_pool() {
    let mut pool = CountingPool::new(6, 4);
    let mut s = evicting(16, 4);
    assert!(matches!(
        s.admit(request(1, 25, 1), &pool),
        Err(AdmitError::NeverFits { need_tokens: 25, capacity_tokens: 24 })
    ));
    s.admit(request(0, 10, 500), &pool).unwrap();
    let mut evictions = 0;
    for _ in 0..1000 {
        let plan = step(&mut s, &mut pool);
        assert!(plan.preempted.is_empty());
        evictions += evict(&mut s).len();
    }
    assert!(s.is_idle());
    assert_eq!(evictions, 61);
}
