//! TriAttention: which keys of a KV cache are kept when others are evicted.
#![doc = include_str!("../README.md")]

mod error;
mod kept;
mod policy;
pub mod reference;
mod rope;
mod scorer;
mod select;
mod statistics;

pub use error::TriAttentionError;
pub use kept::{Kept, Moves};
pub use policy::{Evictions, TriAttention};
pub use rope::{Complex, OFFSETS, Rope};
pub use scorer::key_scorer;
pub use select::{Budget, LayerScores, Sharing, latest, select};
pub use statistics::{Concentration, HeadStatistics, QueryStatistics};
