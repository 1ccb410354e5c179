//! Language models: packed batches of tokens in, logits out.
#![doc = include_str!("../README.md")]

mod adapter;
mod calibrate;
mod config;
mod decoder;
mod draft_head;
mod encoder;
mod error;
mod experts;
mod families;
mod feed_forward;
mod images;
mod layer;
mod layerwise;
mod mixers;
mod model;
mod norms;
mod per_layer;
mod rope;
mod router;
mod sensitivity;
mod source;
mod spec;
mod streaming;
mod streams;

pub use adapter::{Adapter, AdapterError, AdapterTargets};
pub use calibrate::{CalibrationError, GptqReport, gptq};
pub use draft_head::DraftHead;
pub use encoder::{ENCODERS, Encoder, EncoderText};
pub use error::ModelError;
pub use families::{FAMILIES, Family, load, model_types};
pub use images::{Ahead, ImagePositions, ImageRow, StepImages};
pub use model::{Batch, LoadOptions, Model, ModelInfo};
pub use sensitivity::{Sensitivity, choose_bits};
pub use streaming::{ExpertMemory, ExpertStreaming, PackReport, StreamedExperts, pack_experts};
pub use taper_kv_cache::StateSession;
pub use taper_moe_streaming::{ExpertError, Manifest, Policy, Replay, Trace, replay};
pub use taper_tensor::{Precision, Rounding};
