//! Experts that stay on a disk and are in memory only while they are used.

mod disk;
mod pack;
mod record;

pub use pack::{PackReport, pack_experts};

use crate::{LoadOptions, ModelError, Precision, experts::ExpertSource, feed_forward::Dense};
use disk::CheckpointDisk;
use record::{Shape, Shapes};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use taper_base::ExpertStats;
use taper_moe_streaming::{
    ExpertDisk, ExpertError, ExpertStore, Fetch, HEADER_BYTES, Limits, PackFiles, Policy,
    StoreConfig, Trace, Uses,
};
use taper_tensor::{AlignedBytes, Linear};
use taper_weights::Checkpoint;

pub(crate) use taper_moe_streaming::Wanted;

/// Memory for experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertMemory {
    /// So many bytes.
    Bytes(u64),
    /// Of so many bytes for the model and its KV cache, three quarters of what the other weights leave.
    Within(u64),
}

/// How experts are streamed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExpertStreaming {
    /// A pack of this model's experts; without one they are read from the checkpoint and repacked, each time.
    pub pack: Option<PathBuf>,
    /// The model's files, which the pack must be made of; where there are none, a record of each layer alone is
    /// compared.
    pub files: Vec<PathBuf>,
    /// Memory for experts.
    pub memory: ExpertMemory,
    /// Threads that read.
    pub readers: usize,
    /// Experts of the next layer that are read ahead while the disk is idle; 0 reads none.
    pub prefetch: usize,
    /// Whether every record is compared with its checksum.
    pub checksums: bool,
    /// Which expert leaves when room is needed.
    pub policy: Policy,
    /// Whether the pack's directory keeps which experts are used most, and the next run begins with them.
    pub remembers: bool,
}

impl ExpertStreaming {
    /// Streaming with so much memory: four threads, four experts ahead, checksums.
    #[must_use]
    pub fn new(memory: ExpertMemory) -> Self {
        let policy = Policy::default();
        let (pack, files) = (None, Vec::new());
        let (checksums, remembers) = (true, true);
        Self { pack, files, memory, readers: 4, prefetch: 4, checksums, policy, remembers }
    }

    /// Has so much memory.
    #[must_use]
    pub fn memory(self, memory: ExpertMemory) -> Self {
        Self { memory, ..self }
    }

    /// Reads from the pack of a directory.
    #[must_use]
    pub fn pack(self, dir: impl Into<PathBuf>) -> Self {
        Self { pack: Some(dir.into()), ..self }
    }
}

/// A layer's experts, and what chooses among them.
#[derive(Debug)]
pub(crate) struct LayerOfExperts {
    /// What the checkpoint calls the block.
    pub(crate) name: String,
    pub(crate) source: ExpertSource,
    /// Experts that a token goes through.
    pub(crate) chosen: usize,
    pub(crate) router: Linear,
}

/// Layers with experts, while a model is loaded.
#[derive(Debug)]
pub(crate) struct Streams {
    weights: Arc<Checkpoint>,
    layers: Mutex<Vec<(LayerOfExperts, Shape)>>,
    shared: Arc<Streaming>,
}

/// Experts of a model that is loaded.
#[derive(Debug, Default)]
pub(crate) struct Streaming {
    /// Set once all layers are there.
    loaded: OnceLock<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    store: ExpertStore<Dense>,
    routers: Vec<Linear>,
    /// Where uses are kept from run to run.
    uses: Option<PathBuf>,
    /// Experts that a token goes through, over all layers.
    active: u64,
    saved: AtomicU64,
}

/// A layer whose experts are streamed.
#[derive(Debug)]
pub(crate) struct StreamedLayer {
    number: u32,
    parameters: u64,
    shared: Arc<Streaming>,
}

impl Streams {
    pub(crate) fn new(weights: &Checkpoint) -> Self {
        let (weights, shared) = (Arc::new(weights.copy()), Arc::default());
        Self { weights, layers: Mutex::default(), shared }
    }

    /// The checkpoint, for as long as experts are read from it.
    pub(crate) fn weights(&self) -> Arc<Checkpoint> {
        Arc::clone(&self.weights)
    }

