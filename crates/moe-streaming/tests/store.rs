//! Experts come right whatever the disk does, and each is read as seldom as it can be.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::HashMap,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};
use taper_cpu::Bytes;
use taper_moe_streaming::{
    ExpertDisk, ExpertError, ExpertKey, ExpertStore, FakeDisk, HEADER_BYTES, Limits, PAGE,
    StoreConfig, Trouble, Uses, Wanted,
};

const PAYLOAD: usize = 3000;

fn fill(key: ExpertKey, payload: &mut [u8]) {
    payload.fill((key.layer * 100 + key.expert) as u8);
}

/// The byte that a record is made of, all of it.
fn make(_: ExpertKey, record: &Bytes) -> Result<u8, Box<dyn std::error::Error + Send + Sync>> {
    let payload = &record.as_slice()[HEADER_BYTES..][..PAYLOAD];
    assert!(payload.iter().all(|b| *b == payload[0]), "a record is written while it is read");
    Ok(payload[0])
}

fn key(layer: u32, expert: u32) -> ExpertKey {
    ExpertKey { layer, expert }
}

fn wanted(experts: &[u32]) -> Vec<Wanted> {
    experts.iter().map(|&expert| Wanted { expert, rows: 1 }).collect()
}

fn store(disk: &Arc<FakeDisk>, slots: u64, prefetch: usize) -> ExpertStore<u8> {
    let mut config = StoreConfig::new(slots * PAGE as u64, 4);
    config.prefetch = prefetch;
    ExpertStore::new(Arc::clone(disk) as Arc<dyn ExpertDisk>, make, config).unwrap()
}

fn disk(layers: usize, experts: usize) -> Arc<FakeDisk> {
    Arc::new(FakeDisk::new(vec![experts; layers], PAYLOAD, fill))
}

/// Fetches some experts and checks them.
fn fetch(store: &ExpertStore<u8>, layer: u32, experts: &[u32]) -> Result<(), ExpertError> {
    let mut fetch = store.fetch(layer, &wanted(experts), 1);
    let mut got = Vec::new();
    while let Some((expert, byte)) = fetch.next()? {
        assert_eq!(u32::from(*byte), layer * 100 + expert);
        got.push(expert);
    }
    assert!(fetch.is_complete());
    got.sort_unstable();
    assert_eq!(got, experts);
    Ok(())
}

#[test]
fn experts_come_once_whatever_room_there_is() {
    for slots in [4, 5, 9, 16, 40] {
        let disk = disk(2, 20);
        let store = store(&disk, slots, 0);
        for round in 0..5u32 {
            for layer in 0..2 {
                let few: Vec<u32> = (0..4).map(|i| (i * 5 + round) % 20).collect();
                let mut few = few;
                few.sort_unstable();
                fetch(&store, layer, &few).unwrap();
            }
        }
        disk.take_reads();
        // More than there is room for: each is read once, or was there.
        fetch(&store, 1, &Vec::from_iter(0..20)).unwrap();
        let (reads, order) = disk.take_reads();
        assert!(reads.values().all(|&n| n == 1), "{slots}: {reads:?}");
        assert!(order.iter().is_sorted() || slots > 4, "in the order of the file");
        let stats = store.stats();
        assert_eq!(stats.hits + stats.misses, 5 * 2 * 4 + 20);
        assert!(stats.resident <= stats.slots && stats.slots == slots);
        assert_eq!(stats.read_bytes, stats.misses * PAGE as u64);
    }
}

#[test]
fn a_read_that_fails_once_is_tried_again_and_one_that_fails_twice_is_an_error() {
    let disk = disk(1, 8);
    let store = store(&disk, 5, 0);
    type Kind = fn(u32) -> Trouble;
    for (trouble, expert) in [
        (Trouble::Fails as Kind, 1),
        (Trouble::EndsEarly as Kind, 2),
        (Trouble::FlipsBit as Kind, 3),
    ] {
        disk.trouble(key(0, expert), trouble(1));
        fetch(&store, 0, &[0, expert]).unwrap();
    }
    assert_eq!(store.stats().retries, 3);
    for (trouble, expert) in [
        (Trouble::Fails as Kind, 5),
        (Trouble::EndsEarly as Kind, 6),
        (Trouble::FlipsBit as Kind, 7),
    ] {
        disk.trouble(key(0, expert), trouble(2));
        let error = fetch(&store, 0, &[4, expert]).unwrap_err();
        match (expert, &error) {
            (5, ExpertError::Read { key, .. })
            | (6, ExpertError::Short { key, .. })
            | (7, ExpertError::Checksum { key, .. }) => assert_eq!(key.expert, expert),
            other => panic!("{other:?}"),
        }
        // The next step is whole again.
        fetch(&store, 0, &[0, 4, expert]).unwrap();
    }
}

