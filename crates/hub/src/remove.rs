//! Deletes what was downloaded.

use crate::{CacheDir, HubError, ModelId};
use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

/// Bytes on the disk of a model's downloads: all revisions, and what is there of interrupted ones.
///
/// # Errors
/// [`HubError::NotCached`], [`HubError::AllRevisions`], or a directory cannot be read.
pub fn stored_bytes(id: &ModelId, cache: &CacheDir) -> Result<u64, HubError> {
    bytes_in(&stored(id, cache)?)
}

/// Deletes a model's downloads: all revisions, which share their files.
///
/// # Errors
/// [`HubError::NotCached`], [`HubError::AllRevisions`], [`HubError::Busy`] while another process downloads it,
/// or a file cannot be deleted.
pub fn remove(id: &ModelId, cache: &CacheDir) -> Result<(), HubError> {
    let folder = stored(id, cache)?;
    let is_link = fs::symlink_metadata(&folder).map_err(HubError::io(&folder))?.is_symlink();
    if is_link {
        return fs::remove_file(&folder).map_err(HubError::io(&folder));
    }
    // Held until the end, so that no download begins to go on meanwhile.
    let _parts = parts(&folder.join("blobs"))?;
    fs::remove_dir_all(&folder).map_err(HubError::io(&folder))
}

fn stored(id: &ModelId, cache: &CacheDir) -> Result<PathBuf, HubError> {
    if id.has_revision() {
        return Err(HubError::AllRevisions { id: id.clone() });
    }
    let folder = cache.folder(id);
    if !folder.is_dir() {
        return Err(HubError::NotCached { id: id.clone(), cache: cache.path().to_owned() });
    }
    Ok(folder)
}

/// Bytes of a directory's files. Links count nothing: those of snapshots lead to blobs.
fn bytes_in(dir: &Path) -> Result<u64, HubError> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir).map_err(HubError::io(dir))? {
        let entry = entry.map_err(HubError::io(dir))?;
        let data = entry.metadata().map_err(HubError::io(entry.path()))?;
        if data.is_dir() {
            bytes += bytes_in(&entry.path())?;
        } else if data.is_file() {
            bytes += data.len();
        }
    }
    Ok(bytes)
}

/// Locks the unfinished files.
fn parts(blobs: &Path) -> Result<Vec<File>, HubError> {
    let mut locked = Vec::new();
    for entry in fs::read_dir(blobs).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|end| end != "part") {
            continue;
        }
        let part = File::open(&path).map_err(HubError::io(&path))?;
        match part.try_lock() {
            Ok(()) => locked.push(part),
            Err(TryLockError::WouldBlock) => {
                let file = entry.file_name().to_string_lossy().into_owned();
                return Err(HubError::Busy { file });
            }
            Err(TryLockError::Error(error)) => return Err(HubError::io(path)(error)),
        }
    }
    Ok(locked)
}
