//! Mixtures of experts larger than memory.
#![doc = include_str!("../README.md")]

mod bank;
mod budget;
mod disk;
mod error;
mod fake;
mod fetch;
mod manifest;
mod ranks;
mod readers;
mod record;
mod replay;
mod source;
mod store;
mod uses;
mod writer;

pub use budget::{Limits, MemoryState};
pub use disk::{ExpertDisk, PackFiles};
pub use error::ExpertError;
pub use fake::{FakeDisk, Trouble};
pub use fetch::Fetch;
pub use manifest::{LayerEntry, Manifest};
pub use ranks::{CLASSES, HALF_LIFE, Policy};
pub use record::{ExpertKey, HEADER_BYTES, Header, PAGE, padded, seal, verify};
pub use replay::{Replay, Touch, Trace, replay};
pub use source::SourceFile;
pub use store::{ExpertStore, StoreConfig, Wanted};
pub use uses::Uses;
pub use writer::{PackWriter, Written};
