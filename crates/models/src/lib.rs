//! Language models: packed batches of tokens in, logits out.
#![doc = include_str!("../README.md")]

mod config;
mod decoder;
mod encoder;
mod error;
mod experts;
mod families;
mod feed_forward;
mod layer;
mod mixers;
mod model;
mod norms;
mod per_layer;
mod rope;
mod router;
mod source;
mod spec;
mod streams;

pub use encoder::{ENCODERS, Encoder};
pub use error::ModelError;
pub use families::{FAMILIES, Family, load, model_types};
pub use model::{Batch, LoadOptions, Model, ModelInfo};
pub use taper_kv_cache::StateSession;
pub use taper_tensor::{Precision, Rounding};
