//! How requests begin, end and are cancelled.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{
    EOS, Mock, Numbers, ask, chain, chain_model, collect, config, greedy, settled, submit, wait_for,
};
use std::time::Duration;
use taper_base::{
    Engine, Event, FinishReason, GenRequest, GenerationError, StopRules, SubmitError, TokenSet,
};
use taper_engine::{EngineConfig, KvBudget, channel};

#[test]
fn the_output_ends_where_the_rules_say() {
    let engine = chain_model().start(&config());
    let prompt = [11, 12, 13];
    let whole = chain(&prompt, 40);
    let stopped = |stop: StopRules| {
        let answer = ask(&engine, GenRequest { stop, ..greedy(&prompt, 0) });
        (answer.tokens, answer.finish.unwrap())
    };
    let rules = |max, min, ids: &[u32]| StopRules {
        max_tokens: Some(max),
        min_tokens: min,
        token_ids: ids.iter().copied().collect(),
        ignore_eos: false,
    };
    assert_eq!(stopped(rules(40, 0, &[])), (whole.clone(), FinishReason::Length));
    // A stop token counts and is the last.
    let at = whole.iter().position(|t| *t == whole[9]).unwrap();
    assert_eq!(stopped(rules(40, 0, &[whole[9]])), (whole[..=at].to_vec(), FinishReason::Stop));
    // On the very last token allowed, it is still a stop.
    let last = at as u32 + 1;
    assert_eq!(stopped(rules(last, 0, &[whole[9]])).1, FinishReason::Stop);
    // Before the minimum a stop token cannot be chosen; the model goes another way.
    let (tokens, _) = stopped(rules(40, last + 5, &[whole[9]]));
    assert!(tokens.len() > at + 5, "{tokens:?}");
    assert!(!tokens[..at + 5].contains(&whole[9]));
}

#[test]
fn the_models_own_end_counts_unless_it_is_ignored() {
    // Ends after four tokens, and after every token that follows.
    let model = Mock::new(|batch| {
        Ok(Mock::rows(batch, |t, p| if p < 6 { common::next_token(t, p) } else { EOS }))
    });
    let engine = model.start(&config());
    let rules = |min, ignore_eos| StopRules {
        max_tokens: Some(12),
        min_tokens: min,
        token_ids: TokenSet::default(),
        ignore_eos,
    };
    let run = |stop| ask(&engine, GenRequest { stop, ..greedy(&[11, 12, 13], 0) });
    let ended = run(rules(0, false));
    assert_eq!((ended.tokens.len(), ended.finish), (5, Some(FinishReason::Stop)));
    assert_eq!(ended.tokens[4], EOS);
    let ignored = run(rules(0, true));
    assert_eq!((ended.tokens.as_slice(), ignored.tokens.len()), (&ignored.tokens[..5], 12));
    assert_eq!(ignored.finish, Some(FinishReason::Length));
    let later = run(rules(8, false));
    assert_eq!((later.tokens.len(), later.finish), (9, Some(FinishReason::Stop)));
    assert!(!later.tokens[..8].contains(&EOS));
}

#[test]
fn without_max_tokens_the_context_is_filled() {
    let engine = chain_model().start(&EngineConfig { max_model_len: Some(70), ..config() });
    let stop = StopRules::default();
    let answer = ask(&engine, GenRequest { stop, ..greedy(&[11, 12, 13], 0) });
    assert_eq!((answer.tokens.len(), answer.finish), (67, Some(FinishReason::Length)));
    // The whole context in prompt and output.
    assert_eq!(ask(&engine, greedy(&[11; 69], 1)).tokens.len(), 1);
    assert_eq!(ask(&engine, greedy(&[11; 70], 0)).finish, Some(FinishReason::Length));
}

