//! Adapters: what an engine says of those that it has, and why it takes no other.

use std::{error::Error, sync::Arc};

/// An adapter that requests can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Its name.
    pub name: Arc<str>,
    /// The directory that it was loaded from.
    pub path: String,
    /// The largest rank of its matrices.
    pub rank: usize,
    /// Modules that it changes.
    pub modules: usize,
    /// Numbers that it has.
    pub parameters: u64,
    /// Bytes in memory.
    pub bytes: u64,
    /// The model that it says it was made for.
    pub base: Option<String>,
    /// Requests with it that have begun to run.
    pub running: u32,
    /// Requests with it that have not begun.
    pub waiting: u32,
}

/// Why an adapter was not loaded, or not forgotten.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AdapterRefused {
    /// This engine has no adapters.
    #[error("the adapter {name:?} cannot be loaded: this server has no adapters")]
    NotServed {
        /// Name of the adapter.
        name: String,
    },
    /// There is none of that name.
    #[error("there is no adapter {name:?}")]
    Unknown {
        /// Name of the adapter.
        name: String,
    },
    /// Another one has the name.
    #[error("there is an adapter {name:?} already; unload it first")]
    NameTaken {
        /// Name of the adapter.
        name: String,
    },
    /// As many as are allowed are loaded.
    #[error("the adapter {name:?} cannot be loaded: {max} are, and no more are allowed")]
    TooMany {
        /// Name of the adapter.
        name: String,
        /// The limit.
        max: usize,
    },
    /// Its files cannot be used with this model.
    #[error("the adapter {name:?} cannot be loaded: {source}")]
    Load {
        /// Name of the adapter.
        name: String,
        /// Why.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
}
