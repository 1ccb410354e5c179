//! What can go wrong with experts on a disk.

use crate::ExpertKey;
use std::{io, path::PathBuf, time::Duration};

/// Why an expert, or a pack of experts, cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExpertError {
    /// A file of a pack cannot be opened, read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The disk failed, twice.
    #[error("reading {key}: {source}")]
    Read {
        /// The expert.
        key: ExpertKey,
        /// Why.
        source: io::Error,
    },
    /// A file is shorter than its manifest says.
    #[error("reading {key}: {got} of {expected} bytes are there")]
    Short {
        /// The expert.
        key: ExpertKey,
        /// Bytes of its record.
        expected: usize,
        /// Bytes that were read.
        got: usize,
    },
    /// A record is not that of the expert.
    #[error("the record of {key} is damaged: {what}")]
    Header {
        /// The expert.
        key: ExpertKey,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A record has changed since it was written.
    #[error(
        "the record of {key} is damaged: its checksum is {got:08x}, and {stored:08x} was stored"
    )]
    Checksum {
        /// The expert.
        key: ExpertKey,
        /// What the header says.
        stored: u32,
        /// What the bytes have.
        got: u32,
    },
    /// A manifest is no JSON, or lacks a field.
    #[error("{}: {source}", path.display())]
    Json {
        /// The manifest.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A pack that this version cannot read, or whose numbers contradict each other.
    #[error("{}: {reason}", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The pack is of another model, or of other weights.
    #[error("{}: the pack is not of this model: {reason}; pack its experts again", path.display())]
    OtherModel {
        /// The pack.
        path: PathBuf,
        /// What differs.
        reason: String,
    },
    /// A read that did not come back.
    #[error("reading {key} failed inside of this program")]
    Panicked {
        /// Who was read.
        key: ExpertKey,
    },
    /// A disk that hangs.
    #[error("the disk of the experts has read nothing for {} seconds", after.as_secs())]
    Silent {
        /// How long it was waited for.
        after: Duration,
    },
    /// An expert that does not exist.
    #[error("{key} is not there")]
    Missing {
        /// Who was asked for.
        key: ExpertKey,
    },
    /// Experts have less memory than a token needs.
    #[error(
        "experts need {needed} bytes of memory at least ({slots} slots of {slot_bytes} bytes) and have {given}: {} are missing",
        needed - given
    )]
    Floor {
        /// Bytes of the floor.
        needed: u64,
        /// Bytes that were given.
        given: u64,
        /// Slots of the floor.
        slots: usize,
        /// Bytes of one.
        slot_bytes: usize,
    },
    /// Threads that read cannot be started.
    #[error("starting threads that read experts: {source}")]
    Threads {
        /// Why.
        source: io::Error,
    },
    /// All slots are pinned.
    #[error("all {slots} slots of experts are in use")]
    NoSlot {
        /// Slots in all.
        slots: usize,
    },
    /// A record could not be made of a checkpoint, or an expert not of a record.
    #[error("{key}: {source}")]
    Expert {
        /// The expert.
        key: ExpertKey,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
