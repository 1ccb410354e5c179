//! Vocabulary shared by every Taper crate: see the README below.
#![doc = include_str!("../README.md")]

mod backlog;
mod draw;
mod engine;
mod ids;
mod phase;
mod request;
mod sampling;
mod threads;
mod tokens;

pub use backlog::Backlog;
pub use draw::{DeviceDraw, DeviceEdit, DeviceEdits, DeviceLogits};
pub use engine::{Engine, EngineInfo, EngineStats, KvBits, SubmitError};
pub use ids::{BlockId, LayerId, SeqId, TokenId};
pub use phase::Phase;
pub use request::{
    ErrorId, Event, EventSink, FinishReason, GenRequest, GeneratedToken, GenerationError,
    StopRules, TokenLogprob, TokenLogprobs,
};
pub use sampling::{InvalidParam, SamplingParams};
pub use threads::{Alone, Threads};
pub use tokens::TokenSet;
