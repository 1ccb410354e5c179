//! Adapters give what PEFT on transformers and mlx-lm give with them, what the model with merged weights gives, and
//! one bit pattern a sequence whatever runs beside it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use safetensors::{Dtype, SafeTensors, serialize_to_file, tensor::TensorView};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use taper_base::{Phase, SeqId};
use taper_kv_cache::{KvCache, KvConfig, SeqRange};
use taper_models::{Adapter, AdapterError, Batch, LoadOptions, Model, Precision, Rounding, load};
use taper_weights::Checkpoint;

fn fixtures(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

fn model(dir: &Path) -> Box<dyn Model> {
    load(&Checkpoint::open(dir).unwrap(), LoadOptions::default()).unwrap()
}

/// Logits of all tokens of some sequences that run together, each with its adapter; in steps of so many tokens of
/// each.
fn run(
    model: &dyn Model,
    sequences: &[(&[u32], Option<&Adapter>)],
    chunk: usize,
) -> Vec<Vec<Vec<f32>>> {
    let info = model.info();
    let codec = taper_kv_codecs::parse("f32").unwrap();
    let mut config = info.cache(codec, KvConfig::BLOCK_TOKENS, 4 * sequences.len());
    config.recurrent = info.states(2 * sequences.len(), 64);
    let mut cache = KvCache::new(config);
    let mut all = vec![Vec::new(); sequences.len()];
    let longest = sequences.iter().map(|(tokens, _)| tokens.len()).max().unwrap();
    for start in (0..longest).step_by(chunk) {
        let (mut tokens, mut positions, mut adapters) = (Vec::new(), Vec::new(), Vec::new());
        let (mut ranges, mut of) = (Vec::new(), Vec::new());
        for (i, &(own, adapter)) in sequences.iter().enumerate() {
            let end = own.len().min(start + chunk);
            if start >= end {
                continue;
            }
            let seq = SeqId(i as u64);
            cache.grow(seq, end).unwrap();
            ranges.push(SeqRange { seq, start, len: end - start });
            tokens.extend_from_slice(&own[start..end]);
            positions.extend(start as u32..end as u32);
            adapters.resize(tokens.len(), adapter);
            of.resize(tokens.len(), i);
        }
        let logits_at: Vec<_> = (0..tokens.len() as u32).collect();
        if adapters.iter().all(Option::is_none) {
            adapters.clear();
        }
        let mut session = cache.session(&ranges).unwrap();
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            logits_at: &logits_at,
            phase: info.phase(Phase::Prefill),
            adapters: &adapters,
            ..Batch::default()
        };
        let logits = model.forward(&batch, &mut session).unwrap().to_vec2().unwrap();
        for (row, i) in logits.into_iter().zip(of) {
            all[i].push(row);
        }
    }
    all
}

/// The largest difference, in units of the largest logit.
fn distance(got: &[Vec<f32>], want: &[Vec<f32>]) -> f32 {
    assert_eq!(got.len(), want.len());
    let pairs = || got.iter().flatten().zip(want.iter().flatten());
    let most = pairs().map(|(_, w)| w.abs()).fold(0.0, f32::max);
    pairs().map(|(g, w)| (g - w).abs()).fold(0.0, f32::max) / most
}

