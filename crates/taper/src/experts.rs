//! Experts that stay on disk.

use crate::{Error, ModelSource, Result};
use std::path::{Path, PathBuf};
use taper_models::{ExpertMemory, ExpertStreaming, Manifest, PackReport, pack_experts};

/// Where a pack is looked for in a model's directory.
const BESIDE: &str = "experts";

/// How experts are streamed from disk.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let experts = taper::Experts::default().memory(6 << 30).pack("packs/Qwen3-30B-A3B");
/// let model = taper::Taper::builder("Qwen/Qwen3-30B-A3B").stream_experts(experts).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Experts {
    pack: Option<PathBuf>,
    memory: Option<u64>,
    prefetch: Option<usize>,
}

impl Experts {
    /// A pack that [`pack`] has written [`experts` in the model's directory, and without it the checkpoint itself,
    /// whose experts are then repacked each time].
    #[must_use]
    pub fn pack(self, dir: impl Into<PathBuf>) -> Self {
        Self { pack: Some(dir.into()), ..self }
    }

    /// Bytes of memory for experts [three quarters of what the other weights leave of the model's share].
    #[must_use]
    pub fn memory(self, bytes: u64) -> Self {
        Self { memory: Some(bytes), ..self }
    }

    /// Experts of the next layer that are read ahead while the disk is idle [4].
    #[must_use]
    pub fn prefetch(self, experts: usize) -> Self {
        Self { prefetch: Some(experts), ..self }
    }

    /// The pack that a model's experts are read from; `None` where they are read from its checkpoint.
    #[must_use]
    pub fn pack_of(&self, source: &ModelSource) -> Option<PathBuf> {
        let beside = || source.dir().map(|dir| dir.join(BESIDE)).filter(|dir| Manifest::is_in(dir));
        self.pack.clone().or_else(beside)
    }

    /// What the model is loaded with where it may take so many bytes with its KV cache.
    ///
    /// # Errors
    /// The model's directory cannot be read.
    pub fn streaming(&self, source: &ModelSource, allowed: u64) -> Result<ExpertStreaming> {
        let memory = self.memory.map_or(ExpertMemory::Within(allowed), ExpertMemory::Bytes);
        let mut streaming = ExpertStreaming::new(memory);
        streaming.pack = self.pack_of(source);
        streaming.files = files(source)?;
        if let Some(prefetch) = self.prefetch {
            streaming.prefetch = prefetch;
        }
        Ok(streaming)
    }
}

/// Writes a pack of a model's experts into a directory, for [`Experts::pack`]. `progress(done, total)` counts bytes.
/// Where the directory has a part of it, the rest is written.
///
/// # Errors
/// The model cannot be read or has no experts, or the pack cannot be written.
pub fn pack(
    source: &ModelSource,
    out: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<PackReport> {
    let weights = source.checkpoint()?;
    let files = files(source)?;
    let packed = pack_experts(&weights, out, &files, progress);
    packed.map_err(|e| Error::Model { model: source.to_string(), source: e })
}

/// The files of a model's weights.
fn files(source: &ModelSource) -> Result<Vec<PathBuf>> {
    if let ModelSource::Gguf { file, .. } = source {
        return Ok(file.paths().to_vec());
    }
    let Some(dir) = source.dir() else { return Ok(Vec::new()) };
    let read = |source| Error::Read { path: dir.to_owned(), source };
    let mut files = Vec::new();
    for entry in dir.read_dir().map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