    /// The next layer.
    pub(crate) fn add(&self, layer: LayerOfExperts) -> Result<StreamedLayer, ModelError> {
        let shape = Shape::of(&layer.source)?;
        let experts = layer.source.experts() as u64;
        let parameters = experts * shape.parameters();
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        let number = layers.len() as u32;
        layers.push((layer, shape));
        Ok(StreamedLayer { number, parameters, shared: Arc::clone(&self.shared) })
    }

    fn into_layers(self) -> (Vec<(LayerOfExperts, Shape)>, Arc<Streaming>) {
        (self.layers.into_inner().unwrap_or_else(PoisonError::into_inner), self.shared)
    }

    /// Begins to stream, beside other weights of so many bytes; the bytes that experts will take.
    pub(crate) fn open(
        self,
        own: &ExpertStreaming,
        options: LoadOptions<'_>,
        others: u64,
    ) -> Result<(StreamedExperts, u64), ModelError> {
        let (layers, shared) = self.into_layers();
        if layers.is_empty() {
            return Err(ModelError::NoExperts);
        }
        let (sources, shapes): (Vec<_>, Vec<_>) = layers.into_iter().unzip();
        let shapes: Arc<Shapes> = Arc::new(Shapes::new(shapes));
        let active = sources.iter().map(|layer| layer.chosen as u64).sum();
        let floor = sources.iter().map(|layer| layer.chosen + RESERVE).sum();
        let routers = sources.iter().map(|layer| layer.router.clone()).collect();
        let checkpoint = CheckpointDisk::new(sources, Arc::clone(&shapes));
        let disk: Arc<dyn ExpertDisk> = match &own.pack {
            Some(dir) => Arc::new(opened(dir, own, &checkpoint)?),
            None => Arc::new(checkpoint),
        };
        let bytes = match own.memory {
            ExpertMemory::Bytes(bytes) => bytes,
            ExpertMemory::Within(all) => all.saturating_sub(others) / 4 * 3,
        };
        let mut config = StoreConfig::new(bytes, floor);
        config.readers = own.readers;
        config.prefetch = own.prefetch;
        config.policy = own.policy;
        config.limits = Limits::of_process();
        let (experts, precision) = (disk.experts(), options.precision);
        let make = move |key, record: &_| shapes.expert(key, precision, record);
        let store = ExpertStore::new(disk, make, config)?;
        let uses = own.pack.as_ref().filter(|_| own.remembers).map(|dir| dir.join(Uses::FILE));
        // Without them the first steps read more, and no more than that.
        match uses.as_ref().map(|path| Uses::read(path, &experts)) {
            Some(Ok(Some(uses))) => store.warm_up(&uses),
            Some(Err(error)) => tracing::warn!(%error, "which experts were used most is not known"),
            Some(Ok(None)) | None => {}
        }
        let taken = store.stats().slots * store.stats().slot_bytes;
        let saved = AtomicU64::new(0);
        let loaded = Loaded { store, routers, uses, active, saved };
        // Nobody else has it.
        let _ = shared.loaded.set(loaded);
        Ok((StreamedExperts(shared), taken))
    }
}

/// Slots of a layer beside those of a token's experts.
const RESERVE: usize = 2;
/// Tokens after which uses are saved.
const SAVE: u64 = 1024;

/// A pack, once it is known to be of the checkpoint: files are compared, and one record of each layer is made anew.
fn opened(
    dir: &Path,
    own: &ExpertStreaming,
    checkpoint: &CheckpointDisk,
) -> Result<PackFiles, ModelError> {
    let pack = PackFiles::open(dir, own.checksums)?;
    pack.manifest().check_source(dir, &own.files)?;
    let other = |reason| ExpertError::OtherModel { path: dir.to_owned(), reason };
    let entries = checkpoint.entries();
    if pack.manifest().layers.len() != entries.len() {
        let (got, expected) = (pack.manifest().layers.len(), entries.len());
        return Err(other(format!("it has {got} layers, and the model {expected}")).into());
    }
    for (layer, (own, expected)) in pack.manifest().layers.iter().zip(&entries).enumerate() {
        if own != expected {
            return Err(other(format!("{} differs from {}", own.name, expected.name)).into());
        }
        let key = checkpoint.sample(layer);
        let mut stored = AlignedBytes::pages(pack.record_bytes(key.layer));
        let mut made = AlignedBytes::pages(checkpoint.record_bytes(key.layer));
        pack.read(key, stored.as_mut_slice())?;
        checkpoint.read(key, made.as_mut_slice())?;
        let payload = HEADER_BYTES..HEADER_BYTES + expected.payload;
        if stored.as_slice().get(payload.clone()) != made.as_slice().get(payload) {
            return Err(other(format!("{key} differs")).into());
        }
    }
    Ok(pack)
}

