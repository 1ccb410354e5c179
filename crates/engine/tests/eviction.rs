//! Eviction: what a sequence loses depends on itself alone, whatever runs beside it, however it is chunked, drafted,
//! preempted or found in the cache; and what cannot be evicted from is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{
    Answer, Mock, Numbers, ask, assert_equal, chain_model, collect, config, fixture_dir, greedy,
    settled, submit,
};
use std::{path::Path, sync::Arc, thread, time::Duration};
use taper_base::{Engine, EngineStats, GenRequest, SubmitError, TokenId};
use taper_engine::{
    EngineConfig, EngineError, Evict, EvictionConfig, EvictionError, KvBudget, LocalEngine,
    QueryError, Speculation, observe_queries,
};
use taper_kv_codecs::Exact;
use taper_models::{LoadOptions, Model};
use taper_weights::Checkpoint;

const VOCAB: u32 = 320;

fn load(dir: &Path) -> Box<dyn Model> {
    taper_models::load(&Checkpoint::open(dir).unwrap(), LoadOptions::default()).unwrap()
}

fn model() -> Box<dyn Model> {
    load(&fixture_dir())
}

/// TriAttention with statistics of a text.
fn triattention() -> Evict {
    let text = Numbers(3).prompt(300, VOCAB);
    Evict::TriAttention(Arc::new(observe_queries(&*model(), &text, None, |_| true).unwrap()))
}

fn evicting(policy: Evict) -> EvictionConfig {
    let numbers = EvictionConfig::new(policy);
    EvictionConfig { budget: 128, every: 32, prefix: 32, window: 32, ..numbers }
}

fn over(codec: &str, eviction: Option<EvictionConfig>) -> EngineConfig {
    EngineConfig {
        scheme: taper_kv_codecs::parse(codec).unwrap().into(),
        exact: Some(Exact { sink_tokens: 32, recent_tokens: 32 }),
        eviction,
        ..config()
    }
}

fn start(config: &EngineConfig) -> LocalEngine {
    LocalEngine::start(model(), config).unwrap()
}

/// Short prompts that write much, and long ones that are above the budget at once.
fn requests() -> Vec<GenRequest> {
    let mut numbers = Numbers(29);
    let one = |i: u32| {
        let len =
            if i.is_multiple_of(2) { 1 + numbers.below(90) } else { 150 + numbers.below(150) };
        let mut request = greedy(&numbers.prompt(len, VOCAB), 120 + numbers.below(90));
        request.sampling.logprobs = Some(2);
        request
    };
    (0..8).map(one).collect()
}

fn alone(config: &EngineConfig, requests: &[GenRequest]) -> (Vec<Answer>, EngineStats) {
    let engine = start(config);
    let answers = requests.iter().map(|r| ask(&engine, r.clone())).collect();
    settled(&engine);
    (answers, engine.stats())
}

fn refusal(model: Box<dyn Model>, config: &EngineConfig) -> EngineError {
    LocalEngine::start(model, config).expect_err("no engine")
}

#[test]
fn answers_do_not_depend_on_the_crowd() {
    let requests = requests();
    for (codec, policy) in [
        ("f32", Evict::Window),
        ("f16", triattention()),
        ("turbo4", triattention()),
        ("taper3", triattention()),
        ("taper4", Evict::Window),
    ] {
        let config = over(codec, Some(evicting(policy)));
        let (want, stats) = alone(&config, &requests);
        assert!(stats.kv_evictions > 20 && stats.kv_evicted_tokens > 1000, "{stats:?}");
        // Arrivals at random, steps of other sizes, and drafts.
        let crowds = [
            EngineConfig { max_num_batched_tokens: 48, ..config.clone() },
            EngineConfig { prefix_caching: false, max_num_seqs: 5, ..config.clone() },
            EngineConfig { speculation: Some(Speculation::suffix().steady()), ..config.clone() },
        ];
        for (n, crowd) in crowds.iter().enumerate() {
            let (engine, mut numbers) = (start(crowd), Numbers(n as u64));
            let open = requests.iter().map(|request| {
                thread::sleep(Duration::from_millis(u64::from(numbers.below(8))));
                submit(&engine, request.clone())
            });
            let got: Vec<_> = open.collect::<Vec<_>>().into_iter().map(collect).collect();
            assert_equal(&got, &want, &format!("{codec}, crowd {n}"));
            settled(&engine);
            let seen = engine.stats();
            assert!(seen.kv_evictions >= stats.kv_evictions, "{seen:?}");
            assert!(n < 2 || seen.drafts > 0, "{seen:?}");
        }
    }
}