/// Whoever waits for a read is told, and the thread that read goes on.
#[test]
fn a_read_that_panics_is_an_error() {
    let disk = disk(1, 8);
    let store = store(&disk, 5, 0);
    disk.trouble(key(0, 1), Trouble::Panics(2));
    let error = fetch(&store, 0, &[0, 1]).unwrap_err();
    assert!(matches!(error, ExpertError::Panicked { .. }), "{error:?}");
    fetch(&store, 0, &[0, 1]).unwrap();
}

/// Steps that wait for a disk that hangs end with an error; others go on, and so does the expert once the disk does.
#[test]
fn a_disk_that_hangs_is_an_error() {
    let (disk, deadline) = (disk(1, 8), Duration::from_millis(100));
    let store = || {
        let mut config = StoreConfig::new(5 * PAGE as u64, 4);
        config.deadline = deadline;
        ExpertStore::new(Arc::clone(&disk) as Arc<dyn ExpertDisk>, make, config).unwrap()
    };
    let silent = |error: ExpertError| {
        assert!(matches!(error, ExpertError::Silent { after } if after == deadline), "{error}");
    };
    disk.trouble(key(0, 1), Trouble::Slow(Duration::from_millis(700)));
    let first = store();
    silent(fetch(&first, 0, &[0, 1]).unwrap_err());
    fetch(&first, 0, &[0, 2]).unwrap();
    until(|| fetch(&first, 0, &[0, 1]).is_ok());
    // Nobody waits for its threads either.
    disk.trouble(key(0, 1), Trouble::Slow(Duration::from_secs(3600)));
    silent(fetch(&store(), 0, &[0, 1]).unwrap_err());
    silent(store().measure(8).unwrap_err());
}

#[test]
fn slow_experts_come_after_others_and_waiting_is_counted() {
    let disk = disk(1, 8);
    let store = store(&disk, 8, 0);
    disk.trouble(key(0, 0), Trouble::Slow(Duration::from_millis(50)));
    let mut fetch = store.fetch(0, &wanted(&[0, 1, 2]), 1);
    let mut order = Vec::new();
    while let Some((expert, _)) = fetch.next().unwrap() {
        order.push(expert);
    }
    drop(fetch);
    assert_eq!(order.last(), Some(&0));
    assert!(store.stats().stall > Duration::from_millis(10));
}

