//! Streamed experts give the bits of resident ones, whatever room there is, and a broken disk breaks nothing else.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};
use taper_base::{Phase, SeqId};
use taper_kv_cache::{KvCache, KvConfig, SeqRange};
use taper_models::{
    Batch, ExpertError, ExpertMemory, ExpertStreaming, LoadOptions, Manifest, Model, ModelError,
    Precision, Rounding, load, pack_experts,
};
use taper_tensor::Tensor;
use taper_weights::{Checkpoint, Gguf};

const MIXED: Precision = Precision::Mixed { decode: Rounding::Int8 };

fn fixtures(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(below)
}

fn open(name: &str) -> Checkpoint {
    match name.ends_with(".gguf") {
        true => Gguf::open(&fixtures("gguf").join(name)).unwrap().checkpoint().unwrap(),
        false => Checkpoint::open(&fixtures("parity").join(name)).unwrap(),
    }
}

fn options(experts: Option<&ExpertStreaming>) -> LoadOptions<'_> {
    LoadOptions { precision: MIXED, experts, ..LoadOptions::default() }
}

/// Steps of a model: prompts of so many sequences cut at `cut` tokens, and then tokens of all of them together.
struct Run<'a> {
    model: &'a dyn Model,
    cache: KvCache,
    lengths: Vec<usize>,
}

const PROMPT: usize = 21;
const DECODED: usize = 4;

impl<'a> Run<'a> {
    fn new(model: &'a dyn Model, sequences: usize) -> Self {
        let info = model.info();
        let codec = taper_kv_codecs::parse("f32").unwrap();
        let config = info.cache(codec, KvConfig::BLOCK_TOKENS, 2 * sequences + 1);
        let cache = KvCache::new(KvConfig { recurrent: info.states(sequences, 0), ..config });
        Self { model, cache, lengths: vec![0; sequences] }
    }

    /// So many more tokens of each of these sequences; the logits of the last one of each.
    fn step(&mut self, more: &[(usize, usize)], phase: Phase) -> Result<Vec<Vec<f32>>, ModelError> {
        let (mut ranges, mut tokens, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        let mut logits_at = Vec::new();
        let vocab = self.model.info().vocab as u32;
        for &(s, len) in more {
            let (seq, start) = (SeqId(s as u64 + 1), self.lengths[s]);
            self.cache.grow(seq, start + len).unwrap();
            ranges.push(SeqRange { seq, start, len });
            let token = |i: usize| 3 + (i as u32 * 37 + s as u32 * 11) % (vocab - 3);
            tokens.extend((start..start + len).map(token));
            positions.extend(start as u32..(start + len) as u32);
            logits_at.push(tokens.len() as u32 - 1);
            self.lengths[s] += len;
        }
        let phase = self.model.info().phase(phase);
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            logits_at: &logits_at,
            phase,
            ..Batch::default()
        };
        let mut session = self.cache.session(&ranges).unwrap();
        let logits: Tensor = self.model.forward(&batch, &mut session)?;
        Ok(logits.to_vec2().unwrap())
    }
}

/// All logits of a run.
fn run(model: &dyn Model, sequences: usize, cut: usize) -> Vec<Vec<f32>> {
    let mut run = Run::new(model, sequences);
    let mut all = Vec::new();
    for s in 0..sequences {
        let mut at = 0;
        while at < PROMPT {
            let len = cut.min(PROMPT - at);
            at += len;
            let logits = run.step(&[(s, len)], Phase::Prefill).unwrap();
            if at == PROMPT {
                all.extend(logits);
            }
        }
    }
    for _ in 0..DECODED {
        let each: Vec<_> = (0..sequences).map(|s| (s, 1)).collect();
        all.extend(run.step(&each, Phase::Decode).unwrap());
    }
    all
}

fn pack(weights: &Checkpoint, dir: &Path) -> ExpertStreaming {
    pack_experts(weights, dir, &[], &mut |_, _| {}).unwrap();
    ExpertStreaming::new(ExpertMemory::Bytes(0)).pack(dir)
}

