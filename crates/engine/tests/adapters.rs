//! Requests with adapters: each has its own, none shares a prefix with another, and they come and go while it runs.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Numbers, ask, config, greedy, settled, submit, tiny, wait_for};
use std::path::PathBuf;
use taper_base::{AdapterRefused, Engine, GenRequest, SubmitError, TokenId};
use taper_engine::{EngineConfig, EngineError, LocalEngine, channel};

const VOCAB: u32 = 320;

fn dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/adapters").join(name)
}

fn with_adapters() -> EngineConfig {
    let adapters = [("a", "qwen3-bf16--patterns"), ("b", "qwen3-bf16--mlx")];
    let adapters = adapters.map(|(name, of)| (name.to_owned(), dir(of))).to_vec();
    EngineConfig { adapters, max_adapters: 3, ..config() }
}

fn named(prompt: &[TokenId], adapter: Option<&str>) -> GenRequest {
    GenRequest { adapter: adapter.map(Into::into), ..greedy(prompt, 12) }
}

#[test]
fn each_request_runs_with_its_own_adapter_and_finds_its_own_prefixes() {
    let prompt = Numbers(5).prompt(100, VOCAB);
    let names = [None, Some("a"), Some("b")];
    // Alone, each in an engine of its own.
    let alone = names.map(|name| ask(&tiny(&with_adapters()), named(&prompt, name)).tokens);
    assert!(alone[0] != alone[1] && alone[1] != alone[2] && alone[0] != alone[2]);
    let plain = tiny(&config());
    assert_eq!(ask(&plain, greedy(&prompt, 12)).tokens, alone[0]);
    // Together, twice: the second time from prefixes of the first.
    let engine = tiny(&with_adapters());
    for cached in [0, 96] {
        let events = names.map(|name| submit(&engine, named(&prompt, name)));
        for (events, want) in events.into_iter().zip(&alone) {
            let got = common::collect(events);
            assert_eq!((got.cached, &got.tokens), (cached, want));
        }
    }
    // A salt that reads like an adapter's is none.
    let digest = |name: &str| {
        let model = taper_weights::Checkpoint::open(&common::fixture_dir()).unwrap();
        let model = taper_models::load(&model, taper_models::LoadOptions::default()).unwrap();
        let adapter = model.adapter_targets().unwrap().load(&dir(name), None).unwrap();
        adapter.digest().iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    let salt = format!("a{}", digest("qwen3-bf16--patterns"));
    let salted = GenRequest { cache_salt: Some(salt.into()), ..named(&prompt, None) };
    let got = ask(&engine, salted);
    assert_eq!((got.cached, &got.tokens), (0, &alone[0]));
    settled(&engine);
}

#[test]
fn adapters_come_and_go() {
    let engine = tiny(&with_adapters());
    let prompt = Numbers(6).prompt(40, VOCAB);
    let refused = |name: &str| {
        let (sink, _events) = channel();
        engine.submit(named(&prompt, Some(name)), sink).unwrap_err()
    };
    assert_eq!(refused("c"), SubmitError::UnknownAdapter { name: "c".into() });
    let wrong = engine.load_adapter("c", &dir("gpt2-f16--inputs-first")).unwrap_err();
    assert!(matches!(wrong, AdapterRefused::Load { .. }), "{wrong}");
    assert!(wrong.to_string().contains("c_attn") || wrong.to_string().contains("c_fc"), "{wrong}");
    engine.load_adapter("c", &dir("qwen3-bf16--last-layer")).unwrap();
    let taken = engine.load_adapter("c", &dir("qwen3-bf16--mlx")).unwrap_err();
    assert!(matches!(taken, AdapterRefused::NameTaken { .. }), "{taken}");
    let many = engine.load_adapter("d", &dir("qwen3-bf16--mlx")).unwrap_err();
    assert!(matches!(many, AdapterRefused::TooMany { max: 3, .. }), "{many}");
    let list = engine.adapters();
    let names: Vec<_> = list.iter().map(|adapter| &*adapter.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!((list[0].rank, list[0].modules, list[2].modules), (8, 14, 2));
    assert!(list[0].bytes >= 4 * list[0].parameters && list[0].parameters > 0);
    // One that is unloaded ends what has begun with it.
    let want = ask(&engine, named(&prompt, Some("a"))).tokens;
    let long = GenRequest { adapter: Some("a".into()), ..greedy(&prompt, 200) };
    let events = submit(&engine, long);
    wait_for(&engine, "a running request", |s| s.running == 1);
    let running = || engine.adapters().iter().map(|a| (a.running, a.waiting)).collect::<Vec<_>>();
    assert_eq!(running(), [(1, 0), (0, 0), (0, 0)]);
    engine.unload_adapter("a").unwrap();
    assert_eq!(refused("a"), SubmitError::UnknownAdapter { name: "a".into() });
    assert_eq!(common::collect(events).tokens[..12], want);
    // Its prefixes are found again by the same files, and by no others, under any name.
    engine.load_adapter("d", &dir("qwen3-bf16--patterns")).unwrap();
    let again = ask(&engine, named(&prompt, Some("d")));
    assert_eq!((again.cached, again.tokens), (32, want));
    engine.unload_adapter("d").unwrap();
    engine.load_adapter("d", &dir("qwen3-bf16--mlx")).unwrap();
    assert_eq!(ask(&engine, named(&prompt, Some("d"))).cached, 0);
    let gone = engine.unload_adapter("a").unwrap_err();
    assert!(matches!(gone, AdapterRefused::Unknown { .. }), "{gone}");
    settled(&engine);
}

#[test]
fn an_engine_does_not_start_with_an_adapter_that_it_cannot_use() {
    let start = |of: &str, max: Option<usize>| {
        let adapters = vec![("x".to_owned(), dir(of))];
        let config = EngineConfig { adapters, max_adapter_rank: max, ..config() };
        let weights = taper_weights::Checkpoint::open(&common::fixture_dir()).unwrap();
        let model = taper_models::load(&weights, taper_models::LoadOptions::default()).unwrap();
        LocalEngine::start(model, &config).map(drop)
    };
    assert!(start("qwen3-bf16--patterns", Some(8)).is_ok());
    for (of, max, word) in
        [("qwen3-bf16--patterns", Some(4), "rank 8"), ("no-such-directory", None, "no adapter")]
    {
        let error = start(of, max).unwrap_err();
        assert!(matches!(error, EngineError::Adapter(AdapterRefused::Load { .. })), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
    let mock = common::chain_model().start(&config());
    let error = mock.load_adapter("x", &dir("qwen3-bf16--mlx")).unwrap_err();
    assert!(error.to_string().contains("mock models take no adapters"), "{error}");
}
