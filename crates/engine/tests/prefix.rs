//! Requests with a common prefix share its KV blocks, and generate as if they did not.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Numbers, ask, collect, config, greedy, settled, submit, tiny, wait_for};
use std::time::{Duration, Instant};
use taper_base::{Engine, GenRequest};
use taper_engine::{EngineConfig, KvBudget, KvDisk, KvIdle};
use taper_kv_cache::KvScheme;
use taper_kv_codecs::{Exact, KvGeometry};

const VOCAB: u32 = 320;
const LAYERS: usize = 2;
/// Exact, compressed without and with exact tokens, and another codec for each layer.
const CACHES: [(&str, Option<Exact>); 5] = [
    ("f32", None),
    ("f16", None),
    ("turbo3", Some(Exact { sink_tokens: 32, recent_tokens: 64 })),
    ("taper3", Some(Exact { sink_tokens: 0, recent_tokens: 32 })),
    ("f16+taper4v3", Some(Exact { sink_tokens: 32, recent_tokens: 32 })),
];

fn with(name: &str, exact: Option<Exact>) -> EngineConfig {
    let codecs: Vec<_> = name.split('+').map(|n| taper_kv_codecs::parse(n).unwrap()).collect();
    EngineConfig { scheme: KvScheme::of_layers(&codecs).unwrap(), exact, ..config() }
}

/// Big, small, big, big: SwiftLM's regression sequence, and one that branches off.
fn sequence() -> Vec<GenRequest> {
    let mut numbers = Numbers(3);
    let (big, small) = (numbers.prompt(200, VOCAB), numbers.prompt(20, VOCAB));
    let branch = [&big[..150], &small[..]].concat();
    [&big, &small, &big, &big, &branch].map(|prompt| greedy(prompt, 40)).to_vec()
}

#[test]
fn big_small_big_big_says_the_same_with_reuse_and_without() {
    for (name, exact) in CACHES {
        let plain = tiny(&EngineConfig { prefix_caching: false, ..with(name, exact) });
        let engine = tiny(&with(name, exact));
        let unit = exact.map_or(32, |e| e.recent_tokens as u32);
        let cached = [0, 0, 199 / unit * unit, 199 / unit * unit, 150 / unit * unit];
        for (request, cached) in sequence().into_iter().zip(cached) {
            let (want, got) = (ask(&plain, request.clone()), ask(&engine, request));
            assert_eq!(got.tokens, want.tokens, "{name}");
            assert_eq!((want.cached, got.cached), (0, cached), "{name}");
        }
        let computed = engine.stats().prompt_tokens;
        let whole = plain.stats().prompt_tokens;
        assert_eq!(whole - computed, u64::from(cached.iter().sum::<u32>()), "{name}");
        settled(&engine);
    }
}

#[test]
fn a_compressed_cache_says_the_same_however_prompts_are_cut() {
    for (name, exact) in CACHES {
        let one = |chunk| {
            let engine = tiny(&EngineConfig {
                max_num_batched_tokens: chunk,
                max_num_seqs: 4,
                prefix_caching: false,
                ..with(name, exact)
            });
            sequence().into_iter().map(|r| ask(&engine, r).tokens).collect::<Vec<_>>()
        };
        let whole = one(256);
        assert_eq!(one(37), whole, "{name}");
        assert_eq!(one(4), whole, "{name}");
    }
}