#[test]
fn a_preempted_sequence_loses_the_same_rows_again() {
    let requests = requests();
    for (codec, policy) in [("f16", Evict::Window), ("taper4", triattention())] {
        let config = over(codec, Some(evicting(policy)));
        let (want, _) = alone(&config, &requests);
        // Room for the longest prompt and a little more.
        for tokens in [320, 512, 800] {
            let small = EngineConfig { kv_budget: KvBudget::Tokens(tokens), ..config.clone() };
            let engine = start(&small);
            let open: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
            let got: Vec<_> = open.into_iter().map(collect).collect();
            assert_equal(&got, &want, &format!("{codec}, {tokens} tokens"));
            settled(&engine);
            assert!(tokens < 800 || engine.stats().preemptions > 0, "{:?}", engine.stats());
        }
    }
}

#[test]
fn a_budget_that_is_never_reached_changes_nothing() {
    let requests = requests();
    let (want, _) = alone(&over("taper4", None), &requests);
    let eviction = EvictionConfig { budget: 512, ..evicting(triattention()) };
    let (got, stats) = alone(&over("taper4", Some(eviction)), &requests);
    assert_equal(&got, &want, "a large budget");
    assert_eq!((stats.kv_evictions, stats.kv_evicted_tokens), (0, 0));
}

#[test]
fn evicting_changes_answers_and_a_prompt_can_be_kept() {
    let requests = requests();
    let (dense, _) = alone(&over("f32", None), &requests);
    let (window, _) = alone(&over("f32", Some(evicting(Evict::Window))), &requests);
    let (scored, _) = alone(&over("f32", Some(evicting(triattention()))), &requests);
    let logprobs = |answers: &[Answer]| {
        answers.iter().flat_map(|a| &a.logprobs).map(|l| l.chosen.logprob).collect::<Vec<_>>()
    };
    assert_ne!(logprobs(&dense), logprobs(&window));
    assert_ne!(logprobs(&window), logprobs(&scored));
    // Nothing of the prompt goes, and the output has a budget that it does not reach.
    let kept = EvictionConfig { keep_prompt: true, budget: 220, ..evicting(Evict::Window) };
    let (kept, stats) = alone(&over("f32", Some(kept)), &requests);
    assert_equal(&kept, &dense, "prompts kept");
    assert_eq!(stats.kv_evictions, 0);
    let kept = EvictionConfig { keep_prompt: true, budget: 96, ..evicting(Evict::Window) };
    let (_, stats) = alone(&over("f32", Some(kept)), &requests);
    assert!(stats.kv_evictions > 0);
}

#[test]
fn nothing_is_found_that_has_seen_an_eviction() {
    let config = over("taper4", Some(evicting(triattention())));
    // What was decoded is prefilled in the fresh engine, which must be the same arithmetic.
    let start = |config: &EngineConfig| {
        let weights = Checkpoint::open(&fixture_dir()).unwrap();
        let model = taper_models::load(&weights, LoadOptions::EXACT).unwrap();
        LocalEngine::start(model, config).unwrap()
    };
    let engine = start(&config);
    let first = greedy(&Numbers(41).prompt(60, VOCAB), 200);
    let answer = ask(&engine, first.clone());
    let next: Vec<TokenId> = [&first.prompt[..], &answer.tokens].concat();
    let again = ask(&engine, greedy(&next, 40));
    // The first eviction is at 160 tokens; blocks before it are dense.
    assert_eq!(again.cached, 160);
    let fresh = ask(&start(&config), greedy(&next, 40));
    assert_eq!((again.tokens, fresh.cached), (fresh.tokens, 0));
    // A prompt's own blocks are found whole.
    let long = greedy(&Numbers(43).prompt(290, VOCAB), 8);
    let (cold, warm) = (ask(&engine, long.clone()), ask(&engine, long));
    assert_eq!((cold.cached, warm.cached), (0, 288));
    assert_eq!(cold.tokens, warm.tokens);
}

