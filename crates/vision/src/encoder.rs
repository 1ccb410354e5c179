//! A processor and a tower as an [`ImageEncoder`].

use crate::{settings, video::Sampling};
use candle_core::Tensor;
use sha2::{Digest, Sha256};
use std::fmt;
use taper_base::{
    EncodedImage, ImageEncoder, ImageError, PreparedImage, RgbImage, TokenId, VideoEncoder,
};

/// What a processor makes of an image; see [`PreparedImage`].
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) expansion: Vec<TokenId>,
    pub(crate) grid: Option<[u32; 3]>,
    pub(crate) pixels: Vec<f32>,
    pub(crate) shape: Vec<usize>,
}

/// Resizes and cuts images as one family does.
pub(crate) trait Processor: Send + Sync + fmt::Debug {
    /// The image has a pixel at least, and as many bytes as its sizes say.
    fn prepare(&self, image: &RgbImage) -> Result<Prepared, ImageError>;

    /// Which frames of videos are looked at; `None` of a family that has them otherwise than as images of several frames.
    fn videos(&self) -> Option<&Sampling> {
        None
    }

    /// Frames of one size, as many as [`Sampling::together`] or fewer, of a video of which `sampled` are looked at.
    fn prepare_frames(&self, _: &[RgbImage], _sampled: usize) -> Result<Prepared, ImageError> {
        Err(ImageError::Refused("this model takes no videos".to_owned()))
    }
}

/// Rows for the language model, on the tower's device.
#[derive(Debug)]
pub(crate) struct Rows {
    /// `[rows, hidden]`.
    pub(crate) rows: Tensor,
    /// `[rows, hidden]` each.
    pub(crate) deep: Vec<Tensor>,
}

impl From<Tensor> for Rows {
    fn from(rows: Tensor) -> Self {
        Self { rows, deep: Vec::new() }
    }
}

/// Runs a tower and its projector.
pub(crate) trait Tower: Send + Sync + fmt::Debug {
    fn forward(&self, image: &PreparedImage) -> candle_core::Result<Rows>;
}

/// The images' part of one model.
#[derive(Debug)]
pub(crate) struct Encoder {
    pub(crate) processor: Box<dyn Processor>,
    pub(crate) tower: Box<dyn Tower>,
    pub(crate) placeholder: TokenId,
    pub(crate) image_token: TokenId,
    pub(crate) hidden: usize,
    pub(crate) weight_bytes: u64,
    /// Hash of all that the processor and the tower read of the configuration.
    pub(crate) settings: Sha256,
}

impl Encoder {
    fn hash(&self, image: &RgbImage) -> [u8; 32] {
        let mut hash = self.settings.clone();
        hash.update(image.width.to_le_bytes());
        hash.update(image.height.to_le_bytes());
        hash.update(&image.pixels);
        hash.finalize().into()
    }

    fn rows(&self, rows: &Tensor, expected: usize) -> Result<std::sync::Arc<[f32]>, ImageError> {
        let wide = rows.dims2().and_then(|sizes| {
            if sizes == (expected, self.hidden) {
                return rows.flatten_all()?.to_vec1::<f32>();
            }
            candle_core::bail!("the tower gave {sizes:?} for {expected} rows of {}", self.hidden)
        });
        wide.map(Into::into).map_err(failed)
    }
}

// By value: it is the argument of `map_err`.
#[allow(clippy::needless_pass_by_value)]
fn failed(error: candle_core::Error) -> ImageError {
    ImageError::Failed(error.to_string())
}

impl ImageEncoder for Encoder {
    fn prepare(&self, image: &RgbImage) -> Result<PreparedImage, ImageError> {
        settings::check(image)?;
        let hash = self.hash(image);
        let Prepared { expansion, grid, pixels, shape } = self.processor.prepare(image)?;
        let image_token = self.image_token;
        Ok(PreparedImage { expansion, image_token, hash, grid, pixels, shape })
    }

    fn encode(&self, image: &PreparedImage) -> Result<EncodedImage, ImageError> {
        let made = self.tower.forward(image).map_err(failed)?;
        let expected = image.expansion.iter().filter(|token| **token == self.image_token).count();
        let deep: Result<_, _> = made.deep.iter().map(|rows| self.rows(rows, expected)).collect();
        Ok(EncodedImage { rows: self.rows(&made.rows, expected)?, deep: deep? })
    }

    fn placeholder(&self) -> TokenId {
        self.placeholder
    }

    fn hidden(&self) -> usize {
        self.hidden
    }

    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn videos(&self) -> Option<&dyn VideoEncoder> {
        self.processor.videos().map(|_| self as &dyn VideoEncoder)
    }
}

impl VideoEncoder for Encoder {
    fn together(&self) -> usize {
        self.processor.videos().map_or(1, |own| own.together)
    }

    fn sample(&self, frames: usize, per_second: f64) -> Vec<usize> {
        self.processor.videos().map(|own| own.frames(frames, per_second)).unwrap_or_default()
    }

    fn label(&self, seconds: &[f64]) -> String {
        let ends = [seconds.first(), seconds.last()].map(|at| at.copied().unwrap_or_default());
        format!("<{:.1} seconds>", f64::midpoint(ends[0], ends[1]))
    }

    fn prepare_frames(
        &self,
        frames: &[RgbImage],
        sampled: usize,
    ) -> Result<PreparedImage, ImageError> {
        let refused = |why: &str| ImageError::Refused(why.to_owned());
        let first = frames.first().ok_or_else(|| refused("the video has no frames"))?;
        let mut hash = self.settings.clone();
        hash.update(b"frames");
        for count in [frames.len() as u64, sampled as u64] {
            hash.update(count.to_le_bytes());
        }
        for frame in frames {
            settings::check(frame)?;
            if (frame.width, frame.height) != (first.width, first.height) {
                return Err(refused("the frames of the video are of several sizes"));
            }
            hash.update(self.hash(frame));
        }
        let Prepared { expansion, grid, pixels, shape } =
            self.processor.prepare_frames(frames, sampled)?;
        let (image_token, hash) = (self.image_token, hash.finalize().into());
        Ok(PreparedImage { expansion, image_token, hash, grid, pixels, shape })
    }
}
