//! Checkpoints and GGUF files to MLX's checkpoints, which mlx-lm loads too.
//!
//! Floats are quantized as `mlx_lm.convert -q` does it, to the same bits (on the CPU; see
//! `tests/fixtures/README.md`), or cast to another type of floats. What is not quantized keeps its type
//! unless a type is asked for, where mlx-lm casts to `torch_dtype`. Scales may be searched for instead, in the same
//! layout: what is quantized is nearer to the floats then.
//!
//! The blocks of a GGUF file become MLX's codes, scales and biases, or are read and quantized anew.
//! Its floats become f16 where that loses nothing.
//!
//! Codes in other formats are widened to floats, and these quantized.
//!
//! Unlike mlx-lm this needs no model class and no more memory than some rows, or one matrix of blocks:
//! headers are written first, and every part goes to its place as it is made.

mod config;
mod error;
mod fused;
mod gguf;
mod matrices;
mod names;
mod options;
mod plan;
mod source;
mod staging;
mod to_gguf;
mod write;

pub use error::ConvertError;
pub use matrices::{Matrices, Matrix, QuantizedLayer};
pub use options::{ConvertOptions, GgufType, Override, TargetFormat};

use crate::{Checkpoint, Gguf, WeightsError, checkpoint};
use fused::Fused;
use plan::Plan;
use serde_json::Value;
use source::Coded;
use staging::{Staging, check_vacant, write_error};
use std::{error::Error, fs, path::Path};
use write::Shards;

/// What was written.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConvertReport {
    /// Tensors that are quantized now, or were and stay so.
    pub quantized: usize,
    /// All other tensors.
    pub copied: usize,
    /// Matrices among the copied, because the groups do not divide their rows.
    pub left_dense: Vec<String>,
    /// Weights.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// safetensors files.
    pub shards: usize,
}

impl ConvertReport {
    /// Bits a weight, with scales and biases, over the whole model.
    #[must_use]
    pub fn bits_per_weight(&self) -> f64 {
        self.bytes as f64 * 8.0 / self.parameters as f64
    }
}

