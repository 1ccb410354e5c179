//! Published quantizations against what the tools that write them make of the same tensors.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Tensor, model};
use serde_json::{Value, json};
use std::{fs, path::Path, sync::LazyLock};
use taper_tensor::{Weight, WeightFormat, cpu::RowSource};
use taper_weights::{Checkpoint, WeightsError};

/// What `tests/fixtures/make_formats.py` has written.
static GOLDENS: LazyLock<&'static [u8]> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read(root.join("tests/fixtures/formats.safetensors")).unwrap().leak()
});
const SHAPE: (usize, usize) = (32, 64);
const ROWS: [usize; 4] = [0, 5, 26, 31];

fn sections() -> Value {
    let length = u64::from_le_bytes(GOLDENS[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&GOLDENS[8..8 + length]).unwrap();
    serde_json::from_str(header["__metadata__"]["sections"].as_str().unwrap()).unwrap()
}

fn checkpoint(section: &Value) -> Checkpoint {
    let field = if section.get("mode").is_some() { "quantization" } else { "quantization_config" };
    let config = json!({ field: section }).to_string();
    Checkpoint::from_static(config.as_bytes(), *GOLDENS).unwrap()
}

#[test]
fn weights_are_those_of_the_tools_bit_for_bit() {
    for (kind, section) in sections().as_object().unwrap() {
        let checkpoint = checkpoint(section);
        let want = checkpoint.array(&format!("{kind}.expected"), &[ROWS.len(), SHAPE.1]).unwrap();
        assert!(checkpoint.has(&format!("{kind}.weight")), "{kind}");
        let weight = checkpoint.weight(kind, SHAPE.0, SHAPE.1).unwrap();
        let mut row = vec![0.0; SHAPE.1];
        for (r, want) in ROWS.into_iter().zip(want.chunks_exact(SHAPE.1)) {
            weight.read_rows(r, &mut row);
            assert_eq!(row, want, "{kind}: row {r}");
        }
        let others = |name: &str| !name.starts_with(&format!("{kind}."));
        checkpoint.expect_all_used(others).unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
}

#[test]
fn integers_stay_packed() {
    for (kind, bits, group) in [
        ("gptq", 4, 32),
        ("gptq-3bit", 3, 32),
        ("gptq-8bit-row", 8, 64),
        ("awq", 4, 32),
        ("ct-int4", 4, 32),
    ] {
        let weight = checkpoint(&sections()[kind]).weight(kind, SHAPE.0, SHAPE.1).unwrap();
        let Weight::Affine(affine) = &weight else { panic!("{kind}: {}", weight.format()) };
        assert_eq!((affine.format().bits, affine.format().group), (bits, group), "{kind}");
    }
    let order = checkpoint(&sections()["gptq-v2-order"]).weight("gptq-v2-order", SHAPE.0, SHAPE.1);
    let Weight::Ordered(ordered) = order.unwrap() else { panic!("columns are sorted") };
    assert_eq!((ordered.inner().format().bits, ordered.inner().format().group), (4, 32));
    let name = |kind: &str| {
        let weight = checkpoint(&sections()[kind]).weight(kind, SHAPE.0, SHAPE.1).unwrap();
        let WeightFormat::Table(format) = weight.format() else { panic!("{kind}") };
        (format.name, weight.bytes())
    };
    let n = SHAPE.0 * SHAPE.1;
    assert_eq!(name("mlx-mxfp4"), ("mxfp4", (n / 2 + n / 32) as u64));
    assert_eq!(name("ct-nvfp4"), ("nvfp4", (n / 2 + n / 16) as u64));
    assert_eq!(name("nf4"), ("nf4", (n / 2 + n / 64 * 4) as u64));
}

#[test]
fn formats_are_counted_by_name() {
    let counts = checkpoint(&sections()["gptq"]).format_counts();
    assert_eq!(counts["GPTQ 4-bit, group 32"], 6, "with AWQ's and compressed-tensors' words");
    assert_eq!((counts["nf4"], counts["mxfp8"], counts["int8"]), (1, 1, 1));
    assert_eq!((counts["mxfp4"], counts["nvfp4"], counts["fp8"]), (2, 3, 2));
}

/// The error of the layer `q` of a model with these tensors.
fn error(section: &Value, tensors: &[Tensor<'_>], shape: (usize, usize)) -> WeightsError {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path(), &json!({ "quantization_config": section }), tensors);
    let checkpoint = Checkpoint::open(dir.path());
    checkpoint.and_then(|c| c.weight("q", shape.0, shape.1)).unwrap_err()
}

#[test]
fn single_scales_of_caches_may_be_left() {
    let left = |shape: &'static [usize]| {
        let dir = tempfile::tempdir().unwrap();
        let tensor = ("k_proj.k_scale", "F32", shape, vec![0; 4 * shape.iter().product::<usize>()]);
        model(dir.path(), &json!({}), &[tensor]);
        Checkpoint::open(dir.path()).unwrap().expect_all_used(|_| false).is_ok()
    };
    assert!(left(&[]) && left(&[1]) && !left(&[2]));
}

#[test]
fn settings_that_change_the_weights_are_refused_by_name() {
    for (section, name) in [
        (json!({"quant_method": "hqq"}), "hqq"),
        (json!({"quant_method": "gptq", "bits": 5, "group_size": 32}), "bits"),
        (json!({"quant_method": "gptq", "bits": 4, "group_size": 0}), "group_size"),
        (json!({"quant_method": "gptq", "bits": 4}), "group_size"),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "marlin"}),
            "marlin",
        ),
        (
            json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"-:x": {}}}),
            "dynamic",
        ),
        (json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}), "gemv"),
        (json!({"quant_method": "awq", "bits": 3, "group_size": 32}), "bits"),
        (json!({"quant_method": "fp8", "weight_block_size": [128]}), "weight_block_size"),
        (json!({"quant_method": "bitsandbytes", "load_in_8bit": true}), "8 bits"),
        (
            json!({"quant_method": "compressed-tensors", "transform_config": {"a": 1}}),
            "transform_config",
        ),
        (
            json!({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}),
            "sparse-24",
        ),
    ] {
        let error = error(&section, &[], (32, 32)).to_string();
        assert!(error.contains(name), "{section}: {error}");
    }
}

