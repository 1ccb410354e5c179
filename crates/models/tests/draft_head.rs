//! The head for multi-token prediction of a trained checkpoint drafts what mlx-lm's layers make of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use safetensors::SafeTensors;
use std::{fs, path::PathBuf};
use taper_base::{Phase, SeqId};
use taper_kv_cache::{KvCache, KvConfig, SeqRange};
use taper_models::{Batch, DraftHead, LoadOptions, Model, ModelError, ModelInfo, load};
use taper_tensor::{Tensor, ops};
use taper_weights::Checkpoint;

const SEQ: SeqId = SeqId(1);

fn tests() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

fn model(dir: &str, draft_head: bool) -> Box<dyn Model> {
    let weights = Checkpoint::open(&tests().join(dir)).unwrap();
    load(&weights, LoadOptions { draft_head, ..LoadOptions::EXACT }).unwrap()
}

const TRAINED: &str = "models/demo-moe-hybrid";

fn cache(info: &ModelInfo) -> KvCache {
    let mut config = info.cache(taper_kv_codecs::parse("f32").unwrap(), KvConfig::BLOCK_TOKENS, 4);
    config.recurrent = info.states(1, 0);
    let mut cache = KvCache::new(config);
    cache.grow(SEQ, 100).unwrap();
    cache
}

/// Rows of one sequence: tokens and hidden states to hidden states and logits, of the rows `logits_at`.
fn rows(
    head: &DraftHead,
    cache: &mut KvCache,
    (start, tokens, hidden): (usize, &[u32], &Tensor),
    logits_at: &[u32],
) -> [Tensor; 2] {
    let positions: Vec<_> = (start as u32..).take(tokens.len()).collect();
    let mut session = cache.session(&[SeqRange { seq: SEQ, start, len: tokens.len() }]).unwrap();
    let phase = head.info().phase(Phase::Decode);
    let batch = Batch { tokens, positions: &positions, logits_at, phase, ..Batch::default() };
    head.forward(&batch, hidden, &mut session).unwrap()
}

fn best(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32
}

#[test]
fn heads_draft_what_another_implementation_drafts() {
    same_drafts(TRAINED, "fixtures/mtp/demo-moe-hybrid.safetensors");
    for name in ["glm4-moe-f16", "mimo-bf16"] {
        let dir = format!("fixtures/mtp/{name}");
        same_drafts(&dir, &format!("{dir}/expected.safetensors"));
    }
}

fn same_drafts(dir: &str, expected: &str) {
    let bytes = fs::read(tests().join(expected)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: &str| -> Vec<u32> {
        let numbers = file.tensor(name).unwrap().data().as_chunks::<8>().0.iter();
        numbers.map(|b| i64::from_le_bytes(*b) as u32).collect()
    };
    let floats = file.tensor("logits").unwrap().data().as_chunks::<4>().0.iter();
    let logits: Vec<f32> = floats.map(|b| f32::from_le_bytes(*b)).collect();
    let (tokens, drafts) = (ids("input_ids"), ids("drafts"));
    let (model, n) = (model(dir, true), tokens.len());
    let positions: Vec<_> = (0..n as u32).collect();
    let every = positions.clone();
    let batch =
        Batch { tokens: &tokens, positions: &positions, logits_at: &every, ..Batch::default() };
    let range = [SeqRange { seq: SEQ, start: 0, len: n }];
    let mut target = cache(model.info());
    let said = model.forward(&batch, &mut target.session(&range).unwrap()).unwrap();
    let mut target = cache(model.info());
    let batch = Batch { logits_at: &every[n - 2..], ..batch };
    let [last, hidden] =
        model.forward_hidden(&batch, &mut target.session(&range).unwrap()).unwrap();
    assert_eq!(
        last.to_vec2().unwrap(),
        said.to_vec2().unwrap()[n - 2..],
        "hidden states are extra"
    );

    let head = model.draft_head().unwrap();
    let before = ops::take_rows(&hidden, &every[..n - 1]).unwrap();
    let whole = (0, &tokens[1..], &before);
    let [h, out] = rows(head, &mut cache(head.info()), whole, &every[..n - 1]);
    let out = out.to_vec2().unwrap();
    let got: Vec<_> = out.iter().map(|row| best(row)).collect();
    assert_eq!(got, drafts, "{dir}");

    // In two parts, of which the first gives nothing, and then draft after draft.
    let mut own = cache(head.info());
    let part = |from: usize, to: usize| ops::take_rows(&hidden, &every[from..to]).unwrap();
    let first = part(0, 9);
    rows(head, &mut own, (0, &tokens[1..10], &first), &[]);
    let second = part(9, n - 1);
    let [last, row] = rows(head, &mut own, (9, &tokens[10..], &second), &[(n - 11) as u32]);
    assert_eq!(row.to_vec2().unwrap()[0], out[n - 2], "however rows are cut");
    let mut h = ops::take_rows(&h, &[(n - 2) as u32]).unwrap();
    assert_eq!(h.to_vec2().unwrap(), last.to_vec2().unwrap());
    let mut row = out[n - 2].clone();
    for (at, expected) in logits.chunks_exact(model.info().vocab).enumerate() {
        let far = row.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 2e-3, "{dir}, draft {at}: logits are {far} apart");
        let [next, logits] = rows(head, &mut own, (n - 1 + at, &[best(&row)], &h), &[0]);
        (h, row) = (next, logits.to_vec2().unwrap().remove(0));
    }
}

#[test]
fn a_head_is_loaded_where_it_is_asked_for() {
    let (with, without) = (model(TRAINED, true), model(TRAINED, false));
    assert!(without.draft_head().is_none() && without.info().draft_heads.is_none());
    let head = with.draft_head().unwrap();
    assert!(head.info().parameters > 0);
    assert_eq!(
        with.info().parameters,
        without.info().parameters + head.info().parameters,
        "it counts"
    );
    let heads = with.info().draft_heads.unwrap();
    assert_eq!((heads.kv_heads, heads.head_dim), (2, 128));
    let hidden = Tensor::from_vec(vec![0.0; 384], &[1, 384]).unwrap();
    let mut cache = cache(head.info());
    let mut session = cache.session(&[SeqRange { seq: SEQ, start: 0, len: 2 }]).unwrap();
    let batch = Batch { tokens: &[1, 2], positions: &[0, 1], ..Batch::default() };
    let error = head.forward(&batch, &hidden, &mut session).unwrap_err();
    assert!(matches!(error, ModelError::Batch { what: "hidden states", expected: 2, got: 1 }));
}
