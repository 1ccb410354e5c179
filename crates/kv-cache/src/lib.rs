//! The paged KV cache: which blocks belong to which sequence, and the session through which a model
//! writes and attends. It owns no arithmetic; that is the codec's.

mod cache;
mod error;
mod session;

pub use cache::{KvCache, KvConfig, KvUsage};
pub use error::KvCacheError;
pub use session::{KvSession, PagedSession, SeqRange};
