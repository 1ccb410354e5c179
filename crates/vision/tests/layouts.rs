//! The towers of checkpoints that were made for MLX: other names, channels last, quantized maps.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use safetensors::{Dtype, SafeTensors, serialize, tensor::TensorView};
use serde_json::{Value, json};
use std::{fs, path::Path};
use taper_base::{EncodedImage, RgbImage};
use taper_vision::{VisionError, open, open_with};

const GROUP: usize = 32;

type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

fn fixture() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vision/qwen3_vl")
}

fn tensors() -> Vec<Stored> {
    let file = fs::read(fixture().join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let own = |(name, view): (String, TensorView<'_>)| {
        (name, view.dtype(), view.shape().to_vec(), view.data().to_vec())
    };
    tensors.tensors().into_iter().map(own).collect()
}

/// The fixture's directory with other tensors, and with other fields of config.json.
fn checkpoint(tensors: &[Stored], fields: &[(&str, Value)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    fs::write(dir.path().join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
    let config = fs::read(fixture().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    for (name, value) in fields {
        config[name] = value.clone();
    }
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let name = "preprocessor_config.json";
    fs::copy(fixture().join(name), dir.path().join(name)).unwrap();
    dir
}

fn encode(dir: &Path) -> EncodedImage {
    let encoder = open(dir, &|_| None).unwrap().unwrap();
    let pixels = (0..50 * 40 * 3).map(|i| (i * 37 % 251) as u8).collect();
    let image = RgbImage { width: 50, height: 40, pixels };
    encoder.encode(&encoder.prepare(&image).unwrap()).unwrap()
}

fn renamed((name, dtype, shape, data): Stored) -> Stored {
    let name = name.replace("model.visual.", "vision_tower.");
    match shape[..] {
        [n, c, t, h, w] => {
            let mut last = Vec::with_capacity(data.len());
            for (n, t, y, x, c) in indices([n, t, h, w, c]) {
                let at = (((n * 3 + c) * 2 + t) * h + y) * w + x;
                last.extend(&data[2 * at..2 * at + 2]);
            }
            (name, dtype, vec![n, t, h, w, c], last)
        }
        _ => (name, dtype, shape, data),
    }
}

fn indices(
    [a, b, c, d, e]: [usize; 5],
) -> impl Iterator<Item = (usize, usize, usize, usize, usize)> {
    (0..a * b * c * d * e).map(move |i| {
        let (rest, last) = (i / e, i % e);
        (rest / d / c / b, rest / d / c % b, rest / d % c, rest % d, last)
    })
}

#[test]
fn other_names_and_channels_last_give_the_bits() {
    let renamed: Vec<_> = tensors().into_iter().map(renamed).collect();
    assert!(renamed.iter().any(|(_, _, shape, _)| shape.len() == 5 && shape[4] == 3));
    let (expected, got) = (encode(&fixture()), encode(checkpoint(&renamed, &[]).path()));
    assert_eq!(got.rows, expected.rows);
    assert_eq!(got.deep, expected.deep);
}

/// A map in 8 bits: codes of four to a word, and scales and biases of groups.
fn quantized((name, _, shape, data): Stored) -> Vec<Stored> {
    let values: Vec<_> = data
        .chunks_exact(2)
        .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
        .collect();
    let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for group in values.chunks_exact(GROUP) {
        let (low, high) =
            group.iter().fold((f32::MAX, f32::MIN), |(l, h), x| (l.min(*x), h.max(*x)));
        let scale = ((high - low) / 255.0).max(1e-9);
        codes.extend(group.iter().map(|x| ((x - low) / scale).round() as u8));
        scales.extend(scale.to_le_bytes());
        biases.extend(low.to_le_bytes());
    }
    let prefix = name.strip_suffix(".weight").unwrap();
    let (rows, cols) = (shape[0], shape[1]);
    let groups = vec![rows, cols / GROUP];
    vec![
        (name.clone(), Dtype::U32, vec![rows, cols / 4], codes),
        (format!("{prefix}.scales"), Dtype::F32, groups.clone(), scales),
        (format!("{prefix}.biases"), Dtype::F32, groups, biases),
    ]
}

#[test]
fn quantized_maps_are_widened() {
    let is_map = |(name, _, shape, _): &Stored| {
        name.starts_with("model.visual.blocks") && shape.len() == 2 && shape[1] % GROUP == 0
    };
    let all = tensors().into_iter();
    let all: Vec<_> = all.flat_map(|t| if is_map(&t) { quantized(t) } else { vec![t] }).collect();
    let quantization = json!({"group_size": GROUP, "bits": 8});
    let dir = checkpoint(&all, &[("quantization", quantization)]);
    let (expected, got) = (encode(&fixture()), encode(dir.path()));
    let worst = got.rows.iter().zip(expected.rows.iter()).map(|(a, b)| (a - b).abs());
    let worst = worst.fold(0.0, f32::max);
    assert!(worst > 0.0 && worst < 0.1, "{worst}");
}

#[test]
fn models_without_a_tower_have_none() {
    let text: Vec<_> = tensors().into_iter().filter(|t| !t.0.contains("visual")).collect();
    assert!(
        open(checkpoint(&text, &[]).path(), &|_| None).unwrap().is_none(),
        "converted for text"
    );
    let dir = checkpoint(&tensors(), &[("vision_config", Value::Null)]);
    assert!(open(dir.path(), &|_| None).unwrap().is_none());
}

#[test]
fn fields_of_the_processor_are_replaced() {
    let with = |kwargs: Value| open_with(&fixture(), &|_| None, kwargs.as_object().unwrap());
    let tokens = |kwargs: Value| {
        let image = RgbImage { width: 50, height: 40, pixels: vec![9; 50 * 40 * 3] };
        with(kwargs).unwrap().unwrap().prepare(&image).unwrap().expansion.len()
    };
    let fewer = tokens(json!({"max_pixels": 768}));
    assert!(fewer < tokens(json!({})), "{fewer}");
    assert_eq!(tokens(json!({"size": {"longest_edge": 768, "shortest_edge": 384}})), fewer);
    let error = with(json!({"max_tiles": 3})).unwrap_err();
    assert!(matches!(error, VisionError::NoSuchField { .. }), "{error}");
}

#[test]
fn towers_that_are_wrong_are_errors() {
    let open = |dir: &Path| open(dir, &|_| None).unwrap_err();
    let dir = checkpoint(&tensors(), &[("model_type", json!("novel_vl"))]);
    let error = open(dir.path());
    assert!(matches!(error, VisionError::ModelType { .. }), "{error}");
    assert!(error.to_string().contains("novel_vl"), "{error}");

    let mut vision: Value =
        serde_json::from_slice(&fs::read(fixture().join("config.json")).unwrap()).unwrap();
    let mut vision = vision["vision_config"].take();
    for (name, value) in [
        ("num_heads", json!(3)),
        ("hidden_act", json!("novel")),
        ("depth", json!(0)),
        ("patch_size", json!([4, 8])),
        ("rope_parameters", json!({"rope_type": "yarn"})),
    ] {
        let old = vision.get(name).cloned();
        vision[name] = value;
        let dir = checkpoint(&tensors(), &[("vision_config", vision.clone())]);
        let error = open(dir.path());
        assert!(matches!(error, VisionError::Field { .. }), "{name}: {error}");
        match old {
            Some(old) => vision[name] = old,
            None => vision[name] = Value::Null,
        }
    }

    let less: Vec<_> =
        tensors().into_iter().filter(|t| !t.0.ends_with("pos_embed.weight")).collect();
    assert!(matches!(open(checkpoint(&less, &[]).path()), VisionError::Weights(_)));
    let mut more = tensors();
    let (_, dtype, shape, data) = more[0].clone();
    more.push(("model.visual.novel.weight".to_owned(), dtype, shape, data));
    let error = open(checkpoint(&more, &[]).path());
    assert!(error.to_string().contains("novel"), "{error}");

    let dir = checkpoint(&tensors(), &[]);
    fs::remove_file(dir.path().join("preprocessor_config.json")).unwrap();
    assert!(matches!(open(dir.path()), VisionError::NoProcessor(_)));
    let dir = checkpoint(&tensors(), &[("image_token_id", Value::Null)]);
    assert!(matches!(open(dir.path()), VisionError::Token(_)));
}
