//! The engine over a real checkpoint, whose tokens and logits transformers gave: whatever runs
//! beside a request, and however often it is preempted, its tokens stay the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Numbers, ask, collect, config, fixture, greedy, settled, submit, tiny};
use taper_base::{Engine, FinishReason, GenRequest, SamplingParams};
use taper_engine::{EngineConfig, KvBudget};

const VOCAB: u32 = 320;

fn mixed_requests(n: u64, sampling: impl Fn(u64) -> SamplingParams) -> Vec<GenRequest> {
    let mut numbers = Numbers(7);
    let one = |i| {
        let (prompt, new) = (1 + numbers.below(120), 1 + numbers.below(90));
        let request = greedy(&numbers.prompt(prompt, VOCAB), new);
        GenRequest { sampling: sampling(i), ..request }
    };
    (0..n).map(one).collect()
}

#[test]
fn greedy_tokens_are_those_of_transformers() {
    let expected = fixture();
    let new = expected.greedy.len() as u32;
    for chunk in [1, 7, 256] {
        let engine = tiny(&EngineConfig { max_num_batched_tokens: chunk, ..config() });
        let answer = ask(&engine, greedy(&expected.prompt, new));
        assert_eq!(answer.tokens, expected.greedy, "in steps of {chunk} tokens");
        assert_eq!(answer.finish, Some(FinishReason::Length));
        assert_eq!(engine.stats().kv_blocks_used, 0, "free before the last event");
        let stats = engine.stats();
        assert_eq!(stats.prompt_tokens, expected.prompt.len() as u64);
        assert_eq!(stats.generation_tokens, u64::from(new));
    }
}

#[test]
fn a_crowd_with_preemptions_says_what_each_says_alone() {
    let requests = mixed_requests(32, |_| SamplingParams::greedy());
    let roomy = tiny(&config());
    let alone: Vec<_> = requests.iter().map(|r| ask(&roomy, r.clone()).tokens).collect();
    assert_eq!(roomy.stats().preemptions, 0);
    for (seqs, tokens) in [(32, 256), (5, 16), (32, 33)] {
        let tight = tiny(&EngineConfig {
            max_num_seqs: seqs,
            max_num_batched_tokens: tokens,
            kv_budget: KvBudget::Tokens(320),
            ..config()
        });
        let open: Vec<_> = requests.iter().map(|r| submit(&tight, r.clone())).collect();
        let crowd: Vec<_> = open.into_iter().map(|events| collect(events).tokens).collect();
        assert_eq!(crowd, alone, "{seqs} sequences, {tokens} tokens a step");
        assert!(tight.stats().preemptions > 0, "the cache was meant to be too small");
        settled(&tight);
    }
}

#[test]
fn a_seed_gives_the_same_tokens_alone_and_in_a_crowd() {
    let sampling = |i| SamplingParams {
        temperature: 1.3,
        top_k: 40,
        top_p: 0.95,
        presence_penalty: 0.5,
        repetition_penalty: 1.1,
        seed: i / 2,
        ..SamplingParams::default()
    };
    let mut requests = mixed_requests(16, sampling);
    requests[1].prompt = requests[0].prompt.clone(); // The same seed and the same prompt.
    let engine = tiny(&config());
    let alone: Vec<_> = requests.iter().map(|r| ask(&engine, r.clone()).tokens).collect();
    let both = alone[0].len().min(alone[1].len());
    assert_eq!(alone[0][..both], alone[1][..both]);
    let tight = tiny(&EngineConfig { kv_budget: KvBudget::Tokens(320), ..config() });
    let open: Vec<_> = requests.iter().map(|r| submit(&tight, r.clone())).collect();
    let crowd: Vec<_> = open.into_iter().map(|events| collect(events).tokens).collect();
    assert_eq!(crowd, alone);
    assert!(tight.stats().preemptions > 0);
    let other = GenRequest { sampling: sampling(99), ..requests[3].clone() };
    assert_ne!(ask(&engine, other).tokens, alone[3], "another seed, other tokens");
}

fn log_softmax(row: &[f32], token: usize) -> f32 {
    let max = row.iter().copied().fold(f32::MIN, f32::max);
    row[token] - max - row.iter().map(|x| (x - max).exp()).sum::<f32>().ln()
}