fn expected(dir: &Path) -> (Vec<u32>, Vec<Vec<f32>>) {
    let bytes = fs::read(dir.join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name| file.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
    let ids: Vec<_> = words("input_ids").into_iter().map(u32::from_le_bytes).collect();
    let logits: Vec<_> = words("logits").into_iter().map(f32::from_le_bytes).collect();
    let rows = logits.chunks(logits.len() / ids.len()).map(<[f32]>::to_vec).collect();
    (ids, rows)
}

#[test]
fn logits_are_those_of_peft_and_mlx_lm() {
    let mut seen = 0;
    for entry in fs::read_dir(fixtures("adapters")).unwrap() {
        let dir = entry.unwrap().path();
        let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
        let base = fixtures("parity").join(name.split_once("--").unwrap().0);
        let model = model(&base);
        let adapter = model.adapter_targets().unwrap().load(&dir, None).unwrap();
        let (ids, want) = expected(&dir);
        let got = run(&*model, &[(&ids, Some(&adapter))], ids.len()).remove(0);
        let plain = run(&*model, &[(&ids, None)], ids.len()).remove(0);
        let (far, near) = (distance(&plain, &want), distance(&got, &want));
        assert!(near < 1e-4 && far > 1e-2, "{name}: {near}, without the adapter {far}");
        // Beside the model itself, in other steps: no bit changes.
        let other = &ids[3..17];
        let both = [(&ids[..], Some(&adapter)), (other, None), (other, Some(&adapter))];
        let mixed = run(&*model, &both, 5);
        assert_eq!(mixed[0], got, "{name}");
        let alone = |adapter| run(&*model, &[(other, adapter)], other.len()).remove(0);
        assert_eq!(mixed[1], alone(None), "{name}");
        assert_eq!(mixed[2], alone(Some(&adapter)), "{name}");
        seen += 1;
    }
    assert!(seen >= 10, "{seen}");
}

#[test]
fn sequences_have_adapters_of_their_own() {
    let model = model(&fixtures("parity/qwen3-bf16"));
    let targets = model.adapter_targets().unwrap();
    let load = |name: &str| {
        let dir = fixtures("adapters").join(name);
        (targets.load(&dir, None).unwrap(), expected(&dir))
    };
    let all = ["qwen3-bf16--patterns", "qwen3-bf16--last-layer", "qwen3-bf16--mlx"].map(load);
    let mut sequences: Vec<_> = all.iter().map(|(a, (ids, _))| (&ids[..], Some(a))).collect();
    sequences.insert(1, (&all[0].1.0[..20], None));
    for chunk in [1, 7, 24] {
        let mut got = run(&*model, &sequences, chunk);
        got.remove(1);
        for (got, (_, (_, want))) in got.iter().zip(&all) {
            assert!(distance(got, want) < 1e-4, "{chunk}");
        }
    }
    assert_eq!((all[0].0.rank(), all[0].0.modules(), all[1].0.modules()), (8, 14, 2));
    assert!(all[0].0.digest() != all[1].0.digest());
    assert_eq!(all[0].0.base(), Some("qwen3-bf16"));
}

/// Floats of a small tensor, from bf16, f16 or f32.
fn floats(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let data = view.data();
    let wide = |pairs: &[[u8; 2]], f: fn(u16) -> f32| {
        pairs.iter().map(|b| f(u16::from_le_bytes(*b))).collect()
    };
    Some(match view.dtype() {
        Dtype::F32 => data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::BF16 => wide(data.as_chunks::<2>().0, |x| f32::from_bits(u32::from(x) << 16)),
        Dtype::F16 => wide(data.as_chunks::<2>().0, half),
        _ => return None,
    })
}

fn half(x: u16) -> f32 {
    let (sign, exponent, fraction) = (x >> 15, (x >> 10) & 31, f32::from(x & 1023) / 1024.0);
    let size = match exponent {
        0 => fraction * 2f32.powi(-14),
        e => (1.0 + fraction) * 2f32.powi(i32::from(e) - 15),
    };
    if sign == 1 { -size } else { size }
}

/// A pseudorandom number of `-1..1`.
fn noise(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*state >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn write(path: &Path, tensors: &BTreeMap<String, (Vec<usize>, Vec<f32>)>) {
    let bytes: BTreeMap<_, (&Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(n, (shape, x))| (n, (shape, x.iter().flat_map(|x| x.to_le_bytes()).collect())))
        .collect();
    let views = bytes.iter().map(|(name, (shape, bytes))| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap())
    });
    serialize_to_file(views, None, path).unwrap();
}