#[test]
fn a_request_that_nobody_reads_is_dropped_wherever_it_is() {
    let (model, permits) = chain_model().gated();
    let config = EngineConfig { max_num_seqs: 2, max_num_batched_tokens: 16, ..config() };
    let engine = model.start(&config);
    let kept = submit(&engine, greedy(&[11, 12], 30));
    let decoding = submit(&engine, greedy(&[21, 22], 1000));
    let queued = submit(&engine, greedy(&[31, 32], 1000));
    for _ in 0..4 {
        permits.send(()).unwrap();
    }
    wait_for(&engine, "four steps", |s| s.steps == 4);
    wait_for(&engine, "a queue", |s| s.waiting == 1 && s.running == 2);
    let mut decoding = decoding;
    assert!(matches!(decoding.next(), Some(Event::Started { .. })));
    assert!(matches!(decoding.next(), Some(Event::Token(_))));
    drop(queued);
    drop(decoding);
    // A long prompt takes the free slot, and goes in the middle of its prefill.
    let prefilling = submit(&engine, greedy(&[41; 900], 1000));
    for _ in 0..6 {
        permits.send(()).unwrap();
    }
    wait_for(&engine, "ten steps", |s| s.steps == 10);
    wait_for(&engine, "both cancelled", |s| s.cancelled == 2 && s.running == 2);
    assert!(engine.stats().kv_blocks_used > 28, "the whole prefill is reserved");
    drop(prefilling);
    permits.send(()).unwrap();
    wait_for(&engine, "all cancelled", |s| s.cancelled == 3);
    wait_for(&engine, "the blocks of one", |s| s.kv_blocks_used == 1 && s.running == 1);
    drop(permits);
    assert_eq!(collect(kept).tokens, chain(&[11, 12], 30), "the others are unaffected");
    settled(&engine);
    assert_eq!(engine.stats().cancelled, 3);
}

#[test]
fn a_crowd_that_leaves_at_random_moments_leaves_nothing_behind() {
    let engine = chain_model().start(&EngineConfig {
        max_num_seqs: 16,
        max_num_batched_tokens: 64,
        kv_budget: KvBudget::Tokens(640),
        ..config()
    });
    let mut numbers = Numbers(3);
    for _ in 0..20 {
        let mut open = Vec::new();
        for i in 0..40 {
            let prompt = 1 + numbers.below(200);
            let prompt = numbers.prompt(prompt, Mock::VOCAB);
            let new = 1 + numbers.below(100);
            let mut events = submit(&engine, greedy(&prompt, new));
            if i % 3 == 0 {
                open.push((prompt, new, events));
            } else {
                events.by_ref().take(numbers.below(5) as usize).for_each(drop);
            }
        }
        for (prompt, new, events) in open {
            assert_eq!(collect(events).tokens, chain(&prompt, new as usize));
        }
    }
    settled(&engine);
    assert!(engine.stats().preemptions > 0);
}

#[test]
fn what_can_never_run_is_refused_at_once() {
    let engine = chain_model().start(&EngineConfig { max_model_len: Some(100), ..config() });
    let refuse = |change: fn(&mut GenRequest)| {
        let mut request = greedy(&[11, 12], 5);
        change(&mut request);
        let (sink, mut events) = channel();
        let error = engine.submit(request, sink).expect_err("must be refused");
        assert!(events.next().is_none(), "no events after a refusal");
        error
    };
    let vocab = Mock::VOCAB;
    assert_eq!(refuse(|r| r.prompt.clear()), SubmitError::EmptyPrompt);
    assert_eq!(refuse(|r| r.prompt[1] = 64), SubmitError::UnknownToken { token: 64, vocab });
    let unknown = SubmitError::UnknownToken { token: u32::MAX, vocab };
    assert_eq!(refuse(|r| r.stop.token_ids = vec![1, u32::MAX].into()), unknown);
    assert_eq!(refuse(|r| r.sampling.logit_bias = vec![(u32::MAX, 1.0)]), unknown);
    let param = refuse(|r| r.sampling.temperature = f32::NAN);
    assert!(matches!(param, SubmitError::InvalidParam(p) if p.name == "temperature"));
    let long = |prompt, new| SubmitError::TooLong { prompt, new, max: 100 };
    assert_eq!(refuse(|r| r.stop.max_tokens = Some(99)), long(2, 99));
    assert_eq!(refuse(|r| r.stop.max_tokens = Some(u32::MAX)), long(2, u32::MAX));
    assert_eq!(refuse(|r| r.prompt = vec![11; 101]), long(101, 5));
    let full = |r: &mut GenRequest| {
        r.prompt = vec![11; 100];
        r.stop.max_tokens = None;
    };
    assert_eq!(refuse(full), long(100, 1));
    let least = |r: &mut GenRequest| {
        r.stop.max_tokens = None;
        r.stop.min_tokens = 99;
    };
    assert_eq!(refuse(least), long(2, 99));
    assert_eq!(ask(&engine, greedy(&[11, 12], 5)).tokens, chain(&[11, 12], 5));
    assert_eq!(engine.stats().waiting, 0);
}

