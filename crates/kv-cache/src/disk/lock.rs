//! Who uses a directory: many processes that keep prefixes there, or one whose pages may be nowhere else.

use crate::KvCacheError;
use std::{
    fs::{self, TryLockError},
    io::{self, Write},
    path::Path,
};

/// Name of the file that the processes lock.
const FILE: &str = "lock";
const TEXT: &[u8] = b"Servers that keep KV prefixes in this directory lock this file.\n";

/// Locks a directory until the file is closed.
pub(super) fn lock(dir: &Path, alone: bool) -> Result<fs::File, KvCacheError> {
    let failed = |source| KvCacheError::Disk { dir: dir.to_owned(), source };
    let file = open(dir).map_err(failed)?;
    let locked = if alone { file.try_lock() } else { file.try_lock_shared() };
    match locked {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(KvCacheError::DiskInUse { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) if !alone => {
            tracing::warn!(dir = %dir.display(), %error, "a directory of KV prefixes cannot be locked");
            Ok(file)
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn open(dir: &Path) -> io::Result<fs::File> {
    let mut options = fs::File::options();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(dir.join(FILE))?;
    if file.metadata()?.len() == 0 {
        file.write_all(TEXT)?;
    }
    Ok(file)
}
