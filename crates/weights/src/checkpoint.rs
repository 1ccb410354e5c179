//! A directory of weights, and the layers made of them.

use crate::{
    Quantization, WeightsError, formats,
    gguf::BlockTensor,
    json,
    shard::{self, RawTensor},
};
use safetensors::Dtype;
use serde_json::{Map, Value};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use taper_tensor::{
    AffineWeight, ByteOwner, Bytes, DType, DenseWeight, Embedding, Linear, Weight,
    cpu::maps::{Observer, Watch},
};

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// A model's configuration and tensors. Cheap until weights are used.
#[derive(Debug)]
pub struct Checkpoint {
    config: Value,
    quantization: Quantization,
    tensors: HashMap<String, RawTensor>,
    /// Matrices of a GGUF file, which are repacked when they are asked for.
    blocks: HashMap<String, BlockTensor>,
    used: Mutex<HashSet<String>>,
    /// Who is shown what maps read.
    observer: Option<Arc<dyn Observer>>,
}

/// A tensor's name, type, shape and size, for listings.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// Name of the tensor in the file.
    pub name: String,
    /// Element type in safetensors' spelling.
    pub dtype: String,
    /// Dimensions of the tensor.
    pub shape: Vec<usize>,
    /// Bytes of the tensor in the file.
    pub bytes: u64,
}

impl Checkpoint {
    /// Opens a model directory: reads `config.json` and every shard's header.
    ///
    /// # Errors
    /// A file is missing, damaged or truncated, or the quantization is not supported.
    pub fn open(dir: &Path) -> Result<Self, WeightsError> {
        let config = read_object(&dir.join("config.json"))?.into();
        let mut tensors = HashMap::new();
        // As in transformers: beside a single file an index is left over and names other files.
        if dir.join(SINGLE).is_file() {
            tensors.extend(shard::open(&dir.join(SINGLE))?);
        } else if dir.join(INDEX).is_file() {
            let mut unlisted = Vec::new();
            for (path, names) in sharded(dir)? {
                let mut found: HashMap<_, _> = shard::open(&path)?.into_iter().collect();
                for name in names {
                    let Some(raw) = found.remove(&name) else {
                        return Err(WeightsError::NotInShard { name, path });
                    };
                    tensors.insert(name, raw);
                }
                unlisted.extend(found);
            }
            // Where two shards hold a tensor, the index says which one counts.
            for (name, raw) in unlisted {
                tensors.entry(name).or_insert(raw);
            }
        } else {
            return Err(WeightsError::NoWeights { dir: dir.to_owned() });
        }
        Self::new(config, tensors, HashMap::new())
    }

