//! Requests with images generate what transformers does, however they are run, and share what is the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{ask, collect, config, greedy, settled, submit, wait_for};
use safetensors::SafeTensors;
use std::{fs, path::PathBuf};
use taper_base::{EncodedImage, Engine, GenRequest, GenerationError, Medium, SubmitError, TokenId};
use taper_engine::{EngineConfig, KvBudget, KvDisk, LocalEngine, Speculation, channel};
use taper_kv_codecs::Exact;
use taper_models::LoadOptions;
use taper_weights::Checkpoint;

/// A prompt with two images, and what transformers says after it.
struct Seen {
    request: GenRequest,
    greedy: Vec<TokenId>,
}

const QWEN: &str = "qwen3_vl";

fn dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vision").join(name)
}

fn seen(name: &str) -> Seen {
    let bytes = fs::read(dir(name).join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: &str| -> Option<Vec<u32>> {
        let data = file.tensor(name).ok()?.data().to_vec();
        let ids = data.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
        Some(ids.map(|id| u32::try_from(id).unwrap()).collect())
    };
    let floats = |name: &str| -> Option<Vec<f32>> {
        let data = file.tensor(name).ok()?.data().to_vec();
        Some(data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    };
    let config = Checkpoint::open(&dir(name)).unwrap().config().clone();
    let number = |value: &serde_json::Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let image_token = config.get("image_token_id").or(config.get("image_token_index"));
    let image_token = number(image_token.unwrap());
    // Of models whose positions have three axes.
    let merge = ids("position_ids").map(|_| number(&config["vision_config"]["spatial_merge_size"]));
    let (prompt, mut from, mut media) = (ids("input_ids").unwrap(), 0, Vec::new());
    for i in 0..2 {
        let expansion = ids(&format!("expansion_{i}")).unwrap();
        let mut places = prompt[from..].windows(expansion.len());
        let start = from + places.position(|tokens| tokens == expansion).unwrap();
        let grid = merge.zip(ids(&format!("grid_{i}")));
        let deep = (0..).map_while(|layer| floats(&format!("deep_{i}_{layer}")));
        let deep = deep.map(Into::into).collect();
        let rows = floats(&format!("features_{i}")).unwrap().into();
        media.push(Medium {
            start,
            tokens: expansion.len(),
            image_token,
            hash: [i as u8 + 1; 32],
            grid: grid.map(|(merge, grid)| [grid[0], grid[1] / merge, grid[2] / merge]),
            encoded: EncodedImage { rows, deep },
        });
        from = start + expansion.len();
    }
    let greedy = ids("greedy").unwrap();
    let request = common::greedy(&prompt, greedy.len() as u32);
    Seen { request: GenRequest { media: media.into(), ..request }, greedy }
}

fn engine_of(name: &str, config: &EngineConfig) -> LocalEngine {
    let weights = Checkpoint::open(&dir(name)).unwrap();
    let model = taper_models::load(&weights, LoadOptions::EXACT).unwrap();
    LocalEngine::start(model, config).unwrap()
}

fn engine(config: &EngineConfig) -> LocalEngine {
    engine_of(QWEN, config)
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
    let Seen { request, greedy: want } = seen(QWEN);
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
    let Seen { request, greedy: want } = seen(QWEN);
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
    let Seen { request, greedy: want } = seen(QWEN);
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
    let Seen { request, greedy: want } = seen(QWEN);
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
    let Seen { request, .. } = seen(QWEN);
    let engine = engine(&config());
    let submit = |engine: &LocalEngine, request| engine.submit(request, channel().0);
    let wide = others(&request, |medium| medium.encoded.rows = vec![0.0; 7].into());
    assert!(matches!(submit(&engine, wide), Err(SubmitError::Medium { image: 0, .. })));
    let text = common::tiny(&config());
    assert_eq!(submit(&text, request), Err(SubmitError::NoImages));
    let plain = greedy(&[1, 2, 3], 2);
    submit(&text, plain).unwrap();
}

/// Models whose images, or prompts, see themselves both ways, and the most tokens that do.
const BOTH_WAYS: [(&str, u32); 4] =
    [("gemma3", 9), ("gemma3-new", 9), ("gemma4-mask", 63), ("paligemma", 41)];

#[test]
fn what_sees_itself_is_computed_at_once_whatever_a_step_has() {
    for (name, most) in BOTH_WAYS {
        let Seen { request, greedy: want } = seen(name);
        for max_num_batched_tokens in [256, most + 3, most] {
            let config = EngineConfig { max_num_batched_tokens, ..config() };
            let engine = engine_of(name, &config);
            let text = common::greedy(&request.prompt[..5], 20);
            let open: Vec<_> = [&text, &request, &text, &text, &request, &request]
                .map(|request| submit(&engine, request.clone()))
                .into_iter()
                .map(|answer| collect(answer).tokens)
                .collect();
            for at in [1, 4, 5] {
                assert_eq!(open[at], want, "{name}, {max_num_batched_tokens}");
            }
            assert!(open[0] == open[2] && open[0] == open[3], "{name}");
            settled(&engine);
        }
        let max_num_batched_tokens = most - 1;
        let engine = engine_of(name, &EngineConfig { max_num_batched_tokens, ..config() });
        let expected = SubmitError::TooManyAtOnce { tokens: most, most: most - 1 };
        let error = ask(&engine, request).error;
        let refused = matches!(&error, Some(GenerationError::NotAdmitted(e)) if *e == expected);
        assert!(refused, "{name}: {error:?}");
        settled(&engine);
    }
}

#[test]
fn what_sees_itself_is_shared_and_comes_back_after_preemption() {
    for (name, _) in BOTH_WAYS {
        let Seen { request, greedy: want } = seen(name);
        let engine = engine_of(name, &config());
        let first = ask(&engine, request.clone());
        assert_eq!((first.tokens, first.cached), (want.clone(), 0), "{name}");
        // In the middle of the first image, in some.
        let again = ask(&engine, request.clone());
        assert!(again.cached > 0, "{name}");
        assert_eq!(again.tokens, want, "{name}");
        let changed = ask(&engine, others(&request, another));
        assert_ne!(changed.tokens, want, "{name}");
        // A prompt that only begins alike, where all of it sees itself, shares nothing.
        let mut longer = request.clone();
        longer.prompt.push(7);
        let shared = ask(&engine, longer).cached > 0;
        assert_eq!(shared, name != "paligemma", "{name}");
        let small = EngineConfig { kv_budget: KvBudget::Tokens(320), ..config() };
        let engine = engine_of(name, &small);
        let open: Vec<_> = (0..8u8)
            .map(|i| others(&request, |medium| medium.hash[0] = 10 + i))
            .map(|request| submit(&engine, request))
            .collect();
        for answer in open.into_iter().map(collect) {
            assert_eq!(answer.tokens, want, "{name}");
        }
        settled(&engine);
    }
}

#[test]
fn compressed_caches_know_what_sees_itself() {
    for (name, most) in BOTH_WAYS {
        let Seen { request, .. } = seen(name);
        let scheme = taper_kv_codecs::parse("taper4").unwrap().into();
        let compressed = EngineConfig { scheme, exact: Some(Exact::DEFAULT), ..config() };
        let whole = ask(&engine_of(name, &compressed), request.clone()).tokens;
        let max_num_batched_tokens = most.next_multiple_of(32);
        let cut = EngineConfig { max_num_batched_tokens, ..compressed };
        assert_eq!(ask(&engine_of(name, &cut), request).tokens, whole, "{name}");
    }
}

#[test]
fn families_generate_what_transformers_does() {
    for name in ["internvl", "lfm2_vl", "pixtral", "llama4", "glm4v", "gemma4"] {
        let Seen { request, greedy: want } = seen(name);
        for max_num_batched_tokens in [256, 7] {
            let engine = engine_of(name, &EngineConfig { max_num_batched_tokens, ..config() });
            let twice = [&request, &request].map(|request| submit(&engine, request.clone()));
            for answer in twice {
                assert_eq!(collect(answer).tokens, want, "{name}, {max_num_batched_tokens}");
            }
            settled(&engine);
        }
    }
}
