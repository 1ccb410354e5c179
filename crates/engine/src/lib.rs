//! The step loop: plans with the scheduler, runs the model over the paged cache, samples, and
//! reports events.
//!
//! [`LocalEngine`] owns one thread. Callers submit requests from anywhere and read events from a
//! sink of their own; dropping the reading side cancels the request at the next step.

mod channel;
mod config;
mod local;
mod sequence;
mod stats;
mod step;

pub use channel::{ChannelSink, Events, channel};
pub use config::{EngineConfig, EngineError, KvBudget};
pub use local::LocalEngine;
