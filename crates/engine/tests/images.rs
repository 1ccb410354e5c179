//! Requests with images generate what transformers does, however they are run, and share what is the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{ask, collect, config, greedy, settled, submit, wait_for};
use safetensors::SafeTensors;
use std::{fs, path::PathBuf};
use taper_base::{EncodedImage, Engine, GenRequest, Medium, SubmitError, TokenId};
use taper_engine::{EngineConfig, KvBudget, KvDisk, LocalEngine, Speculation, channel};
use taper_models::LoadOptions;
use taper_weights::Checkpoint;

/// A prompt with two images, and what transformers says after it.
struct Seen {
    request: GenRequest,
    greedy: Vec<TokenId>,
}

fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vision/qwen3_vl")
}

fn seen() -> Seen {
    let bytes = fs::read(dir().join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: &str| -> Vec<u32> {
        let data = file.tensor(name).unwrap().data().to_vec();
        let ids = data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
        ids.map(|id| u32::try_from(id).unwrap()).collect()
    };
    let floats = |name: &str| -> Option<Vec<f32>> {
        let data = file.tensor(name).ok()?.data().to_vec();
        Some(data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    };
    let config = Checkpoint::open(&dir()).unwrap().config().clone();
    let number = |value: &serde_json::Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let image_token = number(&config["image_token_id"]);
    let merge = number(&config["vision_config"]["spatial_merge_size"]);
    let (prompt, mut from, mut media) = (ids("input_ids"), 0, Vec::new());
    for i in 0..2 {
        let tokens = ids(&format!("expansion_{i}")).len();
        let start = from + prompt[from..].iter().position(|&t| t == image_token).unwrap();
        let grid = ids(&format!("grid_{i}"));
        let deep = (0..).map_while(|layer| floats(&format!("deep_{i}_{layer}")));
        let deep = deep.map(Into::into).collect();
        let rows = floats(&format!("features_{i}")).unwrap().into();
        media.push(Medium {
            start,
            tokens,
            image_token,
            hash: [i as u8 + 1; 32],
            grid: Some([grid[0], grid[1] / merge, grid[2] / merge]),
            encoded: EncodedImage { rows, deep },
        });
        from = start + tokens;
    }
    let greedy = ids("greedy");
    let request = common::greedy(&prompt, greedy.len() as u32);
    Seen { request: GenRequest { media: media.into(), ..request }, greedy }
}

fn engine(config: &EngineConfig) -> LocalEngine {
    let weights = Checkpoint::open(&dir()).unwrap();
    let model = taper_models::load(&weights, LoadOptions::EXACT).unwrap();
    LocalEngine::start(model, config).unwrap()
}

/// The request with other images.
fn others(request: &GenRequest, change: impl Fn(&mut Medium)) -> GenRequest {
    let mut media = request.media.to_vec();
    media.iter_mut().for_each(change);
    GenRequest { media: media.into(), ..request.clone() }
}

/// Rows and hash of another image.
fn another(medium: &mut Medium) {
    medium.encoded.rows = medium.encoded.rows.iter().map(|x| 1.0 - x).collect();
    medium.hash[31] ^= 1;
}

#[test]
fn what_is_generated_is_what_transformers_generates() {
    let Seen { request, greedy: want } = seen();
    for max_num_batched_tokens in [256, 9, 1] {
        let engine = engine(&EngineConfig { max_num_batched_tokens, ..config() });
        let text = common::greedy(&request.prompt, 20);
        let open: Vec<_> = [&request, &text, &request, &text, &request]
            .map(|request| submit(&engine, request.clone()))
            .into_iter()
            .map(collect)
            .map(|answer| answer.tokens)
            .collect();
        assert_eq!([&open[0], &open[2], &open[4]], [&want; 3], "{max_num_batched_tokens}");
        assert_eq!(open[1], open[3]);
        assert_ne!(open[1], want[..20], "without images");
        settled(&engine);
    }
}

#[test]
fn equal_images_are_shared_and_others_are_not() {
    let Seen { request, greedy: want } = seen();
    let engine = engine(&config());
    let whole = (request.prompt.len() as u32 - 1) / 32 * 32;
    let first = ask(&engine, request.clone());
    assert_eq!((first.tokens, first.cached), (want.clone(), 0));
    let again = ask(&engine, request.clone());
    assert_eq!((again.tokens, again.cached), (want.clone(), whole));
    let inverted = others(&request, another);
    let changed = ask(&engine, inverted.clone());
    assert_eq!(changed.cached, 0, "the first block has an image");
    assert_ne!(changed.tokens, want);
    let text = GenRequest { media: [].into(), ..request.clone() };
    assert_eq!(ask(&engine, text).cached, 0);
    assert_eq!(ask(&engine, inverted).tokens, changed.tokens);
    settled(&engine);
}

#[test]
fn preempted_and_drafted_sequences_say_the_same() {
    let Seen { request, greedy: want } = seen();
    let small = EngineConfig { kv_budget: KvBudget::Tokens(160), ..config() };
    let drafts = EngineConfig { speculation: Some(Speculation::suffix().steady()), ..config() };
    for (name, config) in [("small", small), ("drafts", drafts)] {
        let engine = engine(&config);
        let open: Vec<_> = (0..4u8)
            .map(|i| others(&request, |medium| medium.hash[0] = 10 + i))
            .map(|request| submit(&engine, request))
            .collect();
        for answer in open.into_iter().map(collect) {
            assert_eq!(answer.tokens, want, "{name}");
        }
        let stats = engine.stats();
        assert!(stats.preemptions > 0 || stats.drafts > 0, "{name}");
        settled(&engine);
    }
}

#[test]
fn prefixes_with_images_are_found_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let disk = KvDisk { dir: dir.path().into(), max_bytes: 64 << 20, model: "m".into() };
    let config = EngineConfig { disk: Some(disk), ..config() };
    let Seen { request, greedy: want } = seen();
    {
        let engine = engine(&config);
        assert_eq!(ask(&engine, request.clone()).tokens, want);
        wait_for(&engine, "written block", |stats| stats.disk_written_blocks >= 1);
    }
    let engine = engine(&config);
    let inverted = others(&request, another);
    assert_eq!(ask(&engine, inverted).cached, 0);
    let found = ask(&engine, request);
    assert_eq!((found.tokens, found.cached > 0), (want, true));
}

#[test]
fn images_that_cannot_be_are_refused() {
    let Seen { request, .. } = seen();
    let engine = engine(&config());
    let submit = |engine: &LocalEngine, request| engine.submit(request, channel().0);
    let wide = others(&request, |medium| medium.encoded.rows = vec![0.0; 7].into());
    assert!(matches!(submit(&engine, wide), Err(SubmitError::Medium { image: 0, .. })));
    let text = common::tiny(&config());
    assert_eq!(submit(&text, request), Err(SubmitError::NoImages));
    let plain = greedy(&[1, 2, 3], 2);
    submit(&text, plain).unwrap();
}
