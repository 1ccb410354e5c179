//! Checkpoints made by hand.

#![allow(clippy::unwrap_used, dead_code, reason = "each test uses a part")]

use serde_json::{Map, Value, json};
use std::{fs, path::Path};

/// A tensor of a file: name, element type, shape, bytes.
pub(crate) type Tensor<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

/// A safetensors file, whose header is padded to a length of `pad` modulo 8.
pub(crate) fn safetensors(tensors: &[Tensor<'_>], pad: usize) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let ends = [data.len(), data.len() + bytes.len()];
        let value = json!({"dtype": dtype, "shape": shape, "data_offsets": ends});
        header.insert((*name).to_owned(), value);
        data.extend(bytes);
    }
    let mut text = Value::Object(header).to_string();
    while text.len() % 8 != pad {
        text.push(' ');
    }
    with_header(&text, &data)
}

/// A file of any header and data.
pub(crate) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// The bytes of `f32`s.
pub(crate) fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// `rows` times `cols` ordinary weights.
pub(crate) fn matrix<'a>(name: &'a str, shape: &'a [usize; 2]) -> Tensor<'a> {
    let n = shape[0] * shape[1];
    (name, "F32", shape, floats((0..n).map(|i| (i as f32 * 0.37).sin())))
}

/// Writes a model directory of one file.
pub(crate) fn model(dir: &Path, config: &Value, tensors: &[Tensor<'_>]) {
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::write(dir.join("model.safetensors"), safetensors(tensors, 0)).unwrap();
}
