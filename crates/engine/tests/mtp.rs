//! The head of a trained checkpoint drafts for it: what it says stays the same, and much of it is drafted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Answer, collect, config, greedy, settled, submit};
use safetensors::SafeTensors;
use std::{fs, path::PathBuf, sync::Arc};
use taper_base::{Drafting, Engine, GenRequest, SamplingParams, SeqId, TokenId};
use taper_engine::{
    EngineConfig, KvBudget, LocalEngine, Speculation,
    speculative::{Computed, DraftInput, Drafter, MtpDrafter},
};
use taper_kv_cache::{KvCache, KvConfig, KvScheme, SeqRange};
use taper_models::{Batch, LoadOptions, Model, Precision, Rounding};
use taper_tensor::ops;
use taper_weights::Checkpoint;

fn tests() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

fn model(precision: Precision) -> Box<dyn Model> {
    let weights = Checkpoint::open(&tests().join("models/demo-moe-hybrid")).unwrap();
    let options = LoadOptions { precision, draft_head: true, ..LoadOptions::default() };
    taper_models::load(&weights, options).unwrap()
}

/// Held-out prose and its head's drafts after it, as another implementation has them.
fn oracle() -> (Vec<TokenId>, Vec<TokenId>) {
    let bytes = fs::read(tests().join("fixtures/mtp/demo-moe-hybrid.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let ids = file.tensor("input_ids").unwrap().data().as_chunks::<8>().0.iter();
    let floats = file.tensor("logits").unwrap().data().as_chunks::<4>().0.iter();
    let logits: Vec<f32> = floats.map(|b| f32::from_le_bytes(*b)).collect();
    let vocab = *file.tensor("logits").unwrap().shape().last().unwrap();
    let best = |row: &[f32]| (0..vocab).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
    let drafts = logits.chunks_exact(vocab).map(best).collect();
    (ids.map(|b| i64::from_le_bytes(*b) as u32).collect(), drafts)
}

fn requests(n: usize, tokens: u32) -> Vec<GenRequest> {
    let prose = oracle().0;
    let request = |i: usize| {
        let temperature = if i.is_multiple_of(2) { 0.0 } else { 0.8 };
        let sampling = SamplingParams { temperature, seed: i as u64, ..SamplingParams::default() };
        GenRequest { sampling, ..greedy(&prose[i % 5..prose.len() - i], tokens) }
    };
    (0..n).map(request).collect()
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

fn with(speculation: Option<Speculation>) -> EngineConfig {
    EngineConfig { speculation, ..config() }
}

/// However a prompt was cut, and with as many drafts as are asked for. Of one whose beginning the cache knew, the head has
/// the rest.
#[test]
fn drafts_are_those_of_another_implementation() {
    let (prompt, drafts) = oracle();
    let (model, n, id) = (model(Precision::F32), prompt.len(), SeqId(3));
    let head = model.draft_head().unwrap();
    for (cuts, unseen) in [
        (&[0, n - 1][..], 0),
        (&[0, 20, 21, 40, n - 1], 0),
        (&[0, 3, 9, n - 1], 0),
        (&[0, 8, 20, n - 1], 8),
        (&[0, 28, n - 1], 28),
        (&[0, n - 2, n - 1], n - 2),
    ] {
        let mut kv = model.info().cache(KvScheme::default(), KvConfig::BLOCK_TOKENS, 4);
        kv.recurrent = model.info().states(1, 0);
        let mut cache = KvCache::new(kv);
        cache.grow(id, n).unwrap();
        let mut drafter = MtpDrafter::new(Arc::clone(head), KvScheme::default(), 256);
        for cut in cuts.windows(2) {
            let (start, len) = (cut[0], cut[1] - cut[0]);
            let positions: Vec<_> = (start as u32..).take(len).collect();
            let tokens = &prompt[start..start + len];
            let batch = Batch { tokens, positions: &positions, ..Batch::default() };
            let mut session = cache.session(&[SeqRange { seq: id, start, len }]).unwrap();
            let [_, hidden] = model.forward_hidden(&batch, &mut session).unwrap();
            if start < unseen {
                continue;
            }
            ops::with_host_f32(&hidden, |hidden| {
                drafter.observe(&[Computed { id, tokens: &prompt, start, hidden }]).unwrap();
            })
            .unwrap();
        }
        let input =
            DraftInput { id, prediction: &[], tokens: &prompt, prompt_len: n, most: drafts.len() };
        let draft = drafter.propose(&[input]).unwrap().remove(0);
        assert!(!draft.tokens.is_empty(), "{unseen} are not seen");
        assert!(unseen > 0 || drafts.starts_with(&draft.tokens), "{draft:?}");
        // What follows was not computed, so that nothing is known of it.
        assert!(drafter.propose(&[input]).unwrap()[0].tokens.is_empty());
        drafter.forget(id);
    }
}

/// One at a time with activations of 16 bits, and together with 8 and exactly.
#[test]
fn outputs_are_those_without_drafts() {
    let requests = requests(5, 48);
    for (precision, together) in [
        (Precision::F32, true),
        (Precision::Mixed { decode: Rounding::Int8 }, true),
        (Precision::Mixed { decode: Rounding::Int16 }, false),
    ] {
        let plain = LocalEngine::start(model(precision), &with(None)).unwrap();
        let want = answers(&plain, &requests, together);
        for speculation in [Speculation::mtp().most(3).steady(), Speculation::mtp()] {
            let engine = LocalEngine::start(model(precision), &with(Some(speculation))).unwrap();
            let Drafting::On { method, .. } = &engine.info().drafting else { panic!("none") };
            assert_eq!(method, "mtp");
            let got = answers(&engine, &requests, together);
            for (got, want) in got.iter().zip(&want) {
                assert!(got.error.is_none(), "{:?}", got.error);
                assert_eq!(got.tokens, want.tokens, "{precision:?}");
            }
        }
    }
}

/// Some prompts are there already, others are computed again because there is no room, and some requests take no drafts.
#[test]
fn a_crowd_in_little_room_is_drafted_for() {
    let mut requests = requests(8, 60);
    requests[5].max_draft_tokens = Some(0);
    requests[6].max_draft_tokens = Some(1);
    let roomy = LocalEngine::start(model(Precision::F32), &with(None)).unwrap();
    let want = answers(&roomy, &requests, true);
    let engine = LocalEngine::start(
        model(Precision::F32),
        &EngineConfig {
            kv_budget: KvBudget::Tokens(384),
            max_num_batched_tokens: 40,
            ..with(Some(Speculation::mtp().most(3).steady()))
        },
    )
    .unwrap();
    for _ in 0..2 {
        let got = answers(&engine, &requests, true);
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(got.tokens, want.tokens);
        }
        assert_eq!(got[5].accepted + got[5].rejected, 0);
    }
    let stats = engine.stats();
    assert!(stats.preemptions > 0, "{stats:?}");
    assert!(stats.accepted_draft_tokens * 5 > stats.draft_tokens, "{stats:?}");
}

/// A budget pays for the head's keys and values too.
#[test]
fn a_budget_pays_for_the_head() {
    let model = model(Precision::F32);
    let blocks = |speculation| {
        let kv_budget = KvBudget::Bytes(32 << 20);
        let config = EngineConfig { kv_budget, ..with(speculation) };
        let kv = config.plan(model.info()).unwrap().caches.remove(0);
        let states = kv.recurrent.as_ref().map_or(0, |r| r.bytes());
        (kv.blocks as u64 * kv.bytes_per_block(), states)
    };
    let (suffix, states) = blocks(Some(Speculation::suffix()));
    let (mtp, same) = blocks(Some(Speculation::mtp()));
    assert_eq!(states, same);
    // Two layers of f32 beside one of f16.
    assert!(mtp < suffix * 81 / 100 && mtp > suffix * 79 / 100, "{mtp} of {suffix}");
}

#[test]
fn a_model_without_a_head_says_so() {
    let weights = Checkpoint::open(&tests().join("models/demo-moe-hybrid")).unwrap();
    let model = taper_models::load(&weights, LoadOptions::default()).unwrap();
    let engine = LocalEngine::start(model, &with(Some(Speculation::mtp()))).unwrap();
    let Drafting::Off { reason } = &engine.info().drafting else { panic!("it drafts") };
    assert!(reason.contains("head"), "{reason}");
}
