//! From a row of logits to the next token: penalties, filters, seeded draws, log probabilities.
//!
#![doc = include_str!("../README.md")]

mod candidates;
mod device;
mod error;
mod exp;
mod kept;
mod logprobs;
mod mask;
mod passes;
mod penalties;
mod prefix;
mod rng;
mod sampler;
mod scan;
mod threads;

pub use device::read_logits;
pub use error::SamplerError;
pub use logprobs::token_logprobs;
pub use rng::draw_bits;
pub use sampler::{Choice, Sampler};
