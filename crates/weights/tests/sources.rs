//! Conversions of checkpoints that are quantized already: of every format that is read.

#![allow(clippy::unwrap_used, reason = "a test")]

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};
use taper_tensor::{AffineFormat, DType, cpu::RowSource};
use taper_weights::{Checkpoint, ConvertOptions, TargetFormat, convert};

/// A fixture of every format.
const SOURCES: [&str; 18] = [
    "llama-ct-int8",
    "llama-ct-mxfp4",
    "llama-fp8-block",
    "llama-gptq-3bit",
    "llama-gptq-8bit-row",
    "llama-mlx-nvfp4",
    "llama-nf4",
    "llama-nvfp4",
    "qwen3-awq",
    "qwen3-ct-fp8",
    "qwen3-ct-int4",
    "qwen3-ct-nvfp4",
    "qwen3-gptq-4bit",
    "qwen3-gptq-order",
    "qwen3-mlx-6bit-g64",
    "qwen3-mlx-mixed",
    "qwen3-mlx-mxfp4",
    "qwen3-mlx-mxfp8",
];

fn parity(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("tests/fixtures/parity").join(name)
}

fn values(weights: &Checkpoint, prefix: &str, shape: &[usize]) -> Vec<f32> {
    let mut out = vec![0.0; shape[0] * shape[1]];
    weights.weight(prefix, shape[0], shape[1]).unwrap().read_rows(0, &mut out);
    out
}

fn config(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap()
}

#[test]
fn every_format_becomes_the_floats_that_it_stands_for() {
    let dir = tempfile::tempdir().unwrap();
    for name in SOURCES {
        let (src, dst) = (parity(name), dir.path().join(name));
        let options = ConvertOptions::with_target(TargetFormat::Dense(DType::F32));
        let mut seen = Vec::new();
        convert(&src, &dst, &options, &mut |done, total| seen.push((done, total))).unwrap();
        assert!(seen.iter().all(|(done, total)| done <= total), "{name}");
        assert_eq!(seen.last().map(|(done, total)| done == total), Some(true), "{name}");
        let (source, plain) = (Checkpoint::open(&src).unwrap(), Checkpoint::open(&dst).unwrap());
        let mut matrices = 0;
        for tensor in plain.list() {
            assert_eq!(tensor.dtype, "F32", "{name}: {}", tensor.name);
            let Some(prefix) = tensor.name.strip_suffix(".weight") else {
                assert!(tensor.name.ends_with(".bias"), "{name}: {}", tensor.name);
                continue;
            };
            if let [_, _] = tensor.shape[..] {
                let ours = values(&plain, prefix, &tensor.shape);
                assert!(ours == values(&source, prefix, &tensor.shape), "{name}: {prefix}");
                matrices += 1;
            }
        }
        assert!(matrices >= 14, "{name}: {matrices} matrices");
        let config = config(&dst);
        assert!(config.get("quantization_config").is_none(), "{name}");
        assert!(config.get("quantization").is_none(), "{name}");
    }
}

#[test]
fn every_format_becomes_affine_codes_and_mxfp4() {
    let dir = tempfile::tempdir().unwrap();
    for name in SOURCES {
        let affine = TargetFormat::Affine(AffineFormat { bits: 8, group: 32 });
        // A group spans about four deviations in 255 steps, and its bias, of two deviations, is rounded to bf16.
        for (target, most, mode) in [(affine, 1e-2, "affine"), (TargetFormat::Mxfp4, 0.15, "mxfp4")]
        {
            let (src, dst) = (parity(name), dir.path().join(format!("{name}-{mode}")));
            convert(&src, &dst, &ConvertOptions::with_target(target), &mut |_, _| {}).unwrap();
            let (source, coded) =
                (Checkpoint::open(&src).unwrap(), Checkpoint::open(&dst).unwrap());
            let prefix = "model.layers.0.mlp.down_proj";
            let scales = coded.list().into_iter().find(|t| t.name == format!("{prefix}.scales"));
            let scales = scales.unwrap().shape;
            let shape = [scales[0], scales[1] * 32];
            let (a, b) = (values(&source, prefix, &shape), values(&coded, prefix, &shape));
            let sum = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
            let off = sum(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / sum(&mut a.iter().copied());
            assert!(off < most, "{name} to {mode}: {off}");
            assert_eq!(config(&dst)["quantization"]["mode"], mode);
        }
    }
}

#[test]
fn experts_of_one_tensor_are_taken_apart() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (parity("qwen3_5-moe-bf16"), dir.path().join("out"));
    let options = ConvertOptions::with_target(TargetFormat::Dense(DType::F32));
    convert(&src, &dst, &options, &mut |_, _| {}).unwrap();
    let (source, plain) = (Checkpoint::open(&src).unwrap(), Checkpoint::open(&dst).unwrap());
    let read = |weights: &Checkpoint, name: &str| {
        let shape = weights.floats(name).unwrap().1.to_vec();
        (weights.array(name, &shape).unwrap(), shape)
    };
    let mut found = 0;
    for tensor in source.list() {
        let Some(before) = tensor.name.strip_suffix(".experts.gate_up_proj") else { continue };
        let one = |map: &str| read(&plain, &format!("{before}.switch_mlp.{map}.weight"));
        let (both, shape) = read(&source, &tensor.name);
        let ((gate, of_gate), (up, of_up)) = (one("gate_proj"), one("up_proj"));
        assert_eq!(of_gate, [shape[0], shape[1] / 2, shape[2]]);
        assert_eq!(of_up, of_gate);
        let half = shape[1] / 2 * shape[2];
        let want = gate.chunks(half).zip(up.chunks(half)).flat_map(|(g, u)| [g, u]);
        assert!(want.flatten().copied().collect::<Vec<f32>>() == both, "{before}");
        let (down, _) = read(&source, &format!("{before}.experts.down_proj"));
        assert!(one("down_proj").0 == down, "{before}");
        found += 1;
    }
    assert!(found >= 2, "{found} layers");
}
