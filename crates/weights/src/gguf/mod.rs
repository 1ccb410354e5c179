//! GGUF, llama.cpp's format: one file with weights, configuration, tokenizer and chat template.
//!
//! A file becomes what Hugging Face's files would be: tensors by their names there, config.json,
//! tokenizer.json, tokenizer_config.json. So nothing else has to know of it.

pub(crate) mod blocks;
mod config;
mod error;
mod file;
mod names;
mod tables;
mod tokenizer;

use crate::{
    Checkpoint, WeightsError,
    shard::{self, RawTensor},
};
use blocks::BlockType;
use config::Seen;
pub use error::GgufError;
use file::{Entry, Header, Keys, Meta};
use half::{bf16, f16};
use names::Changes;
use safetensors::Dtype;
use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};
use taper_tensor::{AffineParts, Bytes, TensorError, Weight, pool};

/// A matrix of ggml's blocks, by the name that Hugging Face has for it.
#[derive(Debug, Clone)]
pub(crate) struct BlockTensor {
    pub(crate) kind: BlockType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Bytes,
    changes: Changes,
}

impl BlockTensor {
    /// As a matrix of all rows.
    pub(crate) fn weight(&self, rows: usize, cols: usize) -> Result<Weight, TensorError> {
        let source = |r| self.changes.source(r);
        match tables::read(self.kind, (rows, cols), &self.bytes, source)? {
            Some(weight) => Ok(Weight::Table(weight)),
            None => {
                blocks::repack(self.kind, (rows, cols), &self.bytes, source).map(Weight::Affine)
            }
        }
    }

    /// The affine codes of [`Self::weight`], or what it becomes as such.
    pub(crate) fn parts(&self, rows: usize, cols: usize) -> Result<AffineParts, TensorError> {
        blocks::parts(self.kind, (rows, cols), &self.bytes, |r| self.changes.source(r))
    }

    /// The values of the rows of `cols` that fill `out`, as ggml has them.
    pub(crate) fn read_rows(&self, first: usize, cols: usize, out: &mut [f32]) {
        let (weights, bytes) = self.kind.block();
        let row = cols / weights * bytes;
        let mut rows: Vec<_> = out.chunks_exact_mut(cols.max(1)).collect();
        pool::for_each(&mut rows, |r, out| {
            let at = self.changes.source(first + r) * row;
            let blocks = self.bytes.as_slice().get(at..at + row).unwrap_or_default();
            self.kind.decode(blocks, out);
        });
    }
}

/// An opened GGUF file, or all parts of one that was split.
#[derive(Debug)]
pub struct Gguf {
    paths: Vec<PathBuf>,
    /// Metadata of the first part.
    meta: BTreeMap<String, Meta>,
    /// Tensors of all parts, with the bytes of the part that has them.
    tensors: Vec<(Entry, Bytes)>,
}

impl Gguf {
    /// Architectures that are read, and the `model_type` that each becomes.
    pub const ARCHITECTURES: &[(&str, &str)] = &config::ARCHITECTURES;