    /// A checkpoint that is in memory: `config.json` and one safetensors file.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_static(config: &[u8], weights: &'static [u8]) -> Result<Self, WeightsError> {
        let config_path = PathBuf::from("config.json");
        let config = parse_object(config_path, config)?.into();
        let owner: Arc<dyn ByteOwner> = Arc::new(weights);
        let tensors = shard::list(&owner, Path::new(SINGLE))?;
        Self::new(config, tensors.into_iter().collect(), HashMap::new())
    }

    pub(crate) fn new(
        config: Value,
        tensors: HashMap<String, RawTensor>,
        blocks: HashMap<String, BlockTensor>,
    ) -> Result<Self, WeightsError> {
        let quantization = Quantization::from_config(&config)?;
        let (used, observer) = (Mutex::default(), None);
        Ok(Self { config, quantization, tensors, blocks, used, observer })
    }

    /// The checkpoint once more, of which no tensor was asked for yet.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            config: self.config.clone(),
            quantization: self.quantization.clone(),
            tensors: self.tensors.clone(),
            blocks: self.blocks.clone(),
            used: Mutex::default(),
            observer: self.observer.clone(),
        }
    }

    /// The checkpoint with somebody who is shown what the maps of it read that are tensors, or parts of them.
    #[must_use]
    pub fn watched_by(&self, observer: Arc<dyn Observer>) -> Self {
        Self { observer: Some(observer), ..self.copy() }
    }

    /// The checkpoint with other values of some tensors, whatever they are stored as.
    ///
    /// # Errors
    /// A tensor that is not there.
    pub fn with_values(
        &self,
        values: impl IntoIterator<Item = (String, Vec<f32>)>,
    ) -> Result<Self, WeightsError> {
        let coded = formats::coded_shapes(self)?;
        let mut all = self.copy();
        for (name, values) in values {
            let shape = match (self.tensors.get(&name), self.blocks.get(&name)) {
                _ if coded.contains_key(&name) => coded.get(&name),
                (Some(raw), _) => Some(&raw.shape),
                (_, Some(blocks)) => Some(&blocks.shape),
                _ => None,
            };
            let missing = || WeightsError::MissingTensor { name: name.clone() };
            let shape = shape.ok_or_else(missing)?.clone();
            let prefix = name.strip_suffix(".weight").unwrap_or(&name);
            for part in ["scales", "qweight", "weight_packed"] {
                all.tensors.remove(&format!("{prefix}.{part}"));
            }
            all.blocks.remove(&name);
            let bytes = Bytes::from_vec(values.iter().flat_map(|x| x.to_le_bytes()).collect());
            all.tensors.insert(name, RawTensor { dtype: Dtype::F32, shape, bytes });
        }
        Ok(all)
    }

    /// A map whose inputs are shown to who wants to see them.
    pub(crate) fn shown(
        &self,
        linear: Linear,
        name: &str,
        index: usize,
    ) -> Result<Linear, WeightsError> {
        let Some(observer) = &self.observer else { return Ok(linear) };
        let watch = Watch { tensor: name.into(), index, observer: observer.clone() };
        let wrap = |source| WeightsError::Tensor { name: name.to_owned(), source };
        linear.watched(watch).map_err(wrap)
    }

    /// Contents of `config.json`.
    #[must_use]
    pub fn config(&self) -> &Value {
        &self.config
    }

    pub(crate) fn observer(&self) -> Option<&Arc<dyn Observer>> {
        self.observer.as_ref()
    }

    pub(crate) fn tensors(&self) -> &HashMap<String, RawTensor> {
        &self.tensors
    }

    pub(crate) fn blocks(&self) -> &HashMap<String, BlockTensor> {
        &self.blocks
    }

    /// The quantization section of `config.json`.
    #[must_use]
    pub fn quantization(&self) -> &Quantization {
        &self.quantization
    }

    /// Whether a tensor is there, as floats or in any quantized form.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name) || self.blocks.contains_key(name) || self.has_coded(name)
    }

    /// Every tensor, by name.
    #[must_use]
    pub fn list(&self) -> Vec<TensorInfo> {
        let info = |name: &String, dtype: String, shape: &[usize], bytes: &Bytes| TensorInfo {
            name: name.clone(),
            dtype,
            shape: shape.to_vec(),
            bytes: bytes.len() as u64,
        };
        let plain = self.tensors.iter();
        let plain = plain.map(|(n, t)| info(n, format!("{:?}", t.dtype), &t.shape, &t.bytes));
        let blocks = self.blocks.iter();
        let blocks = blocks.map(|(n, t)| info(n, format!("{:?}", t.kind), &t.shape, &t.bytes));
        let mut all: Vec<_> = plain.chain(blocks).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    fn stored(&self) -> impl Iterator<Item = (&String, &Bytes)> {
        let plain = self.tensors.iter().map(|(name, t)| (name, &t.bytes));
        plain.chain(self.blocks.iter().map(|(name, t)| (name, &t.bytes)))
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.stored().map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Bytes of the tensors that were asked for so far: how far loading has come.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let used = self.stored().filter(|(name, _)| used.contains(*name));
        used.map(|(_, bytes)| bytes.len() as u64).sum()
    }

    /// Reads one byte of every page of every tensor, so that later reads find them in memory.
    /// `progress` gets the bytes of each chunk.
    pub fn page_in(&self, mut progress: impl FnMut(u64)) {
        const PAGE: usize = 4096;
        const PIECE: usize = 4 << 20;
        for (_, bytes) in self.stored() {
            for piece in bytes.as_slice().chunks(PIECE) {
                std::hint::black_box(piece.iter().step_by(PAGE).fold(0u8, |sum, b| sum ^ b));
                progress(piece.len() as u64);
            }
        }
    }

    /// The raw bytes, type and shape of a tensor.
    ///
    /// # Errors
    /// It is missing, or its type is none of F32, F16, BF16.
    pub fn floats(&self, name: &str) -> Result<(DType, &[usize], Bytes), WeightsError> {
        let raw = self.raw(name)?;
        Ok((float_type(name, raw.dtype)?, &raw.shape, raw.bytes.clone()))
    }

    /// A vector of `n` floats, such as a norm's weight.
    ///
    /// # Errors
    /// It is missing or of another shape or type.
    pub fn vector(&self, name: &str, n: usize) -> Result<Vec<f32>, WeightsError> {
        self.array(name, &[n])
    }

    /// The floats of a small tensor of this shape.
    ///
    /// # Errors
    /// It is missing or of another shape or type.
    pub fn array(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let (dtype, got, bytes) = self.floats(name)?;
        expect_shape(name, got, shape)?;
        let n = got.iter().product();
        let wrap = |source| WeightsError::Tensor { name: name.into(), source };
        let row = DenseWeight::new((1, n), dtype, bytes).map_err(wrap)?;
        let mut out = vec![0.0; n];
        taper_tensor::cpu::RowSource::read_rows(&row, 0, &mut out);
        Ok(out)
    }

    /// The matrix `prefix.weight`, dense or quantized, of `rows` outputs and `cols` inputs.
    ///
    /// # Errors
    /// A tensor is missing or of another shape or type.
    pub fn weight(&self, prefix: &str, rows: usize, cols: usize) -> Result<Weight, WeightsError> {
        self.matrix(prefix, &[rows], cols)
    }

    /// The matrix of all rows, which the files may count in several dimensions.
    pub(crate) fn matrix(
        &self,
        prefix: &str,
        rows: &[usize],
        cols: usize,
    ) -> Result<Weight, WeightsError> {
        let name = format!("{prefix}.weight");
        if let Some(blocks) = self.blocks.get(&name) {
            self.use_tensor(&name);
            return stored_blocks(name, blocks, rows, cols);
        }
        if let Some(weight) = self.coded(prefix, rows, cols)? {
            return Ok(weight);
        }
        if self.has(&format!("{prefix}.scales")) {
            return self.affine(prefix, &name, rows, cols).map(Weight::Affine);
        }
        let (dtype, shape, bytes) = self.floats(&name)?;
        expect_shape(&name, shape, &[rows, &[cols]].concat())?;
        let weight = DenseWeight::new((rows.iter().product(), cols), dtype, bytes);
        weight.map(Weight::Dense).map_err(|source| WeightsError::Tensor { name, source })
    }

    fn affine(
        &self,
        prefix: &str,
        name: &str,
        rows: &[usize],
        cols: usize,
    ) -> Result<AffineWeight, WeightsError> {
        let format = self.quantization.format(prefix).ok_or(WeightsError::BadQuantization {
            layer: prefix.to_owned(),
            reason: "has scales, and config.json has no \"quantization\"",
        })?;
        let wrap = |source| WeightsError::Tensor { name: name.to_owned(), source };
        format.check(cols).map_err(wrap)?;
        let raw = self.raw(name)?;
        if raw.dtype != Dtype::U32 {
            let (expected, got) = ("U32", format!("{:?}", raw.dtype));
            return Err(WeightsError::DType { name: name.to_owned(), expected, got });
        }
        expect_shape(name, &raw.shape, &[rows, &[format.row_bytes(cols) / 4]].concat())?;
        let groups = |suffix: &str| {
            let name = format!("{prefix}.{suffix}");
            let (dtype, shape, bytes) = self.floats(&name)?;
            expect_shape(&name, shape, &[rows, &[cols / format.group]].concat())?;
            Ok((dtype, bytes))
        };
        let (scales, biases) = (groups("scales")?, groups("biases")?);
        let shape = (rows.iter().product(), cols);
        AffineWeight::new(format, shape, raw.bytes.clone(), scales, biases).map_err(wrap)
    }

    /// `prefix.weight` with `prefix.bias` when `bias` says that the architecture has one.
    ///
    /// # Errors
    /// As [`Self::weight`].
    pub fn linear(
        &self,
        prefix: &str,
        in_features: usize,
        out_features: usize,
        bias: bool,
    ) -> Result<Linear, WeightsError> {
        let linear = Linear::new(self.weight(prefix, out_features, in_features)?);
        let linear = self.shown(linear, &format!("{prefix}.weight"), 0)?;
        if !bias {
            return Ok(linear);
        }
        let name = format!("{prefix}.bias");
        let (dtype, shape, bytes) = self.floats(&name)?;
        expect_shape(&name, shape, &[out_features])?;
        linear.with_bias(dtype, bytes).map_err(|source| WeightsError::Tensor { name, source })
    }

    /// The token table `prefix.weight`.
    ///
    /// # Errors
    /// As [`Self::weight`].
    pub fn embedding(
        &self,
        prefix: &str,
        vocab: usize,
        hidden: usize,
    ) -> Result<Embedding, WeightsError> {
        Ok(Embedding::new(self.weight(prefix, vocab, hidden)?))
    }

    /// Fails when tensors were never asked for: an architecture that skips weights computes wrong
    /// outputs and says nothing. `known(name)` tells of tensors that may be skipped.
    ///
    /// # Errors
    /// [`WeightsError::UnusedTensors`].
    pub fn expect_all_used(&self, known: impl Fn(&str) -> bool) -> Result<(), WeightsError> {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let others = self.stored().filter(|(name, bytes)| !is_of_caches(name, bytes));
        let names = others.map(|(name, _)| name);
        let names = names.filter(|n| !used.contains(*n) && !known(n));
        let unused: BTreeSet<_> = names.collect();
        match unused.first() {
            None => Ok(()),
            Some(&first) => {
                Err(WeightsError::UnusedTensors { count: unused.len(), example: first.clone() })
            }
        }
    }

    pub(crate) fn raw(&self, name: &str) -> Result<&RawTensor, WeightsError> {
        let missing = || WeightsError::MissingTensor { name: name.to_owned() };
        let raw = self.tensors.get(name).ok_or_else(missing)?;
        self.use_tensor(name);
        Ok(raw)
    }

    pub(crate) fn use_tensor(&self, name: &str) {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }
}

