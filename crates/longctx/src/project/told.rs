//! What a project is told, and what it tells.

use crate::walk::Skipped;
use schemars::JsonSchema;
use serde::Serialize;
use std::{path::PathBuf, sync::Arc};

/// How roots are indexed.
#[derive(Clone, Default)]
pub struct Settings {
    /// Where indexes are kept between runs; none keeps them in memory only.
    pub index_dir: Option<PathBuf>,
    /// Follow changes while the process runs.
    pub watch: bool,
    /// Hears how far a build is.
    pub progress: Option<Arc<dyn Fn(Progress) + Send + Sync>>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { index_dir, watch, progress } = self;
        f.debug_struct("Settings")
            .field("index_dir", index_dir)
            .field("watch", watch)
            .field("progress", &progress.is_some())
            .finish()
    }
}

/// How far a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Files that have been read.
    pub done: usize,
    /// Files to read.
    pub total: usize,
}

/// What an update did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Update {
    /// Files that were new or had other bytes.
    pub indexed: usize,
    /// Files that are gone.
    pub removed: usize,
}

impl Update {
    pub(super) fn add(&mut self, more: Self) {
        self.indexed += more.indexed;
        self.removed += more.removed;
    }
}

/// The condition of a project.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ProjectStatus {
    /// Its name in requests.
    pub name: String,
    /// Its directory.
    pub root: String,
    /// "ready", "empty", or "missing" if the root cannot be read any more.
    pub state: &'static str,
    /// Files in the index.
    pub files: usize,
    /// Chunks in the index.
    pub chunks: usize,
    /// Different words in the index.
    pub terms: usize,
    /// Words with learned translations.
    pub learned_words: usize,
    /// Bytes of all indexed files.
    pub bytes: u64,
    /// Files that the last look at the whole root left out.
    pub skipped: Skipped,
    /// Keys and passwords that were removed from texts.
    pub redacted: u64,
    /// Changes are heard of; otherwise each search looks at all files.
    pub watching: bool,
    /// The index is kept on disk as it is now.
    pub saved: bool,
    /// What went wrong last, if anything did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When a change was last taken in, in seconds since 1970.
    pub indexed_through: u64,
}
