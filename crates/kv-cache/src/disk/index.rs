//! Which files there are, and which of them make room.

use super::UnitName;
use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

/// Extension of files that are being written.
pub(super) const UNFINISHED: &str = "tmp";
/// A file that was left unfinished so long ago is nobody's any more.
const ABANDONED: Duration = Duration::from_secs(3600);
/// A file that is read part by part says so after so long: it would otherwise at every layer of every step.
const RENEW_AFTER: Duration = Duration::from_secs(10);

/// A file as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) name: UnitName,
    bytes: u64,
    modified: SystemTime,
}

/// The units in a directory. Unfinished files of long ago are removed.
pub(super) fn scan(dir: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let file = entry.file_name();
        // Another process may be removing files.
        let Ok(meta) = entry.metadata() else { continue };
        let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        match file.to_str().and_then(UnitName::of_file) {
            Some(name) if meta.is_file() => found.push(Found { name, bytes: meta.len(), modified }),
            _ if Path::new(&file).extension().is_some_and(|e| e == UNFINISHED) => {
                if modified.elapsed().is_ok_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(entry.path());
                }
            }
            _ => tracing::debug!(file = %entry.path().display(), "not a file of the KV cache"),
        }
    }
    Ok(found)
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) bytes: u64,
    used: SystemTime,
    /// What the file says of when it was used.
    modified: SystemTime,
}

/// Files there are, and in which order they were used.
#[derive(Debug, Default)]
pub(super) struct Index {
    files: HashMap<UnitName, Entry>,
    /// Those that may go, by when they were last used.
    order: BTreeSet<(SystemTime, UnitName)>,
    bytes: u64,
    /// How many blocks are nowhere but in a file. Such files do not make room.
    pinned: HashMap<UnitName, u32>,
}

impl Index {
    /// Takes the files that were found in place of those that were known. When one was used is known better here than
    /// it says itself.
    pub(super) fn replace(&mut self, found: Vec<Found>) {
        let known = std::mem::take(&mut self.files);
        self.order.clear();
        self.bytes = 0;
        for Found { name, bytes, modified } in found {
            let used = known.get(&name).map_or(modified, |known| known.used.max(modified));
            self.insert(name, Entry { bytes, used, modified });
        }
    }

    pub(super) fn holds(&self, name: &UnitName) -> bool {
        self.files.contains_key(name)
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A file was written.
    pub(super) fn add(&mut self, name: UnitName, bytes: u64) {
        let now = SystemTime::now();
        self.insert(name, Entry { bytes, used: now, modified: now });
    }

    /// Knows a file of which more is known than its length.
    pub(super) fn insert(&mut self, name: UnitName, entry: Entry) {
        self.remove(name);
        if !self.pinned.contains_key(&name) {
            self.order.insert((entry.used, name));
        }
        self.bytes += entry.bytes;
        self.files.insert(name, entry);
    }

    pub(super) fn remove(&mut self, name: UnitName) -> Option<Entry> {
        let entry = self.files.remove(&name)?;
        self.order.remove(&(entry.used, name));
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Removes a file that may go.
    pub(super) fn remove_unpinned(&mut self, name: UnitName) -> Option<Entry> {
        if self.pinned.contains_key(&name) { None } else { self.remove(name) }
    }

    /// Removes the file that was used longest ago but for so many, of those that may go: who looks for it from now on
    /// does not find it, so that it can be unlinked.
    pub(super) fn take_oldest(&mut self, skipped: usize) -> Option<(UnitName, Entry)> {
        let &(_, name) = self.order.iter().nth(skipped)?;
        Some((name, self.remove(name)?))
    }

    /// A file was read. Returns whether it is to say so itself, for those who come later.
    pub(super) fn touch(&mut self, name: UnitName, whole: bool) -> bool {
        let Some(entry) = self.files.get_mut(&name) else { return false };
        let now = SystemTime::now();
        let listed = self.order.remove(&(entry.used, name));
        entry.used = now;
        if listed {
            self.order.insert((now, name));
        }
        let age = now.duration_since(entry.modified).unwrap_or_default();
        let renews = whole || age >= RENEW_AFTER;
        if renews {
            entry.modified = now;
        }
        renews
    }

    /// Keeps a unit's file, if there is one.
    pub(super) fn pin(&mut self, name: UnitName) -> bool {
        let Some(entry) = self.files.get(&name) else { return false };
        self.order.remove(&(entry.used, name));
        *self.pinned.entry(name).or_default() += 1;
        true
    }

    /// Takes back one [`Self::pin`].
    pub(super) fn unpin(&mut self, name: UnitName) {
        let Some(pins) = self.pinned.get_mut(&name) else { return };
        *pins -= 1;
        if *pins == 0 {
            self.pinned.remove(&name);
            self.order.extend(self.files.get(&name).map(|entry| (entry.used, name)));
        }
    }
}
