//! Published quantizations against what the tools that write them make of the same tensors.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Tensor, floats, model};
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
        (compressed(&json!({"num_bits": 8, "strategy": "block"})), "strategy block"),
        (compressed(&json!({"type": "int", "block_structure": [8, 8]})), "strategy block"),
        (compressed(&json!({"type": "float", "block_structure": "8x0"})), "block_structure"),
        (compressed(&json!({"type": "float", "block_structure": [8]})), "block_structure"),
    ] {
        let error = error(&section, &[], (32, 32)).to_string();
        assert!(error.contains(name), "{section}: {error}");
    }
}

/// A section of compressed-tensors with one group of layers.
fn compressed(weights: &Value) -> Value {
    json!({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}})
}

/// The layer `q` of a model with these tensors, row after row.
fn values(section: &Value, tensors: &[Tensor<'_>], shape: (usize, usize)) -> Vec<f32> {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path(), &json!({ "quantization_config": section }), tensors);
    let weight = Checkpoint::open(dir.path()).unwrap().weight("q", shape.0, shape.1).unwrap();
    let mut out = vec![0.0; shape.0 * shape.1];
    weight.read_rows(0, &mut out);
    out
}

#[test]
fn blocks_that_nothing_names_are_the_usual_ones_or_even() {
    const ROWS: usize = 130;
    const COLS: usize = 192;
    let none = json!({"quant_method": "fp8"});
    let said = json!({"quant_method": "fp8", "weight_block_size": [96, 96]});
    let text = compressed(&json!({"type": "float", "num_bits": 8, "strategy": "block",
        "block_structure": "96x96"}));
    let tensors = |shape: &'static [usize]| -> [Tensor<'static>; 2] {
        let n = shape.iter().product::<usize>();
        let scales = floats((0..n).map(|i| 1.0 + i as f32));
        // 1 in E4M3: what is read are the scales.
        let codes = vec![0x38; ROWS * COLS];
        [
            ("q.weight", "F8_E4M3", &[ROWS, COLS], codes),
            ("q.weight_scale_inv", "F32", shape, scales),
        ]
    };
    let want = |[high, wide]: [usize; 2], across: usize| -> Vec<f32> {
        let of = |i: usize| 1.0 + (i / COLS / high * across + i % COLS / wide) as f32;
        (0..ROWS * COLS).map(of).collect()
    };
    let got = |section: &Value, shape| values(section, &tensors(shape), (ROWS, COLS));
    assert_eq!(got(&none, &[2, 2]), want([128, 128], 2));
    assert_eq!(got(&said, &[2, 2]), want([96, 96], 2));
    assert_eq!(got(&text, &[2, 2]), want([96, 96], 2));
    assert_eq!(got(&none, &[13, 3]), want([10, 64], 3));
    for shape in [&[3, 2][..], &[2, 5], &[4, 4], &[0, 2]] {
        let error = error(&none, &tensors(shape), (ROWS, COLS)).to_string();
        assert!(error.contains("scales"), "{shape:?}: {error}");
    }
}

#[test]
fn integers_have_the_bits_and_scales_that_are_named() {
    let shape = (32, 64);
    let scale = |shape: &'static [usize]| -> Tensor<'static> {
        let n = shape.iter().product::<usize>();
        ("q.weight_scale", "F32", shape, floats((0..n).map(|i| 1.0 + i as f32)))
    };
    let packed: Tensor<'_> = ("q.weight_packed", "I32", &[32, 8], vec![0x99; 1024]);
    let bytes: Tensor<'_> = ("q.weight", "I8", &[32, 64], vec![1; 2048]);
    let four = compressed(&json!({"num_bits": 4, "strategy": "channel"}));
    let eight = compressed(&json!({"strategy": "channel"}));
    let both = json!({"quant_method": "compressed-tensors", "config_groups": {
        "group_0": {"weights": {"num_bits": 4}}, "group_1": {"weights": {"num_bits": 8}},
        "group_2": {"weights": null}}});
    for (section, codes) in [(&four, &packed), (&both, &packed), (&eight, &bytes)] {
        for (scales, per_row) in [(&[1][..], 0), (&[], 0), (&[32], 1), (&[32, 1], 1), (&[32, 2], 2)]
        {
            let got = values(section, &[codes.clone(), scale(scales)], shape);
            let of = |i: usize| i / 64 * per_row + i % 64 * per_row.max(1) / 64 * per_row.min(1);
            let want: Vec<f32> = (0..32 * 64).map(|i| 1.0 + of(i) as f32).collect();
            assert_eq!(got, want, "{scales:?}");
        }
        for bad in [&[64][..], &[2, 32], &[1, 64], &[32, 3], &[32, 0], &[0], &[32, 2, 1], &[16, 2]]
        {
            let error = error(section, &[codes.clone(), scale(bad)], shape).to_string();
            assert!(error.contains("weight_scale"), "{bad:?}: {error}");
        }
    }
    let three = compressed(&json!({"num_bits": 3}));
    for section in [&three, &eight, &json!({"quant_method": "compressed-tensors"}), &Value::Null] {
        let error = error(section, &[packed.clone(), scale(&[32])], shape).to_string();
        assert!(error.contains("num_bits"), "{section}: {error}");
    }
}

#[test]
fn matrices_of_nothing_are_refused() {
    let sections = sections();
    for (kind, section) in sections.as_object().unwrap() {
        for (rows, cols) in [(0, SHAPE.1), (SHAPE.0, 0), (0, 0)] {
            let weight = checkpoint(section).weight(kind, rows, cols);
            assert!(weight.is_err(), "{kind}: {rows} rows of {cols}");
        }
    }
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": -1});
    let awq = json!({"quant_method": "awq", "bits": 4, "group_size": -1});
    for section in [gptq, awq] {
        for (words, zeros, scales, shape) in [
            (&[0, 32][..], &[0, 4][..], &[0, 32][..], (32, 0)),
            (&[8, 0], &[1, 0], &[1, 0], (0, 64)),
            (&[64, 0], &[1, 0], &[1, 0], (0, 64)),
        ] {
            let empty = |name, dtype, shape| -> Tensor<'_> { (name, dtype, shape, Vec::new()) };
            let tensors = [
                empty("q.qweight", "I32", words),
                empty("q.qzeros", "I32", zeros),
                empty("q.scales", "F16", scales),
            ];
            let error = error(&section, &tensors, shape).to_string();
            assert!(error.contains("no rows"), "{shape:?}: {error}");
        }
    }
    // Experts: count, inputs, outputs, parts.
    for (count, inputs, outputs, parts) in
        [(0, 32, 2, 2), (2, 0, 2, 2), (2, 32, 0, 2), (2, 32, 2, 0)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (blocks, scales) =
            ([count, outputs * parts, inputs / 32, 16], [count, outputs * parts, inputs / 32]);
        let tensors = [
            ("q_blocks", "U8", &blocks[..], Vec::new()),
            ("q_scales", "U8", &scales[..], Vec::new()),
        ];
        model(dir.path(), &json!({"quantization_config": {"quant_method": "mxfp4"}}), &tensors);
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        let all = checkpoint.transposed("q", count, (inputs, outputs), (0, parts));
        assert!(all.unwrap_err().to_string().contains("no rows"), "{count} {inputs} {outputs}");
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
