//! Pages that leave memory and come back from disk: where a page lies changes no bit.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Answer, Numbers, ask, collect, config, greedy, long, settled, submit, wait_for};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use taper_base::{Engine, GenRequest, SubmitError};
use taper_engine::{
    EngineConfig, EngineError, Evict, EvictionConfig, KvBudget, KvDisk, LocalEngine, Speculation,
};
use taper_kv_cache::KvCacheError;
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

type Said = (Vec<u32>, Vec<(u32, u32)>);

fn said(answer: &Answer) -> Said {
    assert!(answer.error.is_none(), "{:?}", answer.error);
    let all = answer.logprobs.iter().flat_map(|at| &at.top);
    (answer.tokens.clone(), all.map(|l| (l.id, l.logprob.to_bits())).collect())
}

fn engine(
    family: &str,
    dir: &Path,
    cache: (&str, Option<Exact>),
    hot: Option<usize>,
) -> LocalEngine {
    long(family, &on(dir, cache.0, cache.1, hot))
}

/// Files of units in a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|e| e == "kv")).collect()
}

fn prompts(seed: u64, n: usize) -> Vec<Vec<u32>> {
    let mut numbers = Numbers(seed);
    (0..n).map(|_| numbers.prompt(PROMPT, VOCAB)).collect()
}

/// What an engine with all pages in memory says, without any cache of prefixes.
fn resident(
    family: &str,
    (name, exact): (&str, Option<Exact>),
    requests: &[GenRequest],
) -> Vec<Said> {
    let dir = tempfile::tempdir().unwrap();
    let config = on(dir.path(), name, exact, None);
    let engine = long(family, &EngineConfig { disk: None, prefix_caching: false, ..config });
    let said = requests.iter().map(|request| said(&ask(&engine, request.clone())));
    let said = said.collect();
    let stats = engine.stats();
    assert!(stats.recall_steps > 0);
    assert_eq!((stats.kv_evicted_pages, stats.kv_streamed_pages), (0, 0));
    said
}

/// Alone, together, from the prefix cache and after a restart; with prompts that are longer than what stays in memory.
#[test]
fn where_pages_lie_changes_no_bit() {
    for (family, cache) in FAMILIES.into_iter().zip(CACHES) {
        let requests: Vec<_> = prompts(21, 3).iter().map(|prompt| request(prompt, 60)).collect();
        let want = resident(family, cache, &requests);
        for hot in [1 << 20, PROMPT as usize / 10, 64, 0] {
            let dir = tempfile::tempdir().unwrap();
            let what = format!("{family}, {}, {hot} tokens hot", cache.0);
            for round in ["first", "with files"] {
                let engine = engine(family, dir.path(), cache, Some(hot));
                for (request, want) in requests.iter().zip(&want) {
                    assert_eq!(&said(&ask(&engine, request.clone())), want, "{what}, {round}");
                }
                let open: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
                for (events, want) in open.into_iter().zip(&want) {
                    assert_eq!(&said(&collect(events)), want, "{what}, {round}, together");
                }
                let stats = engine.stats();
                assert_eq!(stats.preemptions, 0);
                if hot < 1 << 20 {
                    assert!(stats.kv_evicted_pages > 0, "{what}: {stats:?}");
                    assert!(stats.kv_streamed_pages > 0, "{what}: {stats:?}");
                    assert!(stats.kv_recalled_pages > 0, "{what}: {stats:?}");
                    assert!(!stats.kv_recall_wait.is_zero());
                }
                assert_eq!(stats.disk_hit_tokens > 0, round == "with files");
                settled(&engine);
                assert_eq!(engine.stats().kv_cold_pages, 0);
            }
        }
    }
}

/// Preempted sequences, and drafts.
#[test]
fn preemption_and_drafts_change_no_bit() {
    let (family, cache) = (FAMILIES[0], CACHES[1]);
    let requests: Vec<_> = prompts(22, 3).iter().map(|prompt| request(prompt, 120)).collect();
    let want = resident(family, cache, &requests);
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig {
        kv_budget: KvBudget::Tokens(2 * u64::from(PROMPT) + 160),
        speculation: Some(Speculation::suffix().steady()),
        ..on(dir.path(), cache.0, cache.1, Some(64))
    };
    let engine = long(family, &config);
    let open: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
    for (events, want) in open.into_iter().zip(&want) {
        assert_eq!(&said(&collect(events)), want);
    }
    let stats = engine.stats();
    assert!(stats.preemptions > 0 && stats.kv_recalled_pages > 0, "{stats:?}");
    settled(&engine);
}

