//! A checkpoint with a damaged token: requests that hold it fail, and no other request ever does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Numbers, ask, config, fixture_dir, greedy, settled, wait_for};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::{fs, path::Path};
use taper_base::{GenerationError, SeqId, TokenId};
use taper_engine::{
    EngineConfig, KvDisk, LocalEngine, Speculation,
    speculative::{Draft, DraftError, DraftInput, Drafter},
};
use taper_kv_cache::KvScheme;
use taper_kv_codecs::Exact;
use taper_models::LoadOptions;
use taper_weights::Checkpoint;
use tempfile::tempdir;

const VOCAB: u32 = 320;
/// The token whose embedding is not a number.
const BAD: TokenId = 300;
/// Tokens of a step: later ones of a prompt begin inside a block.
const CHUNK: u32 = 37;
const EXACT: Exact = Exact { sink_tokens: 32, recent_tokens: 64 };
const CACHES: [(&str, Option<Exact>); 12] = [
    ("f32", None),
    ("f16", None),
    ("bf16", None),
    ("affine8", None),
    ("affine8", Some(EXACT)),
    ("turbo4", None),
    ("turbo4", Some(EXACT)),
    ("turbo4v2", Some(EXACT)),
    ("turbo3-qjl", Some(EXACT)),
    ("taper4", None),
    ("taper4", Some(EXACT)),
    ("f16+taper4", Some(Exact { sink_tokens: 32, recent_tokens: 32 })),
];

