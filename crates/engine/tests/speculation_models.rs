//! Speculation over models of several kinds, in every arithmetic.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;
mod drafters;

use common::{Answer, Numbers, collect, config, greedy, settled, submit};
use drafters::Oracle;
use std::{path::Path, sync::Arc};
use taper_base::{Drafting, Engine, GenRequest, SamplingParams, SeqId, TokenId};
use taper_engine::{
    EngineConfig, LocalEngine, Speculation,
    speculative::{DraftInput, DraftModelError, Drafter, ModelDrafter},
};
use taper_kv_cache::KvScheme;
use taper_models::{LoadOptions, Model, ModelInfo, Precision, Rounding};
use taper_weights::Checkpoint;

fn engine(name: &str, precision: Precision, config: &EngineConfig) -> LocalEngine {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity").join(name);
    let weights = Checkpoint::open(&dir).unwrap();
    let options = LoadOptions { precision, ..LoadOptions::default() };
    LocalEngine::start(taper_models::load(&weights, options).unwrap(), config).unwrap()
}

fn answers(engine: &LocalEngine, requests: &[GenRequest], together: bool) -> Vec<Answer> {
    let answers = match together {
        true => {
            let open: Vec<_> = requests.iter().map(|r| submit(engine, r.clone())).collect();
            open.into_iter().map(collect).collect()
        }
        false => requests.iter().map(|r| collect(submit(engine, r.clone()))).collect(),
    };
    settled(engine);
    answers
}

/// One sequence at a time decodes with activations of 16 bits, and a batch with 8: with drafts, each row of a
/// step has the arithmetic that it has without.
#[test]
fn all_models_say_what_they_say_without_drafts() {
    same_with_drafts(&[
        "qwen3-bf16",
        "qwen2-window-f16",
        "gemma2-bf16",
        "gemma3-bf16",
        "gemma3n-bf16",
        "llama4-chunks-f16",
        "qwen3-moe-bf16",
        "gpt-oss-bf16",
        "deepseek-v3-bf16",
        "qwen3-mlx-4bit-g64",
    ]);
}

/// A state takes in what is drafted, and comes back from what was not right: one model for each kind of layer that has
/// a state.
#[test]
fn recurrent_models_say_what_they_say_without_drafts() {
    same_with_drafts(&[
        "qwen3_5-bf16",
        "qwen3_5-moe-mlx-4bit-g32",
        "qwen3-next-bf16",
        "kimi-linear-bf16",
        "granitemoehybrid-bf16",
        "nemotron-h-moe-bf16",
        "falcon-h1-bf16",
        "jamba-bf16",
        "lfm2-moe-bf16",
        "recurrent-gemma-bf16",
        "mamba2-bf16",
    ]);
}

fn same_with_drafts(models: &[&str]) {
    let mut numbers = Numbers(41);
    let kinds = [
        (Precision::F32, true),
        (Precision::Mixed { decode: Rounding::Int8 }, true),
        (Precision::Mixed { decode: Rounding::Int16 }, false),
    ];
    for &name in models {
        let requests: Vec<_> = (0..4u64)
            .map(|seed| {
                let len = 10 + numbers.below(60);
                let sampling = SamplingParams {
                    temperature: if seed % 2 == 0 { 0.0 } else { 0.8 },
                    logprobs: Some(1),
                    seed,
                    ..SamplingParams::default()
                };
                GenRequest { sampling, ..greedy(&numbers.prompt(len, 120), 70) }
            })
            .collect();
        for (precision, together) in kinds {
            let want = answers(&engine(name, precision, &config()), &requests, together);
            assert!(
                want.iter().all(|answer| answer.error.is_none()),
                "{name}: {:?}",
                want[0].error
            );
            let texts =
                requests.iter().zip(&want).map(|(r, a)| [&r.prompt[..], &a.tokens].concat());
            let texts: Arc<[Vec<TokenId>]> = texts.collect();
            for wrong in [0, 4] {
                let texts = Arc::clone(&texts);
                let oracle = move || {
                    let texts = Arc::clone(&texts);
                    Box::new(Oracle { texts, wrong }) as Box<_>
                };
                let speculation = Some(Speculation::new(oracle).steady());
                let engine = engine(name, precision, &EngineConfig { speculation, ..config() });
                let got = answers(&engine, &requests, together);
                for (got, want) in got.iter().zip(&want) {
                    assert_eq!(got.tokens, want.tokens, "{name}, {precision:?}");
                    assert_eq!(got.logprobs, want.logprobs, "{name}, {precision:?}");
                }
                let stats = engine.stats();
                assert!(stats.accepted_draft_tokens * 3 > stats.draft_tokens, "{name}: {stats:?}");
            }
        }
    }
}

