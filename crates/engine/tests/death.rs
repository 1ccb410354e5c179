//! A panic outside a step ends the engine, and everyone hears of it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{chain_model, collect, config, greedy, submit, wait_for};
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

#[test]
fn an_engine_that_died_says_so_to_everyone() {
    for at in [At::Closed, At::Started, At::Token, At::Finished] {
        let (model, permits) = chain_model().gated();
        let engine = model.start(&EngineConfig { max_num_seqs: 3, ..config() });
        let running: Vec<_> =
            (0..2).map(|i| submit(&engine, greedy(&[20 + i, 21], 1000))).collect();
        permits.send(()).unwrap();
        wait_for(&engine, "a step", |s| s.steps == 1);
        assert!(engine.is_alive());
        let armed = Arc::new(AtomicBool::new(true));
        let trap = Trap { at, armed: Arc::clone(&armed) };
        engine.submit(greedy(&[30, 31], 3), Box::new(trap)).unwrap();
        // More than may run at a time: some of them wait.
        let waiting: Vec<_> = (0..4).map(|i| submit(&engine, greedy(&[40 + i], 1000))).collect();
        drop(permits);
        for events in running.into_iter().chain(waiting) {
            let answer = collect(events);
            assert!(
                matches!(answer.error, Some(GenerationError::EngineDead)),
                "{at:?}: {answer:?}"
            );
        }
        assert!(!armed.load(Ordering::Relaxed), "{at:?}");
        assert!(!engine.is_alive(), "who was told finds it dead");
        let (sink, mut events) = channel();
        assert_eq!(engine.submit(greedy(&[11], 4), sink), Err(SubmitError::EngineDead));
        assert!(events.next().is_none(), "no events after a refusal");
        engine.stop();
        assert!(!engine.is_alive());
    }
}

#[test]
fn an_engine_that_was_stopped_did_not_die() {
    let engine = chain_model().start(&config());
    engine.stop();
    assert!(engine.is_alive());
}