/// Whether a tensor is a single scale for keys or values that a cache would hold in 8 bits; caches have their own.
pub(crate) fn is_of_caches(name: &str, bytes: &Bytes) -> bool {
    let named = [".k_scale", ".v_scale", ".q_scale"].iter().any(|scale| name.ends_with(scale));
    named && bytes.len() <= size_of::<f32>()
}

fn stored_blocks(
    name: String,
    blocks: &BlockTensor,
    rows: &[usize],
    cols: usize,
) -> Result<Weight, WeightsError> {
    expect_shape(&name, &blocks.shape, &[rows, &[cols]].concat())?;
    let weight = blocks.weight(rows.iter().product(), cols);
    // The pages of the file are not needed again.
    blocks.bytes.release();
    weight.map_err(|source| WeightsError::Tensor { name, source })
}

/// Shards of an index, with the tensors each must hold.
fn sharded(dir: &Path) -> Result<BTreeMap<PathBuf, Vec<String>>, WeightsError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let path = dir.join(INDEX);
    let text = fs::read(&path).map_err(|source| WeightsError::Io { path: path.clone(), source })?;
    let index: Index = serde_json::from_slice(&text)
        .map_err(|source| WeightsError::Json { path: path.clone(), source })?;
    let mut shards = BTreeMap::<PathBuf, Vec<String>>::new();
    for (name, file) in index.weight_map {
        // A shard is a file beside its index; anything else would read outside the model.
        let plain = Path::new(&file).file_name().is_some_and(|f| f == file.as_str());
        let shard = dir.join(&file);
        if !plain {
            return Err(WeightsError::ShardOutside { index: path, file });
        }
        if !shard.is_file() {
            return Err(WeightsError::MissingShard { path: shard });
        }
        shards.entry(shard).or_default().push(name);
    }
    Ok(shards)
}

