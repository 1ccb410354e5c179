//! Checkpoints of floats and GGUF files to MLX's checkpoints, which mlx-lm loads too.
//!
//! Floats are quantized as `mlx_lm.convert -q` does it, to the same bits (on the CPU; see
//! `tests/fixtures/README.md`), or cast to another type of floats. What is not quantized keeps its type
//! unless a type is asked for, where mlx-lm casts to `torch_dtype`. Scales may be searched for instead, in the same
//! layout: what is quantized is nearer to the floats then.
//!
//! The blocks of a GGUF file become MLX's codes, scales and biases, or are read and quantized anew.
//! Its floats become f16 where that loses nothing.
//!
//! Unlike mlx-lm this needs no model class and no more memory than some rows, or one matrix of blocks:
//! headers are written first, and every part goes to its place as it is made.

mod error;
mod gguf;
mod options;
mod plan;
mod source;
mod staging;

pub use error::ConvertError;
pub use options::{ConvertOptions, Override, TargetFormat};

use crate::{Checkpoint, Gguf, WeightsError, checkpoint};
use half::{bf16, f16};
use plan::{Entry, Form, Plan};
use serde::Serialize;
use serde_json::{Map, Value, json};
use source::Source;
use staging::{Staging, check_vacant, write_error};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Seek, SeekFrom, Write},
    path::Path,
};
use taper_tensor::{AffineFormat, AffineParts, DType, ScaleMethod, quantize_by};

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

