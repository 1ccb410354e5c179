//! Small GGUF files, and the directories that they become.

use crate::{
    Checkpoint, ConvertError, ConvertOptions, ConvertReport, Gguf, Override, TargetFormat,
    WeightsError, convert,
    gguf::tests::{Maker, llama},
};
use half::f16;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};
use taper_tensor::{AffineFormat, DType, cpu::RowSource};

const LAYER: &str = "model.layers.0";
const COLS: usize = 256;
/// Matrices of blocks: the name here, the name there, ggml's type, bytes a row, where halves stand.
const BLOCKS: [(&str, &str, u32, usize, &[usize]); 4] = [
    ("attn_k", "self_attn.k_proj", 2, 8 * 18, &[0]),
    ("attn_v", "self_attn.v_proj", 12, 144, &[0, 2]),
    ("ffn_up", "mlp.up_proj", 14, 210, &[208]),
    ("ffn_gate", "mlp.gate_proj", 8, 8 * 34, &[0]),
];

/// [`llama`] with 32 rows in each type of blocks, and in floats.
fn mixed() -> Maker {
    let mut maker = llama();
    for (name, _, kind, row, halves) in BLOCKS {
        let mut data: Vec<u8> = (0..32 * row).map(|i| (i * 37 % 251) as u8).collect();
        let block = if kind < 12 { row / 8 } else { row };
        for block in data.chunks_mut(block) {
            for at in halves {
                block[*at..at + 2].copy_from_slice(&f16::from_f32(0.01).to_le_bytes());
            }
        }
        maker.tensor(&format!("blk.0.{name}.weight"), kind, &[COLS as u64, 32], &data);
    }
    let fine: Vec<u8> = (0..32).flat_map(|i| (i as f32 / 3.0).to_le_bytes()).collect();
    maker.tensor("blk.0.attn_norm.weight", 0, &[32], &fine);
    maker.word("tokenizer.chat_template", "{{ messages }}");
    maker
}

struct Files {
    dir: tempfile::TempDir,
    file: PathBuf,
}

impl Files {
    fn new(maker: &Maker) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("model.gguf");
        fs::write(&file, maker.bytes()).unwrap();
        Self { dir, file }
    }

    fn run(&self, to: &str, options: &ConvertOptions) -> Result<ConvertReport, ConvertError> {
        convert(&self.file, &self.to(to), options, &mut |_, _| {})
    }

    fn to(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn source(&self) -> Checkpoint {
        Gguf::open(&self.file).unwrap().checkpoint().unwrap()
    }

    fn made(&self, name: &str) -> Checkpoint {
        Checkpoint::open(&self.to(name)).unwrap()
    }
}

fn stored() -> ConvertOptions {
    ConvertOptions::with_target(TargetFormat::Stored)
}

