//! Tokens that are computed together.

use crate::{config, request, short, step};
use std::{iter::once, ops::Range};
use taper_scheduler::{Admission, AdmitError, CountingPool, Scheduler};

fn whole(tokens: Range<u32>, of: Admission) -> Admission {
    Admission { whole: once(tokens).collect(), ..of }
}

#[test]
fn no_work_ends_inside_of_what_is_computed_together() {
    let mut pool = CountingPool::new(100, 4);
    let mut s = Scheduler::new(config(8, 4));
    s.admit(request(0, 1, 9), &pool).unwrap();
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 0, 1, true)]);
    let whole = vec![3..11, 12..14];
    s.admit(Admission { whole, ..request(1, 15, 2) }, &pool).unwrap();
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 1, 1, true), (1, 0, 3, false)]);
    // There is no room for it beside the other sequence, which goes on a step later.
    assert_eq!(short(&step(&mut s, &mut pool)), [(1, 3, 8, false)]);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 2, 1, true), (1, 11, 4, true)]);
}

#[test]
fn a_limit_on_prompts_does_not_stop_what_is_computed_together() {
    let mut pool = CountingPool::new(100, 4);
    let mut s = Scheduler::new(config(8, 4));
    s.limit_prompts(2);
    s.admit(whole(0..6, request(0, 9, 1)), &pool).unwrap();
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 0, 6, false)]);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 6, 2, false)]);
    assert_eq!(short(&step(&mut s, &mut pool)), [(0, 8, 1, true)]);
}

#[test]
fn what_no_step_has_room_for_is_refused() {
    let pool = CountingPool::new(100, 4);
    let mut s = Scheduler::new(config(8, 4));
    let refused = s.admit(whole(1..10, request(0, 12, 1)), &pool);
    assert_eq!(refused, Err(AdmitError::TooManyAtOnce { tokens: 9, most: 8 }));
    s.admit(whole(1..9, request(0, 12, 1)), &pool).unwrap();
}
