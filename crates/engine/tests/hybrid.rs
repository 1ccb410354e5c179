//! A model with recurrent layers generates as if nothing were shared, cut or preempted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;
mod drafters;

use common::{Answer, Numbers, ask, collect, config, greedy, settled, submit, wait_for};
use drafters::Oracle;
use std::{fs, path::Path, sync::Arc};
use taper_base::{Engine, GenRequest, SamplingParams, TokenId};
use taper_engine::{EngineConfig, EngineError, KvBudget, KvDisk, LocalEngine, Speculation};
use taper_models::{LoadOptions, Model, Precision, Rounding};
use taper_weights::Checkpoint;

const VOCAB: u32 = 320;
/// Tokens between two snapshots of this model.
const INTERVAL: u32 = 256;

/// The tiny Qwen 3.5, allowed longer sequences than its file says.
fn model(precision: Precision) -> Box<dyn Model> {
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity/qwen3_5-bf16");
    let dir = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(fixture.join("config.json")).unwrap();
    let longer =
        config.replace("\"max_position_embeddings\": 512", "\"max_position_embeddings\": 8192");
    assert_ne!(config, longer);
    fs::write(dir.path().join("config.json"), longer).unwrap();
    fs::copy(fixture.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let weights = Checkpoint::open(dir.path()).unwrap();
    let options = LoadOptions { precision, ..LoadOptions::default() };
    taper_models::load(&weights, options).unwrap()
}

fn engine(config: &EngineConfig) -> LocalEngine {
    LocalEngine::start(model(Precision::F32), config).unwrap()
}

fn plain() -> EngineConfig {
    EngineConfig { prefix_caching: false, ..config() }
}

#[test]
fn a_long_shared_prefix_is_computed_but_for_one_interval() {
    let mut numbers = Numbers(7);
    let stem = numbers.prompt(2000, VOCAB);
    let with = |numbers: &mut Numbers| [stem.clone(), numbers.prompt(30, VOCAB)].concat();
    let requests = [with(&mut numbers), with(&mut numbers)].map(|prompt| greedy(&prompt, 20));
    let (shared, alone) = (engine(&config()), engine(&plain()));
    for (request, least) in requests.into_iter().zip([0, 2000 - INTERVAL]) {
        let (got, want) = (ask(&shared, request.clone()), ask(&alone, request));
        assert_eq!(got.tokens, want.tokens);
        assert_eq!(want.cached, 0);
        assert!(got.cached >= least, "{} tokens were there", got.cached);
    }
    settled(&shared);
}

#[test]
fn however_prompts_are_cut_the_answer_is_one() {
    let mut numbers = Numbers(11);
    let prompts: Vec<_> = [300, 20, 301, 77].map(|n| numbers.prompt(n, VOCAB)).to_vec();
    for precision in [Precision::F32, Precision::Mixed { decode: Rounding::Int8 }] {
        let answers = |chunk, caching| {
            let config = EngineConfig {
                max_num_batched_tokens: chunk,
                max_num_seqs: 4,
                prefix_caching: caching,
                ..config()
            };
            let engine = LocalEngine::start(model(precision), &config).unwrap();
            let open: Vec<_> = prompts.iter().map(|p| submit(&engine, greedy(p, 30))).collect();
            open.into_iter().map(|events| collect(events).tokens).collect::<Vec<_>>()
        };
        let whole = answers(1024, false);
        for (chunk, caching) in [(37, false), (4, true), (256, true)] {
            assert_eq!(answers(chunk, caching), whole, "{precision:?}, steps of {chunk}");
        }
    }
}

#[test]
fn a_crowd_under_pressure_says_what_each_says_alone() {
    let mut numbers = Numbers(5);
    let stem = numbers.prompt(600, VOCAB);
    let requests: Vec<GenRequest> = (0..10)
        .map(|i| greedy(&[&stem[..60 * i + 20], &numbers.prompt(30, VOCAB)].concat(), 60))
        .collect();
    let roomy = engine(&plain());
    let alone: Vec<_> = requests.iter().map(|r| ask(&roomy, r.clone()).tokens).collect();
    let tight = engine(&EngineConfig {
        kv_budget: KvBudget::Tokens(1100),
        max_num_batched_tokens: 64,
        max_num_seqs: 3,
        ..config()
    });
    let open: Vec<_> = requests.iter().map(|r| submit(&tight, r.clone())).collect();
    let crowd: Vec<_> = open.into_iter().map(|events| collect(events).tokens).collect();
    assert_eq!(crowd, alone);
    settled(&tight);
}

#[test]
fn sequences_are_preempted_and_go_on() {
    let mut numbers = Numbers(6);
    let requests: Vec<_> = (0..6).map(|_| greedy(&numbers.prompt(40, VOCAB), 120)).collect();
    let roomy = engine(&plain());
    let alone: Vec<_> = requests.iter().map(|r| ask(&roomy, r.clone()).tokens).collect();
    let tight = engine(&EngineConfig { kv_budget: KvBudget::Tokens(320), ..config() });
    let open: Vec<_> = requests.iter().map(|r| submit(&tight, r.clone())).collect();
    let crowd: Vec<_> = open.into_iter().map(|events| collect(events).tokens).collect();
    assert_eq!(crowd, alone);
    assert!(tight.stats().preemptions > 0, "the cache was meant to be too small");
    wait_for(&tight, "an empty cache", |s| s.kv_blocks_used == 0);
}

/// Drafts that are wrong now and then, for these outputs.
fn guesses(requests: &[GenRequest], answers: &[Answer], wrong: usize) -> Option<Speculation> {
    let all = requests.iter().zip(answers).map(|(r, a)| [&r.prompt[..], &a.tokens].concat());
    let texts: Arc<[Vec<TokenId>]> = all.collect();
    let oracle = move || Box::new(Oracle { texts: Arc::clone(&texts), wrong }) as Box<_>;
    Some(Speculation::new(oracle).steady())
}

fn all(engine: &LocalEngine, requests: &[GenRequest]) -> Vec<Answer> {
    let open: Vec<_> = requests.iter().map(|r| submit(engine, r.clone())).collect();
    let answers = open.into_iter().map(collect).collect();
    settled(engine);
    answers
}

/// Drafts in a cache that is too small for all, where sequences are preempted, and some slots for drafted tokens' states
/// have to do for many sequences.
#[test]
fn drafts_change_nothing_under_pressure() {
    let mut numbers = Numbers(16);
    let sampled = |seed| SamplingParams { temperature: 0.8, seed, ..SamplingParams::default() };
    let request = |i| GenRequest {
        sampling: if i % 2 == 0 { SamplingParams::greedy() } else { sampled(i) },
        ..greedy(&numbers.prompt(40, VOCAB), 90)
    };
    let requests: Vec<_> = (0..7).map(request).collect();
    let roomy = engine(&plain());
    let want: Vec<_> = requests.iter().map(|r| ask(&roomy, r.clone())).collect();
    for (wrong, caching) in [(0, true), (3, true), (4, false)] {
        let tight = engine(&EngineConfig {
            kv_budget: KvBudget::Tokens(320),
            max_num_batched_tokens: 32,
            prefix_caching: caching,
            speculation: guesses(&requests, &want, wrong),
            ..config()
        });
        let got = all(&tight, &requests);
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(got.tokens, want.tokens, "one in {wrong} is wrong");
        }
        let stats = tight.stats();
        assert!(stats.preemptions > 0 && stats.accepted_draft_tokens > 100, "{stats:?}");
        wait_for(&tight, "an empty cache", |s| s.kv_blocks_used == 0);
    }
}

