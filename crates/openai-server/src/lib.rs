//! OpenAI-compatible HTTP over any engine: see the README below.
#![doc = include_str!("../README.md")]

mod config;
mod decode;
mod errors;
mod generation;
mod logprobs;
mod messages;
mod metrics;
mod prepare;
mod random;
mod routes;
mod serve;
mod sse;
mod state;
mod wire;

pub use config::{ApiKeys, ServerConfig};
pub use errors::{ApiError, ErrorClass};
pub use routes::router;
pub use serve::serve;
pub use state::AppState;

/// `system_fingerprint`: answers with the same one come from the same code.
const FINGERPRINT: &str = concat!("taper-", env!("CARGO_PKG_VERSION"));
