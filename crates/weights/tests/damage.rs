//! Damaged, truncated and hostile checkpoints: always an error that names the culprit.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Tensor, floats, matrix, safetensors, with_header};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use taper_tensor::cpu::RowSource;
use taper_weights::{Checkpoint, WeightsError};

/// A small model of one quantized and one dense layer.
fn small() -> Vec<Tensor<'static>> {
    vec![
        ("q.weight", "U32", &[2, 8], (0..64).collect()),
        ("q.scales", "F16", &[2, 1], vec![0, 60, 0, 60]),
        ("q.biases", "F16", &[2, 1], vec![0, 0, 0, 60]),
        matrix("d.weight", &[2, 3]),
        ("n.weight", "BF16", &[3], vec![128, 63, 0, 64, 64, 64]),
    ]
}

fn config() -> Value {
    json!({"quantization": {"bits": 4, "group_size": 64}})
}

/// Opens a model of the given files.
fn open(files: &[(&str, &[u8])]) -> Result<Checkpoint, WeightsError> {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    Checkpoint::open(dir.path())
}

fn open_file(weights: &[u8]) -> Result<Checkpoint, WeightsError> {
    let config = config().to_string();
    open(&[("config.json", config.as_bytes()), ("model.safetensors", weights)])
}

/// Whatever a file says, asking for its tensors gives weights or errors.
fn use_all(checkpoint: &Checkpoint) {
    for info in checkpoint.list() {
        let _ = checkpoint.vector(&info.name, 3);
        let layer = info.name.trim_end_matches(".weight");
        for (rows, cols) in [(2, 64), (2, 3), (usize::MAX, usize::MAX & !127)] {
            if let Ok(weight) = checkpoint.weight(layer, rows, cols) {
                let mut out = vec![0.0; rows * cols];
                weight.read_rows(0, &mut out);
            }
        }
    }
}

#[test]
fn every_truncation_is_reported_with_the_file() {
    let whole = safetensors(&small(), 0);
    assert!(open_file(&whole).is_ok());
    for len in 0..whole.len() {
        let error = open_file(&whole[..len]).unwrap_err();
        let named = error.to_string().contains("model.safetensors");
        let typed = matches!(error, WeightsError::Shard { .. } | WeightsError::Io { .. });
        assert!(named && typed, "{len} bytes: {error}");
    }
    let longer = [whole.as_slice(), &[0; 8]].concat();
    assert!(matches!(open_file(&longer), Err(WeightsError::Shard { .. })));
}

#[test]
fn headers_that_lie_are_reported() {
    let tensor = |shape: &str, ends: &str| {
        format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{ends}}}}}"#)
    };
    let two = |b: &str| {
        let a = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
        format!(r#"{{{a},"b":{{"dtype":"F32","shape":[2],"data_offsets":{b}}}}}"#)
    };
    let most = usize::MAX;
    let headers = [
        "".to_owned(),
        "{".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        r#"{"a": 1}"#.to_owned(),
        tensor("[4]", "[0,8]"),
        tensor("[4]", "[0,16]").replace("F32", "F33"),
        tensor("[4]", "[16,0]"),
        tensor("[4]", "[-16,0]"),
        tensor("[4]", &format!("[{},{most}]", most - 16)),
        tensor(&format!("[{most},{most}]"), "[0,16]"),
        tensor(&format!("[{}]", most / 4 + 5), "[0,16]"),
        tensor("[2]", "[8,16]"), // a hole before it
        two("[4,12]"),           // overlapping
        two("[0,8]"),            // the same bytes
        two("[12,20]"),          // past the end
    ];
    for header in headers {
        let error = open_file(&with_header(&header, &[0; 16])).unwrap_err();
        assert!(matches!(error, WeightsError::Shard { .. }), "{header}: {error}");
        assert!(error.to_string().contains("model.safetensors"), "{error}");
    }
    for length in [0, 1, 1 << 20, 1 << 40, u64::MAX, u64::MAX - 7] {
        let mut file = safetensors(&small(), 0);
        file[..8].copy_from_slice(&length.to_le_bytes());
        assert!(matches!(open_file(&file), Err(WeightsError::Shard { .. })), "{length}");
    }
}