#[test]
fn a_crowd_under_pressure_says_what_each_says_alone() {
    for (name, exact) in CACHES {
        let mut numbers = Numbers(5);
        let stem = numbers.prompt(130, VOCAB);
        let requests: Vec<_> = (0..12)
            .map(|i| {
                let own = numbers.prompt(30, VOCAB);
                greedy(&[&stem[..10 * i + 20], &own[..]].concat(), 60)
            })
            .collect();
        let roomy = tiny(&EngineConfig { prefix_caching: false, ..with(name, exact) });
        let alone: Vec<_> = requests.iter().map(|r| ask(&roomy, r.clone()).tokens).collect();
        let tight = tiny(&EngineConfig {
            kv_budget: KvBudget::Tokens(480),
            max_num_batched_tokens: 64,
            ..with(name, exact)
        });
        let open: Vec<_> = requests.iter().map(|r| submit(&tight, r.clone())).collect();
        let crowd: Vec<_> = open.into_iter().map(|events| collect(events).tokens).collect();
        assert_eq!(crowd, alone, "{name}");
        assert!(tight.stats().preemptions > 0, "{name}: the cache was meant to be too small");
        settled(&tight);
    }
}

#[test]
fn choices_of_one_prompt_compute_it_once() {
    let engine = tiny(&config());
    let prompt = Numbers(9).prompt(100, VOCAB);
    let open: Vec<_> = (0..4).map(|_| submit(&engine, greedy(&prompt, 8))).collect();
    let answers: Vec<_> = open.into_iter().map(collect).collect();
    assert!(answers.windows(2).all(|w| w[0].tokens == w[1].tokens));
    assert_eq!(answers.iter().map(|a| a.cached).collect::<Vec<_>>(), [0, 96, 96, 96]);
    assert_eq!(engine.stats().prompt_tokens, 100 + 3 * 4);
}

/// What the engine reports is the formula: the sum over layers of what each layer's codec takes.
#[test]
fn bytes_of_mixed_layers_are_counted_to_the_byte() {
    let exact = Exact { sink_tokens: 32, recent_tokens: 64 };
    let engine = tiny(&with("f16+taper3", Some(exact)));
    let (heads, width, tokens) = (2, 32, 32);
    let f16 = 2 * heads * tokens * width * 2;
    // Codes of 3 bits, a half for each row's scale; keys' blocks have a mean in halves beside them.
    let taper3 = {
        let g = KvGeometry { kv_heads: heads, head_dim: width, block_tokens: tokens };
        let block = taper_kv_codecs::parse("taper3").unwrap().block_bytes(g);
        assert!(block.v < f16 / 2 / 4, "{block:?}");
        block.k + block.v
    };
    let (info, blocks) = (engine.info(), engine.stats().kv_blocks_total as usize);
    assert_eq!(info.kv_cache_dtype, "f16 (1: taper3)");
    let coded = (info.kv_capacity_bytes - info.kv_exact_bytes) as usize;
    assert_eq!(coded, blocks * (f16 + (LAYERS - 1) * taper3));
    assert_eq!(info.kv_exact_bytes as usize % (f16 * (LAYERS - 1)), 0, "f16 is exact itself");
    ask(&engine, greedy(&Numbers(1).prompt(100, VOCAB), 5));
    wait_for(&engine, "idle blocks", |s| s.kv_blocks_idle == 3 && s.kv_blocks_used == 0);
    assert_eq!(engine.stats().kv_exact_bytes, 0, "the sink's exact rows are idle, too");
    let events = submit(&engine, greedy(&Numbers(1).prompt(100, VOCAB), 150));
    wait_for(&engine, "a second recent block", |s| s.kv_blocks_used > 4);
    assert_eq!(engine.stats().kv_exact_bytes as usize % (f16 * (LAYERS - 1)), 0);
    collect(events);
}

#[test]
fn idle_blocks_and_their_bytes_are_reported() {
    let exact = Exact { sink_tokens: 32, recent_tokens: 64 };
    let engine = tiny(&with("turbo4", Some(exact)));
    ask(&engine, greedy(&Numbers(1).prompt(100, VOCAB), 5));
    wait_for(&engine, "idle blocks", |s| s.kv_blocks_idle == 3 && s.kv_blocks_used == 0);
    let (info, stats) = (engine.info(), engine.stats());
    let used = (stats.kv_used_bytes, stats.kv_exact_bytes, stats.kv_exact_blocks_used);
    assert_eq!(used, (0, 0, 0), "what is idle is not in use");
    assert!(info.kv_exact_bytes < info.kv_capacity_bytes);
}

