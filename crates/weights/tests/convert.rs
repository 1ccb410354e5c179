//! Conversions against those of mlx-lm, and what can go wrong with them.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Tensor, floats, matrix, model};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
};
use taper_tensor::{AffineFormat, DType};
use taper_weights::{
    Checkpoint, ConvertError, ConvertOptions, ConvertReport, Override, TargetFormat, WeightsError,
    convert,
};

fn parity(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("tests/fixtures/parity").join(name)
}

fn options(bits: u8, group: usize) -> ConvertOptions {
    ConvertOptions::new(AffineFormat { bits, group })
}

fn own(pattern: &str, format: Option<(u8, usize)>) -> Override {
    let format = format.map(|(bits, group)| AffineFormat { bits, group });
    Override { pattern: pattern.to_owned(), format }
}

fn run(src: &Path, dst: &Path, options: &ConvertOptions) -> Result<ConvertReport, ConvertError> {
    convert(src, dst, options, &mut |_, _| {})
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Name, type, shape and bytes of every tensor of a model.
fn tensors(dir: &Path) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with("model") || !name.ends_with(".safetensors") {
            continue;
        }
        let file = fs::read(&path).unwrap();
        for (name, t) in SafeTensors::deserialize(&file).unwrap().iter() {
            let value = (format!("{:?}", t.dtype()), t.shape().to_vec(), t.data().to_vec());
            assert!(all.insert(name.to_owned(), value).is_none(), "{name} is there twice");
        }
    }
    all
}

fn same_tensors(ours: &Path, theirs: &Path, what: &str) {
    let (ours, theirs) = (tensors(ours), tensors(theirs));
    assert!(ours.keys().eq(theirs.keys()), "names of {what}");
    for (name, tensor) in &ours {
        assert!(tensor == &theirs[name], "{what}: {name}");
    }
}

#[test]
fn conversions_equal_those_of_mlx_lm_bit_for_bit() {
    let mut mixed = options(4, 64);
    mixed.overrides = vec![
        own("embed_tokens", Some((6, 64))),
        own("v_proj", Some((8, 32))),
        own("layers.0.mlp.down_proj", Some((5, 128))),
        own("layers.1.self_attn.q_proj", None),
    ];
    let pairs = [
        ("qwen3-bf16", "qwen3-mlx-4bit-g64", options(4, 64)),
        ("qwen3-bf16", "qwen3-mlx-8bit-g32", options(8, 32)),
        ("qwen3-bf16", "qwen3-mlx-3bit-g64", options(3, 64)),
        ("qwen3-bf16", "qwen3-mlx-5bit-g32", options(5, 32)),
        ("qwen3-bf16", "qwen3-mlx-6bit-g64", options(6, 64)),
        ("qwen3-bf16", "qwen3-mlx-2bit-g128", options(2, 128)),
        ("qwen3-bf16", "qwen3-mlx-mixed", mixed),
        ("qwen2-bf16", "qwen2-mlx-8bit-g32", options(8, 32)),
        ("llama-linear-bias-f16", "llama-mlx-4bit-g32-f16", options(4, 32)),
        ("llama-llama3-bf16", "llama-mlx-6bit-g32", options(6, 32)),
        ("phi3-window-bf16", "phi3-mlx-4bit-g32", options(4, 32)),
        ("gemma3-bf16", "gemma3-mlx-4bit-g32", options(4, 32)),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (source, expected, options) in pairs {
        let (ours, theirs) = (dir.path().join(expected), parity(expected));
        run(&parity(source), &ours, &options).unwrap();
        same_tensors(&ours, &theirs, expected);
        for file in ["config.json", "model.safetensors.index.json"] {
            assert_eq!(read_json(&ours.join(file)), read_json(&theirs.join(file)), "{expected}");
        }
        Checkpoint::open(&ours).unwrap();
    }
}

#[test]
fn layers_left_dense_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let report = run(&parity("qwen3-bf16"), &dir.path().join("m"), &options(2, 128)).unwrap();
    let o_proj = |i| format!("model.layers.{i}.self_attn.o_proj");
    assert_eq!(report.left_dense, [o_proj(0), o_proj(1)]);
    assert_eq!((report.shards, report.quantized), (1, 13));
    assert!(report.bits_per_weight() > 2.25);
}

