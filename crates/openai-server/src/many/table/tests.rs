//! What is unloaded for what, and when.

use super::*;

type T = Table<&'static str, ()>;

const MINUTE: Keep = Some(Duration::from_mins(1));

fn table(memory_bytes: u64, max_loaded: usize) -> (T, Instant) {
    (Table::new(Limits { memory_bytes, max_loaded }), Instant::now())
}

/// Loads a model of so many bytes, and ends the request that wanted it.
fn load(table: &mut T, name: &'static str, bytes: u64, now: Instant) -> Room {
    let Entry::Load(id, ()) = table.enter(name, MINUTE, now, ()) else { panic!("{name} is there") };
    let room = table.room(name, id, bytes);
    match room {
        Room::Here => table.loaded(name, id, name, bytes, false),
        Room::Wait | Room::Never => table.failed(name, id),
    }
    table.leave(name, id, now);
    room
}

fn leaving(table: &mut T, now: Instant) -> Vec<&'static str> {
    let gone = table.settle(now, |_| true);
    gone.iter().for_each(|l| table.removed(&l.name, l.id));
    gone.into_iter().map(|l| l.model).collect()
}

#[test]
fn the_model_that_was_not_used_longest_makes_room() {
    let (mut table, now) = table(20, 9);
    assert_eq!(load(&mut table, "a", 10, now), Room::Here);
    assert_eq!(load(&mut table, "b", 10, now), Room::Here);
    let Entry::Ready(id, "a") = table.enter("a", MINUTE, now, ()) else { panic!() };
    table.leave("a", id, now);
    assert_eq!(load(&mut table, "c", 10, now), Room::Wait);
    assert_eq!(leaving(&mut table, now), ["b"]);
    assert_eq!(load(&mut table, "c", 10, now), Room::Here);
    assert_eq!(table.bytes(), (20, 20));
    assert_eq!(table.counts()["b"].unloads, [1, 0, 0, 0]);
}

#[test]
fn a_model_in_use_is_unloaded_last_and_never_while_it_is() {
    let (mut table, now) = table(99, 2);
    load(&mut table, "a", 1, now);
    load(&mut table, "b", 1, now);
    let Entry::Ready(a, _) = table.enter("a", MINUTE, now, ()) else { panic!() };
    let Entry::Ready(b, _) = table.enter("b", MINUTE, now, ()) else { panic!() };
    table.leave("b", b, now);
    // `a` was used before `b`, but is in use.
    assert_eq!(load(&mut table, "c", 1, now), Room::Wait);
    assert_eq!(leaving(&mut table, now), ["b"]);
    load(&mut table, "b", 1, now);
    let Entry::Ready(b, _) = table.enter("b", MINUTE, now, ()) else { panic!() };
    assert_eq!(load(&mut table, "c", 1, now), Room::Wait);
    assert_eq!(leaving(&mut table, now), [""; 0]);
    // It takes no more requests, so that it ends.
    assert_eq!(table.enter("a", MINUTE, now, ()), Entry::Later);
    table.spare();
    assert!(matches!(table.enter("a", MINUTE, now, ()), Entry::Ready(..)));
    table.leave("a", a, now);
    assert_eq!(load(&mut table, "c", 1, now), Room::Wait);
    table.leave("a", a, now);
    table.leave("b", b, now);
    assert_eq!(leaving(&mut table, now).len(), 1);
}

#[test]
fn requests_share_a_load_and_its_failure() {
    let (mut table, now) = table(20, 9);
    let Entry::Load(id, ()) = table.enter("a", MINUTE, now, ()) else { panic!() };
    assert_eq!(table.enter("a", MINUTE, now, ()), Entry::Wait(id, ()));
    assert_eq!(table.model("a", id), None);
    table.failed("a", id);
    assert_eq!((table.model("a", id), table.is_gone("a")), (None, true));
    // Those who waited for the first leave without an effect on the second.
    let Entry::Load(second, ()) = table.enter("a", MINUTE, now, ()) else { panic!() };
    table.leave("a", id, now);
    assert_eq!(table.seen()["a"].uses, 1);
    assert_eq!(table.room("a", second, 5), Room::Here);
    table.loaded("a", second, "a", 4, false);
    assert_eq!((table.model("a", second), table.bytes()), (Some("a"), (4, 5)));
    assert_eq!((table.counts()["a"].loads, table.counts()["a"].failures), (1, 1));
}

#[test]
fn pinned_models_stay_and_can_leave_no_room() {
    let (mut table, now) = table(20, 9);
    let Entry::Load(id, ()) = table.enter("a", MINUTE, now, ()) else { panic!() };
    assert_eq!(table.room("a", id, 15), Room::Here);
    table.loaded("a", id, "a", 15, true);
    table.leave("a", id, now);
    assert_eq!(load(&mut table, "b", 10, now), Room::Never);
    assert_eq!(load(&mut table, "c", 5, now), Room::Here);
    let later = now + Duration::from_hours(1);
    assert_eq!(leaving(&mut table, later), ["c"]);
    assert!(table.retire("a", Reason::Asked), "a caller may unload it all the same");
    assert_eq!(leaving(&mut table, later), ["a"]);
    assert_eq!(load(&mut table, "b", 21, later), Room::Never);
}

#[test]
fn a_model_goes_when_it_was_idle_for_long_enough() {
    let (mut table, now) = table(20, 9);
    load(&mut table, "a", 1, now);
    let at = |seconds| now + Duration::from_secs(seconds);
    assert_eq!(leaving(&mut table, at(59)), [""; 0]);
    let Entry::Ready(id, _) = table.enter("a", MINUTE, at(59), ()) else { panic!() };
    assert_eq!(leaving(&mut table, at(300)), [""; 0], "it is in use");
    table.leave("a", id, at(300));
    assert_eq!(leaving(&mut table, at(359)), [""; 0]);
    assert!(table.settle(at(360), |_| false).is_empty(), "it computes something");
    assert_eq!(leaving(&mut table, at(360)), ["a"]);
    // Zero is at once, and nothing is for good.
    for (keep, stays) in [(Some(Duration::ZERO), false), (None, true)] {
        let Entry::Load(id, ()) = table.enter("b", keep, now, ()) else { panic!() };
        table.room("b", id, 1);
        table.loaded("b", id, "b", 1, false);
        table.leave("b", id, now);
        assert_eq!(leaving(&mut table, at(0)).is_empty(), stays);
    }
    assert_eq!(table.counts()["b"].unloads, [0, 1, 0, 0]);
    assert!(!table.retire("a", Reason::Asked));
}