fn values(source: &Checkpoint, prefix: &str, cols: usize) -> Vec<f32> {
    let mut out = vec![0.0; 32 * cols];
    source.weight(prefix, 32, cols).unwrap().read_rows(0, &mut out);
    out
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn blocks_become_the_matrices_that_are_served() {
    let files = Files::new(&mixed());
    let report = files.run("out", &stored()).unwrap();
    assert_eq!((report.quantized, report.copied), (5, 3));
    let (source, made) = (files.source(), files.made("out"));
    for (_, name, ..) in BLOCKS {
        let name = format!("{LAYER}.{name}");
        assert_eq!(values(&made, &name, COLS), values(&source, &name, COLS), "{name}");
    }
    // Rows of heads are Hugging Face's.
    let queries = format!("{LAYER}.self_attn.q_proj");
    assert_eq!(values(&made, &queries, 32), values(&source, &queries, 32));
    let format = |name: &str| made.quantization().format(&format!("{LAYER}.{name}"));
    assert_eq!(format("mlp.up_proj"), Some(AffineFormat { bits: 8, group: 32 }));
    assert_eq!(format("self_attn.k_proj"), Some(AffineFormat { bits: 4, group: 32 }));
}

#[test]
fn floats_are_f16_where_that_loses_nothing() {
    let files = Files::new(&mixed());
    files.run("out", &stored()).unwrap();
    let (source, made) = (files.source(), files.made("out"));
    let types = ["model.norm.weight", "model.layers.0.input_layernorm.weight"].map(|name| {
        assert_eq!(made.vector(name, 32).unwrap(), source.vector(name, 32).unwrap());
        made.floats(name).unwrap().0
    });
    assert_eq!(types, [DType::F16, DType::F32]);
}

#[test]
fn the_directory_has_what_mlx_lm_reads() {
    let files = Files::new(&mixed());
    files.run("out", &stored()).unwrap();
    let file = |name: &str| read_json(&files.to("out").join(name));
    let config = file("config.json");
    assert_eq!(config["model_type"], "llama");
    assert_eq!(config["eos_token_id"], json!([3]));
    assert_eq!(config["quantization"]["group_size"], 32);
    assert_eq!(config["quantization"], config["quantization_config"]);
    assert_eq!(file("generation_config.json"), json!({"eos_token_id": [3]}));
    assert_eq!(file("tokenizer.json")["model"]["vocab"]["ab"], 2);
    let tokenizer = file("tokenizer_config.json");
    assert_eq!(tokenizer["chat_template"], "{{ messages }}");
    assert_eq!(tokenizer["eos_token"], "<end>");
    assert_eq!(tokenizer["tokenizer_class"], "PreTrainedTokenizerFast");
    let index = file("model.safetensors.index.json");
    assert_eq!(index["weight_map"]["model.norm.weight"], "model.safetensors");
}

#[test]
fn blocks_are_widened_as_ggml_does_it() {
    let files = Files::new(&mixed());
    files.run("floats", &ConvertOptions::with_target(TargetFormat::Dense(DType::F32))).unwrap();
    let report =
        files.run("half", &ConvertOptions::with_target(TargetFormat::Dense(DType::F16))).unwrap();
    assert_eq!(report.quantized, 0);
    let (source, floats, half) = (files.source(), files.made("floats"), files.made("half"));
    assert_eq!(half.config()["torch_dtype"], "float16");
    assert!(half.config().get("quantization").is_none());
    for (theirs, name, kind, ..) in BLOCKS {
        let name = format!("{LAYER}.{name}");
        let (served, exact) = (values(&source, &name, COLS), values(&floats, &name, COLS));
        let largest = exact.iter().fold(0f32, |m, v| m.max(v.abs()));
        // Served with f16 scales; Q6_K with other steps.
        let bound = if kind == 14 { largest / 200.0 } else { largest / 1000.0 };
        for ((served, exact), half) in served.iter().zip(&exact).zip(values(&half, &name, COLS)) {
            assert!((served - exact).abs() <= bound, "{theirs}: {served} {exact}");
            assert_eq!(f16::from_f32(*exact).to_f32(), half);
        }
    }
}

#[test]
fn other_bits_are_those_of_the_widened_values() {
    let files = Files::new(&mixed());
    let format = AffineFormat { bits: 6, group: 64 };
    files.run("floats", &ConvertOptions::with_target(TargetFormat::Dense(DType::F32))).unwrap();
    let mut options = ConvertOptions::new(format);
    let report = files.run("six", &options).unwrap();
    assert_eq!(report.quantized, 4, "rows of 32 stay floats");
    convert(&files.to("floats"), &files.to("both"), &options, &mut |_, _| {}).unwrap();
    let (six, both) = (files.made("six"), files.made("both"));
    for (_, name, ..) in BLOCKS {
        let name = format!("{LAYER}.{name}");
        assert_eq!(six.quantization().format(&name), Some(format));
        // Scales are rounded only when they are stored, here to f16 and there to f32.
        let codes = |made: &Checkpoint| made.tensors()[&format!("{name}.weight")].bytes.clone();
        assert_eq!(codes(&six).as_slice(), codes(&both).as_slice(), "{name}");
    }
    options.overrides = vec![Override { pattern: "up_proj".to_owned(), format: None }];
    files.run("own", &options).unwrap();
    let own = files.made("own");
    assert_eq!(own.floats("model.layers.0.mlp.up_proj.weight").unwrap().0, DType::F16);
}

#[test]
fn stacked_experts_stay_stacked() {
    let mut maker = llama();
    let blocks: Vec<u8> = (0..3 * 4 * 8 * 34).map(|i| (i % 50) as u8).collect();
    maker.tensor("blk.0.ffn_up_exps.weight", 8, &[COLS as u64, 4, 3], &blocks);
    let files = Files::new(&maker);
    for (to, options) in
        [("kept", stored()), ("new", ConvertOptions::new(AffineFormat { bits: 4, group: 64 }))]
    {
        files.run(to, &options).unwrap();
        let made = files.made(to);
        let scales = "model.layers.0.block_sparse_moe.switch_mlp.up_proj.scales";
        let groups = COLS / 32;
        let groups = if to == "kept" { groups } else { groups / 2 };
        assert_eq!(made.floats(scales).unwrap().1, [3, 4, groups]);
    }
}

#[test]
fn a_split_file_is_one_model() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = llama();
    first.number("split.count", 2);
    let mut second = Maker::default();
    second.number("split.count", 2).tensor("output.weight", 1, &[32, 4], &[0; 256]);
    let path = |n| dir.path().join(format!("m-0000{n}-of-00002.gguf"));
    fs::write(path(1), first.bytes()).unwrap();
    fs::write(path(2), second.bytes()).unwrap();
    let out = dir.path().join("out");
    convert(&path(1), &out, &stored(), &mut |_, _| {}).unwrap();
    let made = Checkpoint::open(&out).unwrap();
    assert!(made.has("lm_head.weight") && made.has("model.embed_tokens.weight"));
    assert_eq!(made.config()["tie_word_embeddings"], false);
}

