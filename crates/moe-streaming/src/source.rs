//! The files that a pack was made of, and whether they are still the same.

use crate::{ExpertError, writer::forget};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    fs::{File, Metadata},
    io::Read,
    path::Path,
    time::UNIX_EPOCH,
};

/// What is hashed at a time.
const PIECE: usize = 4 << 20;

/// A file of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Its name in the model's directory.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of its contents, in hexadecimal digits.
    pub sha256: String,
    /// When it was last written, in nanoseconds since 1970: a file of this time and length is not hashed again.
    #[serde(default)]
    pub modified: u64,
}

impl SourceFile {
    /// The name, length, time and SHA-256 of a file; `progress` gets the bytes of each piece.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(path: &Path, mut progress: impl FnMut(u64)) -> Result<Self, ExpertError> {
        let io = |source| ExpertError::File { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(io)?;
        let modified = modified(&file.metadata().map_err(io)?);
        let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; PIECE]);
        loop {
            let n = file.read(&mut piece).map_err(io)?;
            if n == 0 {
                break;
            }
            hash.update(&piece[..n]);
            bytes += n as u64;
            progress(n as u64);
        }
        forget(&file);
        let sha256 = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        Ok(Self { name: name_of(path), bytes, sha256, modified })
    }

    /// Whether the contents are those of a file. It is read if it has another time.
    pub(crate) fn is(&self, path: &Path) -> Result<bool, ExpertError> {
        let io = |source| ExpertError::File { path: path.to_owned(), source };
        let metadata = path.metadata().map_err(io)?;
        if metadata.len() != self.bytes || modified(&metadata) == self.modified {
            return Ok(metadata.len() == self.bytes);
        }
        tracing::info!(file = %path.display(), "written after its experts were packed; it is compared with what was packed");
        Ok(Self::of(path, |_| {})?.sha256 == self.sha256)
    }
}

pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// 0 where the system does not know.
fn modified(metadata: &Metadata) -> u64 {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Manifest;
    use std::{fs, path::PathBuf};

    #[test]
    fn files_with_other_contents_are_found_whatever_their_time_and_length() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&path, "weights").unwrap();
        fs::write(&other, "").unwrap();
        let source = SourceFile::of(&path, |_| {}).unwrap();
        let manifest = Manifest::new(4096, vec![source], vec![]);
        let check = |path: &PathBuf| manifest.check_source(dir.path(), std::slice::from_ref(path));
        let touch = |seconds| {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(UNIX_EPOCH + std::time::Duration::from_secs(seconds)).unwrap();
        };
        check(&path).unwrap();
        touch(1);
        check(&path).unwrap();
        fs::write(&path, "WEIGHTS").unwrap();
        touch(2);
        for path in [&path, &other] {
            assert!(matches!(check(path), Err(ExpertError::OtherModel { .. })), "{path:?}");
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(check(&path), Err(ExpertError::File { .. })));
        Manifest::new(4096, vec![], vec![]).check_source(dir.path(), &[path]).unwrap();
    }
}