#[test]
fn indexes_that_lie_are_reported() {
    let config = config().to_string();
    let shard = safetensors(&small(), 0);
    let index = |map: Value| {
        let index = json!({ "weight_map": map }).to_string();
        open(&[
            ("config.json", config.as_bytes()),
            ("model.safetensors.index.json", index.as_bytes()),
            ("a.safetensors", &shard),
        ])
    };
    assert!(index(json!({"q.weight": "a.safetensors"})).is_ok());
    let error = index(json!({"q.weight": "b.safetensors"})).unwrap_err();
    assert!(
        matches!(&error, WeightsError::MissingShard { path } if path.ends_with("b.safetensors"))
    );
    let error = index(json!({"gone": "a.safetensors"})).unwrap_err();
    assert!(matches!(&error, WeightsError::NotInShard { name, .. } if name == "gone"), "{error}");
    for outside in ["../a.safetensors", "/etc/passwd", "x/a.safetensors", "..", ".", ""] {
        let error = index(json!({ "q.weight": outside })).unwrap_err();
        let named = matches!(&error, WeightsError::ShardOutside { file, .. } if file == outside);
        assert!(named, "{outside}: {error}");
    }
    for broken in [json!([]), json!({"q.weight": 3}), json!(null)] {
        assert!(matches!(index(broken), Err(WeightsError::Json { .. })));
    }
    let no_map = open(&[("config.json", b"{}"), ("model.safetensors.index.json", b"{}")]);
    assert!(matches!(no_map, Err(WeightsError::Json { .. })));
}

#[test]
fn an_index_beside_a_single_file_is_left_over() {
    let (config, file) = (config().to_string(), safetensors(&small(), 0));
    for index in ["{", r#"{"weight_map": {"gone": "model-00001-of-00002.safetensors"}}"#] {
        let checkpoint = open(&[
            ("config.json", config.as_bytes()),
            ("model.safetensors.index.json", index.as_bytes()),
            ("model.safetensors", &file),
        ]);
        assert!(checkpoint.unwrap().has("q.weight"));
    }
}

#[test]
fn where_two_shards_hold_a_tensor_the_index_decides() {
    let one = |x| safetensors(&[("a", "F32", &[1], floats([x]))], 0);
    let two =
        safetensors(&[("a", "F32", &[1], floats([2.0])), ("b", "F32", &[1], floats([3.0]))], 0);
    for (shard, value) in [("1.safetensors", 1.0), ("2.safetensors", 2.0)] {
        let map = json!({"weight_map": {"a": shard, "b": "2.safetensors"}}).to_string();
        let checkpoint = open(&[
            ("config.json", b"{}"),
            ("model.safetensors.index.json", map.as_bytes()),
            ("1.safetensors", &one(1.0)),
            ("2.safetensors", &two),
        ]);
        assert_eq!(checkpoint.unwrap().vector("a", 1).unwrap(), [value]);
    }
}

