//! Images in prompts: where they come from, what the model's tower makes of them, and where they stand.

mod address;
mod cache;
mod fetch;
mod place;
mod see;
mod source;
mod video;

pub use address::is_public;
pub(crate) use cache::ImageCounts;
pub(crate) use place::{Placeholder, keep_apart};
pub(crate) use see::Images;
pub(crate) use source::{checked_detail, of_base64};

use std::{sync::Arc, time::Duration};
use taper_base::{ImageEncoder, ImageError, RgbImage, VideoFrame};

/// Reads an image file.
pub type DecodeImage = fn(&[u8]) -> Result<RgbImage, ImageError>;

/// Reads a file that moves.
pub type SplitVideo = fn(&[u8]) -> Result<Vec<VideoFrame>, ImageError>;

/// What sees images for a model.
#[derive(Debug, Clone)]
pub struct Vision {
    /// The model's tower.
    pub encoder: Arc<dyn ImageEncoder>,
    /// Reads image files.
    pub decode: DecodeImage,
    /// Reads files that move.
    pub frames: SplitVideo,
}

/// Which images requests may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageLimits {
    /// Hosts that images are fetched from, by the names that URLs have; `*` is every one. With none, images come in
    /// requests only.
    pub allowed_media_domains: Vec<String>,
    /// How long it may take to fetch an image, redirects included.
    pub media_fetch_timeout: Duration,
    /// Images of a request.
    pub per_prompt: usize,
    /// Bytes of what was made of the last images, kept for requests with the same ones.
    pub cache_bytes: usize,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self {
            allowed_media_domains: Vec::new(),
            media_fetch_timeout: Duration::from_secs(5),
            per_prompt: 64,
            cache_bytes: 256 << 20,
        }
    }
}
