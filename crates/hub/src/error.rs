//! What can go wrong, each with the next step.

use crate::ModelId;
use std::{io, path::PathBuf};

/// Why a model was not found or not downloaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Not `org/name`.
    #[error(
        "{name:?} is not the name of a model on the hub: {reason}; names look like org/name or org/name@revision"
    )]
    BadName {
        /// As given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A path, or a name without an organisation, where nothing is.
    #[error("there is no directory {name}, and models on the hub are named org/name")]
    NoDirectory {
        /// As given.
        name: String,
    },
    /// A path that leads to a file.
    #[error(
        "{} is a file; give the directory that holds config.json and the *.safetensors files, or a GGUF file, whose name ends in .gguf", path.display()
    )]
    NotADirectory {
        /// The file.
        path: PathBuf,
    },
    /// A directory without a file that every model has.
    #[error("{} is not a model directory: it has no {missing}", dir.display())]
    NotAModel {
        /// The directory.
        dir: PathBuf,
        /// The first file that is missing.
        missing: String,
    },
    /// Never downloaded, at least not at this revision.
    #[error("{id} is not in {}", cache.display())]
    NotCached {
        /// The model.
        id: ModelId,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// A download that was interrupted, or one of another tool that took a part only.
    #[error("{id} is in the cache without {missing}")]
    Incomplete {
        /// The model.
        id: ModelId,
        /// The first file that is missing.
        missing: String,
    },
    /// The user asked for no network.
    #[error("{id} cannot be downloaded while HF_HUB_OFFLINE is set")]
    Offline {
        /// The model.
        id: ModelId,
    },
    /// The user asked for no network.
    #[error(
        "the hub cannot be searched while HF_HUB_OFFLINE is set; `taper list` shows what is on this machine"
    )]
    OfflineSearch,
    /// One revision alone cannot be deleted.
    #[error("all revisions of a model are deleted together, as they share their files: name {}", id.name())]
    AllRevisions {
        /// The model.
        id: ModelId,
    },
    /// The hub knows no such model, or hides it from us.
    #[error(
        "{endpoint} has no model {id}: check the name; if it is private, log in with `hf auth login` or set HF_TOKEN"
    )]
    NotFound {
        /// The model.
        id: ModelId,
        /// The hub.
        endpoint: String,
    },
    /// The model is there, the revision is not.
    #[error("{id}: there is no revision {:?}; {endpoint}/{}/commits lists them", id.revision(), id.name())]
    NoRevision {
        /// The model.
        id: ModelId,
        /// The hub.
        endpoint: String,
    },
    /// The model is gated: its licence must be accepted on the hub first.
    #[error(
        "{id} is gated: accept the licence at {endpoint}/{}, then log in with `hf auth login` or set HF_TOKEN", id.name()
    )]
    Gated {
        /// The model.
        id: ModelId,
        /// The hub.
        endpoint: String,
    },
    /// The token is expired, revoked or mistyped.
    #[error("{endpoint} refuses the token: log in again with `hf auth login`, or correct HF_TOKEN")]
    TokenRefused {
        /// The hub.
        endpoint: String,
    },
    /// Only formats that Taper does not load.
    #[error(
        "{id} has no {missing}; Taper loads safetensors: look for a conversion, often in mlx-community"
    )]
    NoWeights {
        /// The model.
        id: ModelId,
        /// What a model has and this one has not.
        missing: &'static str,
    },
    /// Found before the first byte was fetched.
    #[error(
        "{id} needs {needed_bytes} bytes more and {} has {free_bytes} free: make room, or set HF_HUB_CACHE to another disk", dir.display()
    )]
    NoSpace {
        /// The model.
        id: ModelId,
        /// Bytes that remain to be fetched.
        needed_bytes: u64,
        /// Bytes there are.
        free_bytes: u64,
        /// The cache.
        dir: PathBuf,
    },
    /// No connection, or it broke too often. What has arrived is kept.
    #[error(
        "cannot read {url}: {source}; check the connection and run it again, it goes on where it stopped"
    )]
    Network {
        /// What was asked for.
        url: String,
        /// The transport's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The hub is in trouble, or something between us and it.
    #[error("{url} answered with status {status}; try again later")]
    Status {
        /// What was asked for.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// The body ended early or late.
    #[error("{file} has {got_bytes} bytes and should have {expected_bytes}")]
    WrongSize {
        /// The file.
        file: String,
        /// By the hub's listing.
        expected_bytes: u64,
        /// As received.
        got_bytes: u64,
    },
    /// The bytes are not those that the hub lists. They are thrown away.
    #[error("{file} arrived damaged: its hash is not the one that the hub lists; run it again")]
    WrongHash {
        /// The file.
        file: String,
    },
    /// Another process fetches the same file.
    #[error("{file} is being downloaded by another process")]
    Busy {
        /// The file.
        file: String,
    },
    /// Whoever watched wanted it no more. What has arrived is kept.
    #[error("the download was cancelled")]
    Cancelled,
    /// Not what a hub says.
    #[error("{url} is no answer of a hub: {reason}")]
    BadReply {
        /// What was asked for.
        url: String,
        /// What is wrong with the response.
        reason: String,
    },
    /// The disk.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl HubError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// Whether the same request may succeed in a moment.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Network { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status == 408 || *status >= 500,
            // A body that ends early without an error: a proxy cut it.
            Self::WrongSize { expected_bytes, got_bytes, .. } => got_bytes < expected_bytes,
            _ => false,
        }
    }
}
