//! Images for language models: see the README below.
#![doc = include_str!("../README.md")]

mod decode;
mod encoder;
mod error;
mod families;
mod fields;
mod frames;
mod layers;
mod open;
mod resize;
mod settings;
mod video;
mod weights;

pub use decode::{DecodeError, DecodeLimits, decode};
pub use error::VisionError;
pub use families::model_types;
pub use frames::frames;
pub use open::{has_tower, open, open_checkpoint, open_on, open_with};

use fields::Fields;
