//! Admission, continuous batching, chunked prefill and preemption as a pure state machine.
//!
//! There is no clock, thread, tensor or I/O in here: the same calls give the same plans, and a
//! [`StepPlan`] is plain data that can be logged and replayed.
//!
#![doc = include_str!("../README.md")]

mod eviction;
mod plan;
mod pool;
mod prompts;
mod scheduler;
mod sequence;

pub use eviction::{DueEviction, EvictionSchedule};
pub use plan::{Admission, AdmitError, Admitted, SeqOutcome, SeqWork, StepPlan};
pub use pool::{BlockPool, CountingPool, NoRoom};
pub use scheduler::{Scheduler, SchedulerConfig};
