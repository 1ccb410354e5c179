//! Speculation changes the time of an output and nothing else: tokens, log probabilities and ends are bit for
//! bit those of an engine without it, whatever drafts, over every KV cache, alone and in crowds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;
mod drafters;

use common::{Answer, Numbers, ask, assert_equal, collect, config, greedy, settled, submit, tiny};
use drafters::{Oracle, Random};
use std::sync::Arc;
use taper_base::{Drafting, Engine, GenRequest, SamplingParams, StopRules, TokenId};
use taper_engine::{EngineConfig, KvBudget, Speculation};
use taper_kv_cache::KvScheme;
use taper_kv_codecs::Exact;

const VOCAB: u32 = 320;

/// Answers to requests that all run at once.
fn crowd(config: &EngineConfig, requests: &[GenRequest]) -> (Vec<Answer>, taper_base::EngineStats) {
    let engine = tiny(config);
    let open: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
    let answers = open.into_iter().map(collect).collect();
    settled(&engine);
    (answers, engine.stats())
}

/// Drafters that are never, sometimes and nearly always right.
fn drafters(requests: &[GenRequest], answers: &[Answer]) -> Vec<(&'static str, Speculation)> {
    let all = requests.iter().zip(answers).map(|(r, a)| [&r.prompt[..], &a.tokens].concat());
    let texts: Arc<[Vec<TokenId>]> = all.collect();
    let oracle = |wrong| {
        let texts = Arc::clone(&texts);
        Speculation::new(move || Box::new(Oracle { texts: Arc::clone(&texts), wrong })).steady()
    };
    vec![
        ("suffix", Speculation::suffix().steady()),
        ("suffix with a controller", Speculation::suffix()),
        ("random", Speculation::new(|| Box::new(Random(Numbers(5)))).steady()),
        ("always right", oracle(0)),
        ("wrong each third time", oracle(3)),
        ("wrong each second time, of five", oracle(2).most(5)),
        ("wrong in the first place", oracle(1)),
    ]
}

/// Requests of all kinds; each has its own.
fn requests(n: u32) -> Vec<GenRequest> {
    requests_of(17, n)
}

fn requests_of(seed: u64, n: u32) -> Vec<GenRequest> {
    let mut numbers = Numbers(seed);
    let one = |i: u32| {
        let len = 1 + numbers.below(120);
        // Some prompts repeat themselves, so that there is something to find.
        let mut prompt = numbers.prompt(len, if i.is_multiple_of(3) { 5 } else { VOCAB });
        if i % 4 == 1 {
            prompt = prompt.repeat(2);
        }
        let mut request = greedy(&prompt, 1 + numbers.below(90));
        request.sampling = sampling(i, &mut numbers);
        if i % 5 == 2 {
            request.stop = StopRules { ignore_eos: false, ..request.stop };
            request.stop.token_ids = (0..8).map(|_| numbers.below(VOCAB)).collect();
            request.stop.min_tokens = numbers.below(20).min(request.stop.max_tokens.unwrap_or(0));
        }
        if i % 7 == 3 {
            request.bad_words = vec![vec![numbers.below(VOCAB)], vec![9, 10]].into();
        }
        if i % 6 == 4 {
            request.prompt_logprobs = Some(2);
        }
        if i % 4 == 2 {
            request.prediction = numbers.prompt(30, VOCAB).into();
        }
        request
    };
    (0..n).map(one).collect()
}

fn sampling(i: u32, numbers: &mut Numbers) -> SamplingParams {
    let seed = u64::from(i / 2);
    let logprobs = (i % 3 == 1).then_some((i % 4) as u8);
    match i % 6 {
        0 => SamplingParams { logprobs, ..SamplingParams::greedy() },
        1 => SamplingParams { temperature: 0.05, seed, logprobs, ..SamplingParams::default() },
        2 => SamplingParams {
            temperature: 0.7,
            top_p: 0.9,
            top_k: 12,
            seed,
            logprobs,
            ..SamplingParams::default()
        },
        3 => SamplingParams {
            repetition_penalty: 1.3,
            frequency_penalty: 0.4,
            presence_penalty: 0.2,
            logprobs,
            ..SamplingParams::greedy()
        },
        4 => SamplingParams {
            logit_bias: vec![(numbers.below(VOCAB), 3.0), (11, -100.0)],
            temperature: 0.3,
            min_p: 0.05,
            seed,
            logprobs,
            ..SamplingParams::default()
        },
        _ => SamplingParams {
            typical_p: 0.8,
            frequency_penalty: -0.5,
            seed,
            logprobs,
            ..SamplingParams::default()
        },
    }
}

