//! Eviction of tokens from the KV cache: settings, and statistics of a model's queries in a file.

use crate::{Error, ModelSource, Result, identity};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::{
    collections::HashMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};
use taper_chat::Tokenizer;
use taper_engine::{
    Evict, EvictionConfig, observe_queries,
    triattention::{Complex, HeadStatistics},
};
use taper_models::Model;
use taper_tensor::gpu::Gpu;
use tempfile::NamedTempFile;

/// Which tokens stay when others are evicted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EvictBy {
    /// The first ones and the latest (StreamingLLM).
    Window,
    /// Those that later queries will look at most (TriAttention), by statistics of the model's queries.
    TriAttention(QueryText),
}

/// Where statistics of a model's queries come from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueryText {
    /// A file that [`calibrate`] has written.
    File(PathBuf),
    /// The model runs over the first `tokens` tokens of a text before it answers.
    Text {
        /// Any coherent text.
        text: String,
        /// How much of it.
        tokens: usize,
    },
}

/// Tokens that are evicted from the KV cache.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Eviction {
    /// Which stay.
    pub by: EvictBy,
    /// Tokens of a sequence that stay, at most.
    pub budget: u32,
    /// Tokens between two evictions.
    pub every: u32,
    /// First tokens that always stay.
    pub prefix: u32,
    /// Latest tokens that always stay.
    pub window: u32,
    /// Prompts stay whole, beside a budget for what follows them.
    pub keep_prompt: bool,
}

impl Eviction {
    /// A policy with TriAttention's numbers: a budget of 2048 tokens, an eviction every 128, and 128 protected ones
    /// at either end.
    #[must_use]
    pub fn new(by: EvictBy) -> Self {
        let EvictionConfig { budget, every, prefix, window, keep_prompt, .. } =
            EvictionConfig::new(Evict::Window);
        Self { by, budget, every, prefix, window, keep_prompt }
    }

    /// What an engine takes.
    pub(crate) fn resolve(
        &self,
        source: &ModelSource,
        model: &dyn Model,
        tokenizer: &Tokenizer,
        gpu: Option<&Gpu>,
    ) -> Result<EvictionConfig> {
        let policy = match &self.by {
            EvictBy::Window => Evict::Window,
            EvictBy::TriAttention(QueryText::File(path)) => {
                Evict::TriAttention(Arc::new(read(path, source, model)?))
            }
            EvictBy::TriAttention(QueryText::Text { text, tokens }) => {
                let mut ids = tokenizer.encode(text, true)?;
                ids.truncate((*tokens).min(model.info().max_positions));
                Evict::TriAttention(Arc::new(observe_queries(model, &ids, gpu, |_| true)?))
            }
        };
        let &Self { budget, every, prefix, window, keep_prompt, .. } = self;
        Ok(EvictionConfig { policy, budget, every, prefix, window, keep_prompt })
    }
}

/// What a file of statistics says that it is.
const FORMAT: &str = "taper-query-statistics-1";

/// What is wrong with a file of statistics.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatisticsError {
    /// No such file of ours.
    #[error("this is no file of query statistics; write one with `calibrate`")]
    Format,
    /// It is of other weights.
    #[error("these statistics are of another model's weights; calibrate this one")]
    OtherModel,
    /// Its tensors do not fit each other.
    #[error("the statistics are damaged: {what}")]
    Damaged {
        /// What is wrong.
        what: &'static str,
    },
    /// It is no safetensors file.
    #[error(transparent)]
    Safetensors(#[from] safetensors::SafeTensorError),
}

