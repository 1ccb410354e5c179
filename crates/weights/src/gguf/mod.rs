//! GGUF, llama.cpp's format: one file with weights, configuration, tokenizer and chat template.
//!
//! A file becomes what Hugging Face's files would be: tensors by their names there, config.json,
//! tokenizer.json, tokenizer_config.json. So nothing else has to know of it.

mod architectures;
pub(crate) mod blocks;
mod config;
mod error;
mod file;
pub(crate) mod names;
mod tables;
mod tiles;
mod tokenizer;
pub(crate) mod write;

use crate::{
    Checkpoint, WeightsError,
    shard::{self, RawTensor},
};
use architectures::Architecture;
use blocks::{BlockType, GROUP};
use config::Seen;
pub use error::GgufError;
use file::{Entry, Header, Keys, Meta};
use half::{bf16, f16};
use names::{Changes, Sizes};
use safetensors::Dtype;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
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
        let (shape, changes) = ((rows, cols), self.changes);
        match tables::read(self.kind, shape, &self.bytes, changes)? {
            Some(weight) => Ok(Weight::Table(weight)),
            None => blocks::repack(self.kind, shape, &self.bytes, changes).map(Weight::Affine),
        }
    }

    /// Whether rows and columns are where the file has them.
    pub(crate) fn is_as_in_file(&self) -> bool {
        self.changes == Changes::default()
    }

    /// Some rows of [`Self::weight`], where [`Self::is_as_in_file`].
    pub(crate) fn rows(
        &self,
        first: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Weight, TensorError> {
        let (weights, bytes) = self.kind.block();
        let row = cols / weights * bytes;
        let own =
            first.checked_mul(row).zip(first.checked_add(rows).and_then(|n| n.checked_mul(row)));
        let own = own.and_then(|(start, end)| self.bytes.slice(start..end));
        let limit = self.bytes.len() / row.max(1) + 1;
        let missing = TensorError::Index { op: "rows", index: first.saturating_add(rows), limit };
        let bytes = own.ok_or(missing)?;
        Self { shape: vec![rows, cols], bytes, ..self.clone() }.weight(rows, cols)
    }

    /// The affine codes of [`Self::weight`], or what it becomes as such.
    pub(crate) fn parts(&self, rows: usize, cols: usize) -> Result<AffineParts, TensorError> {
        blocks::parts(self.kind, (rows, cols), &self.bytes, self.changes)
    }

    /// The values of the rows of `cols` that fill `out`, as ggml has them.
    pub(crate) fn read_rows(&self, first: usize, cols: usize, out: &mut [f32]) {
        let (weights, bytes) = self.kind.block();
        let row = cols / weights * bytes;
        let mut rows: Vec<_> = out.chunks_exact_mut(cols.max(1)).collect();
        pool::for_each(&mut rows, |r, out| {
            let at = self.changes.source(first + r) * row;
            let blocks = self.bytes.as_slice().get(at..at + row).unwrap_or_default();
            if self.changes.columns.is_none() {
                return self.kind.decode(blocks, out);
            }
            let mut own = vec![0.0; cols];
            self.kind.decode(blocks, &mut own);
            for (g, own) in own.chunks_exact(GROUP).enumerate() {
                let at = self.changes.group(g, GROUP) * GROUP;
                if let Some(out) = out.get_mut(at..at + GROUP) {
                    out.copy_from_slice(own);
                }
            }
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
    /// Architectures that are read, and the `model_type` that most of each's files become.
    pub fn architectures() -> impl Iterator<Item = (&'static str, &'static str)> {
        architectures::ALL.iter().map(|own| (own.name, own.model_type))
    }

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
            let architecture = architectures::find(keys.architecture)?;
            let mut seen = self.seen()?;
            let layers = config::layers(keys)?;
            let sizes = Sizes::of(keys, architecture, config::head_dim(keys)?)?;
            let (mut plain, mut blocks) = (HashMap::new(), HashMap::new());
            let mut taken = HashMap::new();
            for (entry, bytes) in &self.tensors {
                if drafts(&entry.name, layers) {
                    continue;
                }
                let name = names::of(architecture, &entry.name);
                let place = name.clone().unwrap_or_else(|| entry.name.clone());
                if let Some(other) = taken.insert(place, &entry.name) {
                    return Err(twice(other, &entry.name));
                }
                let Some(name) = name else {
                    self.divisors(entry, bytes, &mut seen)?;
                    continue;
                };
                let changes = changes(architecture, entry, sizes)?;
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
        let part = |name: &str| {
            let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
            let (part, _) = rest.split_once('.').unwrap_or((rest, ""));
            Some(format!("{layer}.{part}"))
        };
        let parts: BTreeSet<_> = self.tensors.iter().filter_map(|(e, _)| part(&e.name)).collect();
        Ok(Seen {
            vocab: vocab.ok_or_else(missing)?,
            tied: find("output.weight").is_none(),
            // Qwen 2 has biases of queries, keys and values alone, and needs no setting for that.
            attention_bias: find("blk.0.attn_output.bias").is_some(),
            query_bias: find("blk.0.attn_q.bias").is_some(),
            mlp_bias: find("blk.0.ffn_gate.bias").is_some(),
            up_bias: find("blk.0.ffn_up.bias").is_some(),
            query_norm: find("blk.0.attn_q_norm.weight").is_some(),
            choice_bias: self.tensors.iter().any(|(e, _)| e.name.contains(".exp_probs_b")),
            keys_are_values: parts.iter().any(|name| {
                let layer = name.strip_suffix(".attn_k");
                layer.is_some_and(|layer| !parts.contains(&format!("{layer}.attn_v")))
            }),
            inner: self.tensors.iter().find_map(|(e, _)| {
                e.name.ends_with(".ffn_up.weight").then(|| e.shape.first().copied())?
            }),
            parts,
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

/// Whether a tensor is of a layer that only drafts, after the model's own.
fn drafts(name: &str, layers: u64) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
    layer.is_some_and(|layer: u64| layer >= layers)
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

/// What the converter changed in a tensor; its rows and columns must be those of whole heads.
fn changes(own: &Architecture, entry: &Entry, sizes: Sizes) -> Result<Changes, GgufError> {
    let changes = names::changes(own, &entry.name, sizes);
    let (name, shape) = (&entry.name, &entry.shape);
    let rows = shape.first().copied().unwrap_or(0);
    let cols = shape.last().copied().unwrap_or(0);
    let head = sizes.head;
    if changes.neighbours.is_some_and(|h| h % 2 != 0 || !rows.is_multiple_of(h)) {
        let what = format!("tensor {name:?} of shape {shape:?} has no heads of {head}");
        return Err(GgufError::damaged(what));
    }
    let differs = |tiles: Option<tiles::Tiles>, n| tiles.is_some_and(|tiles| tiles.rows() != n);
    if differs(changes.rows, rows) || differs(changes.columns, cols) {
        let what = format!("tensor {name:?} of shape {shape:?} has not the heads of the metadata");
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
    let parted = changes.columns.is_some_and(|tiles| !tiles.divides(GROUP));
    if entry.shape.len() < 2 || changes.changes_values() || changes.channels || parted {
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
    if changes.neighbours.is_some() || changes.rows.is_some() {
        let rows = entry.shape.first().copied().unwrap_or(0);
        bytes = moved(&bytes, bytes.len() / rows.max(1), |r| changes.source(r));
    }
    if let Some(tiles) = changes.columns {
        let cols = entry.shape.last().copied().unwrap_or(1).max(1);
        bytes = moved(&bytes, size, |i| i / cols * cols + tiles.source(i % cols));
    }
    let mut shape = entry.shape.clone();
    if changes.channels && shape.len() == 2 {
        shape.insert(1, 1);
    }
    if changes.one_row && shape.len() == 1 {
        shape.insert(0, 1);
    }
    let raw = RawTensor { dtype, shape, bytes };
    if !changes.changes_values() {
        return Ok(raw);
    }
    // In f32, which holds the difference whatever the file's type is.
    let own = |x: f32| if changes.decays { (-x).ln() } else { x - 1.0 };
    let all = values(&raw).into_iter().flat_map(|x| own(x).to_le_bytes());
    Ok(RawTensor { dtype: Dtype::F32, bytes: Bytes::from_vec(all.collect()), ..raw })
}

/// Pieces of `size` bytes in the order of `source`.
fn moved(bytes: &Bytes, size: usize, source: impl Fn(usize) -> usize) -> Bytes {
    let order = (0..bytes.len() / size.max(1)).map(|i| source(i) * size);
    let pieces = order.flat_map(|at| bytes.as_slice().get(at..at + size).unwrap_or_default());
    Bytes::from_vec(pieces.copied().collect())
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