#[test]
fn damaged_tensors_are_refused() {
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 32});
    let with = |groups: Vec<u8>, words: usize| -> Vec<Tensor<'static>> {
        let shape: &'static [usize] = if words == 8 { &[8, 32] } else { &[7, 32] };
        vec![
            ("q.qweight", "I32", shape, vec![0; words * 128]),
            ("q.qzeros", "I32", &[2, 4], vec![0; 32]),
            ("q.scales", "F16", &[2, 32], vec![0; 128]),
            ("q.g_idx", "I32", &[64], groups),
        ]
    };
    let groups =
        |g: i32| (0..64).flat_map(|i| (if i == 9 { g } else { 0 }).to_le_bytes()).collect();
    for bad in [2, -1, i32::MAX, i32::MIN] {
        let error = error(&gptq, &with(groups(bad), 8), (32, 64));
        assert!(error.to_string().contains("g_idx"), "{error}");
    }
    assert!(matches!(error(&gptq, &with(groups(1), 7), (32, 64)), WeightsError::Shape { .. }));
    let error_of = |shape| error(&gptq, &with(groups(1), 8), shape);
    for shape in [(32, 63), (31, 64), (32, usize::MAX), (usize::MAX, 64), (1 << 62, 1 << 62)] {
        assert!(!error_of(shape).to_string().is_empty());
    }
    let fp8 = json!({"quant_method": "fp8", "weight_block_size": [16, 16]});
    let weight: Tensor<'_> = ("q.weight", "F8_E4M3", &[32, 32], vec![0; 1024]);
    let scale = |shape: &'static [usize]| -> Tensor<'static> {
        ("q.weight_scale_inv", "F32", shape, vec![0; 4 * shape.iter().product::<usize>()])
    };
    for shape in [&[2, 3][..], &[3, 2], &[5], &[2, 2, 1], &[0, 2]] {
        let error = error(&fp8, &[weight.clone(), scale(shape)], (32, 32));
        assert!(error.to_string().contains("scales"), "{shape:?}: {error}");
    }
    assert!(error(&fp8, &[weight], (32, 32)).to_string().contains("no scales"));
    let bnb = json!({"quant_method": "bitsandbytes", "load_in_4bit": true});
    let bytes: Tensor<'_> = ("q.weight", "U8", &[512, 1], vec![0; 512]);
    let state = |text: &str| -> Tensor<'static> {
        let bytes = text.as_bytes().to_vec();
        let shape: &'static [usize] = Box::leak(Box::new([bytes.len()]));
        ("q.weight.quant_state.bitsandbytes__nf4", "U8", shape, bytes)
    };
    let map: Tensor<'_> = ("q.weight.quant_map", "F32", &[16], vec![0; 64]);
    for (text, name) in [
        ("{", "quant_state"),
        (r#"{"shape": [32, 32], "blocksize": 0}"#, "blocks"),
        (r#"{"shape": [32, 33], "blocksize": 64}"#, "shape"),
        (r#"{"shape": [32, 32], "blocksize": 64}"#, "absmax"),
    ] {
        let error = error(&bnb, &[bytes.clone(), state(text), map.clone()], (32, 32));
        assert!(error.to_string().contains(name), "{text}: {error}");
    }
}