/// While sequences run their files are damaged, cut off, removed or made unreadable: what is lost is computed again.
#[test]
fn lost_pages_are_computed_again() {
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let cut =
        |path: &Path| fs::File::options().write(true).open(path).unwrap().set_len(100).unwrap();
    let block = |path: &Path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    };
    let damages: [&dyn Fn(&Path); 4] =
        [&flip, &cut, &block, &|path| fs::remove_file(path).unwrap()];
    for (damage, cache) in damages.into_iter().zip([CACHES[1], CACHES[0], CACHES[1], CACHES[2]]) {
        let prompts = prompts(31, 2);
        let requests: Vec<_> = prompts.iter().map(|prompt| request(prompt, 200)).collect();
        let want = resident(FAMILIES[0], cache, &requests);
        let dir = tempfile::tempdir().unwrap();
        let engine = engine(FAMILIES[0], dir.path(), cache, Some(0));
        let open: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
        wait_for(&engine, "pages that come back", |s| s.kv_recalled_pages > 0);
        files(dir.path()).iter().for_each(|path| damage(path));
        // Another one that has nothing to do with them, and one that needs them for its prompt.
        let other = said(&ask(&engine, greedy(&Numbers(9).prompt(40, VOCAB), 5)));
        for (events, want) in open.into_iter().zip(&want) {
            assert_eq!(&said(&collect(events)), want);
        }
        assert_eq!(said(&ask(&engine, greedy(&Numbers(9).prompt(40, VOCAB), 5))), other);
        for (request, want) in requests.iter().zip(&want) {
            assert_eq!(&said(&ask(&engine, request.clone())), want);
        }
        settled(&engine);
        assert!(engine.stats().preemptions > 0, "the files were meant to be missed");
    }
}

/// Damaged while nobody runs: a prompt that finds its pages cold, and an engine that starts with such files.
#[test]
fn a_prompt_whose_pages_are_lost_is_computed() {
    let (family, cache) = (FAMILIES[2], CACHES[2]);
    let requests: Vec<_> = prompts(33, 1).iter().map(|prompt| request(prompt, 30)).collect();
    let want = resident(family, cache, &requests);
    let dir = tempfile::tempdir().unwrap();
    for _ in ["computed", "with files"] {
        let engine = engine(family, dir.path(), cache, Some(0));
        for _ in 0..2 {
            assert_eq!(said(&ask(&engine, requests[0].clone())), want[0]);
            settled(&engine);
            for path in files(dir.path()).into_iter().skip(3) {
                fs::write(path, "no rows").unwrap();
            }
        }
    }
}