impl Streaming {
    fn loaded(&self) -> Result<&Loaded, ModelError> {
        self.loaded.get().ok_or(ModelError::NoExperts)
    }
}

/// Experts of a model that are streamed: what is counted, and what can be changed while it runs.
#[derive(Debug, Clone)]
pub struct StreamedExperts(Arc<Streaming>);

impl StreamedExperts {
    /// Gauges and counters as they stand now.
    #[must_use]
    pub fn stats(&self) -> Option<ExpertStats> {
        let Loaded { store, active, .. } = self.0.loaded.get()?;
        Some(ExpertStats { active: *active, ..store.stats() })
    }

    /// Notes from now on which experts steps use.
    pub fn start_trace(&self) {
        if let Some(loaded) = self.0.loaded.get() {
            loaded.store.start_trace();
        }
    }

    /// What was noted since; `None` where nothing is.
    #[must_use]
    pub fn take_trace(&self) -> Option<Trace> {
        self.0.loaded.get()?.store.take_trace()
    }

    /// Has at most so many bytes of experts in memory from now on, but never fewer than a token needs.
    pub fn shrink_to(&self, bytes: u64) {
        if let Some(loaded) = self.0.loaded.get() {
            loaded.store.shrink_to(bytes);
        }
    }

    /// Bytes a second that the disk gives, of so many records read as a step reads them.
    ///
    /// # Errors
    /// A record cannot be read.
    pub fn measure(&self, records: usize) -> Result<f64, ModelError> {
        Ok(self.0.loaded()?.store.measure(records)?)
    }
}

impl Loaded {
    /// Keeps uses for the next run.
    fn save(&self) {
        if let Some(path) = &self.uses
            && let Err(error) = self.store.uses().write(path)
        {
            tracing::warn!(%error, "uses of experts are not kept");
        }
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.store.stats().tokens > 0 {
            self.save();
        }
    }
}

impl StreamedLayer {
    /// Its number, among those with experts.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Weights of its experts.
    pub(crate) fn parameters(&self) -> u64 {
        self.parameters
    }

    /// Has the experts that a step of so many tokens needs brought into memory.
    pub(crate) fn fetch(
        &self,
        wanted: &[Wanted],
        tokens: u32,
    ) -> Result<Fetch<'_, Dense>, ModelError> {
        let loaded = self.shared.loaded()?;
        if self.number == 0 {
            let all = loaded.store.stats().tokens;
            if all >= loaded.saved.load(Relaxed) + SAVE {
                loaded.saved.store(all, Relaxed);
                loaded.save();
            }
        }
        Ok(loaded.store.fetch(self.number, wanted, tokens))
    }

    /// The router of the next layer, and how many experts are worth reading ahead; `None` where none are.
    pub(crate) fn next_router(&self) -> Option<(&Linear, usize)> {
        let Loaded { store, routers, .. } = self.shared.loaded.get()?;
        let most = Some(store.prefetches()).filter(|n| *n > 0)?;
        Some((routers.get(self.number as usize + 1)?, most))
    }
}

/// Refuses what streamed experts cannot be.
pub(crate) fn check(options: LoadOptions<'_>) -> Result<(), ModelError> {
    if options.gpu.is_some() {
        return Err(ModelError::StreamedOnGpu);
    }
    if options.precision == Precision::F32 {
        return Err(ModelError::StreamedExactly);
    }
    Ok(())
}
