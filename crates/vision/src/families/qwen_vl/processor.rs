//! Images in any size that squares of patches fill, within a number of pixels.

use crate::{
    Fields, VisionError,
    encoder::{Prepared, Processor},
    layers::Grid,
    resize::{Filter, resize},
    settings::{CLIP, HALVES, Scaling, round, within},
    video::{self, Sampling},
};
use taper_base::{ImageError, RgbImage, TokenId};

/// `Qwen2VLImageProcessor` and `Glm4vImageProcessor` of transformers.
#[derive(Debug)]
pub(in crate::families) struct SquareProcessor {
    scaling: Scaling,
    patch: usize,
    merge: usize,
    frames: usize,
    /// The least and the most pixels.
    pixels: [usize; 2],
    counts: Counts,
    image_token: TokenId,
    videos: Option<Videos>,
}

/// What is done to the frames of videos.
#[derive(Debug)]
struct Videos {
    sampling: Sampling,
    scaling: Scaling,
}

/// What the bounds of pixels are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::families) enum Counts {
    Image,
    /// All frames of the image, as if it were a film; sides below a square become as long as one first.
    Frames,
}

impl SquareProcessor {
    /// `sizes` are a patch's side, the side of a square in patches, and frames.
    pub(in crate::families) fn read(
        fields: Fields<'_>,
        sizes: [usize; 3],
        counts: Counts,
        image_token: TokenId,
    ) -> Result<Self, VisionError> {
        let [patch, merge, frames] = sizes;
        let size = fields.section("size");
        let [least, most] = match counts {
            Counts::Image => [56 * 56, 28 * 28 * 1280],
            Counts::Frames => [112 * 112, 28 * 28 * 15_000],
        };
        let bound = |old, new, default| match fields.get(old) {
            Some(_) => fields.count(old),
            None => size.count_or(new, default),
        };
        Ok(Self {
            scaling: Scaling::read(fields, Filter::Bicubic, CLIP)?,
            patch,
            merge,
            frames,
            pixels: [
                bound("min_pixels", "shortest_edge", least)?,
                bound("max_pixels", "longest_edge", most)?,
            ],
            counts,
            image_token,
            videos: None,
        })
    }

    /// With videos, as Qwen 3 has them.
    pub(in crate::families) fn with_videos(self, fields: Fields<'_>) -> Result<Self, VisionError> {
        let fields = video::fields(fields);
        let (sampling, scaling) =
            (Sampling::read(fields, self.frames)?, Scaling::read(fields, Filter::Bicubic, HALVES)?);
        Ok(Self { videos: Some(Videos { sampling, scaling }), ..self })
    }

    /// Width and height in pixels.
    fn size(&self, image: &RgbImage) -> Result<(u32, u32), ImageError> {
        let (side, mut width, mut height) = (self.patch * self.merge, image.width, image.height);
        let mut pixels = self.pixels;
        if self.counts == Counts::Frames {
            pixels = pixels.map(|n| n / self.frames);
            let (w, h, least) = (f64::from(width), f64::from(height), side as f64);
            if w.min(h) < least {
                let scale = (least / w).max(least / h);
                (width, height) = ((w * scale) as u32, (h * scale) as u32);
            }
        }
        smart_resize(width, height, side, pixels)
    }

    /// Patches of squares of frames of one size, each resized to `width` and `height`. The last frame stands for those
    /// that are missing.
    fn squares(
        &self,
        frames: &[RgbImage],
        (width, height): (u32, u32),
        scaling: &Scaling,
    ) -> Prepared {
        let frames: Vec<_> =
            frames.iter().map(|frame| resize(frame, width, height, scaling.filter)).collect();
        let (height, width) = (height as usize / self.patch, width as usize / self.patch);
        let grid = Grid { height, width, merge: self.merge };
        let [rows, cols] = [height / self.merge, width / self.merge];
        Prepared {
            expansion: vec![self.image_token; rows * cols],
            grid: Some([1, rows as u32, cols as u32]),
            pixels: self.patches(&frames, grid, scaling),
            shape: vec![grid.patches(), 3 * self.frames * self.patch * self.patch],
        }
    }

    /// Patches of squares: `[patches, 3 * frames * patch * patch]`.
    fn patches(&self, frames: &[RgbImage], grid: Grid, scaling: &Scaling) -> Vec<f32> {
        let patch = self.patch;
        let all = frames.first().map_or(0, |frame| frame.pixels.len() * self.frames);
        let mut out = Vec::with_capacity(all);
        for [y, x] in grid.positions() {
            let (top, left) = (y as usize * patch, x as usize * patch);
            for channel in 0..3 {
                let mut start = out.len();
                for frame in frames.iter().take(self.frames) {
                    start = out.len();
                    for y in top..top + patch {
                        let row = y * frame.width as usize + left;
                        let row = &frame.pixels[3 * row..][..3 * patch];
                        let row = row[channel..].iter().step_by(3);
                        out.extend(row.map(|&x| scaling.value(channel, x)));
                    }
                }
                for _ in frames.len()..self.frames {
                    out.extend_from_within(start..start + patch * patch);
                }
            }
        }
        out
    }
}

impl Processor for SquareProcessor {
    fn prepare(&self, image: &RgbImage) -> Result<Prepared, ImageError> {
        let size = self.size(image)?;
        Ok(self.squares(std::slice::from_ref(image), size, &self.scaling))
    }

    fn videos(&self) -> Option<&Sampling> {
        self.videos.as_ref().map(|own| &own.sampling)
    }

    fn prepare_frames(&self, frames: &[RgbImage], sampled: usize) -> Result<Prepared, ImageError> {
        let (Some(Videos { sampling, scaling }), Some(first)) = (&self.videos, frames.first())
        else {
            return Err(ImageError::Refused("there are no frames that could be seen".to_owned()));
        };
        let side = self.patch * self.merge;
        let size = sampling.size((first.width, first.height), sampled, side)?;
        Ok(self.squares(frames, size, scaling))
    }
}

/// Width and height: multiples of `factor`, with about the same ratio, and within the numbers of pixels.
pub(crate) fn smart_resize(
    width: u32,
    height: u32,
    factor: usize,
    [least, most]: [usize; 2],
) -> Result<(u32, u32), ImageError> {
    let (w, h, factor) = (f64::from(width), f64::from(height), factor as f64);
    let (least, most) = (least as f64, most as f64);
    let [near_w, near_h] = [w, h].map(|x| f64::from(round(x / factor)) * factor);
    within((w, h), (near_w, near_h), factor, [least, most])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_multiples_within_bounds() {
        let sizes = |w, h| smart_resize(w, h, 32, [65_536, 16_777_216]);
        assert_eq!(sizes(448, 448), Ok((448, 448)));
        assert_eq!(sizes(100, 80), Ok((288, 256)));
        assert_eq!(sizes(10_000, 8_000), Ok((4_576, 3_648)));
        assert_eq!(sizes(48, 1_040), Ok((64, 1024)), "halves go to the even number");
        assert!(matches!(sizes(1, 201), Err(ImageError::Refused(_))));
    }
}