#[test]
fn what_the_cache_cannot_hold_counts_as_too_long() {
    // The length is lowered to the cache, so that no admitted request waits for ever.
    let engine = chain_model().start(&EngineConfig { kv_budget: KvBudget::Tokens(50), ..config() });
    assert_eq!((engine.info().max_model_len, engine.info().kv_capacity_tokens), (64, 64));
    let (sink, _events) = channel();
    let error = engine.submit(greedy(&[11; 60], 5), sink).unwrap_err();
    assert_eq!(error, SubmitError::TooLong { prompt: 60, new: 5, max: 64 });
    assert_eq!(ask(&engine, greedy(&[11; 60], 4)).tokens.len(), 4);
}

#[test]
fn a_full_queue_refuses_and_a_burst_up_to_the_limit_does_not() {
    let (model, permits) = chain_model().gated();
    let engine = model.start(&EngineConfig { max_num_seqs: 3, max_waiting: 2, ..config() });
    // All at once: the engine has had no time to start any of them.
    let open: Vec<_> = (0..5).map(|i| submit(&engine, greedy(&[20 + i], 4))).collect();
    let (sink, _events) = channel();
    let error = engine.submit(greedy(&[11], 4), sink).unwrap_err();
    assert_eq!(error, SubmitError::QueueFull { limit: 5 });
    drop(permits);
    for (i, events) in open.into_iter().enumerate() {
        assert_eq!(collect(events).tokens, chain(&[20 + i as u32], 4));
    }
    // Whoever has read the last event finds room again.
    assert_eq!(ask(&engine, greedy(&[11], 4)).tokens, chain(&[11], 4));
    settled(&engine);
}

#[test]
fn stopping_ends_everything_and_refuses_what_comes() {
    let (model, permits) = chain_model().gated();
    let engine = model.start(&EngineConfig { max_num_seqs: 2, ..config() });
    let open: Vec<_> = (0..5).map(|i| submit(&engine, greedy(&[20 + i], 1000))).collect();
    for _ in 0..3 {
        permits.send(()).unwrap();
    }
    wait_for(&engine, "three steps", |s| s.steps == 3);
    std::thread::scope(|scope| {
        scope.spawn(|| engine.stop());
        std::thread::sleep(Duration::from_millis(20));
        drop(permits);
    });
    for events in open {
        assert!(matches!(collect(events).error, Some(GenerationError::ShuttingDown)));
    }
    let (sink, _events) = channel();
    assert_eq!(engine.submit(greedy(&[11], 4), sink), Err(SubmitError::ShuttingDown));
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.kv_blocks_used), (0, 0, 0));
    engine.stop();
}

