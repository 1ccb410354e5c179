//! What a processor's file says, and the steps that processors share.

use crate::{Fields, VisionError, resize::Filter};
use half::bf16;
use serde_json::{Map, Value, json};
use std::path::Path;
use taper_base::{ImageError, RgbImage};

/// The section of what is done to videos.
pub(crate) const VIDEO: &str = "video_processor";

/// Reads the processor's files; what there is about videos is in the section [`VIDEO`].
pub(crate) fn read(dir: &Path) -> Result<Value, VisionError> {
    let mut fields = read_image(dir)?;
    let path = dir.join("video_preprocessor_config.json");
    if path.is_file()
        && let Some(fields) = fields.as_object_mut()
    {
        let own = Value::Object(taper_weights::read_json(&path)?);
        fields.entry(VIDEO).or_insert(own);
    }
    Ok(fields)
}

/// Reads preprocessor_config.json, or the image's part of processor_config.json. Newer files have both in the latter.
fn read_image(dir: &Path) -> Result<Value, VisionError> {
    let read = |name: &str| {
        let path = dir.join(name);
        path.is_file().then(|| taper_weights::read_json(&path).map(Value::Object)).transpose()
    };
    let whole = read("processor_config.json")?;
    if let Some(image) = whole.as_ref().and_then(|w| w.get("image_processor")) {
        let mut image = image.clone();
        merge_whole(&mut image, whole.as_ref());
        return Ok(image);
    }
    match read("preprocessor_config.json")? {
        Some(mut image) => {
            merge_whole(&mut image, whole.as_ref());
            Ok(image)
        }
        None => whole.ok_or_else(|| VisionError::NoProcessor(dir.to_owned())),
    }
}

/// Fields of the processor of texts and images, where that of images has none of their name.
fn merge_whole(image: &mut Value, whole: Option<&Value>) {
    let (Some(image), Some(whole)) = (image.as_object_mut(), whole.and_then(Value::as_object))
    else {
        return;
    };
    for (name, value) in whole.iter().filter(|(name, _)| *name != "image_processor") {
        image.entry(name).or_insert_with(|| value.clone());
    }
}

/// Puts fields into those of the files. One that no file has is a mistake: nobody would read it. Processors of Qwen have
/// two names of their bounds.
pub(crate) fn replace(fields: &mut Value, kwargs: &Map<String, Value>) -> Result<(), VisionError> {
    let bounds = fields.get("size").is_some_and(|size| size.get("longest_edge").is_some());
    let Some(fields) = fields.as_object_mut() else { return Ok(()) };
    for (name, value) in kwargs {
        let bound = bounds && ["min_pixels", "max_pixels"].contains(&name.as_str());
        if !bound && !fields.contains_key(name) {
            let known: Vec<_> = fields.keys().map(String::as_str).collect();
            let (name, known) = (name.clone(), known.join(", "));
            return Err(VisionError::NoSuchField { name, known });
        }
        fields.insert(name.clone(), value.clone());
    }
    Ok(())
}

/// Means and deviations of CLIP's images.
pub(crate) const CLIP: ([f64; 3], [f64; 3]) =
    ([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_58, 0.275_777_11]);
/// From -1 to 1.
pub(crate) const HALVES: ([f64; 3], [f64; 3]) = ([0.5; 3], [0.5; 3]);

/// How bytes become floats, and how images become smaller or larger.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scaling {
    pub(crate) filter: Filter,
    /// Subtracted from bytes, then bytes are divided.
    mean: [f32; 3],
    deviation: [f32; 3],
    /// Each step is rounded to `bf16`, on a scale from 0 to 1.
    is_rough: bool,
}

impl Scaling {
    /// With the defaults of the family's processor: the filter and the means and deviations.
    pub(crate) fn read(
        fields: Fields<'_>,
        filter: Filter,
        (mean, deviation): ([f64; 3], [f64; 3]),
    ) -> Result<Self, VisionError> {
        fields.expect("do_resize", &json!(true))?;
        let rescaled = fields.flag_or("do_rescale", true)?;
        let factor = if rescaled { fields.float_or("rescale_factor", 1.0 / 255.0)? } else { 1.0 };
        let wrong = |name: &str, expected| VisionError::Field {
            field: name.to_owned(),
            value: fields.get(name).map_or_else(|| "absent".to_owned(), Value::to_string),
            expected,
        };
        let filter = match fields.get("resample").map(Value::as_u64) {
            None => filter,
            Some(number) => number
                .and_then(Filter::of_pil)
                .ok_or_else(|| wrong("resample", "0 (nearest), 1 (Lanczos), 2 or 3 is needed"))?,
        };
        let (mut mean, mut deviation) =
            (fields.channels_or("image_mean", mean)?, fields.channels_or("image_std", deviation)?);
        if !fields.flag_or("do_normalize", true)? {
            (mean, deviation) = ([0.0; 3], [1.0; 3]);
        }
        if factor <= 0.0 || deviation.contains(&0.0) {
            return Err(wrong("image_std", "a number that can be divided by is needed"));
        }
        let of_bytes = |x: f64| (x as f32) * ((1.0 / factor) as f32);
        Ok(Self {
            filter,
            mean: mean.map(of_bytes),
            deviation: deviation.map(of_bytes),
            is_rough: false,
        })
    }

