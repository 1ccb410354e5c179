//! A model whose prefill and decode differ: each token is computed as what it is to
//! its request, whatever runs beside it and however often it is preempted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Mock, Numbers, ask, chain, collect, config, greedy, next_token, settled, submit};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use taper_base::{Engine, Phase};
use taper_engine::{EngineConfig, KvBudget};
use taper_models::ModelError;

/// Every prompt is as long, so that a position tells what a token is.
const PROMPT: u32 = 40;

#[test]
fn prompts_and_answers_run_apart() {
    let mut numbers = Numbers(3);
    let prompts: Vec<_> = (0..12).map(|_| numbers.prompt(PROMPT, Mock::VOCAB)).collect();
    let again = Arc::new(AtomicUsize::new(0));
    let model = || {
        let again = Arc::clone(&again);
        let mut model = Mock::new(move |batch| {
            let prefill = |&position: &u32| position < PROMPT;
            let wrong =
                batch.positions.iter().filter(|p| prefill(p) != (batch.phase == Phase::Prefill));
            let got = wrong.count();
            if got > 0 {
                return Err(ModelError::Batch { what: "another phase", expected: 0, got });
            }
            if batch.phase == Phase::Decode {
                again.fetch_add(batch.tokens.len() - batch.logits_at.len(), Relaxed);
            }
            Ok(Mock::rows(batch, next_token))
        });
        model.info_mut().prefill_apart = true;
        model
    };
    for tokens in [7, 64, 256] {
        let engine = model().start(&EngineConfig {
            max_num_batched_tokens: tokens,
            prefix_caching: false,
            kv_budget: KvBudget::Tokens(256),
            ..config()
        });
        let open: Vec<_> =
            prompts.iter().map(|prompt| submit(&engine, greedy(prompt, 60))).collect();
        for (prompt, events) in prompts.iter().zip(open) {
            let answer = collect(events);
            assert!(answer.error.is_none(), "{:?}", answer.error);
            assert_eq!(answer.tokens, chain(prompt, 60), "{tokens} tokens a step");
        }
        assert!(engine.stats().preemptions > 0);
        settled(&engine);
    }
    assert!(again.load(Relaxed) > 0, "answers were meant to be computed again");
    let engine = model().start(&config());
    assert_eq!(ask(&engine, greedy(&prompts[0], 5)).tokens, chain(&prompts[0], 5));
}