/// Bytes of so many slots, once a refusal has told what the floor is.
fn floor(weights: &Checkpoint, streaming: &ExpertStreaming) -> (u64, u64) {
    let none = streaming.clone().memory(ExpertMemory::Bytes(0));
    let error = load(weights, options(Some(&none))).unwrap_err();
    let ModelError::Experts(ExpertError::Floor { needed, slots, slot_bytes, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(needed, (slots * slot_bytes) as u64);
    (needed, slot_bytes as u64)
}

#[test]
fn every_family_with_experts_gives_the_bits_of_resident_ones() {
    let mut names = Vec::new();
    for (below, suffix) in [("parity", ""), ("gguf", ".gguf")] {
        for entry in fs::read_dir(fixtures(below)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(suffix) {
                names.push(name);
            }
        }
    }
    names.sort();
    let mut streamed = 0;
    for name in names {
        let weights = open(&name);
        let any = ExpertStreaming::new(ExpertMemory::Bytes(1 << 30));
        let direct = match load(&weights, options(Some(&any))) {
            Err(ModelError::NoExperts) => continue,
            // Of architectures that are no decoders.
            Err(ModelError::UnknownFamily { .. } | ModelError::NoModelType) => continue,
            direct => direct.unwrap_or_else(|error| panic!("{name}: {error}")),
        };
        let resident = load(&weights, options(None)).unwrap();
        assert_eq!(direct.info().parameters, resident.info().parameters, "{name}");
        let expected = run(&*resident, 1, 13);
        assert_eq!(run(&*direct, 1, 13), expected, "{name} without a pack");
        let dir = tempfile::tempdir().unwrap();
        let mut packed = pack(&weights, dir.path());
        packed.memory = ExpertMemory::Bytes(floor(&weights, &packed).0);
        let packed = load(&weights, options(Some(&packed))).unwrap();
        assert_eq!(run(&*packed, 1, 13), expected, "{name} with a pack");
        let stats = packed.experts().unwrap().stats().unwrap();
        assert!((1..=PROMPT + DECODED).contains(&(stats.tokens as usize)), "{name}");
        assert!(stats.misses > 0 && stats.read_bytes > 0 && stats.slots == stats.floor_slots);
        streamed += 1;
    }
    assert!(streamed >= 40, "{streamed}");
}

#[test]
fn bits_do_not_depend_on_slots_batches_or_cuts() {
    for name in ["qwen3-moe-bf16", "qwen3-moe-mlx-4bit-g32", "gpt-oss-mxfp4"] {
        let weights = open(name);
        let resident = load(&weights, options(None)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let packed = pack(&weights, dir.path());
        let (least, slot) = floor(&weights, &packed);
        for sequences in [1, 4, 16] {
            let expected = run(&*resident, sequences, PROMPT);
            for (i, cut) in [PROMPT, 1, 5, 16].into_iter().enumerate() {
                let bytes = least + i as u64 * slot;
                let memory = ExpertMemory::Bytes(bytes);
                for prefetch in [0, 4] {
                    let mut own = packed.clone().memory(memory);
                    own.prefetch = prefetch;
                    let model = load(&weights, options(Some(&own))).unwrap();
                    let got = run(&*model, sequences, cut);
                    assert_eq!(got, expected, "{name}: {sequences}, cut {cut}, {bytes}");
                }
            }
            let all = packed.clone().memory(ExpertMemory::Bytes(1 << 30));
            let model = load(&weights, options(Some(&all))).unwrap();
            assert_eq!(run(&*model, sequences, 7), expected, "{name}: room for all");
        }
    }
}

#[test]
fn a_prompt_reads_each_record_once() {
    let weights = open("qwen3-moe-bf16");
    let dir = tempfile::tempdir().unwrap();
    let mut own = pack(&weights, dir.path());
    let (least, slot) = floor(&weights, &own);
    own.memory = ExpertMemory::Bytes(least);
    own.prefetch = 0;
    let model = load(&weights, options(Some(&own))).unwrap();
    // One step of many tokens goes through all experts of all layers.
    let info = model.info();
    let codec = taper_kv_codecs::parse("f32").unwrap();
    let mut cache = KvCache::new(info.cache(codec, KvConfig::BLOCK_TOKENS, 10));
    let tokens: Vec<u32> = (0..128).map(|i| 3 + (i * 37) % 300).collect();
    let positions: Vec<u32> = (0..128).collect();
    cache.grow(SeqId(1), 128).unwrap();
    for _ in 0..2 {
        let before = model.experts().unwrap().stats().unwrap();
        let mut session = cache.session(&[SeqRange { seq: SeqId(1), start: 0, len: 128 }]).unwrap();
        let phase = info.phase(Phase::Prefill);
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            logits_at: &[127],
            phase,
            ..Batch::default()
        };
        model.forward(&batch, &mut session).unwrap();
        let after = model.experts().unwrap().stats().unwrap();
        let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
        let reads = (after.read_bytes - before.read_bytes) / slot;
        // The last layer computes the one row that is asked for.
        assert!((2 * 8 - 1..=3 * 8).contains(&(hits + misses)), "{hits} and {misses}");
        assert_eq!(reads, misses, "a record was read twice");
    }
}

#[test]
fn fewer_experts_a_token_are_honoured_or_refused() {
    let weights = open("qwen3-moe-bf16");
    let with = |moe_top_k| load(&weights, LoadOptions { moe_top_k, ..options(None) });
    let (all, one) = (with(None).unwrap(), with(Some(1)).unwrap());
    assert_eq!(run(&*with(Some(3)).unwrap(), 1, 9), run(&*all, 1, 9));
    assert_ne!(run(&*one, 1, 9), run(&*all, 1, 9));
    for asked in [0, 4] {
        let error = with(Some(asked)).unwrap_err();
        assert!(matches!(error, ModelError::TopK { most: 3, .. }), "{error}");
    }
    let dense = load(&open("qwen3-bf16"), LoadOptions { moe_top_k: Some(1), ..options(None) });
    assert!(matches!(dense.unwrap_err(), ModelError::TopK { most: 0, .. }));
}

#[test]
fn packs_of_other_models_and_models_that_cannot_be_streamed_are_refused() {
    let (weights, other) = (open("qwen3-moe-bf16"), open("qwen3-moe-mixed-layers"));
    let dir = tempfile::tempdir().unwrap();
    let mut own = pack(&other, dir.path());
    own.memory = ExpertMemory::Bytes(1 << 30);
    let error = load(&weights, options(Some(&own))).unwrap_err();
    assert!(matches!(error, ModelError::Experts(ExpertError::OtherModel { .. })), "{error}");
    let none = own.clone().pack(dir.path().join("none"));
    let error = load(&weights, options(Some(&none))).unwrap_err();
    assert!(matches!(error, ModelError::Experts(ExpertError::File { .. })), "{error}");
    let exact = LoadOptions { precision: Precision::F32, ..options(Some(&own)) };
    assert!(matches!(load(&other, exact).unwrap_err(), ModelError::StreamedExactly));
    let dense = open("qwen3-bf16");
    assert!(matches!(load(&dense, options(Some(&own))).unwrap_err(), ModelError::NoExperts));
    let packed = pack_experts(&dense, &dir.path().join("new"), &[], &mut |_, _| {});
    assert!(matches!(packed.unwrap_err(), ModelError::NoExperts));
    // The same shapes with other weights: a record of each layer is compared.
    let dir = tempfile::tempdir().unwrap();
    let mut own = pack(&weights, dir.path());
    own.memory = ExpertMemory::Bytes(1 << 30);
    let (name, values) = ("model.layers.0.mlp.experts.0.up_proj.weight", vec![0.5; 64 * 64]);
    if let Ok(changed) = weights.with_values([(name.to_owned(), values)]) {
        let error = load(&changed, options(Some(&own))).unwrap_err();
        assert!(matches!(error, ModelError::Experts(_) | ModelError::NoImage), "{error}");
    }
}

#[test]
fn damage_is_a_typed_error_and_other_steps_go_on() {
    let weights = open("qwen3-moe-bf16");
    let expected = run(&*load(&weights, options(None)).unwrap(), 1, PROMPT);
    let dir = tempfile::tempdir().unwrap();
    let mut own = pack(&weights, dir.path());
    own.memory = ExpertMemory::Bytes(floor(&weights, &own).0);
    let model = load(&weights, options(Some(&own))).unwrap();
    let path = dir.path().join(Manifest::file_name(0));
    let whole = fs::read(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let step = |run: &mut Run<'_>| run.step(&[(0, PROMPT)], Phase::Prefill);
    // A flipped bit in every record.
    let record = whole.len() / 8;
    for expert in 0..8 {
        let at = expert * record + 200;
        file.write_all_at(&[whole[at] ^ 8], at as u64).unwrap();
    }
    let error = step(&mut Run::new(&*model, 1)).unwrap_err();
    assert!(matches!(error, ModelError::Experts(ExpertError::Checksum { .. })), "{error}");
    // A file that was cut.
    file.set_len(100).unwrap();
    let error = step(&mut Run::new(&*model, 1)).unwrap_err();
    assert!(
        matches!(error, ModelError::Experts(ExpertError::Short { .. } | ExpertError::Read { .. })),
        "{error}"
    );
    // Mended, it goes on as if nothing had been.
    file.write_all_at(&whole, 0).unwrap();
    assert_eq!(run(&*model, 1, PROMPT), expected);
    // And so it does with less memory.
    model.experts().unwrap().shrink_to(0);
    assert_eq!(run(&*model, 1, 5), expected);
}

#[test]
fn two_models_share_a_pack_and_uses_are_kept() {
    let weights = open("qwen3-moe-mlx-4bit-g32");
    let expected = run(&*load(&weights, options(None)).unwrap(), 1, 5);
    let dir = tempfile::tempdir().unwrap();
    let mut own = pack(&weights, dir.path());
    own.memory = ExpertMemory::Bytes(floor(&weights, &own).0);
    std::thread::scope(|scope| {
        (0..2).for_each(|_| {
            scope.spawn(|| {
                let model = load(&weights, options(Some(&own))).unwrap();
                assert_eq!(run(&*model, 1, 5), expected);
            });
        });
    });
    assert!(dir.path().join("uses.json").is_file());
    own.memory = ExpertMemory::Bytes(1 << 30);
    let warm = load(&weights, options(Some(&own))).unwrap();
    warm.experts().unwrap().start_trace();
    assert_eq!(run(&*warm, 1, 5), expected);
    let trace = warm.experts().unwrap().take_trace().unwrap();
    assert!(trace.touches.len() > 10);
}