    /// With each step rounded to `bf16`.
    pub(crate) fn in_bf16(self) -> Self {
        Self { is_rough: true, ..self }
    }

    /// A byte of a channel as the tower gets it.
    pub(crate) fn value(&self, channel: usize, byte: u8) -> f32 {
        if self.is_rough {
            let rough = |x: f32| bf16::from_f32(x).to_f32();
            let [x, mean, deviation] =
                [f32::from(byte), self.mean[channel], self.deviation[channel]]
                    .map(|x| rough(x / 255.0));
            return rough(rough(x - mean) / deviation);
        }
        (f32::from(byte) - self.mean[channel]) / self.deviation[channel]
    }

    /// `[3, height, width]`.
    pub(crate) fn planes(&self, image: &RgbImage) -> Vec<f32> {
        let channel = |c: usize| image.pixels[c..].iter().step_by(3).map(move |&x| (c, x));
        (0..3).flat_map(channel).map(|(c, x)| self.value(c, x)).collect()
    }

    /// `[height / patch * width / patch, patch * patch * 3]`: patches by rows, each with its channels last.
    pub(crate) fn patches(&self, image: &RgbImage, patch: usize) -> Vec<f32> {
        let (width, height) = (image.width as usize, image.height as usize);
        let mut out = Vec::with_capacity(image.pixels.len());
        for top in (0..height / patch).map(|y| y * patch) {
            for left in (0..width / patch).map(|x| x * patch) {
                for y in top..top + patch {
                    let row = &image.pixels[3 * (y * width + left)..][..3 * patch];
                    out.extend(row.iter().enumerate().map(|(i, &x)| self.value(i % 3, x)));
                }
            }
        }
        out
    }
}

/// A rectangle of an image, which lies in it.
pub(crate) fn crop(image: &RgbImage, left: u32, top: u32, width: u32, height: u32) -> RgbImage {
    let row = 3 * image.width as usize;
    let rows = image.pixels.chunks_exact(row).skip(top as usize).take(height as usize);
    let pixels =
        rows.flat_map(|r| &r[3 * left as usize..][..3 * width as usize]).copied().collect();
    RgbImage { width, height, pixels }
}

/// The image at the upper left of a larger one, which is black elsewhere.
pub(crate) fn pad(image: &RgbImage, width: u32, height: u32) -> RgbImage {
    let (old, new) = (3 * image.width as usize, 3 * width as usize);
    let mut pixels = vec![0; new * height as usize];
    for (to, from) in pixels.chunks_exact_mut(new).zip(image.pixels.chunks_exact(old)) {
        to[..old].copy_from_slice(from);
    }
    RgbImage { width, height, pixels }
}

/// Python's `round`: halves go to the even number.
pub(crate) fn round(x: f64) -> u32 {
    x.round_ties_even() as u32
}

/// Width and height of an image of so many columns and rows: `near`, in multiples of `factor`, if it is within the
/// numbers of pixels; else the multiples of the image's own, stretched, that are.
///
/// # Errors
/// One side is more than 200 times the other.
pub(crate) fn within(
    (w, h): (f64, f64),
    (mut new_w, mut new_h): (f64, f64),
    factor: f64,
    [least, most]: [f64; 2],
) -> Result<(u32, u32), ImageError> {
    if w.max(h) / w.min(h) > 200.0 {
        let what = format!("{w} x {h} pixels: one side is more than 200 times the other");
        return Err(ImageError::Refused(what));
    }
    if new_h * new_w > most {
        let beta = (h * w / most).sqrt();
        new_h = ((h / beta / factor).floor() * factor).max(factor);
        new_w = ((w / beta / factor).floor() * factor).max(factor);
    } else if new_h * new_w < least {
        let beta = (least / (h * w)).sqrt();
        new_h = (h * beta / factor).ceil() * factor;
        new_w = (w * beta / factor).ceil() * factor;
    }
    Ok((new_w as u32, new_h as u32))
}

/// Refuses what is no image.
pub(crate) fn check(image: &RgbImage) -> Result<(), ImageError> {
    let bytes = 3 * u64::from(image.width) * u64::from(image.height);
    if bytes == 0 || bytes != image.pixels.len() as u64 {
        let (w, h, n) = (image.width, image.height, image.pixels.len());
        return Err(ImageError::Refused(format!("{n} bytes are not {w} x {h} pixels")));
    }
    Ok(())
}
