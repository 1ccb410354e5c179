//! Which frames of a video are looked at, and how large they are made.

use crate::{
    Fields, VisionError,
    settings::{self, round},
};
use serde_json::Value;
use taper_base::ImageError;

/// `Qwen3VLVideoProcessor` of transformers, without its pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sampling {
    per_second: f64,
    /// The fewest and the most frames.
    frames: [usize; 2],
    /// The least and the most pixels of all frames together.
    pixels: [usize; 2],
    /// Frames that are seen as one image.
    pub(crate) together: usize,
}

/// The fields of a processor of videos: a section or a file of its own, or else those of the processor of images.
pub(crate) fn fields(image: Fields<'_>) -> Fields<'_> {
    match image.get(settings::VIDEO).filter(|own| own.is_object()) {
        Some(own) => Fields(own),
        None => image,
    }
}

impl Sampling {
    pub(crate) fn read(fields: Fields<'_>, together: usize) -> Result<Self, VisionError> {
        let size = fields.section("size");
        let per_second = fields.float_or("fps", 2.0)?;
        if per_second <= 0.0 {
            return Err(VisionError::Field {
                field: "fps".to_owned(),
                value: fields.get("fps").map(Value::to_string).unwrap_or_default(),
                expected: "frames a second above 0 are needed",
            });
        }
        Ok(Self {
            per_second,
            frames: [fields.count_or("min_frames", 4)?, fields.count_or("max_frames", 768)?],
            pixels: [
                size.count_or("shortest_edge", 128 * 32 * 32)?,
                size.count_or("longest_edge", 768 * 32 * 32)?,
            ],
            together: together.max(1),
        })
    }

    /// The frames of so many, at so many a second, that are looked at.
    pub(crate) fn frames(&self, all: usize, per_second: f64) -> Vec<usize> {
        let [least, most] = self.frames;
        let wanted = (all as f64 / per_second * self.per_second) as usize;
        let wanted = wanted.max(least).min(most).min(all);
        let step = all.saturating_sub(1) as f64 / wanted.saturating_sub(1).max(1) as f64;
        (0..wanted).map(|i| round(i as f64 * step) as usize).collect()
    }

    /// Width and height of the frames of a video, multiples of `factor`, where so many of them are looked at.
    pub(crate) fn size(
        &self,
        (mut width, mut height): (u32, u32),
        sampled: usize,
        factor: usize,
    ) -> Result<(u32, u32), ImageError> {
        let (least, f) = (factor as u32, factor as f64);
        if width < least || height < least {
            let scale = (f / f64::from(height)).max(f / f64::from(width));
            [width, height] = [width, height].map(|side| (f64::from(side) * scale) as u32);
        }
        let (w, h) = (f64::from(width), f64::from(height));
        if w.max(h) / w.min(h) > 200.0 {
            let what = format!("{w} x {h} pixels: one side is more than 200 times the other");
            return Err(ImageError::Refused(what));
        }
        let frames = sampled.max(self.together) as f64;
        let whole = f64::from(round(frames / self.together as f64)) * self.together as f64;
        let [mut new_w, mut new_h] = [w, h].map(|side| f64::from(round(side / f)) * f);
        let [low, high] = self.pixels.map(|pixels| pixels as f64);
        if whole * new_h * new_w > high {
            let beta = (frames * h * w / high).sqrt();
            [new_w, new_h] = [w, h].map(|side| ((side / beta / f).floor() * f).max(f));
        } else if whole * new_h * new_w < low {
            let beta = (low / (frames * h * w)).sqrt();
            [new_w, new_h] = [w, h].map(|side| (side * beta / f).ceil() * f);
        }
        Ok((new_w as u32, new_h as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sampling() -> Sampling {
        Sampling::read(Fields(&json!({})), 2).unwrap()
    }

    #[test]
    fn frames_are_sampled_as_transformers_does() {
        // numpy's linspace(0, total - 1, n).round() of n = int(total / fps * 2), at least 4.
        assert_eq!(sampling().frames(10, 5.0), [0, 3, 6, 9]);
        assert_eq!(sampling().frames(60, 24.0), [0, 15, 30, 44, 59]);
        assert_eq!(sampling().frames(3, 1.0), [0, 1, 2]);
        assert_eq!(sampling().frames(1, 30.0), [0]);
        assert_eq!(sampling().frames(0, 30.0), [0; 0]);
        assert_eq!(sampling().frames(5000, 1.0).len(), 768);
    }

    #[test]
    fn sizes_are_those_of_smart_resize() {
        let size = |w, h, n| sampling().size((w, h), n, 32).unwrap();
        // By hand from transformers' formula.
        assert_eq!(size(640, 480, 4), (512, 384));
        assert_eq!(size(64, 64, 4), (192, 192));
        assert_eq!(size(320, 256, 4), (320, 256));
        assert_eq!(size(10, 40, 8), (64, 256));
        assert!(sampling().size((7000, 30), 2, 32).is_err());
    }

    #[test]
    fn a_section_of_its_own_counts() {
        let both =
            json!({ "fps": 9, "video_processor": { "fps": 3, "size": { "longest_edge": 7 } } });
        let own = Sampling::read(fields(Fields(&both)), 2).unwrap();
        assert_eq!((own.per_second, own.pixels[1]), (3.0, 7));
        assert!(Sampling::read(Fields(&json!({ "fps": 0 })), 2).is_err());
    }
}
