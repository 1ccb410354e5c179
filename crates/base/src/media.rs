//! Images in prompts: the seam between whoever encodes them and whoever runs the language model.

use crate::TokenId;
use std::{fmt, sync::Arc};

/// Pixels of an image: 8-bit RGB, rows from the top, no padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RgbImage {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// `3 * width * height` bytes.
    pub pixels: Vec<u8>,
}

/// An image as a model's processor makes it ready for the tower.
#[derive(Debug, Clone)]
pub struct PreparedImage {
    /// What stands in the prompt in place of the template's one placeholder token.
    pub expansion: Vec<TokenId>,
    /// The token of `expansion` that each row of the tower's output replaces, in order.
    pub image_token: TokenId,
    /// SHA-256 of the pixels and of everything that the processor's result depends on.
    pub hash: [u8; 32],
    /// Time, height and width in tokens, for rotary positions of three axes; `None` where an image's tokens count as text's.
    pub grid: Option<[u32; 3]>,
    /// Values as the tower takes them, in the order that the family has.
    pub pixels: Vec<f32>,
    /// Sizes of `pixels`, as the family has them.
    pub shape: Vec<usize>,
}

/// What a tower made of one image.
#[derive(Debug, Clone)]
pub struct EncodedImage {
    /// `[rows, hidden]`: embeddings of the image's tokens.
    pub rows: Arc<[f32]>,
    /// `[rows, hidden]` each: added to the hidden state behind decoder layer 0, 1, and so on (Qwen3-VL's DeepStack).
    pub deep: Vec<Arc<[f32]>>,
}

/// Encodes images for one model.
pub trait ImageEncoder: Send + Sync + fmt::Debug {
    /// Resizes and cuts an image as the model's processor does.
    ///
    /// # Errors
    /// The image cannot be taken: it is too thin, for example.
    fn prepare(&self, image: &RgbImage) -> Result<PreparedImage, ImageError>;
    /// Runs the tower and the projector.
    ///
    /// # Errors
    /// The tower fails.
    fn encode(&self, image: &PreparedImage) -> Result<EncodedImage, ImageError>;
    /// The token that the chat template writes for an image.
    fn placeholder(&self) -> TokenId;
    /// Width of a row of [`EncodedImage::rows`].
    fn hidden(&self) -> usize;
    /// Bytes of its weights.
    fn weight_bytes(&self) -> u64 {
        0
    }
    /// What prepares videos; `None` of a model that takes none.
    fn videos(&self) -> Option<&dyn VideoEncoder> {
        None
    }
}

/// A frame of a video.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoFrame {
    /// A file of an image.
    pub file: Vec<u8>,
    /// When it is shown.
    pub seconds: f64,
}

/// Prepares videos for models that see them as images of a few frames each, with a text before each that says when
/// they are shown (Qwen3-VL).
pub trait VideoEncoder: Send + Sync + fmt::Debug {
    /// Frames of one image.
    fn together(&self) -> usize;
    /// Indices of the frames that are looked at, ascending, of a video of so many at so many a second.
    fn sample(&self, frames: usize, per_second: f64) -> Vec<usize>;
    /// The text before an image whose frames are shown at these seconds.
    fn label(&self, seconds: &[f64]) -> String;
    /// As [`ImageEncoder::prepare`], of consecutive frames of a video of which `sampled` are looked at.
    ///
    /// # Errors
    /// The frames cannot be taken: they are of several sizes, for example.
    fn prepare_frames(
        &self,
        frames: &[RgbImage],
        sampled: usize,
    ) -> Result<PreparedImage, ImageError>;
}

/// An image was refused, or its tower failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageError {
    /// The request's fault.
    Refused(String),
    /// The server's fault.
    Failed(String),
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => write!(f, "the image cannot be used: {why}"),
            Self::Failed(why) => write!(f, "the image could not be encoded: {why}"),
        }
    }
}

impl std::error::Error for ImageError {}
