//! The paged KV cache: see the README below.
#![doc = include_str!("../README.md")]

mod apart;
mod blocks;
mod cache;
mod config;
mod disk;
mod error;
mod evict;
mod finite;
mod keep;
mod parts;
mod prefix;
mod prices;
mod queries;
mod recall;
mod rewind;
mod scheme;
mod session;
mod states;
mod tiers;

pub use apart::ImageSpan;
pub use cache::KvCache;
pub use config::{ExactRoom, KvConfig, KvHeads, KvUsage};
pub use disk::{DiskTier, UnitName, UnitRows, Unread, Written};
pub use error::KvCacheError;
pub use evict::{Eviction, EvictionPolicy};
pub use keep::{NotRestored, Restoring};
pub use prices::Prices;
pub use recall::{PAGE_BLOCKS, Recall, RecallCounts};
pub use scheme::KvScheme;
pub(crate) use session::RowRange;
pub use session::{PagedSession, SeqRange, StateSession};
pub use states::RecurrentConfig;
pub use taper_recall::EVERY_TOKENS;
pub use tiers::ResidentRoom;
