//! What goes wrong inside a step stays inside it, and an engine that cannot work does not start.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Mock, ask, chain, chain_model, collect, config, greedy, next_token, settled, submit};
use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};
use taper_base::{Engine, GenRequest, GenerationError};
use taper_engine::{EngineConfig, EngineError, KvBudget, LocalEngine};
use taper_models::{Model, ModelError};

/// A prompt that begins with this token is the one that goes wrong.
const CURSED: u32 = 5;

#[test]
fn logits_that_are_no_numbers_fail_their_own_request_only() {
    for bad in [f32::NAN, f32::INFINITY] {
        let model = Mock::new(move |batch| {
            let mut rows = Mock::rows(batch, next_token);
            for (row, &at) in rows.chunks_mut(Mock::VOCAB as usize).zip(batch.logits_at) {
                let at = at as usize;
                // The fourth token of any sequence whose third one is cursed.
                if batch.positions[at] == 3 && batch.tokens[at] == CURSED {
                    row[17] = bad;
                }
            }
            Ok(rows)
        });
        let engine = model.start(&config());
        let good: Vec<_> = (0..8).map(|i| submit(&engine, greedy(&[20 + i, 21], 30))).collect();
        let cursed = submit(&engine, greedy(&[11, 12, 13, CURSED], 30));
        let scored =
            GenRequest { prompt_logprobs: Some(0), ..greedy(&[11, 12, 13, CURSED, 14, 15], 30) };
        let scored = submit(&engine, scored);
        let failed = collect(cursed);
        let position = |e| match e {
            Some(GenerationError::NonFiniteLogits { position }) => position,
            other => panic!("{other:?}"),
        };
        assert_eq!(position(failed.error), 3);
        assert_eq!(position(collect(scored).error), 3);
        for (i, events) in good.into_iter().enumerate() {
            assert_eq!(collect(events).tokens, chain(&[20 + i as u32, 21], 30));
        }
        settled(&engine);
    }
}

/// Runs requests through a model that goes wrong once, at its third step, and then many more.
fn goes_on(wrong: impl Fn() -> Result<Vec<f32>, ModelError> + Send + Sync + 'static) -> String {
    let steps = AtomicU32::new(0);
    let model = Mock::new(move |batch| {
        if steps.fetch_add(1, Ordering::Relaxed) == 2 {
            return wrong();
        }
        Ok(Mock::rows(batch, next_token))
    });
    let engine = model.start(&config());
    let first: Vec<_> = (0..3).map(|i| submit(&engine, greedy(&[20 + i], 40))).collect();
    let mut message = None;
    for (i, events) in first.into_iter().enumerate() {
        let answer = collect(events);
        match answer.error {
            Some(GenerationError::Step { source, .. }) => message = Some(source.to_string()),
            Some(other) => panic!("{other:?}"),
            // It was submitted after the step that failed.
            None => assert_eq!(answer.tokens, chain(&[20 + i as u32], 40)),
        }
    }
    settled(&engine);
    let again: Vec<_> = (0..8).map(|i| submit(&engine, greedy(&[30 + i], 40))).collect();
    for (i, events) in again.into_iter().enumerate() {
        assert_eq!(collect(events).tokens, chain(&[30 + i as u32], 40));
    }
    settled(&engine);
    message.expect("the step failed at least one request")
}

#[test]
fn a_step_that_fails_ends_its_requests_and_the_engine_goes_on() {
    let error = || ModelError::Batch { what: "a broken device", expected: 1, got: 2 };
    assert!(goes_on(move || Err(error())).contains("a broken device"));
}

#[test]
fn a_step_that_panics_ends_its_requests_and_the_engine_goes_on() {
    assert!(goes_on(|| panic!("index out of bounds")).contains("index out of bounds"));
}

#[test]
fn a_model_that_gives_too_few_logits_is_found_out() {
    let message = goes_on(|| Ok(Vec::new()));
    assert!(message.contains("0 logits"), "{message}");
}

#[test]
fn errors_keep_their_cause() {
    let model =
        Mock::new(|_| Err(ModelError::Batch { what: "a broken device", expected: 1, got: 2 }));
    let error = ask(&model.start(&config()), greedy(&[11], 3)).error.unwrap();
    assert!(error.source().is_some_and(|e| e.to_string().contains("a broken device")));
    let GenerationError::Step { id, .. } = &error else { panic!("{error:?}") };
    let text = error.to_string();
    assert!(text.starts_with("a model step failed") && text.contains(&id.to_string()), "{text}");
    assert!(!text.contains("broken"), "what failed is for the log: {text}");
}