/// Every module of every family that an adapter can change, against the same change in the weights themselves.
#[test]
fn an_adapter_equals_merged_weights_in_every_family() {
    let (mut families, mut modules) = (Vec::new(), 0);
    let mut names: Vec<_> = fs::read_dir(fixtures("parity")).unwrap().collect();
    names.sort_by_key(|e| e.as_ref().unwrap().file_name());
    for entry in names {
        let dir = entry.unwrap().path();
        let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
        let Ok(bytes) = fs::read(dir.join("model.safetensors")) else { continue };
        let file = SafeTensors::deserialize(&bytes).unwrap();
        if file
            .tensors()
            .iter()
            .any(|(name, view)| floats(view).is_none() || name.ends_with(".scales"))
        {
            continue;
        }
        let plain = model(&dir);
        let Some(targets) = plain.adapter_targets() else { continue };
        let tmp = tempfile::tempdir().unwrap();
        let (mut merged, mut adapter, mut state) = (BTreeMap::new(), BTreeMap::new(), 7);
        for (tensor, view) in file.tensors() {
            let mut values = floats(&view).unwrap();
            let module = tensor.strip_suffix(".weight").filter(|module| targets.has(module));
            if let (Some(module), &[rows, cols]) = (module, view.shape()) {
                // Maps of GPT-2 are stored with their inputs first.
                let turned = plain.info().family == "gpt2";
                let (outputs, inputs) = if turned { (cols, rows) } else { (rows, cols) };
                let rank = 3;
                let a: Vec<_> = (0..rank * inputs).map(|_| noise(&mut state) * 0.2).collect();
                let b: Vec<_> = (0..outputs * rank).map(|_| noise(&mut state) * 0.1).collect();
                for o in 0..outputs {
                    for i in 0..inputs {
                        let delta: f32 =
                            (0..rank).map(|k| b[o * rank + k] * a[k * inputs + i]).sum();
                        values[if turned { i * cols + o } else { o * cols + i }] += 2.0 * delta;
                    }
                }
                let own = |side| format!("base_model.model.{module}.lora_{side}.weight");
                adapter.insert(own("A"), (vec![rank, inputs], a));
                adapter.insert(own("B"), (vec![outputs, rank], b));
                modules += 1;
            }
            merged.insert(tensor, (view.shape().to_vec(), values));
        }
        assert!(!adapter.is_empty(), "{name}");
        write(&tmp.path().join("model.safetensors"), &merged);
        fs::copy(dir.join("config.json"), tmp.path().join("config.json")).unwrap();
        let lora = tmp.path().join("lora");
        fs::create_dir(&lora).unwrap();
        write(&lora.join("adapter_model.safetensors"), &adapter);
        let config = r#"{"peft_type": "LORA", "r": 3, "lora_alpha": 6}"#;
        fs::write(lora.join("adapter_config.json"), config).unwrap();
        let adapter = targets.load(&lora, None).unwrap();
        let vocab = plain.info().vocab as u32;
        let ids: Vec<u32> = (0..12).map(|i| 3 + (i * 37) % (vocab - 3)).collect();
        let got = run(&*plain, &[(&ids, Some(&adapter))], 12).remove(0);
        let own = run(&*plain, &[(&ids, None)], 12).remove(0);
        let want = run(&*model(tmp.path()), &[(&ids, None)], 12).remove(0);
        let (near, far) = (distance(&got, &want), distance(&own, &want));
        assert!(near < 1e-3 && near < far / 20.0, "{name}: {near}, without the adapter {far}");
        families.push(plain.info().family);
    }
    families.dedup();
    assert!(families.len() > 40 && modules > 1000, "{} {modules}", families.len());
}

/// Kernels that compute a feed-forward as a whole give way to others where a row is changed: no bit may tell.
#[test]
fn rows_without_an_adapter_keep_their_bits_in_quantized_models() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/models/demo");
    let tmp = tempfile::tempdir().unwrap();
    let (mut state, mut tensors) = (3, BTreeMap::new());
    let modules = [
        ("self_attn.q_proj", 384, 512),
        ("self_attn.o_proj", 512, 384),
        ("mlp.gate_proj", 384, 1152),
        ("mlp.down_proj", 1152, 384),
    ];
    for (module, inputs, outputs) in modules {
        for (side, shape) in [("A", [4, inputs]), ("B", [outputs, 4])] {
            let name = format!("base_model.model.model.layers.2.{module}.lora_{side}.weight");
            let values = (0..shape[0] * shape[1]).map(|_| noise(&mut state) * 0.1).collect();
            tensors.insert(name, (shape.to_vec(), values));
        }
    }
    write(&tmp.path().join("adapter_model.safetensors"), &tensors);
    let config = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8}"#;
    fs::write(tmp.path().join("adapter_config.json"), config).unwrap();
    let ids: Vec<u32> = (0..30).map(|i| 5 + (i * 97) % 8000).collect();
    for decode in [Rounding::Int8, Rounding::Int16] {
        let options =
            LoadOptions { precision: Precision::Mixed { decode }, ..LoadOptions::default() };
        let model = load(&Checkpoint::open(&dir).unwrap(), options).unwrap();
        let adapter = model.adapter_targets().unwrap().load(tmp.path(), None).unwrap();
        let alone = |adapter| run(&*model, &[(&ids, adapter)], ids.len()).remove(0);
        let (plain, changed) = (alone(None), alone(Some(&adapter)));
        assert!(distance(&plain, &changed) > 1e-2);
        let mixed = run(&*model, &[(&ids, None), (&ids, Some(&adapter)), (&ids[..9], None)], 30);
        assert!(mixed[0] == plain && mixed[1] == changed && mixed[2] == plain[..9], "{decode:?}");
    }
}