    /// Maps a file and reads its header. Of a split file, any part finds the others beside it.
    ///
    /// # Errors
    /// A file is missing, damaged or truncated.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let whole = read(path)?;
        let count = match whole.0.get("split.count") {
            Some(Meta::Whole(n)) => u16::try_from(*n).unwrap_or(u16::MAX),
            _ => 1,
        };
        if count <= 1 {
            let (meta, tensors) = whole;
            return Ok(Self { paths: vec![path.to_owned()], meta, tensors });
        }
        let unnamed = || named(path, GgufError::PartName);
        let paths = (1..=count).map(|n| part(path, n).ok_or_else(unnamed));
        let paths: Vec<PathBuf> = paths.collect::<Result<_, _>>()?;
        // Only the first has all the metadata.
        let (meta, mut tensors) = read(&paths[0])?;
        for path in &paths[1..] {
            tensors.extend(read(path)?.1);
        }
        Ok(Self { paths, meta, tensors })
    }

    /// The file, or all parts of it.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Weights and configuration.
    ///
    /// # Errors
    /// The architecture or a tensor's type is not served, the metadata is incomplete, or two tensors
    /// have one name.
    pub fn checkpoint(&self) -> Result<Checkpoint, WeightsError> {
        let build = || {
            let keys = self.keys()?;
            let mut seen = self.seen()?;
            let head = usize::try_from(config::head_dim(keys)?).unwrap_or(0).max(2);
            let (mut plain, mut blocks) = (HashMap::new(), HashMap::new());
            let mut taken = HashMap::new();
            for (entry, bytes) in &self.tensors {
                let name = names::of(keys.architecture, &entry.name);
                let place = name.clone().unwrap_or_else(|| entry.name.clone());
                if let Some(other) = taken.insert(place, &entry.name) {
                    return Err(twice(other, &entry.name));
                }
                let Some(name) = name else {
                    self.divisors(entry, bytes, &mut seen)?;
                    continue;
                };
                let changes = changes(keys, entry, head)?;
                match BlockType::of(entry.kind) {
                    Some(kind) => drop(blocks.insert(name, matrix(entry, bytes, kind, changes)?)),
                    None => drop(plain.insert(name, floats(entry, bytes, changes)?)),
                }
            }
            Ok((config::config(keys, &seen, &tokenizer::stops(keys)?)?, plain, blocks))
        };
        let (config, plain, blocks) = build().map_err(|e| self.named(e))?;
        Checkpoint::new(config, plain, blocks)
    }

    /// The bytes of tokenizer.json and tokenizer_config.json, which has the chat template.
    ///
    /// # Errors
    /// The tokenizer is of a kind that is not read, or the metadata is incomplete.
    pub fn tokenizer_files(&self) -> Result<(Vec<u8>, Vec<u8>), WeightsError> {
        let files = self.keys().and_then(tokenizer::files);
        let (tokenizer, config) = files.map_err(|e| self.named(e))?;
        Ok((tokenizer.to_string().into_bytes(), config.to_string().into_bytes()))
    }

    /// The chat template, if the file has one.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        match self.meta.get("tokenizer.chat_template")? {
            Meta::Text(template) => Some(template),
            _ => None,
        }
    }

    fn named(&self, source: GgufError) -> WeightsError {
        named(self.paths.first().map_or(Path::new(""), PathBuf::as_path), source)
    }

    fn keys(&self) -> Result<Keys<'_>, GgufError> {
        match self.meta.get("general.architecture") {
            Some(Meta::Text(architecture)) => Ok(Keys { meta: &self.meta, architecture }),
            _ => Err(GgufError::metadata("general.architecture")),
        }
    }

    fn seen(&self) -> Result<Seen, GgufError> {
        let find = |name: &str| self.tensors.iter().map(|(e, _)| e).find(|e| e.name == name);
        let missing = || GgufError::damaged("it has no tensor \"token_embd.weight\"");
        let vocab = find("token_embd.weight").and_then(|e| e.shape.first().copied());
        Ok(Seen {
            vocab: vocab.ok_or_else(missing)?,
            tied: find("output.weight").is_none(),
            // Qwen 2 has biases of queries, keys and values alone, and needs no setting for that.
            attention_bias: find("blk.0.attn_output.bias").is_some(),
            mlp_bias: find("blk.0.ffn_gate.bias").is_some(),
            divisors: None,
        })
    }

    /// Takes divisors of rotary frequencies; other unknown tensors are an error.
    fn divisors(&self, entry: &Entry, bytes: &Bytes, seen: &mut Seen) -> Result<(), GgufError> {
        let places: &[usize] = match entry.name.as_str() {
            "rope_freqs.weight" => &[0, 1],
            "rope_factors_short.weight" => &[0],
            "rope_factors_long.weight" => &[1],
            name => {
                return Err(GgufError::unsupported(format!(
                    "it has the tensor {name:?}, which this architecture has no use for"
                )));
            }
        };
        let list = values(&floats(entry, bytes, Changes::default())?);
        let all = seen.divisors.get_or_insert_default();
        if places.iter().any(|&place| !all[place].is_empty()) {
            let name = &entry.name;
            return Err(GgufError::damaged(format!(
                "tensor {name:?} divides frequencies that another one divides"
            )));
        }
        places.iter().for_each(|&place| all[place].clone_from(&list));
        Ok(())
    }
}

/// Two tensors that stand for one: none is known to be the right one.
fn twice(one: &str, other: &str) -> GgufError {
    GgufError::damaged(match one == other {
        true => format!("it has the tensor {one:?} twice"),
        false => format!("its tensors {one:?} and {other:?} are one and the same in a model"),
    })
}

fn named(path: &Path, source: GgufError) -> WeightsError {
    WeightsError::Gguf { path: path.to_owned(), source }
}