#[test]
fn only_the_requests_of_the_step_fail() {
    // The step fails while one request runs and another waits in the queue.
    let broken = Arc::new(AtomicBool::new(true));
    let once = Arc::clone(&broken);
    let (model, permits) = Mock::new(move |batch| {
        if once.swap(false, Ordering::Relaxed) {
            return Err(ModelError::Batch { what: "a broken device", expected: 1, got: 2 });
        }
        Ok(Mock::rows(batch, next_token))
    })
    .gated();
    let engine = model.start(&EngineConfig { max_num_seqs: 1, ..config() });
    let (running, waiting) = (submit(&engine, greedy(&[11], 9)), submit(&engine, greedy(&[12], 9)));
    drop(permits);
    assert!(matches!(collect(running).error, Some(GenerationError::Step { .. })));
    assert_eq!(collect(waiting).tokens, chain(&[12], 9));
    assert!(!broken.load(Ordering::Relaxed));
    settled(&engine);
}

#[test]
fn an_engine_that_cannot_work_does_not_start() {
    let fails = |config: EngineConfig| {
        LocalEngine::start(Box::new(chain_model()), &config).expect_err("must not start")
    };
    let zero = |error| match error {
        EngineError::Zero { name } => name,
        other => panic!("{other}"),
    };
    assert_eq!(zero(fails(EngineConfig { max_num_seqs: 0, ..config() })), "max_num_seqs");
    let tokens = EngineConfig { max_num_batched_tokens: 0, ..config() };
    assert_eq!(zero(fails(tokens)), "max_num_batched_tokens");
    let length = EngineConfig { max_model_len: Some(0), ..config() };
    assert_eq!(zero(fails(length)), "max_model_len");
    let beyond = fails(EngineConfig { max_model_len: Some(4097), ..config() });
    assert!(matches!(beyond, EngineError::BeyondModel { wanted: 4097, max: 4096 }));
    let asked = EngineConfig { max_model_len: Some(2000), ..config() };
    let small = EngineConfig { kv_budget: KvBudget::Tokens(1999 - 32), ..asked.clone() };
    assert!(matches!(fails(small), EngineError::TooLong { wanted: 2000, capacity: 1984, .. }));
    for kv_budget in [KvBudget::Bytes(0), KvBudget::Bytes(100), KvBudget::Tokens(0)] {
        let none = fails(EngineConfig { kv_budget, ..config() });
        assert!(matches!(none, EngineError::TooLong { capacity: 0, .. }), "{none}");
    }
}

#[test]
fn the_plan_says_what_is_used() {
    let model = chain_model();
    let plan = |kv_budget, max_model_len| {
        let config = EngineConfig { kv_budget, max_model_len, max_num_seqs: 2, ..config() };
        let plan = config.plan(model.info()).unwrap();
        (plan.caches[0].blocks, plan.max_model_len)
    };
    assert_eq!(plan(KvBudget::Tokens(33), None), (2, 64), "lowered to what the cache holds");
    assert_eq!(plan(KvBudget::Tokens(100_000), None), (3125, 4096));
    assert_eq!(plan(KvBudget::Bytes(1 << 40), Some(100)), (8, 100), "no more than two need");
    let kv = config().plan(model.info()).unwrap().caches.remove(0);
    // Two layers of keys and values, 8 floats a row.
    assert_eq!(kv.bytes_per_block(), 32 * 2 * 2 * 8 * 4);
    let engine = chain_model().start(&config());
    let info = engine.info();
    assert_eq!(info.kv_capacity_bytes, 512 * kv.bytes_per_block());
    assert_eq!((info.kv_capacity_tokens, info.kv_cache_dtype.as_str()), (16_384, "f32"));
    assert_eq!(engine.stats().kv_blocks_total, 512);
}

#[test]
fn what_a_failed_step_left_in_the_cache_is_not_used_again() {
    let broken = Arc::new(AtomicBool::new(true));
    let once = Arc::clone(&broken);
    let model = Mock::new(move |batch| {
        if once.swap(false, Ordering::Relaxed) {
            return Err(ModelError::Batch { what: "a broken device", expected: 1, got: 2 });
        }
        Ok(Mock::rows(batch, next_token))
    });
    let engine = model.start(&config());
    let prompt: Vec<u32> = (0..100).map(|i| 10 + i % 50).collect();
    assert!(ask(&engine, greedy(&prompt, 3)).error.is_some());
    let cached: Vec<_> = (0..2).map(|_| ask(&engine, greedy(&prompt, 3)).cached).collect();
    assert_eq!(cached, [0, 96]);
}
