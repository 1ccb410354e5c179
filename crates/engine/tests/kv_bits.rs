//! One engine with several caches: a request says by its bits which one it runs over.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Numbers, ask, collect, config, greedy, settled, submit, tiny, wait_for};
use taper_base::{Engine, GenRequest, SubmitError};
use taper_engine::{EngineConfig, EngineError, KvBudget, KvOffer, LocalEngine, channel};
use taper_kv_cache::KvScheme;
use taper_kv_codecs::Exact;

const VOCAB: u32 = 320;

fn scheme(name: &str) -> KvScheme {
    taper_kv_codecs::parse(name).unwrap().into()
}

/// Few bits and few exact tokens, so that outputs over different caches differ.
fn with(name: &str, offers: &[(u32, &str)]) -> EngineConfig {
    let offers = offers.iter().map(|&(bits, name)| KvOffer { bits, scheme: scheme(name) });
    EngineConfig {
        scheme: scheme(name),
        offers: offers.collect(),
        exact: Some(Exact { sink_tokens: 0, recent_tokens: 32 }),
        ..config()
    }
}

fn asking(prompt: &[u32], kv_bits: Option<u32>) -> GenRequest {
    GenRequest { kv_bits, ..greedy(prompt, 40) }
}

#[test]
fn a_request_gets_the_cache_it_asks_for_and_says_what_it_says_there_alone() {
    let engine = tiny(&with("f32", &[(8, "affine8"), (2, "turbo2")]));
    let dtypes = [(None, "f32"), (Some(32), "f32"), (Some(8), "affine8"), (Some(2), "turbo2")];
    let mut numbers = Numbers(11);
    let prompts: Vec<_> = (0..4).map(|_| numbers.prompt(150, VOCAB)).collect();
    // All at once, and again, when prefixes of each cache are known.
    for round in 0..2 {
        let open: Vec<_> = prompts
            .iter()
            .flat_map(|p| dtypes.map(|(bits, _)| submit(&engine, asking(p, bits))))
            .collect();
        let mut answers = open.into_iter().map(collect);
        let mut different = 0;
        for prompt in &prompts {
            let got = dtypes.map(|_| answers.next().unwrap());
            for ((_, name), got) in dtypes.iter().zip(&got) {
                let alone = ask(&tiny(&with(name, &[])), greedy(prompt, 40));
                assert_eq!(got.tokens, alone.tokens, "{name}, round {round}");
            }
            different += usize::from(got[0].tokens != got[3].tokens);
        }
        assert!(different > 0, "two bits are as good as f32?");
    }
    settled(&engine);
}

#[test]
fn prefixes_are_found_in_the_same_cache_only() {
    let engine = tiny(&with("f32", &[(8, "affine8")]));
    let prompt = Numbers(2).prompt(100, VOCAB);
    let cached = |bits| ask(&engine, asking(&prompt, bits)).cached;
    assert_eq!([cached(None), cached(Some(8)), cached(Some(8)), cached(Some(32))], [0, 0, 96, 96]);
}

#[test]
fn bits_that_are_not_offered_are_refused_with_those_that_are() {
    let refused = |engine: &LocalEngine, bits| {
        engine.submit(asking(&[11], Some(bits)), channel().0).unwrap_err()
    };
    let engine = tiny(&with("turbo4", &[(8, "affine8")]));
    let error = refused(&engine, 3);
    assert_eq!(error, SubmitError::KvBits { asked: 3, offered: vec![4, 8] });
    assert!(error.to_string().ends_with("leave it out, or say 4 or 8"), "{error}");
    let engine = tiny(&with("turbo4v2", &[]));
    assert_eq!(refused(&engine, 4), SubmitError::KvBits { asked: 4, offered: vec![] });
    wait_for(&engine, "nothing held", |s| s.running == 0);
}

#[test]
fn caches_share_the_memory_and_are_counted_together() {
    let budget = 1 << 20;
    let of = |offers: &[(u32, &str)]| {
        let config = EngineConfig { kv_budget: KvBudget::Bytes(budget), ..with("f32", offers) };
        tiny(&config)
    };
    let (one, two) = (of(&[]), of(&[(16, "f16")]));
    assert!(one.info().kv_capacity_bytes <= budget && two.info().kv_capacity_bytes <= budget);
    let tokens = |engine: &LocalEngine| engine.info().kv_capacity_tokens;
    // Half of the bytes for f32, and half for rows of half the size.
    assert!(tokens(&two).abs_diff(tokens(&one) / 2 + tokens(&one)) <= 64, "{:?}", two.info());
    let names: Vec<_> = two.info().kv_bits.iter().map(|k| k.kv_cache_dtype.as_str()).collect();
    assert_eq!(names, ["f32", "f16"]);
    ask(&two, asking(&[11; 40], Some(16)));
    wait_for(&two, "idle blocks of the second", |s| s.kv_blocks_idle > 0 && s.kv_blocks_used == 0);
    let same = with("f16", &[(16, "bf16")]);
    let model = taper_models::ModelInfo { max_positions: 64, ..one_layer() };
    assert!(matches!(same.plan(&model), Err(EngineError::SameBits { bits: 16 })));
}

fn one_layer() -> taper_models::ModelInfo {
    taper_models::ModelInfo {
        family: "none",
        recurrent: Vec::new(),
        layers: 1,
        heads: 1,
        kv_heads: 1,
        head_dim: 32,
        layer_heads: Vec::new(),
        hidden: 32,
        vocab: 8,
        max_positions: 8,
        parameters: 1,
        weight_bytes: 1,
        prefill_apart: false,
        draft_heads: None,
        images: None,
        ahead: None,
    }
}