/// An adapter of one module of Qwen 3, with its fields changed.
fn broken(
    fields: &str,
    tensors: &[(&str, [usize; 2])],
    max_rank: Option<usize>,
) -> Result<Adapter, AdapterError> {
    let dir = tempfile::tempdir().unwrap();
    let mut config = serde_json::json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj", "experts"],
        "base_model_name_or_path": "some/base",
    });
    let more: serde_json::Value = serde_json::from_str(fields).unwrap();
    for (field, value) in more.as_object().unwrap() {
        config[field] = value.clone();
    }
    fs::write(dir.path().join("adapter_config.json"), config.to_string()).unwrap();
    let tensor = |&(name, shape): &(&str, [usize; 2])| {
        (name.to_owned(), (shape.to_vec(), vec![0.5; shape[0] * shape[1]]))
    };
    write(&dir.path().join("adapter_model.safetensors"), &tensors.iter().map(tensor).collect());
    let model = model(&fixtures("parity/qwen3-bf16"));
    model.adapter_targets().unwrap().load(dir.path(), max_rank)
}

const A: (&str, [usize; 2]) =
    ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", [2, 128]);
const B: (&str, [usize; 2]) =
    ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", [192, 2]);

#[test]
fn adapters_that_do_not_fit_are_refused_by_name() {
    let good = broken("{}", &[A, B], Some(2)).unwrap();
    assert_eq!((good.rank(), good.modules(), good.parameters()), (2, 1, 2 * (128 + 192)));
    let says = |fields: &str, tensors: &[_], parts: &[&str]| {
        let error = broken(fields, tensors, Some(2)).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    for (fields, parts) in [
        (r#"{"use_dora": true}"#, ["use_dora", "true"]),
        (r#"{"bias": "all"}"#, ["bias", "all"]),
        (r#"{"modules_to_save": ["lm_head"]}"#, ["modules_to_save", "lm_head"]),
        (r#"{"peft_type": "IA3"}"#, ["peft_type", "IA3"]),
        (r#"{"peft_type": null}"#, ["peft_type", "null"]),
        (r#"{"init_lora_weights": "pissa_niter_4"}"#, ["init_lora_weights", "pissa"]),
        (r#"{"layer_replication": [[0, 1]]}"#, ["layer_replication", "[0,1]"]),
        (r#"{"some_new_kind": 3}"#, ["some_new_kind", "3"]),
        (r#"{"r": 0}"#, ["r: ", "positive"]),
        (r#"{"lora_alpha": "x"}"#, ["lora_alpha", "number"]),
        (r#"{"rank_pattern": {"(": 2}}"#, ["rank_pattern", "("]),
        (r#"{"target_modules": ["k_proj"]}"#, ["q_proj", "does not target"]),
        (r#"{"target_modules": ".*k_proj"}"#, ["q_proj", "does not target"]),
    ] {
        says(fields, &[A, B], &parts);
    }
    says("{}", &[A], &["lora_B", "other one of its pair"]);
    says("{}", &[A, B, ("base_model.model.x.lora_magnitude_vector", [1, 1])], &["magnitude"]);
    says("{}", &[(A.0, [4, 128]), (B.0, [192, 4])], &["rank 4", "says 2"]);
    says(r#"{"r": 4}"#, &[(A.0, [4, 128]), (B.0, [192, 4])], &["rank 4", "at most 2"]);
    says("{}", &[(A.0, [2, 64]), B], &["some/base", "q_proj", "[2, 64]", "[2, 128]"]);
    says("{}", &[A, (B.0, [128, 2])], &["some/base", "q_proj", "[128, 2]", "[192, 2]"]);
    let beyond = ["A", "B"]
        .map(|side| format!("base_model.model.model.layers.9.self_attn.q_proj.lora_{side}.weight"));
    says("{}", &[(&beyond[0], A.1), (&beyond[1], B.1)], &["layers.9", "some/base", "k_proj"]);
    says("{}", &[], &["no tensors"]);
    let empty = tempfile::tempdir().unwrap();
    let model = model(&fixtures("parity/qwen3-bf16"));
    let error = model.adapter_targets().unwrap().load(empty.path(), None).unwrap_err();
    assert!(matches!(error, AdapterError::NoAdapter { .. }), "{error}");
}

#[test]
fn maps_of_experts_are_refused() {
    let model = model(&fixtures("parity/mixtral-bf16"));
    let targets = model.adapter_targets().unwrap();
    assert!(targets.has("model.layers.0.self_attn.q_proj"));
    for name in ["model.layers.0.block_sparse_moe.experts.0.w1", "model.layers.0.mlp.experts.0.w1"]
    {
        assert!(!targets.has(name), "{name}");
    }
}
