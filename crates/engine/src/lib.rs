//! The step loop: see the README below.
#![doc = include_str!("../README.md")]

mod adapters;
mod channel;
mod config;
mod constrained;
mod eviction;
mod lane;
mod listener;
mod local;
mod media;
mod open;
mod pace;
mod pass;
mod pool;
mod queries;
mod sequence;
mod speculation;
mod stats;
mod step;
mod worker;

pub use channel::{ChannelSink, Events, channel};
pub use config::{
    EngineConfig, EngineError, EnginePlan, KvBudget, KvDisk, KvIdle, KvOffer, Scheduling,
};
pub use eviction::{Evict, EvictionConfig, EvictionError, eviction_policy};
pub use local::LocalEngine;
pub use queries::{QueryError, observe_queries};
pub use speculation::Speculation;
pub use taper_speculative as speculative;
pub use taper_triattention as triattention;
