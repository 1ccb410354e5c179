//! What a pack says of itself: `manifest.json` beside its files.

use crate::{ExpertError, SourceFile, padded, source::name_of};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

/// The version that is written and read.
const VERSION: u32 = 1;
const NAME: &str = "manifest.json";

/// What a pack is. It is written last, so that a pack with one is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub version: u32,
    /// Records begin at a multiple of this.
    pub page: usize,
    /// Files that the experts were read from.
    pub source: Vec<SourceFile>,
    /// Layers with experts, in their order.
    pub layers: Vec<LayerEntry>,
}

/// A layer's experts: one file of records, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerEntry {
    /// What the checkpoint calls the block of experts.
    pub name: String,
    /// Experts.
    pub experts: usize,
    /// Bytes of each payload.
    pub payload: usize,
    /// What each payload is, one text a map, in their order.
    pub maps: Vec<String>,
}

impl LayerEntry {
    /// What headers name the payload's format by.
    #[must_use]
    pub fn format(&self) -> u32 {
        crc32c::crc32c(self.maps.join("\n").as_bytes())
    }

    /// Bytes of each record.
    #[must_use]
    pub fn record_bytes(&self, page: usize) -> usize {
        padded(self.payload, page)
    }
}

impl Manifest {
    /// A manifest of this version.
    #[must_use]
    pub fn new(page: usize, source: Vec<SourceFile>, layers: Vec<LayerEntry>) -> Self {
        Self { version: VERSION, page, source, layers }
    }

    /// Whether a directory has a pack that is whole.
    #[must_use]
    pub fn is_in(dir: &Path) -> bool {
        // An empty one is what a power cut may have left of it.
        dir.join(NAME).metadata().is_ok_and(|data| data.is_file() && data.len() > 0)
    }

    /// Reads the manifest of a pack.
    ///
    /// # Errors
    /// There is none, or it is of another version, or contradicts itself.
    pub fn read(dir: &Path) -> Result<Self, ExpertError> {
        let path = dir.join(NAME);
        let text =
            fs::read(&path).map_err(|source| ExpertError::File { path: path.clone(), source })?;
        let manifest: Self = serde_json::from_slice(&text)
            .map_err(|source| ExpertError::Json { path: path.clone(), source })?;
        match manifest.wrong() {
            None => Ok(manifest),
            Some(reason) => Err(ExpertError::Manifest { path, reason }),
        }
    }

    /// Writes it to a directory, at once.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), ExpertError> {
        write_json(&dir.join(NAME), self)
    }

    /// Compares the files of a checkpoint with those that were packed; a pack that knows of none is of any.
    ///
    /// # Errors
    /// [`ExpertError::OtherModel`], or a file cannot be read.
    pub fn check_source(&self, dir: &Path, files: &[PathBuf]) -> Result<(), ExpertError> {
        if self.source.is_empty() {
            return Ok(());
        }
        for path in files {
            let name = name_of(path);
            let known = self.source.iter().find(|known| known.name == name);
            let reason = match known {
                None => format!("it has nothing of {name}"),
                Some(known) if known.is(path)? => continue,
                Some(_) => format!("{name} has other contents than the file that was packed"),
            };
            return Err(ExpertError::OtherModel { path: dir.to_owned(), reason });
        }
        Ok(())
    }

    fn wrong(&self) -> Option<String> {
        if self.version != VERSION {
            return Some(format!("it has version {}, and {VERSION} is read", self.version));
        }
        if !self.page.is_power_of_two() || !(512..=1 << 20).contains(&self.page) {
            return Some(format!("pages of {} bytes", self.page));
        }
        let bad = |l: &LayerEntry| l.experts == 0 || l.payload == 0 || l.payload > 1 << 40;
        let bad = self.layers.iter().find(|l| bad(l));
        bad.map(|l| format!("{}: {} experts of {} bytes", l.name, l.experts, l.payload))
    }

    /// Name of the file of a layer.
    #[must_use]
    pub fn file_name(layer: usize) -> String {
        format!("layer-{layer:04}.experts")
    }

    /// Bytes of all records.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of = |l: &LayerEntry| (l.experts * l.record_bytes(self.page)) as u64;
        self.layers.iter().map(of).sum()
    }
}

/// Writes a file that is there as a whole or not at all, after a power cut too.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ExpertError> {
    let json = |source| ExpertError::Json { path: path.to_owned(), source };
    let text = serde_json::to_vec_pretty(value).map_err(json)?;
    let part = path.with_extension("json.part");
    let written = || {
        let mut file = File::create(&part)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        // The name is the directory's.
        match path.parent() {
            Some(dir) if cfg!(unix) => File::open(dir)?.sync_all(),
            _ => Ok(()),
        }
    };
    written().map_err(|source| ExpertError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_come_back_and_bad_ones_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!Manifest::is_in(dir.path()));
        assert!(matches!(Manifest::read(dir.path()), Err(ExpertError::File { .. })));
        let layer = LayerEntry {
            name: "model.layers.0.mlp".into(),
            experts: 4,
            payload: 5000,
            maps: vec!["dense 1 2 f16".into()],
        };
        let source = SourceFile { name: "a".into(), bytes: 1, sha256: "00".into(), modified: 0 };
        let whole = Manifest::new(4096, vec![source], vec![layer.clone()]);
        whole.write(dir.path()).unwrap();
        assert!(Manifest::is_in(dir.path()));
        assert_eq!(Manifest::read(dir.path()).unwrap(), whole);
        assert_eq!(whole.bytes(), 4 * 8192);
        let none = LayerEntry { experts: 0, ..layer };
        for bad in [
            Manifest { version: 2, ..whole.clone() },
            Manifest { page: 1000, ..whole.clone() },
            Manifest { layers: vec![none], ..whole.clone() },
        ] {
            bad.write(dir.path()).unwrap();
            let error = Manifest::read(dir.path());
            assert!(matches!(error, Err(ExpertError::Manifest { .. })), "{bad:?}");
        }
        fs::write(dir.path().join(NAME), "{").unwrap();
        assert!(matches!(Manifest::read(dir.path()), Err(ExpertError::Json { .. })));
    }
}
