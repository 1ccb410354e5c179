//! OpenAI-compatible HTTP over any engine: see the README below.
#![doc = include_str!("../README.md")]

mod access;
mod config;
mod constraint;
mod context;
mod decode;
mod error_body;
mod errors;
mod generation;
mod images;
mod infill;
mod intake;
mod keys;
mod linger;
mod logprobs;
mod many;
mod messages;
mod metrics;
mod model;
mod openapi;
mod prepare;
mod random;
mod record;
mod routes;
mod scan;
mod scores;
mod serve;
mod sink;
mod speech;
mod sse;
mod state;
mod stored;
mod throughput;
mod tls;
mod tokens;
mod vectors;
mod watchdog;
mod wire;

pub use access::{AllowedHosts, AllowedOrigins};
pub use config::{ConfigError, Mount, ServerConfig};
pub use context::{ContextSource, Retrieved};
pub use errors::{ApiError, ErrorClass};
pub use images::{DecodeImage, ImageLimits, SplitVideo, Vision, is_public};
pub use keys::{ApiKey, ApiKeys, Scope};
pub use many::{
    Description, KeepAlive, KeepAliveError, Library, LibraryError, Limits, Listed, Models,
    ModelsConfig, PullStep, Watch,
};
pub use model::Model;
pub use routes::{Guard, models_router, protect, route_table, router};
pub use serve::{serve, serve_models};
pub use state::AppState;
pub use tls::{Tls, TlsError};

/// `system_fingerprint`: responses with an equal one come from the same code.
const FINGERPRINT: &str = concat!("taper-", env!("CARGO_PKG_VERSION"));