fn check_prompt(answer: &common::Answer, expected: &common::Fixture) {
    let entries = answer.prompt.as_ref().expect("log probabilities of the prompt");
    assert_eq!(entries.len(), expected.prompt.len());
    assert!(entries[0].is_none());
    for (i, entry) in entries.iter().enumerate().skip(1) {
        let (entry, row) = (entry.as_ref().unwrap(), &expected.logits[i - 1]);
        assert_eq!(entry.chosen.id, expected.prompt[i]);
        let all = std::iter::once(&entry.chosen).chain(&entry.top);
        for logprob in all {
            let want = log_softmax(row, logprob.id as usize);
            assert!((logprob.logprob - want).abs() < 1e-3, "token {i}: {logprob:?}, not {want}");
        }
        assert_eq!(entry.top.len(), 3);
        assert!(entry.top.windows(2).all(|w| w[0].logprob >= w[1].logprob));
    }
}

#[test]
fn prompt_log_probabilities_are_those_of_transformers() {
    let expected = fixture();
    for (chunk, new) in [(256, 0), (256, 24), (5, 0), (5, 24)] {
        let engine = tiny(&EngineConfig { max_num_batched_tokens: chunk, ..config() });
        let request = GenRequest { prompt_logprobs: Some(3), ..greedy(&expected.prompt, new) };
        let answer = ask(&engine, request);
        check_prompt(&answer, &expected);
        assert_eq!(answer.tokens, expected.greedy[..new as usize]);
        assert_eq!(answer.finish, Some(FinishReason::Length));
        settled(&engine);
    }
}

#[test]
fn prompt_log_probabilities_survive_a_crowd_and_preemptions() {
    let expected = fixture();
    let engine = tiny(&EngineConfig {
        max_num_batched_tokens: 24,
        kv_budget: KvBudget::Tokens(320),
        ..config()
    });
    let request = GenRequest { prompt_logprobs: Some(3), ..greedy(&expected.prompt, 24) };
    let crowd = mixed_requests(24, |_| SamplingParams::greedy());
    let mut crowd: Vec<_> = crowd.into_iter().map(|r| submit(&engine, r)).collect();
    let scored: Vec<_> = (0..6).map(|_| submit(&engine, request.clone())).collect();
    crowd.drain(..).for_each(|events| assert!(collect(events).finish.is_some()));
    for events in scored {
        let answer = collect(events);
        check_prompt(&answer, &expected);
        assert_eq!(answer.tokens, expected.greedy);
    }
    assert!(engine.stats().preemptions > 0);
    settled(&engine);
}

#[test]
fn a_prompt_alone_computes_nothing_more() {
    let expected = fixture();
    let engine = tiny(&config());
    let answer = ask(&engine, greedy(&expected.prompt, 0));
    assert!(answer.started && answer.tokens.is_empty() && answer.prompt.is_none());
    assert_eq!(answer.finish, Some(FinishReason::Length));
    assert_eq!(engine.stats().generation_tokens, 0);
    // Also where it shares a step with others.
    let others: Vec<_> = (0..4).map(|_| submit(&engine, greedy(&expected.prompt, 24))).collect();
    let bare: Vec<_> = (0..4).map(|_| submit(&engine, greedy(&expected.prompt, 0))).collect();
    bare.into_iter().for_each(|events| assert!(collect(events).tokens.is_empty()));
    others.into_iter().for_each(|events| assert_eq!(collect(events).tokens, expected.greedy));
}

#[test]
fn log_probabilities_of_the_output() {
    let expected = fixture();
    let engine = tiny(&config());
    let mut request = greedy(&expected.prompt, 24);
    request.sampling.logprobs = Some(2);
    let answer = ask(&engine, request);
    assert_eq!(answer.tokens, expected.greedy);
    assert_eq!(answer.logprobs.len(), 24);
    for (token, entry) in answer.tokens.iter().zip(&answer.logprobs) {
        assert_eq!((entry.chosen.id, entry.top.len()), (*token, 2));
        assert_eq!(entry.top[0], entry.chosen, "greedy takes the likeliest");
    }
    let want = log_softmax(&expected.logits[63], answer.tokens[0] as usize);
    assert!((answer.logprobs[0].chosen.logprob - want).abs() < 1e-3);
}
