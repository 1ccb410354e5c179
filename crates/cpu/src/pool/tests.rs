//! Every task runs once, whatever else happens.

use super::*;
use std::sync::atomic::AtomicU32;

fn counted(pool: &Pool, tasks: usize) {
    let counts: Vec<_> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
    pool.run(tasks, &|i| {
        counts[i].fetch_add(1, SeqCst);
    });
    assert!(counts.iter().all(|c| c.load(SeqCst) == 1));
}

#[test]
fn every_task_runs_once() {
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads);
        for round in 0..2000 {
            counted(&pool, round % 23);
        }
        // Workers that have gone to sleep wake up.
        std::thread::sleep(SPIN * 5);
        counted(&pool, 1000);
    }
}

#[test]
fn guided_ranges_cover_everything_once() {
    for (len, least) in [(0, 1), (1, 1), (2, 4), (7, 4), (64, 1), (64, 0), (9497, 4), (9497, 1)] {
        let counts: Vec<_> = (0..len).map(|_| AtomicU32::new(0)).collect();
        guided(len, least, |range| {
            assert!(range.len() >= least.max(1) || range.end == len);
            counts[range].iter().for_each(|c| _ = c.fetch_add(1, SeqCst));
        });
        assert!(counts.iter().all(|c| c.load(SeqCst) == 1), "{len}");
    }
}

#[test]
fn lanes_cover_everything_once() {
    for parts in [0, 1, 2, 7, 64, 9497] {
        let counts: Vec<_> = (0..parts).map(|_| AtomicU32::new(0)).collect();
        lanes(parts, |ranges| {
            for range in ranges {
                assert!(!range.is_empty());
                counts[range].iter().for_each(|c| _ = c.fetch_add(1, SeqCst));
            }
        });
        assert!(counts.iter().all(|c| c.load(SeqCst) == 1), "{parts}");
    }
}

#[test]
fn callers_from_several_threads_and_nested_calls_are_served() {
    let pool = Pool::new(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..300).for_each(|i| counted(&pool, i % 17)));
        }
    });
    let sum = AtomicUsize::new(0);
    run(5, |i| run(7, |j| _ = sum.fetch_add(i * j, SeqCst)));
    assert_eq!(sum.into_inner(), 10 * 21);
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    let pool = Pool::new(3);
    for _ in 0..50 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(40, &|i| assert!(i != 20, "task twenty"));
        }));
        let payload = result.unwrap_err();
        assert!(
            payload.downcast_ref::<String>().is_some_and(|s| s.contains("task twenty"))
                || payload.downcast_ref::<&str>().is_some_and(|s| s.contains("task twenty"))
        );
        counted(&pool, 40);
    }
}

/// How many threads run a job. Each task waits until there are as many as threads, so none does two.
fn threads_of_a_job(pool: &Pool) -> usize {
    let (begun, deadline) = (AtomicUsize::new(0), Instant::now() + Duration::from_secs(10));
    let ids = Mutex::new(std::collections::HashSet::new());
    pool.run(pool.threads, &|_| {
        lock(&ids).insert(std::thread::current().id());
        begun.fetch_add(1, SeqCst);
        while begun.load(SeqCst) < pool.threads && Instant::now() < deadline {
            std::thread::yield_now();
        }
    });
    lock(&ids).len()
}

#[test]
fn after_a_panic_all_threads_work_again() {
    let pool = Pool::new(3);
    assert_eq!(threads_of_a_job(&pool), 3);
    // The caller's own task panics, and then a worker's.
    for caller in [true, false] {
        let here = std::thread::current().id();
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.run(3, &|_| {
                let own = std::thread::current().id() == here;
                std::thread::sleep(Duration::from_millis(20));
                // Every thread has a task: each sleeps in its own.
                assert!(own != caller, "a task");
            });
        }));
        assert!(result.is_err());
        assert!(!pool.turn.is_poisoned());
        assert_eq!(threads_of_a_job(&pool), 3);
    }
}

#[test]
fn a_poisoned_turn_is_taken_all_the_same() {
    let pool = Pool::new(3);
    let died = catch_unwind(AssertUnwindSafe(|| {
        let _turn = pool.turn.lock();
        panic!("with the turn");
    }));
    assert!(died.is_err() && pool.turn.is_poisoned());
    assert_eq!(threads_of_a_job(&pool), 3);
}

#[test]
fn results_are_in_order_and_ranges_cover() {
    assert_eq!(map(100, |i| i * i), (0..100).map(|i| i * i).collect::<Vec<_>>());
    for (len, least) in [(0, 1), (1, 16), (100, 16), (1000, 1), (33, 100)] {
        let mut hits = vec![0; len];
        let seen = Mutex::new(Vec::new());
        ranges(len, least, |r| {
            assert!(r.start.is_multiple_of(least) && r.end <= len);
            lock(&seen).extend(r);
        });
        lock(&seen).iter().for_each(|&i| hits[i] += 1);
        assert!(hits.iter().all(|&h| h == 1));
    }
    let mut items = vec![1, 2, 3];
    for_each(&mut items, |i, x| *x += i);
    assert_eq!(items, [1, 3, 5]);
    assert!(set_threads(0).is_err());
}

#[test]
fn tasks_beside_other_work_run_once() {
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads);
        for round in 0..500 {
            let tasks = round % 9;
            let counts: Vec<_> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
            let add = |i: usize| {
                counts[i].fetch_add(1, SeqCst);
            };
            let out = pool.beside(tasks, &add, || {
                (0..round % 5).for_each(|jobs| counted(&pool, jobs * 7));
                round
            });
            assert_eq!(out, round);
            assert!(counts.iter().all(|count| count.load(SeqCst) == 1), "{threads} {round}");
        }
    }
}

/// Workers take them while the caller works, even those that have gone to sleep.
#[test]
fn tasks_run_beside_and_not_behind() {
    let pool = Pool::new(2);
    std::thread::sleep(SPIN * 5);
    let done = AtomicU32::new(0);
    let seen = pool.beside(3, &|_| _ = done.fetch_add(1, SeqCst), || {
        let start = Instant::now();
        while done.load(SeqCst) < 3 && start.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        done.load(SeqCst)
    });
    assert_eq!(seen, 3);
}

#[test]
fn panics_beside_reach_the_caller() {
    let pool = Pool::new(3);
    for round in 0..20 {
        let task = |i: usize| assert!(round % 2 == 0 || i != 1, "a task");
        let main = || {
            std::thread::sleep(Duration::from_micros(50));
            assert!(round % 2 == 1, "the caller");
        };
        catch_unwind(AssertUnwindSafe(|| pool.beside(4, &task, main))).unwrap_err();
        counted(&pool, 40);
        assert_eq!(pool.beside(2, &|_| {}, || 7), 7);
    }
}
