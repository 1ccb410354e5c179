//! Vocabulary shared by every Taper crate: see the README below.
#![doc = include_str!("../README.md")]

mod adapter;
mod backlog;
mod draw;
mod engine;
mod exp;
mod grammar;
mod ids;
mod media;
mod medium;
mod phase;
mod request;
mod sampling;
mod speech;
mod threads;
mod tokens;
mod vectors;

pub use adapter::{AdapterInfo, AdapterRefused};
pub use backlog::Backlog;
pub use draw::{DeviceDraw, DeviceEdit, DeviceEdits, DeviceLogits};
pub use engine::{
    Drafting, Engine, EngineInfo, EngineStats, ExpertStats, KvBits, MAX_DRAFT_TOKENS, STEP_TOKENS,
    SubmitError,
};
pub use exp::{exp, gelu};
pub use grammar::{Constraint, ConstraintError, End, Grammar, SharedGrammar, TokenMask};
pub use ids::{BlockId, LayerId, SeqId, TokenId};
pub use media::{
    EncodedImage, ImageEncoder, ImageError, PreparedImage, RgbImage, VideoEncoder, VideoFrame,
};
pub use medium::{Medium, expand_images};
pub use phase::Phase;
pub use request::{
    ErrorId, Event, EventSink, FinishReason, GenRequest, GeneratedToken, GenerationError,
    StopRules, TokenLogprob, TokenLogprobs,
};
pub use sampling::{InvalidParam, SamplingParams};
pub use speech::{
    TranscribeError, TranscribeOptions, Transcriber, Transcript, TranscriptListener,
    TranscriptSegment,
};
pub use threads::{Alone, Threads};
pub use tokens::TokenSet;
pub use vectors::{TextPair, TextScores, TextVectors, VectorsError};