#[test]
fn no_request_that_was_taken_while_stopping_goes_without_an_end() {
    for _ in 0..50 {
        let engine = chain_model().start(&config());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let (sink, events) = channel();
                        match engine.submit(greedy(&[11], 50), sink) {
                            Ok(()) => drop(collect(events)), // It asserts that there is an end.
                            Err(error) => assert_eq!(error, SubmitError::ShuttingDown),
                        }
                    }
                });
            }
            scope.spawn(|| engine.stop());
        });
    }
}

#[test]
fn a_listener_that_stops_reading_is_cancelled() {
    let mut model = chain_model();
    model.info_mut().max_positions = 1 << 20;
    let engine = model.start(&EngineConfig { kv_budget: KvBudget::Tokens(1 << 20), ..config() });
    let mut request = greedy(&[11, 12], 100_000);
    request.sampling.logprobs = Some(20);
    let events = submit(&engine, request);
    wait_for(&engine, "the end of it", |s| s.cancelled == 1);
    settled(&engine);
    let answer = collect(events);
    assert!(matches!(answer.error, Some(GenerationError::NotRead)));
    // What fits the bound was kept.
    assert!((1000..50_000).contains(&answer.tokens.len()), "{}", answer.tokens.len());
    assert_eq!(answer.tokens[..50], chain(&[11, 12], 50));
}

#[test]
fn what_leaves_no_token_is_refused_up_front_or_fails_as_what_it_is() {
    let engine = chain_model().start(&config());
    let all: TokenSet = (0..Mock::VOCAB).collect();
    let stop = |min_tokens, ids: &TokenSet, ignore_eos| StopRules {
        max_tokens: Some(5),
        min_tokens,
        token_ids: ids.clone(),
        ignore_eos,
    };
    let refused = |stop| {
        let (sink, _events) = channel();
        engine.submit(GenRequest { stop, ..greedy(&[11], 0) }, sink).unwrap_err()
    };
    assert_eq!(refused(stop(2, &all, true)), SubmitError::NoCandidate);
    let but_eos: TokenSet = (0..Mock::VOCAB).filter(|t| *t != EOS).collect();
    assert_eq!(refused(stop(2, &but_eos, false)), SubmitError::NoCandidate, "it counts, too");
    // Without a minimum the first token ends it.
    let answer = ask(&engine, GenRequest { stop: stop(0, &all, true), ..greedy(&[11], 0) });
    assert_eq!(answer.finish, Some(FinishReason::Stop));
    // The one token that is not banned is one that the model never chooses.
    let model = Mock::new(|batch| {
        let mut rows = Mock::rows(batch, common::next_token);
        rows.iter_mut().skip(7).step_by(Mock::VOCAB as usize).for_each(|x| *x = f32::NEG_INFINITY);
        Ok(rows)
    });
    let engine = model.start(&config());
    let but_seven: TokenSet = (0..Mock::VOCAB).filter(|t| *t != 7).collect();
    let answer = ask(&engine, GenRequest { stop: stop(2, &but_seven, true), ..greedy(&[11], 0) });
    assert!(
        matches!(answer.error, Some(GenerationError::NoCandidate { position: 0 })),
        "{answer:?}"
    );
}

#[test]
fn one_client_leaves_places_in_the_queue_to_others() {
    let (model, permits) = chain_model().gated();
    let engine = model.start(&EngineConfig { max_num_seqs: 2, max_waiting: 6, ..config() });
    let of = |client| GenRequest { client, ..greedy(&[11], 4) };
    let own: Vec<_> = (0..4).map(|_| submit(&engine, of(Some(1)))).collect();
    let (sink, _events) = channel();
    let refused = engine.submit(of(Some(1)), sink).unwrap_err();
    assert_eq!(refused, SubmitError::ClientQueueFull { open: 4, free: 4, limit: 8 });
    let other = submit(&engine, of(Some(2)));
    drop(permits);
    for events in own.into_iter().chain([other]) {
        assert_eq!(collect(events).tokens, chain(&[11], 4));
    }
    assert_eq!(ask(&engine, of(Some(1))).tokens, chain(&[11], 4), "its places are free again");
}