/// Quantizes some matrices of a checkpoint before the others, in a way of its own.
pub type First<'a> =
    dyn FnMut(&Checkpoint, &mut Matrices<'_>) -> Result<(), Box<dyn Error + Send + Sync>> + 'a;

/// Converts the checkpoint `src`, a directory or a GGUF file, into the new directory, or GGUF file, `dst`. Of a
/// split file, any part will do.
///
/// `progress(done_bytes, total_bytes)` counts bytes of the source. A conversion that fails or is
/// interrupted leaves nothing at `dst`.
///
/// # Errors
/// `dst` is taken, the source cannot be read, the options do not fit the source, or a file cannot be written.
pub fn convert(
    src: &Path,
    dst: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ConvertReport, ConvertError> {
    convert_with(src, dst, options, &mut |_, _| Ok(()), progress)
}

/// As [`convert`], after `first` has quantized what it wants to.
///
/// # Errors
/// As [`convert`], or an error of `first`.
pub fn convert_with(
    src: &Path,
    dst: &Path,
    options: &ConvertOptions,
    first: &mut First<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ConvertReport, ConvertError> {
    options.check()?;
    check_vacant(dst)?;
    let (gguf, source) = opened(src, options)?;
    let Value::Object(mut config) = source.config().clone() else {
        return Err(ConvertError::Layout { what: "a configuration that is no object" });
    };
    let (coded, fused) = (Coded::of(&source)?, Fused::of(&source)?);
    let mut plan = Plan::new(&source, (&coded, &fused), gguf.is_some(), options)?;
    let stage = Staging::new(dst)?;
    let container = match options.target {
        TargetFormat::Gguf(kind) => {
            let files = match &gguf {
                Some(file) => to_gguf::Files::of_gguf(file)?,
                None => to_gguf::Files::of_directory(src)?,
            };
            Some(to_gguf::plan(&mut plan, source.config(), &files, kind)?)
        }
        _ => None,
    };
    let headers = match &container {
        Some(container) => vec![(to_gguf::NAME.to_owned(), container.header.clone())],
        None => plan.headers(),
    };
    let mut shards = Shards::create(headers, &stage)?;
    let mut matrices = Matrices::new(&plan, Some(&mut shards));
    first(&source, &mut matrices).map_err(|source| ConvertError::Calibration { source })?;
    let done = matrices.into_done();
    if let Some(container) = &container {
        container.write(&mut shards)?;
    }
    let files = write::rest(&plan, shards, &done, options.method, progress)?;
    if container.is_some() {
        stage.publish_file(to_gguf::NAME)?;
    } else {
        match &gguf {
            Some(file) => gguf::companions(file, &mut config, &stage)?,
            None => copy_companions(src, &stage)?,
        }
        config::complete(&mut config, src, &plan, options);
        config::write_json(&stage.path("config.json"), &config)?;
        config::write_json(&stage.path(checkpoint::INDEX), &config::index(&plan, &files))?;
        stage.publish()?;
    }
    let quantized = plan.entries.iter().filter(|e| e.form.is_quantized()).count();
    Ok(ConvertReport {
        quantized,
        copied: plan.entries.len() - quantized,
        parameters: plan.parameters(),
        bytes: plan.output_bytes(),
        shards: files.len(),
        left_dense: plan.left_dense,
    })
}

/// Shows `look` the matrices that [`convert`] would quantize, and writes nothing.
///
/// # Errors
/// As [`convert_with`], but for what is written.
pub fn survey(
    src: &Path,
    options: &ConvertOptions,
    look: &mut First<'_>,
) -> Result<(), ConvertError> {
    options.check()?;
    let (gguf, source) = opened(src, options)?;
    let (coded, fused) = (Coded::of(&source)?, Fused::of(&source)?);
    let plan = Plan::new(&source, (&coded, &fused), gguf.is_some(), options)?;
    let looked = look(&source, &mut Matrices::new(&plan, None));
    looked.map_err(|source| ConvertError::Calibration { source })
}

/// A source, and the file that it is if it is one.
fn opened(
    src: &Path,
    options: &ConvertOptions,
) -> Result<(Option<Gguf>, Checkpoint), ConvertError> {
    let gguf = src.is_file().then(|| Gguf::open(src)).transpose()?;
    let source = match &gguf {
        Some(file) => file.checkpoint()?,
        None => directory(src, options)?,
    };
    Ok((gguf, source))
}

/// A directory of weights that are not blocks of ggml.
fn directory(src: &Path, options: &ConvertOptions) -> Result<Checkpoint, ConvertError> {
    let source = Checkpoint::open(src)?;
    if source.config().get("vision_config").is_some_and(|v| !v.is_null()) {
        return Err(ConvertError::Layout { what: "a model with a vision tower" });
    }
    let is_gpt2 = source.config().get("model_type").is_some_and(|own| own == "gpt2");
    if is_gpt2 && !matches!(options.target, TargetFormat::Dense(_)) {
        return Err(ConvertError::Layout { what: "matrices that are turned (GPT-2)" });
    }
    match options.target {
        TargetFormat::Stored => Err(ConvertError::NoBlocks { path: src.to_owned() }),
        _ => Ok(source),
    }
}

/// Tokenizer, chat template, generation defaults and licence, as they are.
fn copy_companions(src: &Path, stage: &Staging) -> Result<(), ConvertError> {
    const NAMES: [&str; 6] = [
        "added_tokens.json",
        "generation_config.json",
        "merges.txt",
        "special_tokens_map.json",
        "vocab.json",
        "vocab.txt",
    ];
    const PREFIXES: [&str; 4] = ["tokenizer", "chat_template", "LICENSE", "NOTICE"];
    let io = |source| WeightsError::Io { path: src.to_owned(), source };
    for entry in fs::read_dir(src).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let wanted = NAMES.contains(&name) || PREFIXES.iter().any(|p| name.starts_with(p));
        if !wanted || !entry.path().is_file() {
            continue;
        }
        // Read and written, not copied: a source that is read-only makes no read-only model.
        let text = fs::read(entry.path())
            .map_err(|source| WeightsError::Io { path: entry.path(), source })?;
        let to = stage.path(name);
        fs::write(&to, text).map_err(write_error(&to))?;
    }
    Ok(())
}
