//! Processors, towers and projectors against transformers', on the checkpoints of `tests/fixtures/vision`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};
use taper_base::{ImageEncoder, RgbImage, TokenId};
use taper_vision::{VisionError, model_types, open};

/// The largest difference of a tower's output, in parts of its range.
const TOWER: f32 = 1e-3;

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/vision");
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = entries.filter(|dir| has_pixels(dir)).collect();
    all.sort();
    all
}

/// Other fixtures are about prompts and masks.
fn has_pixels(dir: &Path) -> bool {
    let Ok(file) = fs::read(dir.join("expected.safetensors")) else { return false };
    let expected = SafeTensors::deserialize(&file).unwrap();
    expected.tensor("image_0").is_ok_and(|image| image.shape().len() == 3)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn model_type(dir: &Path) -> String {
    json(&dir.join("config.json"))["model_type"].as_str().unwrap().to_owned()
}

fn encoder(dir: &Path) -> Result<Option<Box<dyn ImageEncoder>>, VisionError> {
    let tokens: HashMap<String, TokenId> =
        serde_json::from_value(json(&dir.join("tokens.json"))).unwrap();
    open(dir, &|text| tokens.get(text).copied())
}

fn floats(view: &TensorView<'_>) -> Vec<f32> {
    assert_eq!(view.dtype(), Dtype::F32);
    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn integers(view: &TensorView<'_>) -> Vec<u32> {
    assert_eq!(view.dtype(), Dtype::I64);
    let value = |b: &[u8]| u32::try_from(i64::from_le_bytes(b.try_into().unwrap())).unwrap();
    view.data().chunks_exact(8).map(value).collect()
}

fn image(view: &TensorView<'_>) -> RgbImage {
    let &[height, width, 3] = view.shape() else { panic!("{:?}", view.shape()) };
    RgbImage { width: width as u32, height: height as u32, pixels: view.data().to_vec() }
}

/// The largest difference, and the range of what is expected.
fn difference(got: &[f32], expected: &[f32]) -> (f32, f32) {
    assert_eq!(got.len(), expected.len());
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let (low, high) =
        expected.iter().fold((f32::MAX, f32::MIN), |(l, h), x| (l.min(*x), h.max(*x)));
    (worst, high - low)
}

fn check(dir: &Path) {
    let name = dir.file_name().unwrap().to_string_lossy().into_owned();
    let encoder = encoder(dir).unwrap().expect("a tower");
    let file = fs::read(dir.join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&file).unwrap();
    let (mut pixels, mut rows, mut deep) = (0f32, 0f32, 0f32);
    let mut hashes = Vec::new();
    for i in 0.. {
        let Ok(stored) = expected.tensor(&format!("image_{i}")) else { break };
        let get = |what: &str| expected.tensor(&format!("{what}_{i}"));
        let image = image(&stored);
        let prepared = encoder.prepare(&image).unwrap();
        assert_eq!(prepared.expansion, integers(&get("expansion").unwrap()), "{name} {i}");
        let values = get("pixel_values").unwrap();
        let values = without_padding(floats(&values), values.shape(), &prepared.shape);
        pixels = pixels.max(difference(&prepared.pixels, &values).0);
        if let (Some([t, h, w]), Ok(grid)) = (prepared.grid, get("grid")) {
            let merge = merge(dir);
            assert_eq!([t, h * merge, w * merge].as_slice(), integers(&grid), "{name} {i}");
        }
        let encoded = encoder.encode(&prepared).unwrap();
        let part = |got: &[f32], name: &str| {
            let (worst, range) = difference(got, &floats(&expected.tensor(name).unwrap()));
            worst / range
        };
        rows = rows.max(part(&encoded.rows, &format!("features_{i}")));
        for (layer, got) in encoded.deep.iter().enumerate() {
            deep = deep.max(part(got, &format!("deep_{i}_{layer}")));
        }
        assert!(expected.tensor(&format!("deep_{i}_{}", encoded.deep.len())).is_err(), "{name}");
        assert_eq!(encoded.rows.len() % encoder.hidden(), 0);
        // An image's rows do not depend on the images before it.
        let again = encoder.encode(&encoder.prepare(&image).unwrap()).unwrap();
        assert_eq!(again.rows, encoded.rows, "{name} {i}");
        hashes.push(prepared.hash);
    }
    println!("{name}: pixels {pixels:.1e}, rows {rows:.1e}, deep {deep:.1e}");
    assert!(pixels <= one_level(dir), "{name}: pixels differ by {pixels}");
    assert!(rows <= TOWER && deep <= TOWER, "{name}: rows differ by {rows}, deep ones by {deep}");
    let count = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    assert!(count > 0 && hashes.len() == count, "{name}: {count} images");
}

/// Values of tiles without what transformers fills them up with. Behind patches and their elements, our shape tells each
/// tile's height and width in patches.
fn without_padding(values: Vec<f32>, shape: &[usize], ours: &[usize]) -> Vec<f32> {
    let (&[_, most, elements], &[_, own, ref sizes @ ..]) = (shape, ours) else { return values };
    if elements != own || sizes.is_empty() {
        return values;
    }
    let tiles = values.chunks_exact(most * elements).zip(sizes.chunks_exact(2));
    tiles.flat_map(|(tile, size)| tile[..size[0] * size[1] * elements].to_vec()).collect()
}

fn merge(dir: &Path) -> u32 {
    let config = json(&dir.join("config.json"));
    u32::try_from(config["vision_config"]["spatial_merge_size"].as_u64().unwrap()).unwrap()
}

/// A 255th of the scale on which towers get pixels.
fn one_level(dir: &Path) -> f32 {
    let files = ["preprocessor_config.json", "processor_config.json"].map(|name| dir.join(name));
    let fields = files.iter().filter(|path| path.is_file()).map(|path| json(path));
    let deviation = |fields: Value| {
        let fields = fields.get("image_processor").cloned().unwrap_or(fields);
        fields["image_std"][0].as_f64()
    };
    let deviation = fields.filter_map(deviation).next().unwrap_or(1.0);
    1.001 / (255.0 * deviation as f32)
}

#[test]
fn processors_and_towers_are_transformers() {
    let mut checked = 0;
    for dir in fixtures() {
        let known = model_types().contains(&model_type(&dir).as_str());
        if known {
            check(&dir);
            checked += 1;
        } else {
            let error = encoder(&dir).expect_err("an unknown tower");
            assert!(matches!(error, VisionError::ModelType { .. }), "{error}");
            println!("{}: {error}", dir.display());
        }
    }
    assert!(checked > 0);
}
