//! Vocabulary shared by every Taper crate: ids, requests, events and the [`Engine`] seam.
//!
//! No tensors, no I/O, no threads, no async: everything here is plain data or a trait, so that the
//! HTTP layer, the scheduler and the tests can depend on it without building an engine.

mod engine;
mod ids;
mod request;
mod sampling;

pub use engine::{Engine, EngineInfo, EngineStats, SubmitError};
pub use ids::{BlockId, LayerId, SeqId, TokenId};
pub use request::{
    Event, EventSink, FinishReason, GenRequest, GeneratedToken, GenerationError, StopRules,
    TokenLogprob, TokenLogprobs,
};
pub use sampling::{InvalidParam, SamplingParams};
