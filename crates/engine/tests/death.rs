//! After a panic outside a step the engine goes on with an empty cache, and everyone hears of it. One that panics
//! again and again ends.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{ask, chain, chain_model, collect, config, greedy, settled, submit, wait_for};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use taper_base::{Engine, Event, EventSink, GenerationError, SubmitError};
use taper_engine::{EngineConfig, channel};

/// Where a listener panics, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// The engine asks whether it is closed, before it plans.
    Closed,
    /// The plan is announced.
    Started,
    /// A token is accepted, after the step.
    Token,
    /// The request ends.
    Finished,
}

struct Trap {
    at: At,
    armed: Arc<AtomicBool>,
}

impl Trap {
    fn spring(&self, at: At) {
        assert!(self.at != at || !self.armed.swap(false, Ordering::Relaxed), "a planted panic");
    }
}

impl EventSink for Trap {
    fn send(&mut self, event: Event) {
        match event {
            Event::Started { .. } => self.spring(At::Started),
            Event::Token(_) => self.spring(At::Token),
            Event::Finished(_) => self.spring(At::Finished),
            Event::Prompt(_) | Event::Drafted { .. } | Event::Failed(_) => {}
        }
    }

    fn is_closed(&self) -> bool {
        self.spring(At::Closed);
        false
    }
}

fn trap(at: At) -> (Box<Trap>, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(true));
    (Box::new(Trap { at, armed: Arc::clone(&armed) }), armed)
}

#[test]
fn an_engine_that_failed_says_so_to_everyone_and_goes_on() {
    for at in [At::Closed, At::Started, At::Token, At::Finished] {
        let (model, permits) = chain_model().gated();
        let engine = model.start(&EngineConfig { max_num_seqs: 3, ..config() });
        let running: Vec<_> =
            (0..2).map(|i| submit(&engine, greedy(&[20 + i, 21], 1000))).collect();
        permits.send(()).unwrap();
        wait_for(&engine, "a step", |s| s.steps == 1);
        let (sink, armed) = trap(at);
        engine.submit(greedy(&[30, 31], 3), sink).unwrap();
        // More than may run at a time: some of them wait.
        let waiting: Vec<_> = (0..4).map(|i| submit(&engine, greedy(&[40 + i], 1000))).collect();
        drop(permits);
        for events in running.into_iter().chain(waiting) {
            let answer = collect(events);
            assert!(matches!(answer.error, Some(GenerationError::Restarted)), "{at:?}: {answer:?}");
        }
        assert!(!armed.load(Ordering::Relaxed), "{at:?}");
        wait_for(&engine, "a restart", |s| s.restarts == 1);
        assert!(engine.is_alive());
        for i in 0..3 {
            assert_eq!(ask(&engine, greedy(&[50 + i], 9)).tokens, chain(&[50 + i], 9));
        }
        settled(&engine);
    }
}

#[test]
fn an_engine_that_fails_again_and_again_says_so_to_everyone() {
    let engine = chain_model().start(&config());
    for restarts in 1..=5 {
        engine.submit(greedy(&[30, 31], 3), trap(At::Token).0).unwrap();
        wait_for(&engine, "a restart", |s| s.restarts == restarts);
    }
    engine.submit(greedy(&[30, 31], 3), trap(At::Token).0).unwrap();
    // It is taken, if at all, while the engine fails for the last time.
    let (sink, late) = channel();
    if engine.submit(greedy(&[40], 4000), sink).is_ok() {
        assert!(collect(late).error.is_some());
    }
    let (sink, mut events) = channel();
    let start = std::time::Instant::now();
    while engine.is_alive() {
        assert!(start.elapsed().as_secs() < 20);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(engine.submit(greedy(&[11], 4), sink), Err(SubmitError::EngineDead));
    assert!(events.next().is_none(), "no events after a refusal");
    engine.stop();
    assert!(!engine.is_alive());
}

#[test]
fn an_engine_that_was_stopped_did_not_die() {
    let engine = chain_model().start(&config());
    engine.stop();
    assert!(engine.is_alive());
}
