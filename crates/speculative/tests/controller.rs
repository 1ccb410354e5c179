//! The controller drafts where it pays and nowhere else.

use std::time::Duration;
use taper_base::SeqId;
use taper_speculative::{Controller, Proposal, Verified};

const ID: SeqId = SeqId(1);

/// A machine on which a step takes 10 ms, and `more` times that longer for each drafted token. Runs so
/// many tokens of which drafts are right with probability `right`, and returns plain time over time.
fn speedup(tokens: usize, right: f64, more: f64, expected: f32) -> f64 {
    let mut controller = Controller::default();
    let expected = |_: usize| expected;
    let (mut out, mut time, mut state) = (0, 0.0, 9u64);
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as f64 / f64::from(1u32 << 31)
    };
    while out < tokens {
        let proposal = Proposal { id: ID, len: controller.most(ID, 1), class: 2 };
        let depth = controller.choose(1, 64, &[proposal], &expected)[0];
        let accepted = (0..depth).take_while(|_| random() < right).count();
        let took = 0.01 * (1.0 + more * depth as f64);
        let class = Some(2).filter(|_| proposal.len > 0);
        let seen = Verified { id: ID, class, drafted: depth, accepted };
        controller.learn(&[seen], (Duration::from_secs_f64(took), Duration::ZERO), &expected);
        out += 1 + accepted;
        time += took;
    }
    out as f64 * 0.01 / time
}

#[test]
fn it_gains_where_drafts_are_right() {
    assert!(speedup(2000, 0.95, 0.1, 0.5) > 3.0);
    assert!(speedup(2000, 0.7, 0.1, 0.5) > 1.7);
    assert!(speedup(2000, 0.95, 0.4, 0.5) > 1.3);
}

#[test]
fn it_loses_next_to_nothing_where_they_are_wrong_or_dear() {
    for (right, more) in [(0.0, 0.1), (0.0, 1.0), (0.1, 0.3), (0.3, 0.6), (0.9, 1.0), (0.99, 2.0)] {
        for expected in [0.2, 0.5, 0.9] {
            let got = speedup(4000, right, more, expected);
            assert!(got > 0.98, "{right} right at {more}, {expected} expected: {got}");
        }
    }
}

#[test]
fn sequences_share_a_step_by_what_they_promise() {
    let mut controller = Controller::default();
    let expected = |class: usize| if class == 0 { 0.05 } else { 0.95 };
    let ids = [SeqId(1), SeqId(2)];
    let plain = ids.map(|id| Verified { id, class: None, drafted: 0, accepted: 0 });
    (0..3).for_each(|_| {
        controller.learn(&plain, (Duration::from_millis(10), Duration::ZERO), &expected);
    });
    let proposals = [0, 1].map(|class| Proposal { id: ids[class], len: 8, class });
    let depths = controller.choose(2, 64, &proposals, &expected);
    assert!(depths[0] == 0 && depths[1] > 2, "{depths:?}");
    assert_eq!(controller.choose(2, 1, &proposals, &expected), [0, 1], "no room for more");
    assert_eq!(controller.choose(3, 64, &proposals, &expected), [0, 0], "such steps are unknown");
}

#[test]
fn a_proposal_that_was_slow_once_is_tried_again() {
    let mut controller = Controller::default();
    let expected = |_: usize| 0.5;
    let plain = Verified { id: ID, class: None, drafted: 0, accepted: 0 };
    let step = |controller: &mut Controller| {
        controller.learn(&[plain], (Duration::from_millis(10), Duration::ZERO), &expected);
    };
    (0..3).for_each(|_| step(&mut controller));
    controller.choose(1, 64, &[Proposal { id: ID, len: 4, class: 2 }], &expected);
    controller.learn_proposals(1, Duration::from_secs(1));
    assert_eq!(controller.most(ID, 1), 0);
    (0..1024).for_each(|_| step(&mut controller));
    assert!(controller.most(ID, 1) > 0);
}

#[test]
fn wrong_drafts_of_earlier_sequences_are_no_reason_for_ever() {
    let mut controller = Controller::default();
    let expected = |_: usize| 0.7;
    let step = |controller: &mut Controller, id, drafted, millis| {
        let class = Some(2).filter(|_| drafted > 0);
        let seen = Verified { id: SeqId(id), class, drafted, accepted: 0 };
        controller.learn(&[seen], (Duration::from_millis(millis), Duration::ZERO), &expected);
    };
    let choose = |controller: &mut Controller, id| {
        let proposal = Proposal { id: SeqId(id), len: 1, class: 2 };
        controller.choose(1, 64, &[proposal], &expected)[0]
    };
    (0..3).for_each(|_| step(&mut controller, 1, 0, 10));
    assert_eq!(choose(&mut controller, 1), 1);
    (0..8).for_each(|_| step(&mut controller, 1, 1, 13));
    controller.forget(SeqId(1));
    assert_eq!(choose(&mut controller, 2), 0);
    // Outputs too short to try again by themselves.
    for id in 2..100 {
        (0..50).for_each(|_| step(&mut controller, id, 0, 10));
        controller.forget(SeqId(id));
    }
    assert_eq!(choose(&mut controller, 100), 1);
}
