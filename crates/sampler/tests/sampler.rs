//! The sampler from outside: distribution, determinism, log probabilities, refusals.
#![allow(clippy::unwrap_used)] // helpers of tests are not seen as tests

use taper_base::{SamplingParams, TokenId};
use taper_sampler::{Sampler, SamplerError, draw_bits, token_logprobs};

fn sample_at(params: &SamplingParams, logits: &[f32], position: u64) -> TokenId {
    let mut sampler = Sampler::new(params, &[], logits.len() as u32);
    (0..position).for_each(|_| sampler.accept(0));
    sampler.sample(&mut logits.to_vec(), &[]).unwrap().token
}

/// 100,000 draws against the probabilities of the tokens that are kept; the bound is the 99.99 % quantile for as many
/// degrees of freedom. Seeds are fixed, so this passes always or never.
#[test]
fn draws_follow_the_distribution() {
    let logits = [0.0f32, 1.0, 2.0, 0.5, -1.0, 1.5, 0.25, -0.5];
    let base = SamplingParams { seed: 7, ..SamplingParams::default() };
    let all = &[0, 1, 2, 3, 4, 5, 6, 7][..];
    for (params, seeds_vary, kept, bound) in [
        (base.clone(), false, all, 29.9),
        (SamplingParams { temperature: 0.7, ..base.clone() }, true, all, 29.9),
        (SamplingParams { temperature: 1.8, ..base.clone() }, false, all, 29.9),
        // Probabilities: 0.051, 0.139, 0.379, 0.085, 0.019, 0.230, 0.066, 0.031.
        (SamplingParams { top_p: 0.6, ..base.clone() }, false, &[2, 5], 15.2),
        (SamplingParams { top_p: 0.8, ..base.clone() }, true, &[1, 2, 3, 5], 21.2),
        // The entropy is 1.70 nats, the surprises of these 1.97 and 1.47.
        (SamplingParams { typical_p: 0.35, ..base }, false, &[1, 5], 15.2),
    ] {
        let exp = |&id: &usize| f64::from(logits[id] / params.temperature).exp();
        let total: f64 = kept.iter().map(exp).sum();
        let mut counts = [0u32; 8];
        let n = 100_000;
        let mut along = Sampler::new(&params, &[], 8);
        for seed in 0..n {
            let token = if seeds_vary {
                sample_at(&SamplingParams { seed, ..params.clone() }, &logits, 0)
            } else {
                let token = along.sample(&mut logits.clone(), &[]).unwrap().token;
                along.accept(token);
                token
            };
            counts[token as usize] += 1;
        }
        let of = |id: &usize| {
            let want = n as f64 * exp(id) / total;
            (f64::from(counts[*id]) - want).powi(2) / want
        };
        let chi2: f64 = kept.iter().map(of).sum();
        assert!(chi2 < bound, "chi-square {chi2}: {counts:?} {params:?}");
        assert_eq!(kept.iter().map(|&id| u64::from(counts[id])).sum::<u64>(), n);
    }
}

/// Fixed for good: users keep seeds. Philox4x32-10 of counter 0 under key 0.
#[test]
fn draws_are_those_of_philox() {
    assert_eq!(draw_bits(0, 0), 0xe169_c58d_6627_e8d5);
}

#[test]
fn a_draw_depends_on_seed_and_position_only() {
    let logits: Vec<f32> = (0..500).map(|i| (i % 17) as f32 / 5.0).collect();
    let params = SamplingParams { seed: 3, ..SamplingParams::default() };
    let mut along = Sampler::new(&params, &[1, 2, 3], 500);
    let mut tokens = Vec::new();
    for position in 0..20 {
        let choice = along.sample(&mut logits.clone(), &[]).unwrap();
        assert_eq!(choice, along.sample(&mut logits.clone(), &[]).unwrap());
        assert_eq!(choice.token, sample_at(&params, &logits, position));
        along.accept(choice.token);
        tokens.push(choice.token);
    }
    assert_eq!(along.position(), 20);
    tokens.sort_unstable();
    tokens.dedup();
    assert!(tokens.len() > 10, "{tokens:?}");
}

#[test]
fn greedy_takes_the_first_of_equals() {
    let greedy = SamplingParams::greedy();
    assert_eq!(sample_at(&greedy, &[0.0, 5.0, 5.0, -1.0], 0), 1);
    let mut far = vec![-1e30f32; 1000];
    far[999] = 1e30;
    assert_eq!(sample_at(&greedy, &far, 0), 999);
    for t in [1e-6, 1.0, 2.0] {
        let params = SamplingParams { temperature: t, ..SamplingParams::default() };
        assert_eq!(sample_at(&params, &far, 0), 999);
    }
}

#[test]
fn bias_and_bans_decide() {
    let params =
        SamplingParams { logit_bias: vec![(0, -100.0), (2, 100.0)], ..SamplingParams::default() };
    let sampler = Sampler::new(&params, &[], 3);
    let row = [9.0, 1.0, -9.0];
    assert_eq!(sampler.sample(&mut row.clone(), &[]).unwrap().token, 2);
    // Tokens outside the vocabulary are banned without more ado.
    assert_eq!(sampler.sample(&mut row.clone(), &[2, 2, 77]).unwrap().token, 1);
    let mut left = row;
    assert_eq!(sampler.sample(&mut left, &[0, 1, 2]), Err(SamplerError::NoCandidate));
    assert_eq!(left, [f32::NEG_INFINITY; 3]);
}

