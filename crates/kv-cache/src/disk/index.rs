//! Which files there are, and which of them make room.

use super::UnitName;
use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

/// Extension of files that are being written.
pub(super) const UNFINISHED: &str = "tmp";
/// A file that was left unfinished so long ago is nobody's any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Files there are, and in which order they were used.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// Bytes, and when last used.
    files: HashMap<UnitName, (u64, u64)>,
    /// By when they were last used.
    order: BTreeMap<u64, UnitName>,
    clock: u64,
    bytes: u64,
    /// How many blocks are nowhere but in a file. Such files do not make room.
    pinned: HashMap<UnitName, u32>,
}

impl Index {
    /// The units in a directory, longest unused first. Unfinished files of long ago are removed.
    pub(super) fn scan(dir: &Path) -> io::Result<Self> {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let file = entry.file_name();
            // Another process may be removing files.
            let Ok(meta) = entry.metadata() else { continue };
            let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            match file.to_str().and_then(UnitName::of_file) {
                Some(name) if meta.is_file() => found.push((modified, name, meta.len())),
                _ if Path::new(&file).extension().is_some_and(|e| e == UNFINISHED) => {
                    if modified.elapsed().is_ok_and(|age| age > ABANDONED) {
                        let _ = fs::remove_file(entry.path());
                    }
                }
                _ => tracing::debug!(file = %entry.path().display(), "not a file of the KV cache"),
            }
        }
        found.sort();
        let mut index = Self::default();
        found.into_iter().for_each(|(_, name, bytes)| index.add(name, bytes));
        Ok(index)
    }

    /// Takes the files of another index in place of its own.
    pub(super) fn replace(&mut self, other: Self) {
        *self = Self { pinned: std::mem::take(&mut self.pinned), ..other };
    }

    pub(super) fn holds(&self, name: &UnitName) -> bool {
        self.files.contains_key(name)
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn add(&mut self, name: UnitName, bytes: u64) {
        self.remove(name);
        self.clock += 1;
        self.files.insert(name, (bytes, self.clock));
        self.order.insert(self.clock, name);
        self.bytes += bytes;
    }

    pub(super) fn remove(&mut self, name: UnitName) {
        if let Some((bytes, used)) = self.files.remove(&name) {
            self.order.remove(&used);
            self.bytes -= bytes;
        }
    }

    pub(super) fn touch(&mut self, name: UnitName) {
        if let Some(&(bytes, _)) = self.files.get(&name) {
            self.add(name, bytes);
        }
    }

    /// Keeps a unit's file, if there is one.
    pub(super) fn pin(&mut self, name: UnitName) -> bool {
        let holds = self.holds(&name);
        if holds {
            *self.pinned.entry(name).or_default() += 1;
        }
        holds
    }

    /// Takes back one [`Self::pin`].
    pub(super) fn unpin(&mut self, name: UnitName) {
        if let Some(pins) = self.pinned.get_mut(&name) {
            *pins -= 1;
            if *pins == 0 {
                self.pinned.remove(&name);
            }
        }
    }

    /// The file that was used longest ago, of those that may go.
    pub(super) fn oldest(&self) -> Option<UnitName> {
        self.order.values().copied().find(|name| !self.pinned.contains_key(name))
    }
}