/// A JSON file that must hold an object.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>, WeightsError> {
    let io = |source: io::Error| WeightsError::Io { path: path.to_owned(), source };
    parse_object(path.to_owned(), &fs::read(path).map_err(io)?)
}

fn parse_object(path: PathBuf, text: &[u8]) -> Result<Map<String, Value>, WeightsError> {
    // The error of the text as it is says where it is wrong.
    serde_json::from_slice(text).or_else(|source| {
        serde_json::from_slice(&json::with_sections(text))
            .map_err(|_| WeightsError::Json { path, source })
    })
}

pub(crate) fn float_type(name: &str, dtype: Dtype) -> Result<DType, WeightsError> {
    match dtype {
        Dtype::F32 => Ok(DType::F32),
        Dtype::F16 => Ok(DType::F16),
        Dtype::BF16 => Ok(DType::BF16),
        other => Err(WeightsError::DType {
            name: name.to_owned(),
            expected: "F32, F16 or BF16",
            got: format!("{other:?}"),
        }),
    }
}

pub(crate) fn expect_shape(
    name: &str,
    got: &[usize],
    expected: &[usize],
) -> Result<(), WeightsError> {
    if got == expected {
        return Ok(());
    }
    let (expected, got) = (expected.to_vec(), got.to_vec());
    Err(WeightsError::Shape { name: name.to_owned(), expected, got })
}
