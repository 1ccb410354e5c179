//! What can go wrong.

use std::{io, path::PathBuf};

/// Why an index cannot be made, kept or searched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The root is missing, is no directory, or cannot be listed.
    #[error("cannot read the root {}: {source}", path.display())]
    Root {
        /// As it was given.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The root is a place for keys and passwords.
    #[error("{} is a place for secrets and is never indexed", path.display())]
    SecretRoot {
        /// As it was given.
        path: PathBuf,
    },
    /// No root was given.
    #[error("no root to search was given")]
    NoRoots,
    /// The index cannot be written.
    #[error("cannot write the index {}: {source}", path.display())]
    Save {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The index cannot be read, and is built anew.
    #[error("the index {} cannot be used: {why}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: LoadError,
    },
    /// No root has this name.
    #[error("there is no project {name:?}; there are: {known}")]
    UnknownProject {
        /// What was asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A path that is not in the index: it does not exist, is ignored, denied, or outside of the
    /// roots. Which of them is not said.
    #[error("{path:?} is not an indexed file")]
    UnknownFile {
        /// What was asked for.
        path: String,
    },
    /// A file changed or vanished while it was read.
    #[error("cannot read {path:?}: {why}")]
    File {
        /// Relative to the root.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// A number or a text of a request is out of range.
    #[error("{field}: {why}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What it may be.
        why: String,
    },
    /// No thread to watch and index with.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Why a stored index is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The system refuses.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no index.
    #[error("it is not an index")]
    NotAnIndex,
    /// It was written by another version, or by a build with other languages.
    #[error("it is of version {found:#x}, and this program's is {expected:#x}")]
    Version {
        /// In the file.
        found: u64,
        /// Of this program.
        expected: u64,
    },
    /// It belongs to another root.
    #[error("it belongs to another root")]
    OtherRoot,
    /// Its checksum is wrong.
    #[error("it is damaged")]
    Damaged,
}
