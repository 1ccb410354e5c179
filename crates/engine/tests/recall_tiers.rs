//! Pages that leave memory and come back from disk: where a page lies changes no bit.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Answer, Numbers, ask, collect, config, greedy, long, settled, submit, wait_for};
use std::{fs, path::Path};
use taper_base::{Engine, GenRequest};
use taper_engine::{EngineConfig, EngineError, KvBudget, KvDisk, LocalEngine};
use taper_kv_codecs::Exact;

const FAMILIES: [&str; 3] = ["qwen3-bf16", "gemma3-bf16", "deepseek-v3-bf16"];
const CACHES: [(&str, Option<Exact>); 3] = [
    ("f16", None),
    // Three blocks a file, two a page.
    ("taper3", Some(Exact { sink_tokens: 32, recent_tokens: 96 })),
    ("turbo4", Some(Exact { sink_tokens: 32, recent_tokens: 32 })),
];
const VOCAB: u32 = 320;
const PAGES: u32 = 3;
const PROMPT: u32 = 1600;

fn on(dir: &Path, name: &str, exact: Option<Exact>, hot: Option<usize>) -> EngineConfig {
    EngineConfig {
        scheme: taper_kv_codecs::parse(name).unwrap().into(),
        exact,
        kv_budget: KvBudget::Tokens(16_384),
        kv_recall_pages: PAGES,
        kv_hot_tokens: hot,
        disk: Some(KvDisk { dir: dir.to_owned(), max_bytes: 1 << 30, model: "m".into() }),
        ..config()
    }
}

fn request(prompt: &[u32], tokens: u32) -> GenRequest {
    let mut request = greedy(prompt, tokens);
    request.sampling.logprobs = Some(2);
    request
}

fn said(answer: &Answer) -> (Vec<u32>, Vec<(u32, u32)>) {
    assert!(answer.error.is_none(), "{:?}", answer.error);
    let all = answer.logprobs.iter().flat_map(|at| &at.top);
    (answer.tokens.clone(), all.map(|l| (l.id, l.logprob.to_bits())).collect())
}

/// Computes prompts, and waits until they are on disk.
fn kept(engine: &LocalEngine, prompts: &[Vec<u32>]) {
    prompts.iter().for_each(|prompt| {
        ask(engine, greedy(prompt, 1));
    });
    let blocks: u64 = prompts.iter().map(|prompt| (prompt.len() / 32 - 3) as u64).sum();
    wait_for(engine, "files of all blocks", |s| s.disk_written_blocks >= blocks);
}

#[test]
fn where_pages_lie_changes_no_bit() {
    for (family, (name, exact)) in FAMILIES.into_iter().zip(CACHES) {
        let dir = tempfile::tempdir().unwrap();
        let mut numbers = Numbers(21);
        let prompts: Vec<_> = (0..3).map(|_| numbers.prompt(PROMPT, VOCAB)).collect();
        let requests: Vec<_> = prompts.iter().map(|prompt| request(prompt, 60)).collect();
        let resident = long(family, &on(dir.path(), name, exact, None));
        kept(&resident, &prompts);
        let want: Vec<_> = requests.iter().map(|r| said(&ask(&resident, r.clone()))).collect();
        let stats = resident.stats();
        assert!(stats.recall_steps > 0);
        assert_eq!((stats.kv_evicted_pages, stats.kv_recalled_pages), (0, 0));
        settled(&resident);
        drop(resident);
        for hot in [1 << 20, PROMPT as usize / 10, 64, 0] {
            let engine = long(family, &on(dir.path(), name, exact, Some(hot)));
            for (request, want) in requests.iter().zip(&want) {
                assert_eq!(&said(&ask(&engine, request.clone())), want, "{name}, {hot} tokens hot");
            }
            let open: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
            for (events, want) in open.into_iter().zip(&want) {
                assert_eq!(&said(&collect(events)), want, "{name}, {hot} tokens hot, together");
            }
            let stats = engine.stats();
            assert!(stats.kv_evicted_pages > 0, "{stats:?}");
            assert_eq!(stats.preemptions, 0);
            if hot < 1 << 20 {
                assert!(stats.kv_recalled_pages > 0, "{stats:?}");
                assert!(!stats.kv_recall_wait.is_zero());
            }
            settled(&engine);
            assert_eq!(engine.stats().kv_cold_pages, 0);
        }
    }
}

/// While sequences run their files are damaged, or removed: what is lost is computed again.
#[test]
fn lost_pages_are_computed_again() {
    let (name, exact) = CACHES[1];
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let damages: [&dyn Fn(&Path); 2] = [&flip, &|path| fs::remove_file(path).unwrap()];
    for damage in damages {
        let mut hit = false;
        for attempt in 0..10 {
            let dir = tempfile::tempdir().unwrap();
            let mut numbers = Numbers(31 + attempt);
            let prompts: Vec<_> = (0..2).map(|_| numbers.prompt(PROMPT, VOCAB)).collect();
            let engine = long(FAMILIES[0], &on(dir.path(), name, exact, None));
            kept(&engine, &prompts);
            let want: Vec<_> =
                prompts.iter().map(|p| said(&ask(&engine, request(p, 400)))).collect();
            drop(engine);
            let engine = long(FAMILIES[0], &on(dir.path(), name, exact, Some(0)));
            let open: Vec<_> = prompts.iter().map(|p| submit(&engine, request(p, 400))).collect();
            wait_for(&engine, "pages that come back", |s| s.kv_recalled_pages > 0);
            for file in fs::read_dir(dir.path()).unwrap() {
                let path = file.unwrap().path();
                if path.extension().is_some_and(|e| e == "kv") {
                    damage(&path);
                }
            }
            for (events, want) in open.into_iter().zip(&want) {
                assert_eq!(&said(&collect(events)), want);
            }
            settled(&engine);
            hit = engine.stats().preemptions > 0;
            if hit {
                break;
            }
        }
        assert!(hit, "the files were meant to be missed");
    }
}

/// Pages of a prompt that is not on disk stay in memory.
#[test]
fn without_files_every_page_stays() {
    let (name, exact) = CACHES[0];
    let dir = tempfile::tempdir().unwrap();
    let full = |hot| {
        let mut config = on(dir.path(), name, exact, hot);
        config.disk.iter_mut().for_each(|disk| disk.max_bytes = 100);
        config
    };
    let prompt = Numbers(4).prompt(PROMPT, VOCAB);
    let want = said(&ask(&long(FAMILIES[0], &full(None)), request(&prompt, 40)));
    let engine = long(FAMILIES[0], &full(Some(0)));
    let events = submit(&engine, request(&prompt, 40));
    assert_eq!(said(&collect(events)), want);
    assert_eq!(engine.stats().kv_evicted_pages, 0);
    assert!(engine.stats().recall_steps > 0);
}

#[test]
fn pages_leave_memory_only_for_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig { disk: None, ..on(dir.path(), "f16", None, Some(0)) };
    let model = common::chain_model();
    let error = LocalEngine::start(Box::new(model), &config).unwrap_err();
    assert!(matches!(error, EngineError::HotWithoutDisk), "{error}");
}
