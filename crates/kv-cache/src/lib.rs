//! The paged KV cache: see the README below.
#![doc = include_str!("../README.md")]

mod cache;
mod error;
mod session;

pub use cache::{KvCache, KvConfig, KvUsage};
pub use error::KvCacheError;
pub use session::{KvSession, PagedSession, SeqRange};