#[test]
fn held_experts_leave_no_room_and_that_is_an_error() {
    let disk = disk(1, 8);
    let store = store(&disk, 4, 0);
    let mut fetch = store.fetch(0, &wanted(&Vec::from_iter(0..8)), 1);
    let mut held = Vec::new();
    let error = loop {
        match fetch.next() {
            Ok(Some(expert)) => held.push(expert),
            Ok(None) => panic!("four slots hold eight"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ExpertError::NoSlot { slots: 4 }));
    assert_eq!(held.len(), 4);
}

/// Waits until something has come to pass in the background.
fn until(what: impl Fn() -> bool) {
    let since = Instant::now();
    while !what() {
        assert!(since.elapsed() < Duration::from_secs(20), "it never comes to pass");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_prefetched_is_there_and_waste_is_counted() {
    let disk = disk(2, 8);
    let store = store(&disk, 6, 3);
    fetch(&store, 0, &[1]).unwrap();
    disk.take_reads();
    store.prefetch(1, [3, 4, 5, 6]);
    let reads = std::cell::RefCell::new(HashMap::new());
    until(|| {
        reads.borrow_mut().extend(disk.take_reads().0);
        reads.borrow().len() == 3
    });
    fetch(&store, 1, &[3, 7]).unwrap();
    let stats = store.stats();
    assert_eq!(stats.prefetch_useful, 1);
    assert_eq!(disk.take_reads().0.keys().collect::<Vec<_>>(), [&key(1, 7)]);
    for expert in 0..8 {
        fetch(&store, 0, &[expert]).unwrap();
    }
    fetch(&store, 0, &[0]).unwrap();
    assert_eq!(store.stats().prefetch_wasted, 2);
}

#[test]
fn a_bank_is_warm_after_a_restart() {
    let disk = disk(2, 8);
    let first = store(&disk, 8, 0);
    for _ in 0..9 {
        fetch(&first, 1, &[2, 6]).unwrap();
    }
    fetch(&first, 0, &[0, 1, 2, 3, 4]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(Uses::FILE);
    first.uses().write(&path).unwrap();
    let second = store(&disk, 8, 0);
    second.warm_up(&Uses::read(&path, &disk.experts()).unwrap().unwrap());
    until(|| {
        // Experts are taken in by the next step.
        fetch(&second, 0, &[7]).unwrap();
        second.stats().resident >= 5
    });
    let misses = second.stats().misses;
    fetch(&second, 1, &[2, 6]).unwrap();
    assert_eq!(second.stats().misses, misses, "the most used are there");
}

#[test]
fn less_memory_than_a_token_needs_is_refused_with_what_is_missing() {
    let disk = disk(2, 8);
    let config = StoreConfig::new(3 * PAGE as u64 + 5, 4);
    let error = ExpertStore::new(disk, make, config).unwrap_err();
    let ExpertError::Floor { needed, given, slots: 4, .. } = error else { panic!("{error}") };
    assert_eq!(needed - given, PAGE as u64 - 5);
    assert!(error.to_string().contains(&format!("{} are missing", PAGE - 5)), "{error}");
}

#[test]
fn a_bank_follows_a_limit_but_not_below_its_floor() {
    let root = tempfile::tempdir().unwrap();
    let group = root.path().join("a");
    fs::create_dir(&group).unwrap();
    let write = |file: &str, bytes: usize| fs::write(group.join(file), bytes.to_string()).unwrap();
    write("memory.max", 100 * PAGE);
    write("memory.current", 90 * PAGE);
    let disk = disk(2, 8);
    let mut config = StoreConfig::new(12 * PAGE as u64, 4);
    config.limits = Limits::at(root.path(), "0::/a\n");
    let store = ExpertStore::new(disk, make, config).unwrap();
    fetch(&store, 0, &Vec::from_iter(0..8)).unwrap();
    write("memory.max", 90 * PAGE);
    until(|| {
        fetch(&store, 1, &[0, 1, 2]).unwrap();
        store.stats().slots < 12
    });
    assert_eq!((store.stats().slots, store.stats().shrunk), (6, 6));
    write("memory.max", 10 * PAGE);
    until(|| {
        fetch(&store, 1, &[0, 1, 2]).unwrap();
        store.stats().slots == 4
    });
    fetch(&store, 0, &Vec::from_iter(0..8)).unwrap();
    // Memory is there again, for two more slots and then for all.
    for (limit, slots) in [(109, 6), (1000, 12)] {
        write("memory.max", limit * PAGE);
        until(|| {
            fetch(&store, 1, &[0, 1, 2]).unwrap();
            store.stats().slots == slots
        });
        // What this process took is not in the file.
        write("memory.current", (86 + slots as usize) * PAGE);
    }
    store.shrink_to(0);
    assert_eq!(store.stats().slots, 4);
}

#[test]
fn traces_have_what_steps_used() {
    let disk = disk(2, 8);
    let store = store(&disk, 8, 0);
    store.start_trace();
    fetch(&store, 1, &[2, 6]).unwrap();
    let trace = store.take_trace().unwrap();
    assert_eq!(trace.to_text(), "1 1 2:1 6:1\n");
    assert!(store.take_trace().is_none());
}

#[test]
fn steps_of_several_threads_do_not_mix() {
    let disk = disk(2, 16);
    let store = store(&disk, 5, 2);
    std::thread::scope(|scope| {
        for t in 0..4u32 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..50u32 {
                    let mut few = vec![(i * 3 + t) % 16, (i * 5 + 1) % 16];
                    few.sort_unstable();
                    few.dedup();
                    fetch(store, i % 2, &few).unwrap();
                    store.prefetch((i + 1) % 2, [i % 16]);
                }
            });
        }
    });
}