#[test]
fn any_request_says_what_it_says_without_drafts() {
    let requests = requests(48);
    let (want, plain) = crowd(&config(), &requests);
    assert_eq!(plain.drafts, 0);
    for (name, speculation) in drafters(&requests, &want) {
        let config = EngineConfig { speculation: Some(speculation), ..config() };
        let (got, stats) = crowd(&config, &requests);
        assert_equal(&got, &want, name);
        let rejected: u32 = got.iter().map(|a| a.rejected).sum();
        let accepted: u32 = got.iter().map(|a| a.accepted).sum();
        assert_eq!(stats.accepted_draft_tokens, u64::from(accepted), "{name}");
        assert_eq!(stats.draft_tokens, u64::from(accepted + rejected), "{name}");
        assert_eq!(stats.generation_tokens, plain.generation_tokens, "{name}");
        if name == "always right" {
            assert!(stats.steps * 2 < plain.steps && rejected == 0, "{stats:?}");
        }
        if name != "suffix with a controller" {
            assert!(stats.drafts > 0, "{name} drafts nothing");
        }
        // One at a time.
        let engine = tiny(&config);
        let alone: Vec<_> = requests[..16].iter().map(|r| ask(&engine, r.clone())).collect();
        assert_equal(&alone, &want, name);
    }
}

/// A minute or two of a release build: `cargo test --release -p taper-engine --test speculation -- --ignored`.
#[test]
#[ignore = "10,000 requests"]
fn ten_thousand_requests_say_what_they_say_without_drafts() {
    let mut compared = 0;
    for (seed, seqs) in (0..).zip([1, 2, 3, 4, 6, 8, 12, 16]) {
        let requests = requests_of(100 + seed, 180);
        let config = EngineConfig { max_num_seqs: seqs, ..config() };
        let (want, _) = crowd(&config, &requests);
        for (name, speculation) in drafters(&requests, &want) {
            let config = EngineConfig { speculation: Some(speculation), ..config.clone() };
            let (got, stats) = crowd(&config, &requests);
            assert_equal(&got, &want, &format!("{name}, {seqs} sequences"));
            assert!(stats.drafts > 0 || name == "suffix with a controller", "{name}");
            compared += got.len();
        }
    }
    assert!(compared >= 10_000, "{compared}");
}

fn under_pressure(base: &EngineConfig) {
    let requests = requests(40);
    let (want, _) = crowd(base, &requests);
    for (seqs, tokens, caching) in [(32, 256, true), (5, 16, false), (8, 33, true)] {
        for (name, speculation) in drafters(&requests, &want) {
            let config = EngineConfig {
                max_num_seqs: seqs,
                max_num_batched_tokens: tokens,
                kv_budget: KvBudget::Tokens(352),
                prefix_caching: caching,
                speculation: Some(speculation),
                ..base.clone()
            };
            let (got, stats) = crowd(&config, &requests);
            assert_equal(&got, &want, &format!("{name}, {seqs} sequences, {tokens} tokens"));
            assert!(stats.preemptions > 0, "the cache was meant to be too small");
        }
    }
}

#[test]
fn crowds_under_pressure_say_what_they_say_without_drafts() {
    under_pressure(&config());
}

/// Blocks of exact rows run out too.
#[test]
fn crowds_under_pressure_over_codes_say_what_they_say_without_drafts() {
    let exact = Some(Exact { sink_tokens: 32, recent_tokens: 32 });
    let scheme = taper_kv_codecs::parse("taper4").unwrap().into();
    under_pressure(&EngineConfig { scheme, exact, ..config() });
}