#[test]
fn shards_hold_the_same_tensors() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    run(&parity("llama-llama3-bf16"), &whole, &options(6, 32)).unwrap();
    let mut small = options(6, 32);
    small.max_shard_bytes = 20_000;
    let report = run(&parity("llama-llama3-bf16"), &cut, &small).unwrap();
    assert!(report.shards > 3);
    same_tensors(&cut, &whole, "shards");
    let last = cut.join(format!("model-{0:05}-of-{0:05}.safetensors", report.shards));
    assert!(last.is_file());
    assert_eq!(Checkpoint::open(&cut).unwrap().bytes(), report.bytes);
}

#[test]
fn mixed_recipes_widen_what_mlx_lm_widens() {
    let dir = tempfile::tempdir().unwrap();
    let ours = dir.path().join("m");
    let mut mixed = options(3, 32);
    mixed.high_bits = Some(6);
    run(&parity("llama-llama3-bf16"), &ours, &mixed).unwrap();
    let config = read_json(&ours.join("config.json"));
    let wide: Vec<_> = config["quantization"].as_object().unwrap().keys().skip(3).collect();
    // Three layers: an eighth of them is none, and 7/8 leaves the last.
    let last = ["model.layers.2.mlp.down_proj", "model.layers.2.self_attn.v_proj"];
    assert_eq!(wide, [&["lm_head"], last.as_slice()].concat());
    let format = Checkpoint::open(&ours).unwrap().quantization().format("lm_head");
    assert_eq!(format, Some(AffineFormat { bits: 6, group: 32 }));
}

#[test]
fn tied_heads_and_rotary_frequencies_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq";
    let all = [
        matrix("lm_head.weight", &[2, 64]),
        matrix("model.embed_tokens.weight", &[2, 64]),
        (frequencies, "F32", &[1], floats([1.0])),
        ("model.norm.weight", "F32", &[1], floats([1.0])),
    ];
    let names = |tied: Value, to: &str| {
        let (src, dst) = (dir.path().join(format!("{to}-src")), dir.path().join(to));
        model(&src, &json!({"model_type": "x", "tie_word_embeddings": tied}), &all);
        run(&src, &dst, &options(4, 32)).unwrap();
        tensors(&dst).into_keys().collect::<Vec<_>>()
    };
    let tied = names(json!(true), "tied");
    assert!(!tied.iter().any(|n| n.starts_with("lm_head") || n == frequencies), "{tied:?}");
    assert!(tied.contains(&"model.norm.weight".to_owned()));
    assert!(names(json!(false), "untied").contains(&"lm_head.scales".to_owned()));
}

#[test]
fn companions_are_copied_and_the_end_token_is_the_generation_configs() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("a/b/dst"));
    let config = json!({"model_type": "x", "eos_token_id": 1, "_name_or_path": "somewhere"});
    model(&src, &config, &[matrix("a.weight", &[2, 64])]);
    fs::write(src.join("generation_config.json"), r#"{"eos_token_id": [7, 8]}"#).unwrap();
    for name in ["tokenizer.json", "tokenizer.model", "chat_template.jinja", "LICENSE", "notes"] {
        fs::write(src.join(name), name).unwrap();
    }
    run(&src, &dst, &options(8, 64)).unwrap();
    let config = read_json(&dst.join("config.json"));
    assert_eq!(config["eos_token_id"], json!([7, 8]));
    assert!(config.get("_name_or_path").is_none());
    let mut found: Vec<_> = fs::read_dir(&dst)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(
        found,
        [
            "LICENSE",
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer.model",
        ]
    );
}

