//! Language models: packed batches of tokens in, logits out.
//!
//! [`load`] reads `model_type` from a checkpoint's `config.json` and builds the model. A family is
//! one short file that turns its configuration into a [`decoder::Spec`]; the layers are shared. A
//! model knows nothing of block tables, codecs, files or sampling: keys and values go through
//! [`KvSession`].

mod config;
mod decoder;
mod error;
mod families;
mod model;
mod rope;

pub use error::ModelError;
pub use families::{FAMILIES, load};
pub use model::{Activations, Batch, LoadOptions, Model, ModelInfo};
pub use taper_kv_cache::KvSession;