/// Outputs of two blocks and more: drafts cross the ends of blocks, of recent tokens and of sinks, and a second
/// request finds what the first one has published.
#[test]
fn every_kv_cache_holds_what_it_holds_without_drafts() {
    let exact = |sink_tokens, recent_tokens| Some(Exact { sink_tokens, recent_tokens });
    let caches = [
        ("f32", None),
        ("f16", None),
        ("bf16", None),
        ("affine8", None),
        ("affine4", exact(0, 32)),
        ("turbo4", None),
        ("turbo3", exact(32, 64)),
        ("turbo4v2", exact(32, 32)),
        ("turbo3-qjl", exact(32, 32)),
        ("taper4", exact(32, 32)),
        ("taper3", exact(0, 64)),
        ("taper2", exact(32, 32)),
        ("f16+taper4", exact(32, 32)),
    ];
    let mut numbers = Numbers(23);
    let mut requests: Vec<_> = (0..6)
        .map(|i| {
            let (len, new) = (5 + numbers.below(70), 60 + numbers.below(80));
            let request = greedy(&numbers.prompt(len, if i % 2 == 0 { 6 } else { VOCAB }), new);
            let sampling = SamplingParams { logprobs: Some(1), ..sampling(i, &mut numbers) };
            GenRequest { sampling, ..request }
        })
        .collect();
    for (name, exact) in caches {
        let codecs: Vec<_> = name.split('+').map(|n| taper_kv_codecs::parse(n).unwrap()).collect();
        let scheme = KvScheme::of_layers(&codecs).unwrap();
        let config = EngineConfig { scheme, exact, ..config() };
        // What follows an output is computed from the blocks that the output has left.
        let (first, _) = crowd(&config, &requests[..6]);
        requests.truncate(6);
        for (request, answer) in requests.clone().iter().zip(&first) {
            let prompt = [&request.prompt[..], &answer.tokens].concat();
            requests.push(GenRequest { prompt, ..request.clone() });
        }
        let both = |config: &EngineConfig| {
            let engine = tiny(config);
            let of = |requests: &[GenRequest]| {
                let open: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
                open.into_iter().map(collect).collect::<Vec<_>>()
            };
            let mut answers = of(&requests[..6]);
            answers.extend(of(&requests[6..]));
            answers
        };
        let want = both(&config);
        assert!(want[6..].iter().any(|a| a.cached > 0), "{name}: outputs were meant to be found");
        for (drafter, speculation) in drafters(&requests, &want) {
            let config = EngineConfig { speculation: Some(speculation), ..config.clone() };
            let got = both(&config);
            assert_equal(&got, &want, &format!("{name}, {drafter}"));
            assert!(got.iter().zip(&want).all(|(g, w)| g.cached == w.cached), "{name}, {drafter}");
        }
    }
}

#[test]
fn a_request_may_refuse_or_limit_drafts() {
    let engine =
        tiny(&EngineConfig { speculation: Some(Speculation::suffix().steady()), ..config() });
    assert_eq!(engine.info().drafting, Drafting::On { method: "suffix".to_owned(), most: 8 });
    let prompt = [7, 8, 9].repeat(20);
    let with = |most| GenRequest { max_draft_tokens: most, ..greedy(&prompt, 60) };
    let none = ask(&engine, with(Some(0)));
    assert_eq!((none.accepted, none.rejected, engine.stats().drafts), (0, 0, 0));
    let one = ask(&engine, with(Some(1)));
    let stats = engine.stats();
    assert!(stats.drafts > 0 && stats.draft_tokens == stats.drafts, "{stats:?}");
    let all = ask(&engine, with(None));
    assert!(engine.stats().draft_tokens > 2 * stats.draft_tokens);
    assert_eq!(none.tokens, one.tokens);
    assert_eq!(none.tokens, all.tokens);
}

/// A prediction that is right is accepted nearly whole.
#[test]
fn a_prediction_is_drafted() {
    let engine =
        tiny(&EngineConfig { speculation: Some(Speculation::suffix().steady()), ..config() });
    let request = GenRequest {
        sampling: SamplingParams { seed: 3, ..SamplingParams::default() },
        ..greedy(&Numbers(31).prompt(40, VOCAB), 80)
    };
    let plain = ask(&engine, GenRequest { max_draft_tokens: Some(0), ..request.clone() });
    let mut prediction = plain.tokens.clone();
    prediction[40] = VOCAB + 5;
    let got = ask(&engine, GenRequest { prediction: prediction.into(), ..request });
    assert_eq!(got.tokens, plain.tokens);
    assert!(got.accepted > 60, "{} of 80 were accepted", got.accepted);
}

#[test]
fn caches_that_cannot_go_back_say_so() {
    let scheme = taper_kv_codecs::parse("taper4").unwrap().into();
    let engine =
        tiny(&EngineConfig { scheme, speculation: Some(Speculation::suffix()), ..config() });
    let Drafting::Off { reason } = &engine.info().drafting else { panic!("it drafts") };
    assert!(reason.contains("recent tokens"), "{reason}");
    let off = tiny(&config());
    assert_eq!(off.info().drafting, Drafting::Off { reason: "it is turned off".to_owned() });
}