/// A full disk: pages of a prompt that is not on disk stay in memory, and files that are needed stay.
#[test]
fn a_full_disk_loses_nothing() {
    let (family, cache) = (FAMILIES[0], CACHES[0]);
    let requests: Vec<_> = prompts(4, 3).iter().map(|prompt| request(prompt, 40)).collect();
    let want = resident(family, cache, &requests);
    for (max_bytes, evicts) in [(100, false), (300_000, true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = on(dir.path(), cache.0, cache.1, Some(0));
        config.disk.iter_mut().for_each(|disk| disk.max_bytes = max_bytes);
        let engine = long(family, &config);
        for _ in 0..2 {
            let open: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
            for (events, want) in open.into_iter().zip(&want) {
                assert_eq!(&said(&collect(events)), want, "{max_bytes} bytes");
            }
        }
        let stats = engine.stats();
        assert_eq!(stats.kv_evicted_pages > 0, evicts, "{stats:?}");
        assert_eq!(stats.preemptions, 0, "{stats:?}");
        let bytes: u64 = files(dir.path()).iter().map(|f| fs::metadata(f).unwrap().len()).sum();
        assert!(bytes <= max_bytes, "{bytes}");
    }
}

/// A directory that nothing can be written to any more.
#[test]
fn a_disk_that_fails_loses_nothing() {
    let (family, cache) = (FAMILIES[0], CACHES[1]);
    let requests: Vec<_> = prompts(5, 1).iter().map(|prompt| request(prompt, 40)).collect();
    let want = resident(family, cache, &requests);
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("kv");
    let engine = engine(family, &inner, cache, Some(0));
    fs::remove_dir_all(&inner).unwrap();
    fs::write(&inner, "a file").unwrap();
    assert_eq!(said(&ask(&engine, requests[0].clone())), want[0]);
    assert_eq!(engine.stats().kv_evicted_pages, 0);
}

/// A disk that hangs: nobody waits for ever, and what cannot be read is computed.
#[cfg(unix)]
#[test]
fn a_disk_that_hangs_is_left_alone() {
    let (family, cache) = (FAMILIES[0], CACHES[1]);
    let requests: Vec<_> = prompts(6, 1).iter().map(|prompt| request(prompt, 200)).collect();
    let want = resident(family, cache, &requests);
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(family, dir.path(), cache, Some(0));
    let events = submit(&engine, requests[0].clone());
    wait_for(&engine, "pages that come back", |s| s.kv_recalled_pages > 0);
    let pipes = files(dir.path());
    for path in &pipes {
        // Opening a pipe that nobody writes to takes for ever.
        fs::remove_file(path).unwrap();
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }
    assert_eq!(said(&collect(events)), want[0]);
    assert!(engine.stats().preemptions > 0);
    settled(&engine);
    // The threads end.
    for path in pipes {
        let _ = fs::File::options().read(true).write(true).open(&path).map(|file| {
            fs::remove_file(&path).unwrap();
            drop(file);
        });
    }
}

/// Memory has a limit of its own: requests wait for each other, and what never fits is refused.
#[test]
fn a_cache_may_be_larger_than_memory() {
    let (family, cache) = (FAMILIES[0], CACHES[0]);
    let requests: Vec<_> = prompts(8, 3).iter().map(|prompt| request(prompt, 40)).collect();
    let want = resident(family, cache, &requests);
    let dir = tempfile::tempdir().unwrap();
    let mut config = on(dir.path(), cache.0, cache.1, Some(0));
    let info = long(family, &config).info().clone();
    let token = info.kv_capacity_bytes / info.kv_capacity_tokens;
    config.kv_resident_bytes = Some(token * (u64::from(PROMPT) + 500));
    let engine = long(family, &config);
    let open: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
    for (events, want) in open.into_iter().zip(&want) {
        assert_eq!(&said(&collect(events)), want);
    }
    assert!(engine.stats().kv_evicted_pages > 0);
    let all_pages = |prompt: u32| GenRequest {
        kv_recall_pages: Some(0),
        ..greedy(&Numbers(3).prompt(prompt, VOCAB), 8)
    };
    let (sink, _events) = taper_engine::channel();
    let refused = engine.submit(all_pages(PROMPT + 600), sink);
    assert!(matches!(refused, Err(SubmitError::NeverFits { .. })), "{refused:?}");
    let beside = requests.iter().map(|r| submit(&engine, r.clone())).collect::<Vec<_>>();
    assert!(ask(&engine, all_pages(PROMPT)).error.is_none());
    for (events, want) in beside.into_iter().zip(&want) {
        assert_eq!(&said(&collect(events)), want);
    }
    settled(&engine);
    // A disk that has no room for the rest is found at the start.
    drop(engine);
    config.disk.iter_mut().for_each(|disk| disk.max_bytes = 1000);
    let model = Box::new(common::chain_model());
    config.kv_resident_bytes = Some(1000);
    let error = LocalEngine::start(model, &config).unwrap_err();
    assert!(matches!(error, EngineError::NoColdRoom { .. }), "{error}");
}

/// Files of pages that are nowhere else are nobody's to remove.
#[test]
fn a_directory_of_cold_pages_is_one_engine_s() {
    let dir = tempfile::tempdir().unwrap();
    let start = |hot| {
        let config = on(dir.path(), "f16", None, hot);
        LocalEngine::start(Box::new(common::chain_model()), &config)
    };
    let first = start(Some(0)).unwrap();
    for hot in [Some(0), None] {
        let error = start(hot).unwrap_err();
        assert!(matches!(error, EngineError::Disk(KvCacheError::DiskInUse { .. })), "{error}");
    }
    drop(first);
    let others = [start(None).unwrap(), start(None).unwrap()];
    assert!(start(Some(0)).is_err());
    drop(others);
}

#[test]
fn pages_leave_memory_only_for_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let good = on(dir.path(), "f16", None, Some(0));
    let eviction = EvictionConfig {
        policy: Evict::Window,
        budget: 1024,
        every: 128,
        prefix: 32,
        window: 128,
        keep_prompt: false,
    };
    for config in [
        EngineConfig { disk: None, ..good.clone() },
        EngineConfig { prefix_caching: false, ..good.clone() },
        EngineConfig { eviction: Some(eviction), ..good },
    ] {
        let error = LocalEngine::start(Box::new(common::chain_model()), &config).unwrap_err();
        assert!(matches!(error, EngineError::NoHotTokens { .. }), "{error}");
    }
}