#[test]
fn an_output_may_be_longer_than_the_cache() {
    let eviction = EvictionConfig { budget: 96, ..evicting(Evict::Window) };
    let config = EngineConfig {
        kv_budget: KvBudget::Tokens(160),
        max_model_len: Some(512),
        ..over("f16", Some(eviction))
    };
    let engine = start(&config);
    assert_eq!(engine.info().max_model_len, 512);
    let answer = ask(&engine, greedy(&[7; 40], 460));
    assert_eq!((answer.tokens.len(), answer.error.is_none()), (460, true));
    let stats = engine.stats();
    assert_eq!((stats.kv_evictions, stats.preemptions), (12, 0), "{stats:?}");
    let (sink, _events) = taper_engine::channel();
    let refused = engine.submit(greedy(&[7; 200], 1), sink);
    assert!(
        matches!(refused, Err(SubmitError::NeverFits { need: 200, capacity: 160 })),
        "{refused:?}"
    );
    let dense = EngineConfig { eviction: None, ..config };
    assert!(matches!(refusal(model(), &dense), EngineError::TooLong { .. }));
}

#[test]
fn what_cannot_be_evicted_from_is_refused() {
    let refused = |eviction: EvictionConfig, model: Box<dyn Model>| match refusal(
        model,
        &over("taper4", Some(eviction)),
    ) {
        EngineError::Eviction(error) => error,
        other => panic!("{other}"),
    };
    let base = || evicting(Evict::Window);
    let every = refused(EvictionConfig { every: 33, ..base() }, model());
    assert!(matches!(every, EvictionError::Every { every: 33, unit: 32 }), "{every}");
    let little = refused(EvictionConfig { budget: 80, ..base() }, model());
    assert!(matches!(little, EvictionError::Budget { .. }), "{little}");
    let exact = refused(EvictionConfig { window: 8, ..base() }, model());
    assert!(matches!(exact, EvictionError::Exact { recent: 32, .. }), "{exact}");
    let fixture = |name: &str| load(&fixture_dir().parent().unwrap().join(name));
    for (name, policy, what) in [
        ("mistral-window-bf16", Evict::Window, "look back a window"),
        ("gemma3-bf16", Evict::Window, "look back a window"),
        ("qwen3-next-bf16", Evict::Window, "recurrent layers"),
        ("deepseek-v2-lite-f16", Evict::Window, "different heads"),
        ("phi-bf16", triattention(), "a part of each head"),
        ("gpt2-f16", triattention(), "without a rotary embedding"),
    ] {
        let error = refused(evicting(policy), fixture(name));
        let typed = matches!(error, EvictionError::Unsupported { .. });
        assert!(typed && error.to_string().contains(what), "{name}: {error}");
    }
    let other = refused(evicting(triattention()), fixture("llama-tied"));
    assert!(matches!(other, EvictionError::Statistics { .. }), "{other}");
    let text = observe_queries(&*model(), &[], None, |_| true);
    assert!(matches!(text, Err(QueryError::Text { tokens: 0, most: 512 })));
    let stopped = observe_queries(&*model(), &[1; 300], None, |done| done < 256);
    assert!(matches!(stopped, Err(QueryError::Interrupted)));
    let phi = observe_queries(&*fixture("phi-bf16"), &[1; 9], None, |_| true);
    assert!(matches!(phi, Err(QueryError::Unsupported { .. })));
}

/// Steps of a model that is a function of its batch: positions go on where rows do not.
#[test]
fn positions_are_those_of_the_text() {
    let exact = None;
    let config = EngineConfig { eviction: Some(evicting(Evict::Window)), exact, ..config() };
    let answer = ask(&chain_model().start(&config), greedy(&[11, 12, 13], 400));
    assert_eq!(answer.tokens, common::chain(&[11, 12, 13], 400));
    let mut hybrid = Mock::new(|batch| Ok(Mock::rows(batch, common::next_token)));
    hybrid.info_mut().recurrent = vec![8];
    let refused = refusal(Box::new(hybrid), &config);
    assert!(matches!(refused, EngineError::Eviction(EvictionError::Unsupported { .. })));
}
