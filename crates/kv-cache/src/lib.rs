//! The paged KV cache: see the README below.
#![doc = include_str!("../README.md")]

mod blocks;
mod cache;
mod disk;
mod error;
mod finite;
mod keep;
mod prefix;
mod prices;
mod scheme;
mod session;

pub use cache::{ExactRoom, KvCache, KvConfig, KvUsage};
pub use disk::{DiskTier, UnitName, Written};
pub use error::KvCacheError;
pub use prices::Prices;
pub use scheme::KvScheme;
pub use session::{KvSession, PagedSession, SeqRange};