#[test]
fn floats_are_cast_and_config_json_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    let norm: Tensor<'_> = ("norm.weight", "F32", &[2], floats([1.0, -0.5]));
    model(&src, &json!({"model_type": "x", "dtype": "float32"}), &[norm]);
    let half = ConvertOptions::with_target(TargetFormat::Dense(DType::F16));
    let report = run(&src, &dst, &half).unwrap();
    assert_eq!((report.quantized, report.copied, report.bytes), (0, 1, 4));
    assert_eq!(tensors(&dst)["norm.weight"], ("F16".to_owned(), vec![2], vec![0, 60, 0, 184]));
    let config = read_json(&dst.join("config.json"));
    assert_eq!((&config["dtype"], &config["torch_dtype"]), (&json!("float16"), &json!("float16")));
}

#[test]
fn elements_smaller_than_a_byte_are_copied_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    let small: [Tensor<'_>; 3] = [
        ("four", "F4", &[2, 3], vec![1, 2, 3]),
        ("six", "F6_E2M3", &[4], vec![4, 5, 6]),
        ("six2", "F6_E3M2", &[2, 4], vec![7; 6]),
    ];
    model(&src, &json!({}), &[&small[..], &[matrix("a.weight", &[2, 64])]].concat());
    run(&src, &dst, &options(4, 64)).unwrap();
    let (made, source) = (tensors(&dst), tensors(&src));
    for (name, ..) in small {
        assert_eq!(made[name], source[name]);
    }
}

#[test]
fn progress_rises_to_the_total() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    convert(&parity("qwen3-bf16"), &dir.path().join("m"), &options(4, 64), &mut |done, total| {
        seen.push((done, total));
    })
    .unwrap();
    assert!(seen.is_sorted());
    let (done, total) = *seen.last().unwrap();
    assert_eq!((seen[0].0, done), (0, total));
}

#[test]
fn a_failure_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    let broken: Tensor<'_> = ("b.weight", "F32", &[1, 64], floats([f32::NAN; 64]));
    model(&src, &json!({}), &[matrix("a.weight", &[2, 64]), broken]);
    let error = run(&src, &dst, &options(4, 64)).unwrap_err();
    assert!(matches!(&error, ConvertError::NotFinite { name } if name == "b.weight"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the source");
}

#[test]
fn what_a_killed_conversion_left_is_cleared_and_a_running_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    model(&src, &json!({}), &[matrix("a.weight", &[2, 64])]);
    let unfinished = dir.path().join(".dst.converting");
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join("model-00001-of-00002.safetensors"), "half").unwrap();
    let lock_path = dir.path().join(".dst.converting.lock");
    let lock = File::create(&lock_path).unwrap();
    lock.lock().unwrap();
    let error = run(&src, &dst, &options(4, 64)).unwrap_err();
    assert!(matches!(error, ConvertError::Busy { .. }), "{error}");
    assert!(unfinished.join("model-00001-of-00002.safetensors").is_file());
    drop(lock);
    fs::create_dir(&dst).unwrap(); // empty: allowed
    run(&src, &dst, &options(4, 64)).unwrap();
    assert!(!unfinished.exists() && !lock_path.exists());
    assert!(!dst.join("model-00001-of-00002.safetensors").exists());
}