/// Converts the checkpoint `src`, a directory or a GGUF file, into the new directory `dst`. Of a
/// split file, any part will do.
///
/// `progress(done_bytes, total_bytes)` counts bytes of the source. A conversion that fails or is
/// interrupted leaves nothing at `dst`.
///
/// # Errors
/// `dst` is taken, the source cannot be read or is quantized, the options do not fit the source, or
/// a file cannot be written.
pub fn convert(
    src: &Path,
    dst: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ConvertReport, ConvertError> {
    options.check()?;
    check_vacant(dst)?;
    let gguf = src.is_file().then(|| Gguf::open(src)).transpose()?;
    let source = match &gguf {
        Some(file) => file.checkpoint()?,
        None => directory(src, options)?,
    };
    let Value::Object(mut config) = source.config().clone() else {
        return Err(ConvertError::Layout { what: "a configuration that is no object" });
    };
    let tied = config.get("tie_word_embeddings").and_then(Value::as_bool).unwrap_or(false);
    let plan = Plan::new(&source, gguf.is_some(), tied, options)?;
    let stage = Staging::new(dst)?;
    let files = write_shards(&plan, options.method, &stage, progress)?;
    match &gguf {
        Some(file) => gguf::companions(file, &mut config, &stage)?,
        None => copy_companions(src, &stage)?,
    }
    complete_config(&mut config, src, &plan, options);
    write_json(&stage.path("config.json"), &config)?;
    write_json(&stage.path(checkpoint::INDEX), &index(&plan, &files))?;
    stage.publish()?;
    let quantized = plan.entries.iter().filter(|e| e.form.format().is_some()).count();
    Ok(ConvertReport {
        quantized,
        copied: plan.entries.len() - quantized,
        parameters: plan.parameters(),
        bytes: plan.output_bytes(),
        shards: files.len(),
        left_dense: plan.left_dense,
    })
}

/// A directory of floats, which may be quantized.
fn directory(src: &Path, options: &ConvertOptions) -> Result<Checkpoint, ConvertError> {
    let config = checkpoint::read_object(&src.join("config.json"))?;
    let given = |key| config.get(key).is_some_and(|v| !v.is_null());
    let quantized = || ConvertError::AlreadyQuantized { path: src.to_owned() };
    if given("quantization") || given("quantization_config") {
        return Err(quantized());
    }
    if given("vision_config") {
        return Err(ConvertError::Layout { what: "a model with a vision tower" });
    }
    if options.target == TargetFormat::Stored {
        return Err(ConvertError::NoBlocks { path: src.to_owned() });
    }
    let source = Checkpoint::open(src)?;
    match source.has_codes() {
        true => Err(quantized()),
        false => Ok(source),
    }
}

/// Writes every file and returns their names.
fn write_shards(
    plan: &Plan<'_>,
    method: ScaleMethod,
    stage: &Staging,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Vec<String>, ConvertError> {
    let (count, total) = (plan.shards.len(), plan.source_bytes());
    let mut done = 0;
    progress(done, total);
    let mut names = Vec::with_capacity(count);
    for (i, entries) in plan.shards.iter().enumerate() {
        let name = match count {
            1 => checkpoint::SINGLE.to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        let path = stage.path(&name);
        let header = plan.header(i);
        let mut file = File::create(&path).map_err(write_error(&path))?;
        file.write_all(&header).map_err(write_error(&path))?;
        let mut place = |offset: u64, bytes: &[u8]| {
            file.seek(SeekFrom::Start(header.len() as u64 + offset))
                .and_then(|_| file.write_all(bytes))
                .map_err(write_error(&path))
        };
        for entry in &plan.entries[entries.clone()] {
            write_entry(entry, method, &mut place, &mut |bytes| {
                done += bytes;
                progress(done, total);
            })?;
        }
        file.sync_all().map_err(write_error(&path))?;
        names.push(name);
    }
    Ok(names)
}

/// Writes bytes at an offset of the file's data.
type Place<'a> = dyn FnMut(u64, &[u8]) -> Result<(), ConvertError> + 'a;

fn write_entry(
    entry: &Entry<'_>,
    method: ScaleMethod,
    place: &mut Place<'_>,
    advance: &mut dyn FnMut(u64),
) -> Result<(), ConvertError> {
    let mut at: Vec<_> = entry.outputs.iter().map(|o| o.offset).collect();
    let mut put = |i: usize, bytes: &[u8]| {
        place(at[i], bytes)?;
        at[i] += bytes.len() as u64;
        Ok(())
    };
    for source in &entry.sources {
        match entry.form {
            Form::Copy => {
                put(0, source.bytes().as_slice())?;
                advance(source.bytes().len() as u64);
            }
            Form::Cast(dtype) => source.read(&entry.name, &mut |values, bytes| {
                put(0, &cast(&entry.name, values, dtype)?)?;
                advance(bytes);
                Ok(())
            })?,
            Form::Quantize(format) => {
                quantized(&entry.name, *source, (format, method), &mut put, advance)?;
            }
            Form::Repack(_) => repacked(&entry.name, *source, &mut put, advance)?,
        }
    }
    Ok(())
}

/// Appends bytes to an output of an entry.
type Put<'a> = dyn FnMut(usize, &[u8]) -> Result<(), ConvertError> + 'a;

fn put_parts(parts: &AffineParts, put: &mut Put<'_>) -> Result<(), ConvertError> {
    let parts = [&parts.codes, &parts.scales, &parts.biases];
    parts.into_iter().enumerate().try_for_each(|(i, part)| put(i, part))
}

/// Quantizes a matrix; `put(i, bytes)` appends to codes, scales or biases.
fn quantized(
    name: &str,
    source: Source<'_>,
    (format, method): (AffineFormat, ScaleMethod),
    put: &mut Put<'_>,
    advance: &mut dyn FnMut(u64),
) -> Result<(), ConvertError> {
    let wrap = |source| WeightsError::Tensor { name: name.to_owned(), source };
    let dtype = checkpoint::float_type(name, source.dtype())?;
    let (_, cols) = source.matrix();
    source.read(name, &mut |values, bytes| {
        let parts = quantize_by(method, values, cols, format, dtype).map_err(wrap)?;
        put_parts(&parts, put)?;
        advance(bytes);
        Ok(())
    })
}

/// Writes blocks of a GGUF file as the affine matrix that they are.
fn repacked(
    name: &str,
    source: Source<'_>,
    put: &mut Put<'_>,
    advance: &mut dyn FnMut(u64),
) -> Result<(), ConvertError> {
    let Source::Blocks(blocks) = source else { return Ok(()) };
    let (rows, cols) = source.matrix();
    let wrap = |source| WeightsError::Tensor { name: name.to_owned(), source };
    let parts = blocks.parts(rows, cols).map_err(wrap)?;
    let finite = |b: &[u8; 2]| f16::from_le_bytes(*b).is_finite();
    let mut sides = [&parts.scales, &parts.biases].into_iter();
    if !sides.all(|side| side.as_chunks().0.iter().all(finite)) {
        return Err(ConvertError::NotFinite { name: name.to_owned() });
    }
    put_parts(&parts, put)?;
    blocks.bytes.release();
    advance(blocks.bytes.len() as u64);
    Ok(())
}

/// The bytes of values in another type.
fn cast(name: &str, values: &[f32], dtype: DType) -> Result<Vec<u8>, ConvertError> {
    let mut out = Vec::with_capacity(values.len() * dtype.size_in_bytes());
    let mut finite = true;
    for &value in values {
        match dtype {
            DType::F32 => out.extend(value.to_le_bytes()),
            DType::F16 => {
                let half = f16::from_f32(value);
                finite &= half.is_finite();
                out.extend(half.to_le_bytes());
            }
            DType::BF16 => {
                let half = bf16::from_f32(value);
                finite &= half.is_finite();
                out.extend(half.to_le_bytes());
            }
        }
    }
    match finite {
        true => Ok(out),
        false => Err(ConvertError::Overflow { name: name.to_owned(), dtype }),
    }
}

/// The fields that mlx-lm adds, drops and sorts.
fn complete_config(
    config: &mut Map<String, Value>,
    src: &Path,
    plan: &Plan<'_>,
    options: &ConvertOptions,
) {
    let section = |f: AffineFormat| {
        Map::from_iter([
            ("group_size".to_owned(), json!(f.group)),
            ("bits".to_owned(), json!(f.bits)),
            ("mode".to_owned(), json!("affine")),
        ])
    };
    if let Some(format) = plan.format {
        let mut quantization = section(format);
        let own = plan.own_formats.iter().map(|(layer, f)| (layer.clone(), section(*f).into()));
        quantization.extend(own);
        // The second name is the one that the Hub's model tree reads.
        config.insert("quantization_config".to_owned(), quantization.clone().into());
        config.insert("quantization".to_owned(), quantization.into());
    }
    if let TargetFormat::Dense(dtype) = options.target {
        let name = match dtype {
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
        };
        // The older name of the field is read everywhere; the newer one may be there already.
        if config.contains_key("dtype") {
            config.insert("dtype".to_owned(), name.into());
        }
        config.insert("torch_dtype".to_owned(), name.into());
    }
    // Where the field is missing, readers differ in whether a head in the files is used.
    if plan.entries.iter().any(|e| e.name == "lm_head.weight") {
        config.entry("tie_word_embeddings").or_insert(json!(false));
    }
    let generation = checkpoint::read_object(&src.join("generation_config.json")).ok();
    if let Some(eos) = generation.and_then(|mut g| g.remove("eos_token_id")).filter(is_given) {
        config.insert("eos_token_id".to_owned(), eos);
    }
    config.shift_remove("_name_or_path");
    config.sort_keys();
}

/// Neither null nor empty nor 0, as Python's `if` has it.
fn is_given(value: &Value) -> bool {
    match value {
        Value::Number(n) => n.as_u64() != Some(0),
        Value::Array(a) => !a.is_empty(),
        _ => false,
    }
}

fn index(plan: &Plan<'_>, files: &[String]) -> Map<String, Value> {
    let mut places = BTreeMap::new();
    for (file, entries) in files.iter().zip(&plan.shards) {
        let outputs = plan.entries[entries.clone()].iter().flat_map(|e| &e.outputs);
        places.extend(outputs.map(|o| (o.name.as_str(), file)));
    }
    let totals = json!({"total_size": plan.output_bytes(), "total_parameters": plan.parameters()});
    Map::from_iter([("metadata".to_owned(), totals), ("weight_map".to_owned(), json!(places))])
}

fn write_json(path: &Path, value: &Map<String, Value>) -> Result<(), ConvertError> {
    let mut text = Vec::new();
    let indent = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    value
        .serialize(&mut serde_json::Serializer::with_formatter(&mut text, indent))
        .map_err(|e| write_error(path)(e.into()))?;
    text.push(b'\n');
    fs::write(path, text).map_err(write_error(path))
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
