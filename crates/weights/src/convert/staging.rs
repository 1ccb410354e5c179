//! A directory that appears whole or not at all.

use super::ConvertError;
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

/// Unfinished files beside the destination, removed when dropped before [`Staging::publish`].
#[derive(Debug)]
pub(super) struct Staging {
    dir: PathBuf,
    destination: PathBuf,
    /// Held until the files have their name, or are gone; fields are dropped last.
    _lock: Lock,
}

/// The right to write a destination: a locked file beside it. Not in the directory, since an open file
/// keeps that from being renamed on some systems.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn take(path: PathBuf, destination: &Path) -> Result<Self, ConvertError> {
        let busy = || ConvertError::Busy { path: destination.to_owned() };
        let file = File::create(&path).map_err(write_error(&path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(busy()),
            Err(TryLockError::Error(e)) => return Err(write_error(&path)(e)),
        }
        // Whoever had the lock may have removed the file since it was opened here; then others lock
        // another file by this name.
        match is_at(&file, &path).map_err(write_error(&path))? {
            true => Ok(Self { path, _file: file }),
            false => Err(busy()),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Before the file is unlocked, or another's might be removed. A file that stays does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether a path still leads to an open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let there = match fs::metadata(path) {
        Ok(there) => there,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    let held = file.metadata()?;
    #[cfg(unix)]
    let same = {
        use std::os::unix::fs::MetadataExt;
        (held.dev(), held.ino()) == (there.dev(), there.ino())
    };
    // Elsewhere files are not told apart; there an open one mostly keeps its name to itself.
    #[cfg(not(unix))]
    let same = held.file_type() == there.file_type();
    Ok(same)
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
        let beside = |end| destination.with_file_name(format!(".{}.{end}", name.to_string_lossy()));
        let (dir, lock) = (beside("converting"), beside("converting.lock"));
        let parent = destination.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(parent).map_err(write_error(parent))?;
        let lock = Lock::take(lock, destination)?;
        // Another conversion may have ended in between.
        check_vacant(destination)?;
        let stage = Self { dir, destination: destination.to_owned(), _lock: lock };
        stage.clear().map_err(write_error(&stage.dir))?;
        Ok(stage)
    }

    fn clear(&self) -> io::Result<()> {
        fs::create_dir_all(&self.dir)?;
        for entry in fs::read_dir(&self.dir)? {
            fs::remove_file(entry?.path())?;
        }
        Ok(())
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Gives a file of the directory its name, and removes the rest.
    pub(super) fn publish_file(self, name: &str) -> Result<(), ConvertError> {
        check_vacant(&self.destination)?;
        if self.destination.is_dir() {
            fs::remove_dir(&self.destination).map_err(write_error(&self.destination))?;
        }
        fs::rename(self.path(name), &self.destination).map_err(write_error(&self.destination))
    }

    /// Gives the directory its name.
    pub(super) fn publish(self) -> Result<(), ConvertError> {
        check_vacant(&self.destination)?;
        if self.destination.is_dir() {
            fs::remove_dir(&self.destination).map_err(write_error(&self.destination))?;
        }
        fs::rename(&self.dir, &self.destination).map_err(write_error(&self.destination))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After `publish` there is nothing by this name; otherwise the failure itself is reported.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Nothing but the destination, and only what one conversion wrote.
    fn race(destination: &Path) {
        let one = |number: usize| {
            let stage = Staging::new(destination)?;
            for part in ["a", "b"] {
                let path = stage.path(part);
                fs::write(&path, number.to_string()).map_err(write_error(&path))?;
            }
            stage.publish()
        };
        let results: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || one(n))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let won: Vec<_> = (0..4).filter(|&n| results[n].is_ok()).collect();
        assert_eq!(won.len(), 1, "{results:?}");
        for error in results.into_iter().filter_map(Result::err) {
            let typed =
                matches!(error, ConvertError::Busy { .. } | ConvertError::DestinationExists { .. });
            assert!(typed, "{error}");
        }
        for part in ["a", "b"] {
            let number = fs::read_to_string(destination.join(part)).unwrap();
            assert_eq!(number, won[0].to_string());
        }
    }

    #[test]
    fn of_conversions_to_one_place_one_succeeds() {
        for _ in 0..100 {
            let dir = tempfile::tempdir().unwrap();
            race(&dir.path().join("m"));
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }
}