#[test]
fn what_cannot_be_converted_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    let dst = dir.path().join("dst");
    let four = options(4, 64);
    let error = |config: Value, tensors: &[Tensor<'_>], options: &ConvertOptions| {
        model(&src, &config, tensors);
        run(&src, &dst, options).unwrap_err()
    };
    let good = [matrix("a.b.weight", &[2, 64])];
    let with = |overrides: Vec<Override>| {
        let mut options = four.clone();
        options.overrides = overrides;
        options
    };

    let e = error(json!({}), &good, &options(7, 64));
    assert!(matches!(e, ConvertError::UnknownFormat { .. }), "{e}");
    let e = error(json!({}), &good, &options(4, 48));
    assert!(matches!(e, ConvertError::UnknownFormat { .. }), "{e}");
    let e = error(json!({}), &good, &with(vec![own("b", Some((9, 32)))]));
    assert!(matches!(e, ConvertError::UnknownFormat { .. }), "{e}");
    let e = error(json!({}), &good, &with(vec![own("bb", None)]));
    assert!(matches!(e, ConvertError::UnmatchedOverride { .. }), "{e}");
    let e = error(json!({}), &good, &with(vec![own("b", Some((4, 128)))]));
    assert!(matches!(e, ConvertError::OverrideGroup { cols: 64, group: 128, .. }), "{e}");
    let e = error(json!({}), &good, &options(4, 128));
    assert!(matches!(e, ConvertError::NothingToQuantize { .. }), "{e}");
    let source = |e: &ConvertError| matches!(e, ConvertError::Source(_));
    let e = error(json!({"quantization": {"bits": 4}}), &good, &four);
    assert!(source(&e), "{e}");
    // Codes that nothing says enough of.
    for end in ["qweight", "weight_packed"] {
        let e = error(json!({}), &[good[0].clone(), matrix(&format!("a.{end}"), &[2, 64])], &four);
        assert!(source(&e), "{end}: {e}");
    }
    let bytes = ("a.weight", "U8", &[64, 1][..], vec![0; 64]);
    assert!(source(&error(json!({}), &[bytes], &four)));
    let words = ("a.weight", "U32", &[2, 8][..], vec![0; 64]);
    let e = error(json!({}), &[words, matrix("a.scales", &[2, 1])], &four);
    assert!(source(&e), "{e}");
    let blocks = ("mlp.experts.gate_up_proj_blocks", "U8", &[2, 4, 2, 16][..], vec![0; 256]);
    let e = error(json!({}), &[blocks], &four);
    assert!(matches!(e, ConvertError::Layout { .. }), "{e}");
    let e = error(json!({"vision_config": {}}), &good, &four);
    assert!(matches!(e, ConvertError::Layout { .. }), "{e}");
    let experts = [
        matrix("mlp.experts.0.up_proj.weight", &[2, 64]),
        matrix("mlp.experts.1.up_proj.weight", &[3, 64]),
    ];
    let e = error(json!({}), &experts, &four);
    assert!(matches!(e, ConvertError::Layout { .. }), "{e}");
    let transposed = ("mlp.experts.gate_up_proj", "F32", &[2, 64, 4][..], vec![0; 2048]);
    let e = error(json!({}), &[transposed], &four);
    assert!(matches!(e, ConvertError::Layout { .. }), "{e}");
    let stacked = matrix("mlp.switch_mlp.up_proj.weight", &[2, 64]);
    let e = error(json!({}), &[matrix("mlp.experts.0.up_proj.weight", &[2, 64]), stacked], &four);
    assert!(matches!(&e, ConvertError::NameTwice { name } if name.contains("switch_mlp")), "{e}");
    let biases = matrix("a.b.biases", &[2, 1]);
    let e = error(json!({}), &[matrix("a.b.weight", &[2, 64]), biases], &four);
    assert!(matches!(&e, ConvertError::NameTwice { name } if name == "a.b.biases"), "{e}");
    let e = error(json!({}), &[("a.weight", "F4", &[2, 64], vec![0; 64])], &four);
    assert!(matches!(&e, ConvertError::DType { name, .. } if name == "a.weight"), "{e}");
    let e = error(json!({}), &[("a.weight", "F8_E4M3", &[1, 64], vec![0; 64])], &four);
    assert!(source(&e), "a scale is missing: {e}");
    assert!(!dst.exists());

    model(&src, &json!({}), &good);
    let e = run(&src, &src, &four).unwrap_err();
    assert!(matches!(e, ConvertError::DestinationExists { .. }), "{e}");
    let e = run(&src, &src.join("config.json"), &four).unwrap_err();
    assert!(matches!(e, ConvertError::DestinationExists { .. }), "{e}");
    let e = run(&dir.path().join("none"), &dst, &four).unwrap_err();
    assert!(matches!(&e, ConvertError::Source(e) if matches!(**e, WeightsError::Io { .. })), "{e}");
}