/// Runs a model over tokens of a text and writes what its queries are like to a file, for
/// [`QueryText::File`]. The file appears whole or not at all. `progress(done)` hears of tokens; `false` ends it.
///
/// # Errors
/// The model cannot be scored with such statistics, the text is too short or too long, or the file cannot be
/// written.
pub fn calibrate(
    source: &ModelSource,
    model: &dyn Model,
    tokens: &[u32],
    path: &Path,
    progress: impl FnMut(usize) -> bool,
) -> Result<()> {
    let layers = observe_queries(model, tokens, None, progress)?;
    let metadata = HashMap::from([
        ("format".to_owned(), FORMAT.to_owned()),
        ("weights_sha256".to_owned(), identity::weights(source)?),
        ("family".to_owned(), model.info().family.to_owned()),
        ("tokens".to_owned(), tokens.len().to_string()),
    ]);
    let bytes = encode(&layers, metadata).map_err(|source| at(path, source))?;
    let written = || {
        let mut file = new_beside(path)?;
        file.write_all(&bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    written().map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// A file that takes the place of one, which others may read as they may read what they make themselves.
fn new_beside(path: &Path) -> std::io::Result<NamedTempFile> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(dir.unwrap_or(Path::new(".")))
}

/// Whether [`calibrate`] will be able to write this file.
///
/// # Errors
/// It is a directory, or its own cannot be written.
pub fn can_write(path: &Path) -> Result<()> {
    let tried = match path.is_dir() {
        true => Err(std::io::Error::from(std::io::ErrorKind::IsADirectory)),
        false => new_beside(path).map(drop),
    };
    tried.map_err(|source| Error::Write { path: path.to_owned(), source })
}

fn at(path: &Path, source: impl Into<StatisticsError>) -> Error {
    Error::Statistics { path: path.to_owned(), source: source.into() }
}

fn encode(
    layers: &[Vec<HeadStatistics>],
    metadata: HashMap<String, String>,
) -> std::result::Result<Vec<u8>, safetensors::SafeTensorError> {
    let heads = layers.first().map_or(0, Vec::len);
    let bands = layers.iter().flatten().next().map_or(0, |head| head.modulus.len());
    let all = || layers.iter().flatten();
    let mean = all().flat_map(|head| &head.mean).flat_map(|x| [x.re, x.im]);
    let mean: Vec<u8> = mean.flat_map(f64::to_le_bytes).collect();
    let modulus = all().flat_map(|head| &head.modulus);
    let modulus: Vec<u8> = modulus.flat_map(|x| x.to_le_bytes()).collect();
    let shape = vec![layers.len(), heads, bands];
    let mean = TensorView::new(Dtype::F64, [&shape[..], &[2]].concat(), &mean)?;
    let modulus = TensorView::new(Dtype::F64, shape, &modulus)?;
    safetensors::serialize([("mean", mean), ("modulus", modulus)], Some(metadata))
}

/// Reads a model's statistics.
fn read(path: &Path, source: &ModelSource, model: &dyn Model) -> Result<Vec<Vec<HeadStatistics>>> {
    let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| at(path, e))?;
    let metadata = header.metadata().clone().unwrap_or_default();
    if metadata.get("format").map(String::as_str) != Some(FORMAT) {
        return Err(at(path, StatisticsError::Format));
    }
    let layers = decode(&bytes).map_err(|error| at(path, error))?;
    let info = model.info();
    let fits = layers.len() == info.layers
        && layers.iter().all(|heads| heads.len() == info.heads)
        && layers.iter().flatten().all(|head| 2 * head.modulus.len() == info.head_dim);
    // All weights are read for this, so what is cheap is looked at first.
    if !fits || metadata.get("weights_sha256") != Some(&identity::weights(source)?) {
        return Err(at(path, StatisticsError::OtherModel));
    }
    Ok(layers)
}

fn decode(bytes: &[u8]) -> std::result::Result<Vec<Vec<HeadStatistics>>, StatisticsError> {
    let damaged = |what| StatisticsError::Damaged { what };
    let file = SafeTensors::deserialize(bytes)?;
    let (mean, modulus) = (file.tensor("mean")?, file.tensor("modulus")?);
    let &[layers, heads, bands] = modulus.shape() else { return Err(damaged("modulus")) };
    let shape = [layers, heads, bands, 2];
    if mean.shape() != shape || [mean.dtype(), modulus.dtype()] != [Dtype::F64; 2] {
        return Err(damaged("mean and modulus are of different heads"));
    }
    if shape.contains(&0) {
        return Err(damaged("it is empty"));
    }
    let floats = |view: &TensorView<'_>| -> Vec<f64> {
        view.data().as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect()
    };
    let (mean, modulus) = (floats(&mean), floats(&modulus));
    if mean.iter().chain(&modulus).any(|x| !x.is_finite()) {
        return Err(damaged("a number is not finite"));
    }
    let head = |(mean, modulus): (&[f64], &[f64])| HeadStatistics {
        mean: mean.as_chunks::<2>().0.iter().map(|&[re, im]| Complex { re, im }).collect(),
        modulus: modulus.to_vec(),
    };
    let all = mean.chunks_exact(2 * bands).zip(modulus.chunks_exact(bands)).map(head);
    let all: Vec<_> = all.collect();
    Ok(all.chunks_exact(heads).map(<[HeadStatistics]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_models::LoadOptions;

    fn fixture(name: &str) -> (ModelSource, Box<dyn Model>) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity");
        let source = ModelSource::Dir(dir.join(name));
        let weights = source.checkpoint().unwrap();
        (source, taper_models::load(&weights, LoadOptions::default()).unwrap())
    }

    #[test]
    fn statistics_come_back_and_only_for_their_model() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats.safetensors");
        let (source, model) = fixture("qwen3-bf16");
        let tokens: Vec<u32> = (0..300).map(|i| i * 7 % 300).collect();
        calibrate(&source, &*model, &tokens, &path, |_| true).unwrap();
        let own = observe_queries(&*model, &tokens, None, |_| true).unwrap();
        assert_eq!(read(&path, &source, &*model).unwrap(), own);
        // The shape of the first, and other weights.
        for other in ["qwen3-mlx-8bit-g32", "llama-tied"] {
            let (source, model) = fixture(other);
            let error = read(&path, &source, &*model).unwrap_err();
            let wrong = StatisticsError::OtherModel.to_string();
            assert!(error.to_string().contains(&wrong), "{other}: {error}");
        }
        let bytes = fs::read(&path).unwrap();
        let reads = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            read(&path, &source, &*model).unwrap_err()
        };
        let cut = reads(&bytes[..bytes.len() / 2]);
        assert!(matches!(cut, Error::Statistics { .. }), "{cut}");
        assert!(matches!(reads(b"no"), Error::Statistics { .. }));
        let mut nan = bytes.clone();
        let end = nan.len();
        nan[end - 8..].copy_from_slice(&f64::NAN.to_le_bytes());
        assert!(reads(&nan).to_string().contains("not finite"));
        let plain = encode(&own, HashMap::new()).unwrap();
        assert!(reads(&plain).to_string().contains("no file of query statistics"));
        let gone = read(&dir.path().join("none"), &source, &*model).unwrap_err();
        assert!(matches!(gone, Error::Read { .. }), "{gone}");
    }

    #[test]
    fn what_is_interrupted_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let (source, model) = fixture("qwen3-bf16");
        let path = dir.path().join("stats.safetensors");
        let stopped = calibrate(&source, &*model, &[5; 300], &path, |done| done < 256);
        assert!(stopped.is_err() && fs::read_dir(dir.path()).unwrap().next().is_none());
        let nowhere = dir.path().join("none/stats.safetensors");
        let error = calibrate(&source, &*model, &[5; 30], &nowhere, |_| true).unwrap_err();
        assert!(matches!(error, Error::Write { .. }), "{error}");
    }
}
