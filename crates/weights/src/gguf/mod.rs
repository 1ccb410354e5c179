//! GGUF, llama.cpp's format: one file with weights, configuration, tokenizer and chat template.
//!
//! A file becomes what Hugging Face's files would be: tensors by their names there, config.json,
//! tokenizer.json, tokenizer_config.json. So nothing else has to know of it.

pub(crate) mod blocks;
mod config;
mod file;
mod names;
mod tokenizer;

use crate::{
    Checkpoint, WeightsError,
    shard::{self, RawTensor},
};
use blocks::BlockType;
use config::Seen;
use file::{Entry, Header, Keys, Meta};
use names::Changes;
use safetensors::Dtype;
use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
};
use taper_tensor::{AffineParts, AffineWeight, Bytes, TensorError, pool};

/// What is wrong with a file, without its name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GgufError(String);

impl GgufError {
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

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
    pub(crate) fn affine(&self, rows: usize, cols: usize) -> Result<AffineWeight, TensorError> {
        blocks::repack(self.kind, (rows, cols), &self.bytes, |r| self.changes.source(r))
    }

    /// What [`Self::affine`] is made of.
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
        let broken =
            || GgufError::new("it is split, and its name does not end in -00001-of-0000N.gguf");
        let paths = (1..=count).map(|n| part(path, n).ok_or_else(|| named(path, broken())));
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
    /// The architecture or a tensor's type is not served, or the metadata is incomplete.
    pub fn checkpoint(&self) -> Result<Checkpoint, WeightsError> {
        let build = || {
            let keys = self.keys()?;
            let mut seen = self.seen()?;
            let head = usize::try_from(config::head_dim(keys)?).unwrap_or(0).max(2);
            let (mut plain, mut blocks) = (HashMap::new(), HashMap::new());
            for (entry, bytes) in &self.tensors {
                let Some(name) = names::of(keys.architecture, &entry.name) else {
                    self.divisors(entry, bytes, &mut seen)?;
                    continue;
                };
                let changes = names::changes(keys.architecture, &entry.name, head);
                let rows = entry.shape.first().copied().unwrap_or(0);
                if changes.neighbours.is_some_and(|h| h % 2 != 0 || !rows.is_multiple_of(h)) {
                    let shape = &entry.shape;
                    let what = format!(
                        "tensor {:?} of shape {shape:?} has no heads of {head}",
                        entry.name
                    );
                    return Err(GgufError::new(what));
                }
                match BlockType::of(entry.kind) {
                    Some(kind) => {
                        let bytes = data(entry, bytes, kind.block())?;
                        let shape = entry.shape.clone();
                        blocks.insert(name, BlockTensor { kind, shape, bytes, changes });
                    }
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
            _ => Err(GgufError::new("its metadata has no general.architecture")),
        }
    }

    fn seen(&self) -> Result<Seen, GgufError> {
        let find = |name: &str| self.tensors.iter().map(|(e, _)| e).find(|e| e.name == name);
        let missing = || GgufError::new("it has no tensor \"token_embd.weight\"");
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
                return Err(GgufError::new(format!(
                    "it has the tensor {name:?}, which this architecture has no use for"
                )));
            }
        };
        let raw = floats(entry, bytes, Changes::default())?;
        if raw.dtype != Dtype::F32 {
            return Err(GgufError::new(format!("tensor {:?} is not F32", entry.name)));
        }
        let list: Vec<f32> = values(raw.bytes.as_slice());
        let all = seen.divisors.get_or_insert_default();
        places.iter().for_each(|&place| all[place].clone_from(&list));
        Ok(())
    }
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

/// A tensor's own bytes.
fn data(entry: &Entry, file: &Bytes, (weights, bytes): (usize, usize)) -> Result<Bytes, GgufError> {
    let all = entry.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let cols = entry.shape.last().copied().unwrap_or(1);
    let whole = all.filter(|_| cols.is_multiple_of(weights));
    let size = whole.and_then(|n| (n / weights).checked_mul(bytes));
    let end = size.and_then(|size| entry.start.checked_add(size));
    let range = end.and_then(|end| file.slice(entry.start..end));
    range.ok_or_else(|| file::damaged(&entry.name))
}

/// A tensor of floats, as Hugging Face has it.
fn floats(entry: &Entry, file: &Bytes, changes: Changes) -> Result<RawTensor, GgufError> {
    let (dtype, size) = match entry.kind {
        0 => (Dtype::F32, 4),
        1 => (Dtype::F16, 2),
        30 => (Dtype::BF16, 2),
        other => {
            return Err(GgufError::new(format!(
                "tensor {:?} has ggml's type {other}, which is not read; these are: F32, F16, BF16, \
                 Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K",
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
    if changes.plus_one && dtype == Dtype::F32 {
        let gains = values(bytes.as_slice()).into_iter().flat_map(|g| (g - 1.0).to_le_bytes());
        bytes = Bytes::from_vec(gains.collect());
    }
    Ok(RawTensor { dtype, shape: entry.shape.clone(), bytes })
}

fn values(bytes: &[u8]) -> Vec<f32> {
    let value = |b: &[u8]| b.try_into().map_or(0.0, f32::from_le_bytes);
    bytes.chunks_exact(4).map(value).collect()
}

#[cfg(test)]
pub(crate) mod tests;