/// The fixture with a head of its own and, if it is to be damaged, an embedding that is not a number.
fn checkpoint(to: &Path, damaged: bool) {
    let config = fs::read_to_string(fixture_dir().join("config.json")).unwrap();
    let untied =
        config.replace(r#""tie_word_embeddings": true"#, r#""tie_word_embeddings": false"#);
    assert_ne!(untied, config);
    fs::write(to.join("config.json"), untied).unwrap();
    let bytes = fs::read(fixture_dir().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let name = "model.embed_tokens.weight";
    let table = file.tensor(name).unwrap();
    assert_eq!(table.dtype(), Dtype::BF16);
    let mut embedding = table.data().to_vec();
    let row = embedding.len() / VOCAB as usize;
    if damaged {
        let row = &mut embedding[BAD as usize * row..][..row];
        row.as_chunks_mut::<2>().0.fill(0x7fc0u16.to_le_bytes());
    }
    let view = |data| TensorView::new(Dtype::BF16, table.shape().to_vec(), data).unwrap();
    let others = file.tensors().into_iter().filter(|(of, _)| of != name);
    let own = [
        (name.to_owned(), view(embedding.as_slice())),
        ("lm_head.weight".to_owned(), view(table.data())),
    ];
    let all: Vec<_> = others.chain(own).collect();
    safetensors::serialize_to_file(all, None, &to.join("model.safetensors")).unwrap();
}

fn engine(dir: &Path, config: &EngineConfig) -> LocalEngine {
    let weights = Checkpoint::open(dir).unwrap();
    let model = taper_models::load(&weights, LoadOptions::default()).unwrap();
    LocalEngine::start(model, config).unwrap()
}

fn with(name: &str, exact: Option<Exact>, disk: Option<KvDisk>) -> EngineConfig {
    let codecs: Vec<_> = name.split('+').map(|n| taper_kv_codecs::parse(n).unwrap()).collect();
    let scheme = KvScheme::of_layers(&codecs).unwrap();
    EngineConfig { scheme, exact, disk, max_num_batched_tokens: CHUNK, ..config() }
}

/// Prompts without the damaged token, of every length around a tile and a block.
fn clean() -> Vec<Vec<TokenId>> {
    let mut numbers = Numbers(11);
    let lens = [1, 2, 3, 4, 5, 9, 13, 17, 31, 33, 34, 66, 70, 100];
    lens.map(|len| numbers.prompt(len, BAD)).to_vec()
}

/// Prompts with it, and what is asked afterwards of the tokens before it.
fn spoiled() -> Vec<(Vec<TokenId>, Vec<TokenId>)> {
    let mut numbers = Numbers(12);
    [5, 40, 66, 70, 131]
        .map(|before| {
            let stem = numbers.prompt(before, BAD);
            let (rest, other) = (numbers.prompt(120, BAD), numbers.prompt(20, BAD));
            let bad = [&stem[..], &[BAD], &rest[..]].concat();
            (bad, [&stem[..], &other[..]].concat())
        })
        .to_vec()
}

fn fails(engine: &LocalEngine, prompt: &[TokenId], name: &str) {
    let error = ask(engine, greedy(prompt, 4)).error;
    assert!(matches!(error, Some(GenerationError::NonFiniteLogits { .. })), "{name}: {error:?}");
}

fn says(engine: &LocalEngine, prompt: &[TokenId]) -> Vec<TokenId> {
    let answer = ask(engine, greedy(prompt, 6));
    assert!(answer.error.is_none(), "{:?}", answer.error);
    answer.tokens
}

#[test]
fn only_requests_with_a_damaged_token_fail() {
    let (sound, damaged) = (tempdir().unwrap(), tempdir().unwrap());
    checkpoint(sound.path(), false);
    checkpoint(damaged.path(), true);
    for (name, exact) in CACHES {
        for prefix_caching in [true, false] {
            let config = EngineConfig { prefix_caching, ..with(name, exact, None) };
            let (want, got) = (engine(sound.path(), &config), engine(damaged.path(), &config));
            let label = format!("{name} {exact:?} {prefix_caching}");
            fails(&got, &[BAD; 31], &label);
            for prompt in clean() {
                assert_eq!(says(&got, &prompt), says(&want, &prompt), "{label} {}", prompt.len());
                // The prompt's output fails, too, where it comes to the damaged token; here none
                // does.
                fails(&got, &[&prompt[..], &[BAD]].concat(), &label);
            }
            for (bad, after) in spoiled() {
                let answer = ask(&got, greedy(&bad, 4));
                // Codes may make zeros of what is not a number once it is no more kept exactly.
                assert!(
                    answer.error.is_some() || exact.is_some() || !name.starts_with("f"),
                    "{label}"
                );
                assert_eq!(says(&got, &after), says(&want, &after), "{label} {}", bad.len());
            }
            settled(&got);
        }
    }
}

#[test]
fn nothing_of_a_damaged_token_outlives_a_restart() {
    let damaged = tempdir().unwrap();
    checkpoint(damaged.path(), true);
    let sound = tempdir().unwrap();
    checkpoint(sound.path(), false);
    for (name, exact) in CACHES {
        let kept = tempdir().unwrap();
        let disk =
            KvDisk { dir: kept.path().to_owned(), max_bytes: 1 << 30, model: "damaged".to_owned() };
        let config = with(name, exact, Some(disk));
        let want = engine(sound.path(), &with(name, exact, None));
        {
            let first = engine(damaged.path(), &config);
            for (bad, _) in spoiled() {
                ask(&first, greedy(&bad, 4));
            }
            settled(&first);
            wait_for(&first, "prefixes on disk", |s| s.disk_written_blocks > 0);
        }
        let second = engine(damaged.path(), &config);
        for (bad, after) in spoiled() {
            let label = format!("{name} {exact:?} {}", bad.len());
            assert_eq!(says(&second, &after), says(&want, &after), "{label}");
            fails(&second, &[&after[..], &[BAD]].concat(), &label);
        }
    }
}

/// A drafter whose drafts are right and then damaged.
#[derive(Debug)]
struct Spoils;

impl Drafter for Spoils {
    fn method(&self) -> &'static str {
        "spoils"
    }

    fn propose(&mut self, seqs: &[DraftInput<'_>]) -> Result<Vec<Draft>, DraftError> {
        let draft = |seq: &DraftInput<'_>| {
            let len = seq.tokens.len() % (seq.most + 1);
            let mut tokens = vec![seq.tokens[seq.tokens.len() - 1]; len / 2];
            tokens.resize(len, BAD);
            Draft { tokens, class: 0 }
        };
        Ok(seqs.iter().map(draft).collect())
    }

    fn forget(&mut self, _: SeqId) {}

    fn expected(&self, _: usize) -> f32 {
        0.5
    }
}

#[test]
fn drafts_of_a_damaged_token_leave_nothing_behind() {
    let damaged = tempdir().unwrap();
    checkpoint(damaged.path(), true);
    for (name, exact) in CACHES {
        let config = with(name, exact, None);
        let speculation = Some(Speculation::new(|| Box::new(Spoils)).steady());
        let drafting = EngineConfig { speculation, ..config.clone() };
        let (want, got) = (engine(damaged.path(), &config), engine(damaged.path(), &drafting));
        for prompt in clean() {
            let ask = |engine: &LocalEngine, prompt: &[TokenId]| {
                let mut request = greedy(prompt, 70);
                request.sampling.logit_bias = vec![(BAD, -100.0)];
                let answer = ask(engine, request);
                assert!(answer.error.is_none(), "{name} {exact:?}: {:?}", answer.error);
                (answer.tokens, answer.cached)
            };
            let (first, _) = ask(&want, &prompt);
            assert_eq!(ask(&got, &prompt).0, first, "{name} {exact:?} {}", prompt.len());
            // What the output left in the cache is as good as without drafts.
            let next = [&prompt[..], &first].concat();
            assert_eq!(ask(&got, &next), ask(&want, &next), "{name} {exact:?} {}", next.len());
        }
        settled(&got);
    }
}

/// A drafter that panics once it has drafted some times.
#[derive(Debug)]
struct Panics(usize);

impl Drafter for Panics {
    fn method(&self) -> &'static str {
        "panics"
    }

    fn propose(&mut self, seqs: &[DraftInput<'_>]) -> Result<Vec<Draft>, DraftError> {
        self.0 += 1;
        assert!(self.0 < 4, "a drafter's own fault");
        let draft = |seq: &DraftInput<'_>| Draft { tokens: vec![5; seq.most.min(2)], class: 0 };
        Ok(seqs.iter().map(draft).collect())
    }

    fn forget(&mut self, _: SeqId) {}

    fn expected(&self, _: usize) -> f32 {
        0.5
    }
}

#[test]
fn a_drafter_that_panics_costs_nothing_but_its_drafts() {
    let sound = tempdir().unwrap();
    checkpoint(sound.path(), false);
    let config = with("f16", None, None);
    let speculation = Some(Speculation::new(|| Box::new(Panics(0))).steady());
    let drafting = EngineConfig { speculation, ..config.clone() };
    let (want, got) = (engine(sound.path(), &config), engine(sound.path(), &drafting));
    for prompt in clean() {
        assert_eq!(says(&got, &prompt), says(&want, &prompt));
    }
    settled(&got);
}