#[test]
fn configs_that_are_none_are_reported() {
    let weights = safetensors(&small(), 0);
    let with = |config: &[u8]| open(&[("config.json", config), ("model.safetensors", &weights)]);
    for text in ["", "{", "[]", "3", "null", "\"x\"", "\u{0}"] {
        let error = with(text.as_bytes()).unwrap_err();
        assert!(matches!(error, WeightsError::Json { .. }), "{text:?}: {error}");
        assert!(error.to_string().contains("config.json"));
        let error = Checkpoint::from_static(text.as_bytes(), &[]).unwrap_err();
        assert!(matches!(error, WeightsError::Json { .. }));
    }
    let error = open(&[("model.safetensors", &weights)]).unwrap_err();
    assert!(matches!(&error, WeightsError::Io { path, .. } if path.ends_with("config.json")));
    assert!(matches!(open(&[("config.json", b"{}")]), Err(WeightsError::NoWeights { .. })));
    let error = with(br#"{"quantization_config": {"quant_method": "hqq", "nbits": 4}}"#);
    let error = error.unwrap_err();
    assert!(matches!(&error, WeightsError::UnsupportedQuantization { method } if method == "hqq"));
    // Scales, and no word on how many bits.
    let error = with(b"{}").unwrap().weight("q", 2, 64).unwrap_err();
    assert!(
        matches!(&error, WeightsError::BadQuantization { layer, .. } if layer == "q"),
        "{error}"
    );
}

#[test]
fn types_and_shapes_are_checked_by_name() {
    let mut tensors = small();
    tensors.push(("i.weight", "I64", &[1, 2], vec![0; 16]));
    tensors.push(("f.weight", "F8_E5M2", &[1, 2], vec![0; 2]));
    tensors.push(("s.weight", "F32", &[1, 64], floats([0.0; 64])));
    tensors.push(("s.scales", "F32", &[1, 1], floats([0.0])));
    tensors.push(("s.biases", "F32", &[1, 1], floats([0.0])));
    tensors.push(("r.weight", "U32", &[2, 8], vec![0; 64]));
    tensors.push(("r.scales", "I32", &[2, 1], vec![0; 8]));
    tensors.push(("o.weight", "U32", &[2, 8], vec![0; 64]));
    tensors.push(("o.scales", "F32", &[2, 1], vec![0; 8]));
    let c = open_file(&safetensors(&tensors, 0)).unwrap();
    for (layer, rows, cols) in [("i", 1, 2), ("f", 1, 2), ("s", 1, 64), ("r", 2, 64)] {
        let error = c.weight(layer, rows, cols).unwrap_err();
        let named = error.to_string().contains(&format!("\"{layer}."));
        assert!(named && matches!(error, WeightsError::DType { .. }), "{error}");
    }
    for (layer, rows, cols) in [("q", 3, 64), ("q", 2, 128), ("d", 3, 2), ("n", 1, 3)] {
        let error = c.weight(layer, rows, cols).unwrap_err();
        let named = error.to_string().contains(&format!("\"{layer}."));
        assert!(named && matches!(error, WeightsError::Shape { .. }), "{error}");
    }
    let error = c.weight("q", 2, 96).unwrap_err();
    assert!(matches!(&error, WeightsError::Tensor { name, .. } if name == "q.weight"), "{error}");
    for missing in ["x", "o"] {
        let error = c.weight(missing, 2, 64).unwrap_err();
        assert!(matches!(error, WeightsError::MissingTensor { .. }), "{error}");
    }
    assert!(matches!(c.linear("d", 3, 2, true), Err(WeightsError::MissingTensor { .. })));
    assert!(matches!(c.vector("n.weight", 4), Err(WeightsError::Shape { .. })));
}

#[test]
fn tensors_that_nobody_asked_for_are_reported() {
    let c = open_file(&safetensors(&small(), 0)).unwrap();
    c.weight("q", 2, 64).unwrap();
    c.weight("d", 2, 3).unwrap();
    let error = c.expect_all_used(|_| false).unwrap_err();
    let named = matches!(&error, WeightsError::UnusedTensors { count: 1, example } if example == "n.weight");
    assert!(named, "{error}");
    c.expect_all_used(|name| name == "n.weight").unwrap();
    c.vector("n.weight", 3).unwrap();
    c.expect_all_used(|_| false).unwrap();
}

#[test]
fn data_at_any_offset_loads_the_same() {
    let rows = |c: &Checkpoint| {
        let (mut q, mut d) = (vec![0.0; 128], vec![0.0; 6]);
        c.weight("q", 2, 64).unwrap().read_rows(0, &mut q);
        c.weight("d", 2, 3).unwrap().read_rows(0, &mut d);
        (q, d, c.vector("n.weight", 3).unwrap())
    };
    let expected = rows(&open_file(&safetensors(&small(), 0)).unwrap());
    assert_eq!(expected.2, [1.0, 2.0, 3.0]);
    // Bytes 32 and 33 as codes 0, 2, 1, 2; the scale is 1, and so is the second row's bias.
    assert_eq!(expected.0[64..68], [1.0, 3.0, 2.0, 3.0]);
    for pad in 1..8 {
        let file = safetensors(&small(), pad);
        assert_eq!(rows(&open_file(&file).unwrap()), expected, "header of 8n + {pad}");
    }
    // A tensor of odd length puts all that follow at odd offsets.
    let mut tensors = small();
    tensors.insert(0, ("odd", "U8", &[3], vec![1, 2, 3]));
    assert_eq!(rows(&open_file(&safetensors(&tensors, 0)).unwrap()), expected);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(open_file(&bytes).is_err());
        let text = config().to_string();
        let with_config = open(&[("config.json", &bytes), ("model.safetensors", &bytes)]);
        prop_assert!(with_config.is_err());
        let index = open(&[("config.json", text.as_bytes()), ("model.safetensors.index.json", &bytes)]);
        prop_assert!(index.is_err());
    }

    #[test]
    fn random_headers_never_panic(header in "[\\{\\}\\[\\]\",:0-9a-zF]{0,80}") {
        prop_assert!(open_file(&with_header(&header, &[0; 16])).is_err());
    }

    #[test]
    fn mutations_of_a_valid_file_never_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        truncate in any::<bool>(),
    ) {
        let mut file = safetensors(&small(), 0);
        for (at, byte) in edits {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if truncate {
            file.truncate(cut.index(file.len()));
        }
        match open_file(&file) {
            Ok(checkpoint) => use_all(&checkpoint),
            Err(error) => prop_assert!(error.to_string().contains("model.safetensors")),
        }
    }

    #[test]
    fn mutations_of_the_configuration_never_panic(
        at in any::<prop::sample::Index>(),
        text in "[\\{\\}\\[\\]\",:0-9a-z.-]{0,6}",
    ) {
        let mut config = config().to_string();
        let at = at.index(config.len());
        config.replace_range(at..=at, &text);
        let weights = safetensors(&small(), 0);
        let files = [("config.json", config.as_bytes()), ("model.safetensors", weights.as_slice())];
        if let Ok(checkpoint) = open(&files) {
            use_all(&checkpoint);
        }
    }
}
