//! The step loop: see the README below.
#![doc = include_str!("../README.md")]

mod channel;
mod config;
mod local;
mod sequence;
mod stats;
mod step;

pub use channel::{ChannelSink, Events, channel};
pub use config::{EngineConfig, EngineError, KvBudget};
pub use local::LocalEngine;
