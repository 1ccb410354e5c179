//! LoRA adapters (Hu et al., arXiv 2106.09685): from files to changes of a model's maps.

mod config;
mod error;
mod mlx;
mod peft;

pub use error::AdapterError;

use crate::{LoadOptions, Precision, decoder::Names, spec::TopNames};
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io,
    path::Path,
};
use taper_tensor::{DenseWeight, Linear, LowRankChanges, Module, Place, cpu::RowSource, gpu::Gpu};
use taper_weights::WeightsError;

/// An adapter that is loaded for a model.
#[derive(Debug)]
pub struct Adapter {
    changes: LowRankChanges,
    rank: usize,
    modules: usize,
    base: Option<String>,
    digest: [u8; 32],
}

impl Adapter {
    /// The largest rank of its pairs.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Modules that it changes.
    #[must_use]
    pub fn modules(&self) -> usize {
        self.modules
    }

    /// The model that it says it was made for.
    #[must_use]
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// SHA-256 of its files: adapters of one digest compute the same.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Bytes in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.changes.bytes()
    }

    /// Numbers that it has.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.changes.parameters()
    }

    pub(crate) fn changes(&self) -> &LowRankChanges {
        &self.changes
    }
}

/// What the files of an adapter say.
#[derive(Debug)]
struct Layout {
    base: Option<String>,
    changes: Vec<Change>,
}

/// The change of one module.
#[derive(Debug)]
struct Change {
    module: String,
    rank: usize,
    scale: f32,
    /// `[rank, inputs]` and `[outputs, rank]`.
    pair: [DenseWeight; 2],
}

impl Change {
    fn new(
        module: String,
        rank: usize,
        scale: f32,
        pair: [DenseWeight; 2],
    ) -> Result<Self, AdapterError> {
        for got in [pair[0].rows(), pair[1].cols()] {
            if got != rank {
                return Err(AdapterError::Rank { module, expected: rank, got });
            }
        }
        Ok(Self { module, rank, scale, pair })
    }
}

/// What adapters can change of a model, and where it runs.
#[derive(Debug, Clone)]
pub struct AdapterTargets {
    /// Maps by the name of the matrix that they were made of, without the decoder's prefix; with the number of
    /// their inputs.
    modules: HashMap<String, Vec<(Module, usize)>>,
    /// What such a name may follow.
    prefixes: Vec<String>,
    /// Names of the output projection.
    heads: Vec<String>,
    head: Option<(Module, usize)>,
    layers: usize,
    gpu: Option<Gpu>,
    precision: Precision,
}

impl AdapterTargets {
    pub(crate) fn new<'a>(
        maps: impl Iterator<Item = &'a Linear>,
        head: &Linear,
        (names, top, layers): (&Names, TopNames, usize),
        options: LoadOptions<'_>,
    ) -> Self {
        let mut modules = HashMap::<String, Vec<_>>::new();
        for map in maps {
            let Some(module) = map.module() else { continue };
            let name = module.name().strip_prefix(&names.decoder).unwrap_or(module.name());
            let entry = (module.clone(), map.in_features());
            modules.entry(name.to_owned()).or_default().push(entry);
        }
        let places = || top.places.iter();
        let prefixes = places().map(|place| place.0.to_owned()).chain([names.decoder.clone()]);
        let heads = places().map(|place| place.1.to_owned()).chain([names.head.clone()]);
        Self {
            modules,
            prefixes: prefixes.collect(),
            heads: heads.collect(),
            head: head.module().map(|module| (module.clone(), head.in_features())),
            layers,
            gpu: options.gpu.cloned(),
            precision: options.precision,
        }
    }

    /// The maps that were made of a module, and the number of their inputs.
    fn find(&self, module: &str) -> &[(Module, usize)] {
        if self.heads.iter().any(|head| head == module) {
            return self.head.as_slice();
        }
        let named = |prefix: &String| self.modules.get(module.strip_prefix(prefix.as_str())?);
        self.prefixes.iter().find_map(named).map_or(&[], Vec::as_slice)
    }

    /// Whether adapters can change a module.
    #[must_use]
    pub fn has(&self, module: &str) -> bool {
        !self.find(module).is_empty()
    }

    /// Inputs of a module that adapters can change.
    #[must_use]
    pub fn inputs_of(&self, module: &str) -> Option<usize> {
        self.find(module).first().map(|&(_, inputs)| inputs)
    }

    /// Last parts of the names of what can be changed.
    fn known(&self) -> String {
        let last = |name: &'_ String| name.rsplit('.').next().unwrap_or_default().to_owned();
        let known: BTreeSet<_> = self.modules.keys().chain(self.heads.first()).map(last).collect();
        known.into_iter().collect::<Vec<_>>().join(", ")
    }

    /// Loads the adapter of a directory, in PEFT's layout or mlx-lm's.
    ///
    /// # Errors
    /// A file is missing or damaged, it is no plain LoRA, it does not fit the model, or its rank is above `max_rank`.
    pub fn load(&self, dir: &Path, max_rank: Option<usize>) -> Result<Adapter, AdapterError> {
        let found = [peft::FILE, mlx::FILE].into_iter().find(|file| dir.join(file).is_file());
        let file = found.ok_or_else(|| AdapterError::NoAdapter { dir: dir.to_owned() })?;
        let Layout { base, changes } = match file {
            peft::FILE => peft::read(dir)?,
            _ => mlx::read(dir, self.layers)?,
        };
        let rank = changes.iter().map(|change| change.rank).max();
        let rank = rank.ok_or_else(|| AdapterError::Empty { path: dir.join(file) })?;
        if let Some(max) = max_rank.filter(|&max| rank > max) {
            return Err(AdapterError::RankTooLarge { rank, max });
        }
        let place = Place { gpu: self.gpu.as_ref(), precision: self.precision };
        let mut all = LowRankChanges::default();
        for Change { module, rank, scale, pair: [down, up] } in &changes {
            let maps = self.find(module);
            let (module, base) = (module.clone(), base.clone());
            let Some((first, inputs)) = maps.first() else {
                return Err(AdapterError::UnknownModule { module, base, known: self.known() });
            };
            let shapes = [("A", down, [*rank, *inputs]), ("B", up, [first.outputs(), *rank])];
            for (tensor, matrix, expected) in shapes {
                let got = [matrix.rows(), matrix.cols()];
                if got != expected {
                    return Err(AdapterError::Shape { module, tensor, expected, got, base });
                }
            }
            for (map, _) in maps {
                all.insert(map, [down, up], *scale, place)?;
            }
        }
        let digest = digest(&[dir.join("adapter_config.json"), dir.join(file)])?;
        Ok(Adapter { changes: all, rank, modules: changes.len(), base, digest })
    }
}

fn digest(files: &[std::path::PathBuf]) -> Result<[u8; 32], AdapterError> {
    let mut all = Sha256::new();
    for path in files {
        let mut hash = Sha256::new();
        let read = File::open(path).and_then(|mut file| io::copy(&mut file, &mut hash));
        read.map_err(|source| WeightsError::Io { path: path.clone(), source })?;
        all.update(hash.finalize());
    }
    Ok(all.finalize().into())
}