/// Snapshots that fall among drafted tokens are of those that were accepted: what follows a prefix is the same.
#[test]
fn snapshots_among_drafts_are_of_what_was_accepted() {
    let mut numbers = Numbers(23);
    let first: Vec<_> = (0..3).map(|_| greedy(&numbers.prompt(230, VOCAB), 60)).collect();
    let roomy = engine(&plain());
    let want: Vec<_> = first.iter().map(|r| ask(&roomy, r.clone())).collect();
    let longer = first.iter().zip(&want).map(|(r, a)| [&r.prompt[..], &a.tokens, &[7, 8]].concat());
    let second: Vec<_> = longer.map(|prompt| greedy(&prompt, 20)).collect();
    for wrong in [0, 2, 5] {
        let config = EngineConfig { speculation: guesses(&first, &want, wrong), ..config() };
        let engine = engine(&config);
        for (request, want) in first.iter().zip(&want) {
            assert_eq!(ask(&engine, request.clone()).tokens, want.tokens);
        }
        for request in &second {
            let (got, want) = (ask(&engine, request.clone()), ask(&roomy, request.clone()));
            assert_eq!((got.tokens, got.cached), (want.tokens, INTERVAL), "{wrong}");
        }
    }
}

#[test]
fn prefixes_on_disk_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let disk = KvDisk { dir: dir.path().into(), max_bytes: 1 << 20, model: "m".into() };
    let config = EngineConfig { disk: Some(disk), ..config() };
    let error = LocalEngine::start(model(Precision::F32), &config).unwrap_err();
    assert!(matches!(error, EngineError::NoDisk { family: "qwen3_5" }), "{error}");
}

/// States are part of the memory that a budget gives.
#[test]
fn a_budget_pays_for_states_and_blocks() {
    let model = model(Precision::F32);
    let bytes = 8 << 20;
    let config = EngineConfig { kv_budget: KvBudget::Bytes(bytes), max_num_seqs: 8, ..config() };
    let plan = config.plan(model.info()).unwrap();
    let kv = &plan.caches[0];
    let states = kv.recurrent.as_ref().unwrap();
    assert_eq!((states.slots, states.interval), (16, INTERVAL as usize));
    assert_eq!(states.draft_slots, 0);
    assert!(kv.bytes() <= bytes && kv.bytes() > bytes * 9 / 10, "{} of {bytes}", kv.bytes());
    // Drafted tokens have states too, in an eighth of the budget at most.
    for (bytes, most) in [(8 << 20, 32), (1 << 18, 31)] {
        let (kv_budget, speculation) = (KvBudget::Bytes(bytes), Some(Speculation::suffix()));
        let config = EngineConfig { kv_budget, speculation, max_num_seqs: 8, ..config.clone() };
        let plan = config.plan(model.info()).unwrap();
        let kv = &plan.caches[0];
        let states = kv.recurrent.as_ref().unwrap();
        let part = states.draft_slots as u64 * states.bytes_per_slot();
        assert!(states.draft_slots <= most && part <= bytes / 8, "{states:?}");
        assert!(kv.bytes() <= bytes, "{} of {bytes}", kv.bytes());
    }
}
