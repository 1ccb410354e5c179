//! Errors of the cache.

use std::path::PathBuf;
use taper_base::{LayerId, SeqId};
use taper_kv_codecs::KvCodecError;
use taper_triattention::TriAttentionError;

/// What can go wrong with the cache.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvCacheError {
    /// No block is free.
    #[error("the KV cache is full: {needed} more blocks needed, {free} free")]
    Full {
        /// Blocks needed.
        needed: usize,
        /// Blocks free.
        free: usize,
    },
    /// No exact block is free.
    #[error("the KV cache has no room for exact tokens: {needed} more blocks needed, {free} free")]
    NoExact {
        /// Exact blocks needed.
        needed: usize,
        /// Exact blocks free.
        free: usize,
    },
    /// No more blocks may be in memory.
    #[error("the memory of the KV cache is full: {needed} blocks needed, {free} free")]
    NoMemory {
        /// Blocks that a sequence needs in memory.
        needed: usize,
        /// Blocks that others leave.
        free: usize,
    },
    /// A step names tokens for which the sequence has no room.
    #[error("sequence {seq:?} has room for {room} tokens, and the step ends at {end}")]
    NoRoom {
        /// The sequence.
        seq: SeqId,
        /// Tokens that fit its blocks.
        room: usize,
        /// End of the step.
        end: usize,
    },
    /// A step begins with tokens whose rows were evicted.
    #[error("{evicted} rows of sequence {seq:?} were evicted, and the step starts at {start}")]
    Evicted {
        /// The sequence.
        seq: SeqId,
        /// First token of the step.
        start: usize,
        /// Rows that are gone.
        evicted: usize,
    },
    /// A sequence that holds nothing.
    #[error("sequence {seq:?} holds no blocks")]
    NoSequence {
        /// The sequence.
        seq: SeqId,
    },
    /// Rows that cannot be evicted: no whole unit, more than are not protected, or of a cache with recurrent
    /// states.
    #[error(
        "{evict} of {rows} rows cannot be evicted beside the first {prefix} and the latest {window}"
    )]
    Eviction {
        /// Rows that were to go.
        evict: usize,
        /// Rows there are.
        rows: usize,
        /// First ones that stay.
        prefix: usize,
        /// Latest ones that stay.
        window: usize,
    },
    /// The policy cannot choose.
    #[error(transparent)]
    Policy(#[from] TriAttentionError),
    /// A layer that the cache was not made for.
    #[error("layer {layer:?} is not one of the cache's {layers}")]
    Layer {
        /// The offender.
        layer: LayerId,
        /// Layers there are.
        layers: usize,
    },
    /// No recurrent state is free.
    #[error("all {states} recurrent states are held by running sequences")]
    NoState {
        /// States there are.
        states: usize,
    },
    /// A step does not go on where the sequence's recurrent state is.
    #[error(
        "the recurrent state of sequence {seq:?} has seen {at} tokens, and the step starts at {start}"
    )]
    StateAt {
        /// The sequence.
        seq: SeqId,
        /// Tokens that its state has processed.
        at: usize,
        /// First token of the step.
        start: usize,
    },
    /// A recurrent layer that the cache was not made for.
    #[error("recurrent layer {layer} is not one of the cache's {layers}")]
    Recurrent {
        /// The offender, counted among recurrent layers.
        layer: usize,
        /// Recurrent layers there are.
        layers: usize,
    },
    /// A scheme without layers.
    #[error("a KV scheme needs a codec for at least one layer")]
    NoLayers,
    /// The directory of a disk tier cannot be used.
    #[error("cannot keep KV prefixes in {}: {source}", dir.display())]
    Disk {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Another process uses the directory of a disk tier, and one of the two needs it alone.
    #[error(
        "another server uses {}, and pages that leave memory need a directory of their own",
        dir.display()
    )]
    DiskInUse {
        /// The directory.
        dir: PathBuf,
    },
    /// Sequences cannot leave pages out.
    #[error("a step attends to all pages here: {reason}")]
    NoRecall {
        /// Why.
        reason: &'static str,
    },
    /// The codec failed.
    #[error(transparent)]
    Codec(#[from] KvCodecError),
}