/// A model that drafts for itself is right, and one of other weights is wrong; neither changes anything.
#[test]
fn a_model_drafts_for_another() {
    let load = |name: &str| -> Arc<dyn Model> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity");
        let weights = Checkpoint::open(&dir.join(name)).unwrap();
        taper_models::load(&weights, LoadOptions::default()).unwrap().into()
    };
    let mut numbers = Numbers(9);
    let request = |i: u64| {
        let temperature = if i.is_multiple_of(2) { 0.0 } else { 0.9 };
        let len = 1 + numbers.below(90);
        let sampling = SamplingParams { temperature, seed: i, ..SamplingParams::default() };
        GenRequest { sampling, ..greedy(&numbers.prompt(len, 120), 60) }
    };
    let requests: Vec<_> = (0..8).map(request).collect();
    let plain = engine("qwen3-bf16", Precision::F32, &config());
    let want = answers(&plain, &requests, true);
    for (name, room, right) in
        [("qwen3-bf16", 4096, true), ("qwen3-bf16", 200, true), ("llama-tied", 4096, false)]
    {
        let model = load(name);
        if ModelDrafter::check(model.info(), plain.info().vocab_size as usize).is_err() {
            assert!(!right);
            continue;
        }
        for steady in [true, false] {
            let model = Arc::clone(&model);
            let drafter = move || {
                let model = Arc::clone(&model);
                Box::new(ModelDrafter::new(model, KvScheme::default(), room)) as Box<_>
            };
            let speculation = Speculation::new(drafter).most(5);
            let speculation = Some(if steady { speculation.steady() } else { speculation });
            let config = EngineConfig { speculation, ..config() };
            let engine = engine("qwen3-bf16", Precision::F32, &config);
            let got = answers(&engine, &requests, true);
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got.tokens, want.tokens, "{name}, room for {room}");
            }
            let stats = engine.stats();
            assert!(!steady || stats.drafts > 0, "{stats:?}");
            if right && steady {
                assert!(stats.accepted_draft_tokens * 3 > stats.draft_tokens, "{stats:?}");
            }
        }
    }
}

#[test]
fn models_that_cannot_draft_are_refused() {
    let info = |recurrent, vocab| {
        let engine = |name: &str| {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity");
            let weights = Checkpoint::open(&dir.join(name)).unwrap();
            taper_models::load(&weights, LoadOptions::default()).unwrap().info().clone()
        };
        ModelInfo { recurrent, vocab, ..engine("qwen3-bf16") }
    };
    assert_eq!(ModelDrafter::check(&info(vec![], 320), 320), Ok(()));
    assert_eq!(ModelDrafter::check(&info(vec![], 151_936), 152_064), Ok(()), "a padded table");
    let error = ModelDrafter::check(&info(vec![], 320), 640);
    assert_eq!(error, Err(DraftModelError::Vocabulary { draft: 320, target: 640 }));
    let error = ModelDrafter::check(&info(vec![8], 320), 320);
    assert!(matches!(error, Err(DraftModelError::Recurrent { .. })));
}

/// The states of drafted tokens are a part of the memory; without room for one, nothing is drafted.
#[test]
fn a_recurrent_model_without_room_for_states_drafts_nothing_and_says_why() {
    let speculation = Some(Speculation::suffix().most(0));
    let engine = engine("qwen3_5-bf16", Precision::F32, &EngineConfig { speculation, ..config() });
    let Drafting::Off { reason } = &engine.info().drafting else { panic!("it drafts") };
    assert!(reason.contains("states"), "{reason}");
    let answer = collect(submit(&engine, greedy(&[3, 4, 3, 4, 3, 4], 20)));
    assert_eq!((answer.tokens.len(), engine.stats().drafts), (20, 0));
}

/// A long prompt is computed over several steps, and nothing is drafted until it is.
#[test]
fn a_draft_model_computes_a_long_prompt_bit_by_bit() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity");
    let weights = Checkpoint::open(&dir.join("qwen3-bf16")).unwrap();
    let model: Arc<dyn Model> =
        taper_models::load(&weights, LoadOptions::default()).unwrap().into();
    let len = 1200.min(model.info().max_positions - 8);
    let tokens: Vec<_> = (0..len as u32).map(|i| i * 7 % 300).collect();
    let id = SeqId(1);
    let input = DraftInput { id, prediction: &[], tokens: &tokens, prompt_len: len, most: 4 };
    let mut drafter = ModelDrafter::new(model, KvScheme::default(), 4096);
    let mut steps = 0;
    let draft = loop {
        drafter.prepare(&[input]).unwrap();
        let draft = drafter.propose(&[input]).unwrap().remove(0);
        steps += 1;
        if !draft.tokens.is_empty() {
            break draft;
        }
        assert!(steps < 10, "it never drafts");
    };
    assert_eq!(steps, len.div_ceil(512), "{draft:?}");
}
