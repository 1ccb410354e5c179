//! What keys and values depend on beside tokens and cache: the name under which they are kept.

use crate::{
    cli::EngineArgs,
    model::{ModelSource, builtin},
};
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};
use taper_models::Activations;
use taper_tensor::cpu::{codes::CodeLevel, dense::DenseLevel, int8::Int8Level};

/// Names the weights, whose bytes are all read, and the arithmetic.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn identity(
    source: &ModelSource,
    args: &EngineArgs,
    activations: Activations,
) -> Result<String> {
    let weights = match source.dir() {
        None => Sha256::new_with_prefix(builtin::CONFIG).chain_update(builtin::WEIGHTS).finalize(),
        Some(dir) => hash_dir(dir)?,
    };
    let levels = (Int8Level::detect(), DenseLevel::detect(), CodeLevel::detect());
    let version = env!("CARGO_PKG_VERSION");
    let max_model_len = args.max_model_len;
    Ok(format!("{version} {weights:x} {activations:?} {max_model_len:?} {levels:?}"))
}

/// Hash of config.json and of all weights.
fn hash_dir(dir: &Path) -> Result<sha2::digest::Output<Sha256>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|e| Ok(e?.path())).collect::<io::Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "safetensors"));
    files.push(dir.join("config.json"));
    files.sort();
    let mut all = Sha256::new();
    for path in files {
        let reading = || format!("reading {}", path.display());
        let mut hash = Sha256::new();
        io::copy(&mut File::open(&path).with_context(reading)?, &mut hash).with_context(reading)?;
        all.update(hash.finalize());
    }
    Ok(all.finalize())
}
