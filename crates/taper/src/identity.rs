//! What keys and values depend on beside tokens and cache: the name under which they are kept.

use crate::{Error, ModelSource, Result};
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};
use taper_models::Precision;
use taper_tensor::cpu::{self, codes::CodeLevel, dense::DenseLevel, int8::Int8Level};

/// Raise it with every change after which keys and values of the same tokens have other bits, or lie
/// elsewhere in a block: kernels of products and attention, norms, rotary angles, KV codecs.
const ROWS_VERSION: u32 = 2;

/// Names the weights, whose bytes are all read, and the arithmetic.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn identity(
    source: &ModelSource,
    max_model_len: Option<u32>,
    precision: Precision,
    moe_top_k: Option<usize>,
) -> Result<String> {
    let weights = weights(source)?;
    let build = (env!("CARGO_PKG_VERSION"), ROWS_VERSION, std::env::consts::ARCH);
    let arithmetic = arithmetic();
    let chosen = moe_top_k.map_or_else(String::new, |n| format!(" {n} experts"));
    Ok(format!("{build:?} {weights} {precision:?} {max_model_len:?} {arithmetic}{chosen}"))
}

/// SHA-256 of config.json and of all weights, in hexadecimal digits.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn weights(source: &ModelSource) -> Result<String> {
    let hash = match source {
        ModelSource::Static(model) => {
            Sha256::new_with_prefix(model.config).chain_update(model.weights).finalize()
        }
        ModelSource::Dir(dir) | ModelSource::Hub { dir, .. } => hash_dir(dir)?,
        ModelSource::Gguf { file, .. } => hash_files(file.paths().to_vec())?,
    };
    Ok(format!("{hash:x}"))
}

/// What this processor computes with: instructions, and what kernels choose among them by vendor.
fn arithmetic() -> String {
    let levels = (Int8Level::detect(), DenseLevel::detect(), CodeLevel::detect());
    format!("{levels:?} intel: {}", cpu::chooses_as_intel())
}

/// Hash of config.json and of all weights.
fn hash_dir(dir: &Path) -> Result<sha2::digest::Output<Sha256>> {
    let list = || fs::read_dir(dir)?.map(|e| Ok(e?.path())).collect::<io::Result<Vec<_>>>();
    let mut files = list().map_err(|source| Error::Read { path: dir.to_owned(), source })?;
    files.retain(|file| file.extension().is_some_and(|e| e == "safetensors"));
    files.push(dir.join("config.json"));
    files.sort();
    hash_files(files)
}

fn hash_files(files: Vec<PathBuf>) -> Result<sha2::digest::Output<Sha256>> {
    let mut all = Sha256::new();
    for path in files {
        let mut hash = Sha256::new();
        let read = File::open(&path).and_then(|mut file| io::copy(&mut file, &mut hash));
        read.map_err(|source| Error::Read { path, source })?;
        all.update(hash.finalize());
    }
    Ok(all.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_the_choices_of_vendors() {
        let name = arithmetic();
        let intel = cpu::chooses_as_intel();
        assert!(name.ends_with(&format!("intel: {intel}")), "{name}");
        assert!(name.contains(&format!("{:?}", CodeLevel::detect())), "{name}");
    }
}