#[test]
fn progress_counts_the_bytes_of_the_file() {
    let files = Files::new(&mixed());
    for (to, target) in [("a", TargetFormat::Stored), ("b", TargetFormat::Dense(DType::BF16))] {
        let (options, mut seen) = (ConvertOptions::with_target(target), Vec::new());
        convert(&files.file, &files.to(to), &options, &mut |done, all| seen.push((done, all)))
            .unwrap();
        assert!(seen.is_sorted());
        let (done, all) = *seen.last().unwrap();
        assert_eq!((done, all), (files.source().bytes(), files.source().bytes()));
    }
}

#[test]
fn what_is_refused_is_named_and_leaves_nothing() {
    let files = Files::new(&mixed());
    let mut own = stored();
    own.high_bits = Some(6);
    let e = files.run("out", &own).unwrap_err();
    assert!(matches!(e, ConvertError::OverrideAlone), "{e}");
    files.run("made", &ConvertOptions::with_target(TargetFormat::Dense(DType::F32))).unwrap();
    let e = convert(&files.to("made"), &files.to("out"), &stored(), &mut |_, _| {}).unwrap_err();
    assert!(matches!(e, ConvertError::NoBlocks { .. }), "{e}");

    let refused = |maker: &Maker, target| {
        let files = Files::new(maker);
        let error = files.run("out", &ConvertOptions::with_target(target)).unwrap_err();
        assert_eq!(fs::read_dir(files.dir.path()).unwrap().count(), 1, "only the file");
        error
    };
    let mut large = llama();
    let huge: Vec<u8> = [1e9f32; 32].iter().flat_map(|v| v.to_le_bytes()).collect();
    large.tensor("blk.0.ffn_norm.weight", 0, &[32], &huge);
    let e = refused(&large, TargetFormat::Dense(DType::F16));
    assert!(matches!(&e, ConvertError::Overflow { dtype: DType::F16, .. }), "{e}");
    let mut broken = llama();
    let block = [&f16::NAN.to_le_bytes()[..], &[0; 32]].concat();
    broken.tensor("blk.0.ffn_up.weight", 8, &[32, 1], &block);
    for target in [TargetFormat::Stored, TargetFormat::Dense(DType::F32)] {
        let e = refused(&broken, target);
        assert!(matches!(&e, ConvertError::NotFinite { .. }), "{e}");
    }
    let mut unknown = llama();
    unknown.tensor("blk.0.ffn_up.weight", 16, &[32, 32], &[]);
    let e = refused(&unknown, TargetFormat::Stored);
    assert!(
        matches!(&e, ConvertError::Source(e) if matches!(**e, WeightsError::Gguf { .. })),
        "{e}"
    );
    let mut other = llama();
    other.word("tokenizer.ggml.model", "bert");
    let e = refused(&other, TargetFormat::Stored);
    assert!(e.to_string().contains("bert"), "{e}");
}
