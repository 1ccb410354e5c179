//! Retrieval over source trees: see the README below.
#![doc = include_str!("../README.md")]

mod answer;
mod chunk;
mod deny;
mod error;
mod evict;
mod fence;
#[cfg(feature = "server")]
pub mod http;
mod index;
mod library;
#[cfg(feature = "server")]
pub mod mcp;
mod project;
mod read;
mod redact;
#[cfg(feature = "server")]
mod scope;
mod terms;
mod walk;
mod watch;

pub use answer::{
    FoundChunk, MAX_RESULTS, MAX_TOKENS, MAX_WAIT_MS, ProjectSummary, ProjectsAnswer, ReadAnswer,
    ReadRequest, RelatedRequest, SearchAnswer, SearchRequest, StatusAnswer,
};
pub use chunk::{ChunkKind, is_known_language};
pub use deny::is_denied;
pub use error::{Error, LoadError};
pub use evict::{Evicted, EvictedChunk, Moved, Whereabouts};
pub use fence::{fence, neutralise, random_word, suspicious_phrases};
pub use library::Library;
pub use project::{Progress, Project, ProjectStatus, Settings, Update};
pub use read::MAX_FILE_BYTES;
pub use redact::{REDACTED, redact};
pub use walk::Skipped;
