//! Files that are nowhere but on disk, while others come and go.

use super::*;
use crate::disk::shared::lock;

fn name(i: u32) -> UnitName {
    UnitName::root("model").next(&[i])
}

fn store(tier: &DiskTier, i: u32) {
    tier.store(name(i), 1, vec![vec![i as u8; 1000]]);
}

fn until(what: impl Fn() -> bool) {
    let since = Instant::now();
    while !what() {
        assert!(since.elapsed() < Duration::from_secs(20), "it never comes to pass");
        thread::yield_now();
    }
}

/// A file that was pinned is there until it is unpinned, however many others need its room.
#[test]
fn a_file_that_was_pinned_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let tier = DiskTier::open_alone(dir.path(), 4500).unwrap();
    let mut kept = 0;
    for i in 0..4000 {
        store(&tier, i);
        // The writer is not far behind.
        until(|| *lock(&tier.shared.pending) < 6000);
        for older in i.saturating_sub(16)..i {
            if tier.pin(name(older)) {
                thread::yield_now();
                assert!(dir.path().join(name(older).file()).exists(), "{older} of {i}");
                tier.unpin(name(older));
                kept += 1;
            }
        }
    }
    assert!(kept > 0);
}

#[test]
fn what_is_forgotten_or_counted_again_leaves_pinned_files_alone() {
    let dir = tempfile::tempdir().unwrap();
    let tier = DiskTier::open_alone(dir.path(), 1 << 20).unwrap();
    (0..2).for_each(|i| store(&tier, i));
    until(|| tier.holds(&name(1)));
    assert!(tier.pin(name(0)));
    (0..2).for_each(|i| tier.forget(name(i)));
    assert!(tier.holds(&name(0)) && !tier.holds(&name(1)));
    until(|| !dir.path().join(name(1).file()).exists());
    // Somebody has pinned what was found again before its file was removed.
    let scanned = index::scan(dir.path()).unwrap();
    tier.shared.index().replace(scanned);
    assert!(tier.pin(name(0)));
    tier.shared.run(&Job::Remove(name(0)));
    assert!(dir.path().join(name(0).file()).exists());
    (0..2).for_each(|_| tier.unpin(name(0)));
    tier.forget(name(0));
    until(|| !dir.path().join(name(0).file()).exists());
}

/// No file is removed while files are counted: what the count has found would be known for longer than it is there.
#[test]
fn files_stay_while_they_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(dir.path(), 1 << 20).unwrap();
    store(&tier, 1);
    until(|| tier.holds(&name(1)));
    let path = dir.path().join(name(1).file());
    let counting = lock(&tier.shared.changing);
    let found = index::scan(dir.path()).unwrap();
    std::fs::write(&path, "damaged").unwrap();
    let reading = tier.request([(name(1), None)]);
    thread::sleep(Duration::from_millis(20));
    tier.shared.index().replace(found);
    assert!(path.exists());
    drop(counting);
    assert_eq!(tier.receive(&reading), Some((0, Err(Unread::Gone))));
    assert!(!tier.holds(&name(1)) && !path.exists() && !tier.pin(name(1)));
}

/// Counting again does not forget in which order files were used.
#[test]
fn a_count_keeps_the_order_of_use() {
    let dir = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(dir.path(), 1 << 20).unwrap();
    (0..3).for_each(|i| store(&tier, i));
    until(|| tier.holds(&name(2)));
    // One part of the first is read, which the file does not say.
    let reading = tier.request([(name(0), Some(0))]);
    assert!(tier.receive(&reading).is_some_and(|(_, rows)| rows.is_ok()));
    let mut index = tier.shared.index();
    index.replace(index::scan(dir.path()).unwrap());
    assert_eq!(index.take_oldest(0).map(|(name, _)| name), Some(name(1)));
}

/// Writes that get on are waited for as long as they may take together, and no longer.
#[test]
fn waiting_for_writes_has_one_end() {
    let dir = tempfile::tempdir().unwrap();
    let tier = DiskTier::open(dir.path(), 1 << 20).unwrap();
    assert!(!tier.wait_written(Instant::now() + DEADLINE), "nothing is to be written");
    // The writer waits for files to be counted.
    let counting = lock(&tier.shared.changing);
    store(&tier, 1);
    assert!(!tier.wait_written(Instant::now() + Duration::from_millis(5)));
    assert!(!tier.shared.writes.is_silent(), "it was not given the time");
    drop(counting);
    while tier.wait_written(Instant::now() + DEADLINE) {}
    assert!(tier.holds(&name(1)));
}
