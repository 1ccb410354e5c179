//! Models without keys and values, of recurrent layers only: scheduling, preemption and prefixes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Numbers, ask, collect, config, greedy, settled, submit, wait_for};
use std::path::Path;
use taper_base::Engine;
use taper_engine::{EngineConfig, KvBudget, LocalEngine};
use taper_models::{LoadOptions, Model};
use taper_weights::Checkpoint;

const VOCAB: u32 = 320;
/// Both kinds: one state a layer, and two.
const MODELS: [&str; 2] = ["mamba2-bf16", "mamba-bf16"];
/// Tokens between two snapshots, of models whose blocks take no memory.
const INTERVAL: u32 = 2048;

fn model(name: &str) -> Box<dyn Model> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity");
    let weights = Checkpoint::open(&fixtures.join(name)).unwrap();
    let model = taper_models::load(&weights, LoadOptions::default()).unwrap();
    assert_eq!(model.info().layers, 0, "layers with keys and values");
    model
}

fn engine(name: &str, config: &EngineConfig) -> LocalEngine {
    LocalEngine::start(model(name), config).unwrap()
}

fn plain() -> EngineConfig {
    EngineConfig { prefix_caching: false, ..config() }
}

#[test]
fn a_shared_prefix_is_taken_up_at_its_snapshot() {
    for name in MODELS {
        let mut numbers = Numbers(7);
        let stem = numbers.prompt(INTERVAL + 40, VOCAB);
        let with = |numbers: &mut Numbers| [stem.clone(), numbers.prompt(9, VOCAB)].concat();
        let requests = [with(&mut numbers), with(&mut numbers)].map(|prompt| greedy(&prompt, 12));
        let (shared, alone) = (engine(name, &config()), engine(name, &plain()));
        for (request, cached) in requests.into_iter().zip([0, INTERVAL]) {
            let (got, want) = (ask(&shared, request.clone()), ask(&alone, request));
            assert_eq!(got.tokens, want.tokens, "{name}");
            assert_eq!((got.cached, want.cached), (cached, 0), "{name}");
        }
        settled(&shared);
    }
}

#[test]
fn a_crowd_cut_into_small_steps_says_what_each_says_alone() {
    for name in MODELS {
        let mut numbers = Numbers(5);
        let requests: Vec<_> =
            [70, 3, 129, 41, 18].map(|n| greedy(&numbers.prompt(n, VOCAB), 25)).into();
        let roomy = engine(name, &plain());
        let alone: Vec<_> = requests.iter().map(|r| ask(&roomy, r.clone()).tokens).collect();
        let tight = EngineConfig { max_num_batched_tokens: 16, max_num_seqs: 3, ..config() };
        let tight = engine(name, &tight);
        let open: Vec<_> = requests.iter().map(|r| submit(&tight, r.clone())).collect();
        let crowd: Vec<_> = open.into_iter().map(|events| collect(events).tokens).collect();
        assert_eq!(crowd, alone, "{name}");
        settled(&tight);
    }
}

#[test]
fn sequences_are_preempted_and_go_on() {
    for name in MODELS {
        let mut numbers = Numbers(6);
        let requests: Vec<_> = (0..6).map(|_| greedy(&numbers.prompt(40, VOCAB), 120)).collect();
        let roomy = engine(name, &plain());
        let alone: Vec<_> = requests.iter().map(|r| ask(&roomy, r.clone()).tokens).collect();
        let tight = EngineConfig { kv_budget: KvBudget::Tokens(320), ..config() };
        let tight = engine(name, &tight);
        let open: Vec<_> = requests.iter().map(|r| submit(&tight, r.clone())).collect();
        let crowd: Vec<_> = open.into_iter().map(|events| collect(events).tokens).collect();
        assert_eq!(crowd, alone, "{name}");
        assert!(tight.stats().preemptions > 0, "{name}: the cache was meant to be too small");
        wait_for(&tight, "an empty cache", |s| s.kv_blocks_used == 0);
    }
}
