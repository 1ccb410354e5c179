//! Evictions of sequences that share their blocks, where there are few others.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Numbers, ask, collect, config, fixture_dir, greedy, settled, submit};
use std::sync::Arc;
use taper_engine::{EngineConfig, Evict, EvictionConfig, KvBudget, LocalEngine, observe_queries};
use taper_models::{LoadOptions, Model};
use taper_weights::Checkpoint;

const VOCAB: u32 = 320;

fn model() -> Box<dyn Model> {
    taper_models::load(&Checkpoint::open(&fixture_dir()).unwrap(), LoadOptions::default()).unwrap()
}

/// Two sequences share all blocks of a prompt when rows of both are due, and there are too few others to build those of
/// either anew: one gives its blocks up, and not both, which would begin again in the same way for ever.
#[test]
fn two_that_share_a_prompt_do_not_wait_for_each_other() {
    let prompt = Numbers(5).prompt(288, VOCAB);
    let [warm, request] = [1, 60].map(|tokens| greedy(&prompt, tokens));
    let text = Numbers(3).prompt(300, VOCAB);
    let statistics = observe_queries(&*model(), &text, None, |_| true).unwrap();
    let numbers = EvictionConfig::new(Evict::TriAttention(Arc::new(statistics)));
    let eviction = EvictionConfig { budget: 128, every: 32, prefix: 32, window: 32, ..numbers };
    let config = EngineConfig { eviction: Some(eviction), ..config() };
    let start = |config: &EngineConfig| LocalEngine::start(model(), config).unwrap();
    let want = ask(&start(&config), request.clone()).tokens;
    for blocks in 10..14 {
        let kv_budget = KvBudget::Tokens(blocks * 32);
        let engine =
            start(&EngineConfig { max_num_batched_tokens: 64, kv_budget, ..config.clone() });
        // The first one ends with its prompt, and leaves it in the cache to both others at once.
        let open = [&warm, &request, &request].map(|r| submit(&engine, r.clone()));
        let got: Vec<_> = open.into_iter().map(collect).collect();
        for got in &got[1..] {
            assert_eq!(got.tokens, want, "{blocks} blocks");
        }
        settled(&engine);
    }
}
