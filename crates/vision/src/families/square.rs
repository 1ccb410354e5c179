//! Images that are resized to one square, or to a side and cropped.

use crate::{
    Fields, VisionError,
    encoder::{Prepared, Processor},
    resize::{Filter, resize},
    settings::{Scaling, crop},
};
use taper_base::{ImageError, RgbImage, TokenId};

/// How an image becomes a square.
#[derive(Debug, Clone, Copy)]
enum Fit {
    /// The ratio of the sides is not kept.
    Stretch,
    /// The shorter side becomes this long, and the middle is cut out.
    Crop { shortest: u32 },
}

/// `CLIPImageProcessor`, `SiglipImageProcessor` and `Gemma3ImageProcessor` of transformers.
#[derive(Debug)]
pub(super) struct SquareImage {
    scaling: Scaling,
    fit: Fit,
    side: u32,
    expansion: Vec<TokenId>,
}

impl SquareImage {
    /// Images of the tower's side, in whose place `expansion` stands.
    pub(super) fn read(
        fields: Fields<'_>,
        side: usize,
        filter: Filter,
        normal: ([f64; 3], [f64; 3]),
        expansion: Vec<TokenId>,
    ) -> Result<Self, VisionError> {
        let size = fields.section("size");
        let cropped = fields.flag_or("do_center_crop", size.get("shortest_edge").is_some())?;
        let fit = match size.get("shortest_edge") {
            Some(_) => Fit::Crop { shortest: size.count("shortest_edge")? as u32 },
            None => Fit::Stretch,
        };
        let got = match cropped {
            true => fields.side_or("crop_size", side)?,
            false => fields.side_or("size", side)?,
        };
        let square = cropped || matches!(fit, Fit::Stretch);
        if got != side || !square {
            return Err(VisionError::Field {
                field: "size".to_owned(),
                value: size.0.to_string(),
                expected: "squares of the tower's image_size are needed",
            });
        }
        let scaling = Scaling::read(fields, filter, normal)?;
        Ok(Self { scaling, fit, side: side as u32, expansion })
    }

    fn square(&self, image: &RgbImage) -> Result<RgbImage, ImageError> {
        let (side, filter) = (self.side, self.scaling.filter);
        let Fit::Crop { shortest } = self.fit else {
            return Ok(resize(image, side, side, filter));
        };
        let (w, h) = (u64::from(image.width), u64::from(image.height));
        let long = u64::from(shortest) * w.max(h) / w.min(h);
        let long = u32::try_from(long).ok().filter(|&long| long <= 64 * shortest);
        let Some(long) = long else {
            return Err(ImageError::Refused(format!("{w} x {h} pixels are too thin")));
        };
        let (w, h) = if w <= h { (shortest, long) } else { (long, shortest) };
        let image = resize(image, w, h, filter);
        if w < side || h < side {
            return Err(ImageError::Refused("the crop is larger than the image".to_owned()));
        }
        Ok(crop(&image, (w - side) / 2, (h - side) / 2, side, side))
    }
}

impl Processor for SquareImage {
    fn prepare(&self, image: &RgbImage) -> Result<Prepared, ImageError> {
        let side = self.side as usize;
        Ok(Prepared {
            expansion: self.expansion.clone(),
            grid: None,
            pixels: self.scaling.planes(&self.square(image)?),
            shape: vec![1, 3, side, side],
        })
    }
}
