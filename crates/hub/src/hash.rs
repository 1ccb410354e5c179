//! Whether bytes are those that the hub lists.

use crate::client::RemoteFile;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::io::{self, Write};

/// Digits of a SHA-1, by which Git names a file.
const SHA1_HEX: usize = 40;

/// A hash of the kind that the hub lists for a file, over the bytes written so far.
pub(crate) enum Hash {
    /// SHA-256 of the bytes: files in Git LFS.
    Sha256(Sha256),
    /// SHA-1 of Git's header and the bytes: files in Git itself.
    GitBlob(Sha1),
    /// The server names the file by something else, as some mirrors do: there is only its length.
    Unknown,
}

impl Hash {
    pub(crate) fn new(file: &RemoteFile) -> Self {
        if file.sha256.is_some() {
            return Self::Sha256(Sha256::new());
        }
        if file.etag.len() != SHA1_HEX {
            return Self::Unknown;
        }
        Self::GitBlob(Sha1::new_with_prefix(format!("blob {}\0", file.size_bytes)))
    }

    /// Whether the bytes are the file's.
    pub(crate) fn matches(self, file: &RemoteFile) -> bool {
        match self {
            Self::Sha256(hash) => file.sha256.as_ref() == Some(&hex(&hash.finalize())),
            Self::GitBlob(hash) => file.etag.eq_ignore_ascii_case(&hex(&hash.finalize())),
            Self::Unknown => true,
        }
    }
}

impl Write for Hash {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::GitBlob(hash) => hash.update(bytes),
            Self::Unknown => {}
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