/// Requests without a salt, or with another one, find nothing of those that have one.
#[test]
fn salts_keep_prefixes_apart() {
    let engine = tiny(&config());
    let prompt = Numbers(11).prompt(100, VOCAB);
    let ask_with = |salt: Option<&str>| {
        let request = GenRequest { cache_salt: salt.map(Into::into), ..greedy(&prompt, 4) };
        ask(&engine, request).cached
    };
    let salts = [None, Some("a"), Some("b"), Some("a"), None];
    assert_eq!(salts.map(ask_with), [0, 0, 0, 96, 96]);
    settled(&engine);
}

/// After some time without requests only the latest prefixes stay.
#[test]
fn idle_memory_is_given_back() {
    let after = Duration::from_millis(300);
    let idle = |keep_bytes| Some(KvIdle { after, keep_bytes: Some(keep_bytes) });
    for (keep, kept) in [(0, 0), (u64::MAX, 96)] {
        let engine = tiny(&EngineConfig { idle: idle(keep), ..config() });
        let prompt = Numbers(12).prompt(100, VOCAB);
        let want = ask(&engine, greedy(&prompt, 8));
        assert!(engine.stats().kv_blocks_idle > 0);
        if keep == 0 {
            wait_for(&engine, "memory given back", |s| s.kv_blocks_idle == 0);
        } else {
            std::thread::sleep(2 * after);
        }
        let got = ask(&engine, greedy(&prompt, 8));
        assert_eq!((got.cached, got.tokens), (kept, want.tokens));
        settled(&engine);
    }
}

/// Prefixes that memory has no room for just now stay on disk, where they serve another time.
#[test]
fn what_has_no_room_in_memory_stays_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let mut numbers = Numbers(14);
    let prompts: Vec<_> = (0..6).map(|_| numbers.prompt(5 * 32 + 8, VOCAB)).collect();
    let disk = KvDisk { dir: dir.path().to_owned(), max_bytes: 1 << 30, model: "tiny".into() };
    let on_disk = EngineConfig { disk: Some(disk), ..config() };
    let first = tiny(&on_disk);
    let want: Vec<_> = prompts.iter().map(|p| ask(&first, greedy(p, 4)).tokens).collect();
    drop(first);
    // Two of them fit.
    let engine = tiny(&EngineConfig { kv_budget: KvBudget::Tokens(12 * 32), ..on_disk });
    let open: Vec<_> = prompts.iter().map(|p| submit(&engine, greedy(p, 4))).collect();
    for (events, want) in open.into_iter().zip(want) {
        assert_eq!(collect(events).tokens, want);
    }
    settled(&engine);
    let stats = engine.stats();
    assert!(stats.disk_hit_tokens > 0);
    assert_eq!(stats.disk_written_blocks, 0, "what is there is not written anew");
}

/// A file that never ends to be read stands for a disk that hangs.
#[cfg(unix)]
#[test]
fn a_disk_that_hangs_delays_a_request_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = Numbers(13).prompt(100, VOCAB);
    let disk = KvDisk { dir: dir.path().to_owned(), max_bytes: 1 << 30, model: "tiny".into() };
    let on_disk = EngineConfig { disk: Some(disk), ..config() };
    let want = ask(&tiny(&on_disk), greedy(&prompt, 4)).tokens;
    let engine = tiny(&on_disk);
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let path = file.unwrap().path();
        std::fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }
    let cancelled = submit(&engine, greedy(&prompt, 4));
    wait_for(&engine, "waiting", |s| s.waiting == 1);
    drop(cancelled);
    wait_for(&engine, "cancelled", |s| s.cancelled == 1);
    let start = Instant::now();
    let got = ask(&engine, greedy(&prompt, 4));
    assert_eq!((got.cached, got.tokens), (0, want));
    drop(engine);
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}
