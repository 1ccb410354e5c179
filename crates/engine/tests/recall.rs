//! Sequences that attend to some of their pages: what they say depends on nothing but themselves.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Answer, Numbers, ask, collect, config, greedy, long as engine_of, settled, submit};
use taper_base::{Engine, GenRequest, SubmitError};
use taper_engine::{EngineConfig, KvBudget, Speculation};
use taper_kv_codecs::Exact;

/// One with windows in some layers, one with latent attention, one with recurrent layers.
const FAMILIES: [&str; 4] = ["qwen3-bf16", "gemma3-bf16", "deepseek-v3-bf16", "qwen3-next-bf16"];
const VOCAB: u32 = 320;
/// More than any sequence here has.
const ALL: u32 = 1000;
const FEW: u32 = 3;

/// Codecs, with windows of exact tokens that pages are no multiples of, too.
const CACHES: [(&str, Option<Exact>); 4] = [
    ("f16", None),
    ("turbo4", Some(Exact { sink_tokens: 32, recent_tokens: 32 })),
    ("taper3", Some(Exact { sink_tokens: 96, recent_tokens: 96 })),
    ("taper4", Some(Exact { sink_tokens: 0, recent_tokens: 288 })),
];

fn of(name: &str, exact: Option<Exact>) -> EngineConfig {
    let scheme = taper_kv_codecs::parse(name).unwrap().into();
    EngineConfig { scheme, exact, kv_budget: KvBudget::Tokens(32_768), ..config() }
}

fn request(prompt: &[u32], tokens: u32, pages: u32) -> GenRequest {
    let mut request = greedy(prompt, tokens);
    request.sampling.logprobs = Some(3);
    request.kv_recall_pages = Some(pages);
    request
}

/// Tokens, and every bit of their log probabilities.
fn said(answer: &Answer) -> (Vec<u32>, Vec<(u32, u32)>) {
    assert!(answer.error.is_none(), "{:?}", answer.error);
    let all = answer.logprobs.iter().flat_map(|at| &at.top);
    (answer.tokens.clone(), all.map(|l| (l.id, l.logprob.to_bits())).collect())
}

#[test]
fn all_pages_are_dense_attention_bit_for_bit_and_few_are_not() {
    for family in FAMILIES {
        for (name, exact) in CACHES {
            let engine = engine_of(family, &of(name, exact));
            let prompt = Numbers(5).prompt(890, VOCAB);
            let ask = |pages| said(&ask(&engine, request(&prompt, 30, pages)));
            let dense = ask(0);
            assert_eq!(ask(ALL), dense, "{family}, {name}");
            assert_eq!(engine.stats().recall_steps, 0);
            assert_ne!(ask(FEW).1, dense.1, "{family}, {name}");
            let stats = engine.stats();
            assert!(stats.recall_steps > 0 && stats.recall_skipped_pages > 0);
            assert!(stats.recall_choices >= 4, "{stats:?}");
        }
    }
}

/// Alone, in a crowd with others of the same prefix, with a cache that is too small, with chunks of another size,
/// and with drafts: always the same bits.
#[test]
fn what_is_said_depends_on_the_sequence_alone() {
    let mut preemptions = 0;
    for (family, (name, exact)) in FAMILIES.into_iter().zip(CACHES) {
        let roomy = of(name, exact);
        let mut numbers = Numbers(11);
        let prefix = numbers.prompt(700, VOCAB);
        let requests: Vec<_> = (0..8)
            .map(|i| {
                let len = 10 + numbers.below(200);
                let own = numbers.prompt(len, VOCAB);
                let prompt = if i % 2 == 0 {
                    [&prefix[..], &own].concat()
                } else {
                    [&own, &prefix[..]].concat()
                };
                request(&prompt, 20 + 3 * i, if i == 5 { 0 } else { FEW })
            })
            .collect();
        let alone: Vec<_> = {
            let plain = EngineConfig { prefix_caching: false, ..roomy.clone() };
            let engine = engine_of(family, &plain);
            requests.iter().map(|r| said(&ask(&engine, r.clone()))).collect()
        };
        let tight = EngineConfig { kv_budget: KvBudget::Tokens(2600), ..roomy.clone() };
        let drafts = Some(Speculation::suffix().steady());
        let variants = [
            ("together", roomy.clone()),
            ("in small steps", EngineConfig { max_num_batched_tokens: 70, ..roomy.clone() }),
            ("with drafts", EngineConfig { speculation: drafts, ..roomy.clone() }),
            ("in a small cache", tight),
        ];
        for (what, config) in variants {
            let engine = engine_of(family, &config);
            for round in 0..2 {
                let open: Vec<_> = requests
                    .iter()
                    .map(|request| {
                        let events = submit(&engine, request.clone());
                        // All at once where they are meant to have no room.
                        let pause = if what == "in a small cache" { 0 } else { numbers.below(12) };
                        std::thread::sleep(std::time::Duration::from_millis(pause.into()));
                        events
                    })
                    .collect();
                let got: Vec<_> = open.into_iter().map(|events| said(&collect(events))).collect();
                for (i, (got, want)) in got.iter().zip(&alone).enumerate() {
                    assert_eq!(got, want, "{family}, {name}, {what}, round {round}, request {i}");
                }
            }
            let stats = engine.stats();
            assert!(stats.recall_steps > 0, "{stats:?}");
            preemptions += stats.preemptions;
            settled(&engine);
        }
    }
    assert!(preemptions > 0, "caches were meant to be too small");
}

/// What is computed over some pages is not found by others; the prompt is.
#[test]
fn an_answer_over_some_pages_is_nobodys_prefix() {
    let (name, exact) = CACHES[1];
    let engine = engine_of(FAMILIES[0], &of(name, exact));
    let prompt = Numbers(8).prompt(900, VOCAB);
    let answer = ask(&engine, request(&prompt, 100, FEW));
    let next = [&prompt[..], &answer.tokens, &[7, 8, 9]].concat();
    let found = ask(&engine, request(&next, 10, 0));
    assert_eq!(found.cached, 896);
    let plain = engine_of(FAMILIES[0], &EngineConfig { prefix_caching: false, ..of(name, exact) });
    assert_eq!(said(&found), said(&ask(&plain, request(&next, 10, 0))));
    // What the question's queries choose by is computed.
    assert_eq!(ask(&engine, request(&prompt, 5, FEW)).cached, 832);
}

#[test]
fn the_engines_own_number_holds_for_requests_that_name_none() {
    let config = EngineConfig { kv_recall_pages: FEW, ..of("f16", None) };
    let engine = engine_of(FAMILIES[0], &config);
    assert_eq!(engine.info().kv_recall_pages, FEW);
    let prompt = Numbers(2).prompt(1000, VOCAB);
    let mut own = request(&prompt, 12, 0);
    own.kv_recall_pages = None;
    assert_eq!(said(&ask(&engine, own)), said(&ask(&engine, request(&prompt, 12, FEW))));
    assert!(engine.stats().recall_steps > 0);
    // A request of any number of pages runs.
    assert!(ask(&engine, request(&prompt, 2, u32::MAX)).error.is_none());
    let refused = SubmitError::NoRecall { asked: 4, reason: "r" };
    assert!(refused.to_string().contains("kv_recall_pages 4"));
}
