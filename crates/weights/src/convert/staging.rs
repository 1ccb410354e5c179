//! A directory that appears whole or not at all.

use super::ConvertError;
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

const LOCK: &str = ".lock";

/// Unfinished files beside the destination, removed when dropped before [`Staging::publish`].
#[derive(Debug)]
pub(super) struct Staging {
    dir: PathBuf,
    destination: PathBuf,
    lock: Option<File>,
}

pub(super) fn write_error(path: &Path) -> impl FnOnce(io::Error) -> ConvertError {
    let path = path.to_owned();
    |source| ConvertError::Write { path, source }
}

/// Whether a conversion may write there: nothing, or an empty directory.
pub(super) fn check_vacant(destination: &Path) -> Result<(), ConvertError> {
    let taken = || ConvertError::DestinationExists { path: destination.to_owned() };
    match fs::read_dir(destination) {
        Ok(mut entries) => entries.next().map_or(Ok(()), |_| Err(taken())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => Err(taken()),
        Err(e) => Err(write_error(destination)(e)),
    }
}

impl Staging {
    /// Begins, clearing what a killed conversion may have left.
    pub(super) fn new(destination: &Path) -> Result<Self, ConvertError> {
        check_vacant(destination)?;
        let Some(name) = destination.file_name() else {
            return Err(ConvertError::DestinationName { path: destination.to_owned() });
        };
        let dir = destination.with_file_name(format!(".{}.converting", name.to_string_lossy()));
        fs::create_dir_all(&dir).map_err(write_error(&dir))?;
        let lock_path = dir.join(LOCK);
        let lock = File::create(&lock_path).map_err(write_error(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ConvertError::Busy { path: dir }),
            Err(TryLockError::Error(e)) => return Err(write_error(&lock_path)(e)),
        }
        let stage = Self { dir, destination: destination.to_owned(), lock: Some(lock) };
        stage.clear().map_err(write_error(&stage.dir))?;
        Ok(stage)
    }

    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            if entry.file_name() != LOCK {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Gives the directory its name.
    pub(super) fn publish(mut self) -> Result<(), ConvertError> {
        check_vacant(&self.destination)?;
        // An open file keeps a directory from being renamed on some systems.
        self.lock = None;
        let lock = self.path(LOCK);
        fs::remove_file(&lock).map_err(write_error(&lock))?;
        if self.destination.is_dir() {
            fs::remove_dir(&self.destination).map_err(write_error(&self.destination))?;
        }
        fs::rename(&self.dir, &self.destination).map_err(write_error(&self.destination))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.lock = None;
        // After `publish` there is nothing by this name; otherwise the failure itself is reported.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