#[test]
fn penalties_follow_what_was_accepted() {
    let params = SamplingParams { frequency_penalty: 0.4, ..SamplingParams::greedy() };
    let mut sampler = Sampler::new(&params, &[0, 0, 0, 0], 2);
    let mut tokens = Vec::new();
    for _ in 0..5 {
        let token = sampler.sample(&mut [1.0, 0.3], &[]).unwrap().token;
        sampler.accept(token);
        tokens.push(token);
    }
    // 1.0, 0.6, then 0.2 < 0.3, then 0.2 > -0.1, then -0.2 < -0.1.
    assert_eq!(tokens, [0, 0, 1, 0, 1]);
}

#[test]
fn logprobs_are_those_of_the_raw_logits() {
    let row = [1.0f32, 2.0, 3.0, 2.0];
    let sum: f32 = row.iter().map(|x| x.exp()).sum();
    let want = |i: usize| row[i] - sum.ln();
    let params = SamplingParams {
        logprobs: Some(3),
        logit_bias: vec![(0, 50.0), (0, 50.0)],
        repetition_penalty: 1.3,
        temperature: 0.5,
        top_k: 1,
        ..SamplingParams::default()
    };
    let choice = Sampler::new(&params, &[0, 2], 4).sample(&mut row.clone(), &[2]).unwrap();
    assert_eq!(choice.token, 0);
    let logprobs = choice.logprobs.unwrap();
    let raw = token_logprobs(&row, 0, 3).unwrap();
    assert_eq!((&logprobs.chosen, &logprobs.top), (&raw.chosen, &raw.top));
    assert_eq!(raw.rank, Some(4));
    assert_eq!(logprobs.chosen.id, 0);
    assert!((logprobs.chosen.logprob - want(0)).abs() < 1e-6);
    let ids: Vec<TokenId> = logprobs.top.iter().map(|t| t.id).collect();
    assert_eq!(ids, [2, 1, 3]);
    for t in &logprobs.top {
        assert!((t.logprob - want(t.id as usize)).abs() < 1e-6);
    }
    assert_eq!(token_logprobs(&row, 1, 0).unwrap().top, []);
    assert_eq!(token_logprobs(&row, 1, 20).unwrap().top.len(), 4);
}

#[test]
fn logprobs_of_many_and_of_extreme_logits() {
    let flat = vec![-3.5f32; 151_936];
    let got = token_logprobs(&flat, 151_935, 2).unwrap();
    assert!((got.chosen.logprob + (151_936f32).ln()).abs() < 1e-5);
    assert_eq!(got.top[1].id, 1);
    let got = token_logprobs(&[1e30, -1e30, f32::NEG_INFINITY], 1, 3).unwrap();
    assert_eq!(got.top.len(), 2, "what cannot occur is not among the likeliest");
    assert_eq!((got.top[0].logprob, got.chosen.logprob), (0.0, -2e30));
    let got = token_logprobs(&[0.0, f32::NEG_INFINITY], 1, 0).unwrap();
    assert_eq!(got.chosen.logprob, f32::NEG_INFINITY);
}

#[test]
fn refusals_are_typed() {
    let plain = Sampler::new(&SamplingParams::default(), &[], 3);
    let not = |token| Err(SamplerError::NotANumber { token });
    assert_eq!(plain.sample(&mut [0.0, f32::NAN, 1.0], &[]), not(1));
    assert_eq!(plain.sample(&mut [0.0, 1.0, f32::INFINITY], &[]), not(2));
    assert_eq!(plain.sample(&mut [0.0, f32::NAN, 1.0], &[1]), not(1));
    let none = [f32::NEG_INFINITY; 3];
    assert_eq!(plain.sample(&mut none.clone(), &[]), Err(SamplerError::NoCandidate));
    let wrong = Err(SamplerError::WrongVocab { got: 2, vocab: 3 });
    assert_eq!(plain.sample(&mut [0.0; 2], &[]), wrong);

    let params = SamplingParams {
        logit_bias: vec![(1, 1.0)],
        repetition_penalty: 1.1,
        logprobs: Some(1),
        ..SamplingParams::default()
    };
    for row in [[0.0, f32::NAN, 0.0], [0.0, f32::INFINITY, 0.0]] {
        for params in [params.clone(), SamplingParams { logprobs: None, ..params.clone() }] {
            assert_eq!(Sampler::new(&params, &[1], 3).sample(&mut row.clone(), &[]), not(1));
        }
    }
    let unknown = |token| Err(SamplerError::UnknownToken { token, vocab: 3 });
    let mut sampler = Sampler::new(&params, &[0], 3);
    sampler.accept(8);
    sampler.accept(9);
    assert_eq!(sampler.sample(&mut [0.0; 3], &[]), unknown(8));
    let params = SamplingParams { logit_bias: vec![(3, 1.0)], ..params };
    assert_eq!(Sampler::new(&params, &[], 3).sample(&mut [0.0; 3], &[]), unknown(3));
    assert_eq!(token_logprobs(&[0.0; 3], 3, 1).err(), unknown(3).err());
    let got = token_logprobs(&[f32::NAN; 3], 0, 1);
    assert_eq!(got, Err(SamplerError::NotANumber { token: 0 }));
}
