//! Model directories made of a tiny checkpoint and the demo model's tokenizer, to be damaged.

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// A directory that holds a whole model until the test breaks it.
#[derive(Debug)]
pub(crate) struct ModelDir(TempDir);

impl ModelDir {
    /// A checkpoint of `tests/fixtures/parity` with a tokenizer and a chat template.
    pub(crate) fn new(fixture: &str) -> Self {
        let dir = Self::of("parity", fixture);
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(root.join("models/demo").join(name), dir.file(name)).unwrap();
        }
        dir
    }

    /// A checkpoint of a folder of `tests/fixtures`, as it is.
    pub(crate) fn of(folder: &str, fixture: &str) -> Self {
        let dir = Self(tempfile::tempdir().unwrap());
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let fixture = root.join("../../tests/fixtures").join(folder).join(fixture);
        for entry in fs::read_dir(&fixture).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name != "expected.safetensors" {
                fs::copy(fixture.join(&name), dir.file(&name)).unwrap();
            }
        }
        dir
    }

    pub(crate) fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.file(name)).unwrap();
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.file(name), bytes).unwrap();
    }

    pub(crate) fn truncate(&self, name: &str, keep: impl Fn(usize) -> usize) {
        let bytes = fs::read(self.file(name)).unwrap();
        self.write(name, &bytes[..keep(bytes.len())]);
    }

    /// Changes a JSON file.
    pub(crate) fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut json = serde_json::from_slice(&fs::read(self.file(name)).unwrap()).unwrap();
        change(&mut json);
        self.write(name, json.to_string());
    }

    /// Changes the header of a safetensors file and leaves its data.
    pub(crate) fn edit_header(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let bytes = fs::read(self.file(name)).unwrap();
        let (mut header, data) = split(&bytes);
        change(&mut header);
        let mut text = header.to_string();
        while !text.len().is_multiple_of(8) {
            text.push(' ');
        }
        let size = (text.len() as u64).to_le_bytes();
        self.write(name, [&size, text.as_bytes(), data].concat());
    }

    /// Fills bytes of a tensor, counted from its first.
    pub(crate) fn fill(&self, name: &str, tensor: &str, range: std::ops::Range<usize>, byte: u8) {
        let mut bytes = fs::read(self.file(name)).unwrap();
        let (header, data) = split(&bytes);
        let first = header[tensor]["data_offsets"][0].as_u64().expect(tensor) as usize;
        let start = bytes.len() - data.len() + first;
        bytes[start + range.start..start + range.end].fill(byte);
        self.write(name, bytes);
    }
}

fn split(bytes: &[u8]) -> (Value, &[u8]) {
    let size = u64::from_le_bytes(*bytes.first_chunk::<8>().unwrap()) as usize;
    let (header, data) = bytes[8..].split_at(size);
    (serde_json::from_slice(header).unwrap(), data)
}
