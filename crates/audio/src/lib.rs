//! Speech to text: see the README below.
#![doc = include_str!("../README.md")]

mod decode;
mod error;
mod languages;
mod mel;
mod resample;
mod whisper;

pub use decode::{DecodeError, DecodeLimits, SAMPLE_RATE, decode};
pub use error::WhisperError;
pub use mel::{LogMel, MelBank};
pub use whisper::Whisper;
