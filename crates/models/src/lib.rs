//! Language models: packed batches of tokens in, logits out.
#![doc = include_str!("../README.md")]

mod config;
mod decoder;
mod error;
mod families;
mod feed_forward;
mod mixers;
mod model;
mod rope;
mod spec;

pub use error::ModelError;
pub use families::{FAMILIES, Family, load, model_types};
pub use model::{Batch, LoadOptions, Model, ModelInfo};
pub use taper_kv_cache::StateSession;
pub use taper_tensor::{Precision, Rounding};
