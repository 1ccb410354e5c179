//! Models by name: see the README below.
#![doc = include_str!("../README.md")]

mod cache;
mod client;
mod config;
mod download;
mod error;
mod files;
mod hash;
mod id;
mod progress;
mod remove;
mod search;
mod transfer;

pub use cache::{CacheDir, CachedModel, Resolved, catalogue, resolve};
pub use config::{HubConfig, Token};
pub use download::download;
pub use error::HubError;
pub use id::ModelId;
pub use progress::Progress;
pub use remove::{remove, stored_bytes};
pub use search::{FoundModel, search};