/// The file of another part, where a name has the form `model-00001-of-00003.gguf`.
fn part(path: &Path, number: u16) -> Option<PathBuf> {
    let (start, total) = path.file_name()?.to_str()?.rsplit_once("-of-")?;
    let (start, _) = start.rsplit_once('-')?;
    Some(path.with_file_name(format!("{start}-{number:05}-of-{total}")))
}

/// A file's metadata, and its tensors with the bytes of the whole file.
type Part = (BTreeMap<String, Meta>, Vec<(Entry, Bytes)>);

fn read(path: &Path) -> Result<Part, WeightsError> {
    let bytes = shard::map(path)?;
    let Header { meta, tensors } = Header::read(bytes.as_slice()).map_err(|e| named(path, e))?;
    Ok((meta, tensors.into_iter().map(|entry| (entry, bytes.clone())).collect()))
}

/// What the converter changed in a tensor; its rows must be those of whole heads.
fn changes(keys: Keys<'_>, entry: &Entry, head: usize) -> Result<Changes, GgufError> {
    let changes = names::changes(keys.architecture, &entry.name, head);
    let rows = entry.shape.first().copied().unwrap_or(0);
    if changes.neighbours.is_some_and(|h| h % 2 != 0 || !rows.is_multiple_of(h)) {
        let (name, shape) = (&entry.name, &entry.shape);
        let what = format!("tensor {name:?} of shape {shape:?} has no heads of {head}");
        return Err(GgufError::damaged(what));
    }
    Ok(changes)
}

/// A tensor's own bytes.
fn data(entry: &Entry, file: &Bytes, (weights, bytes): (usize, usize)) -> Result<Bytes, GgufError> {
    let all = entry.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let cols = entry.shape.last().copied().unwrap_or(1);
    let whole = all.filter(|_| cols.is_multiple_of(weights));
    let size = whole.and_then(|n| (n / weights).checked_mul(bytes));
    let end = size.and_then(|size| entry.start.checked_add(size));
    let range = end.and_then(|end| file.slice(entry.start..end));
    range.ok_or_else(|| GgufError::outside(&entry.name))
}

/// A matrix of blocks.
fn matrix(
    entry: &Entry,
    file: &Bytes,
    kind: BlockType,
    changes: Changes,
) -> Result<BlockTensor, GgufError> {
    // What the converter changed in a vector is undone in floats only.
    if entry.shape.len() < 2 || changes.plus_one {
        let name = &entry.name;
        let what = format!("tensor {name:?} is {kind:?}, which is read in matrices only");
        return Err(GgufError::unsupported(what));
    }
    let bytes = data(entry, file, kind.block())?;
    Ok(BlockTensor { kind, shape: entry.shape.clone(), bytes, changes })
}

/// A tensor of floats, as Hugging Face has it.
fn floats(entry: &Entry, file: &Bytes, changes: Changes) -> Result<RawTensor, GgufError> {
    let (dtype, size) = match entry.kind {
        0 => (Dtype::F32, 4),
        1 => (Dtype::F16, 2),
        30 => (Dtype::BF16, 2),
        other => {
            return Err(GgufError::unsupported(format!(
                "tensor {:?} has ggml's type {other}, which is not read; these are: F32, F16, BF16, \
                 Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4",
                entry.name
            )));
        }
    };
    let mut bytes = data(entry, file, (1, size))?;
    if changes.neighbours.is_some() {
        let rows = entry.shape.first().copied().unwrap_or(0);
        let row = bytes.len() / rows.max(1);
        let order = (0..rows).map(|r| changes.source(r) * row);
        let moved = order.flat_map(|at| bytes.as_slice().get(at..at + row).unwrap_or_default());
        bytes = Bytes::from_vec(moved.copied().collect());
    }
    let raw = RawTensor { dtype, shape: entry.shape.clone(), bytes };
    if !changes.plus_one {
        return Ok(raw);
    }
    // In f32, which holds the difference whatever the file's type is.
    let gains = values(&raw).into_iter().flat_map(|g| (g - 1.0).to_le_bytes());
    Ok(RawTensor { dtype: Dtype::F32, bytes: Bytes::from_vec(gains.collect()), ..raw })
}

/// What [`floats`] has read, in f32.
fn values(raw: &RawTensor) -> Vec<f32> {
    let bytes = raw.bytes.as_slice();
    let (pairs, fours) = (bytes.as_chunks().0.iter(), bytes.as_chunks().0.iter());
    match raw.dtype {
        Dtype::F16 => pairs.map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::BF16 => pairs.map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        _ => fours.map(|b| f32::from_le_bytes(*b)).collect(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
