//! What the targets share: a directory in memory, and text out of bytes.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};
use tempfile::TempDir;

/// A directory of this process, in memory where the system has one there.
pub fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<TempDir> = OnceLock::new();
    let new = || {
        let memory = Path::new("/dev/shm");
        let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        made.expect("a directory")
    };
    DIRECTORY.get_or_init(new).path()
}

/// Writes a file of that directory. It is a new one each time: what an earlier one is mapped from stays whole.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = directory().join(name);
    let _ = fs::remove_file(&path);
    fs::write(&path, bytes).expect("a file");
    path
}

/// As much of it as is UTF-8.
pub fn text(bytes: &[u8]) -> &str {
    let good = std::str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len);
    std::str::from_utf8(&bytes[..good]).unwrap_or_default()
}
