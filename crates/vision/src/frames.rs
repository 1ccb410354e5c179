//! Frames of files that move: GIF, and animated WebP and PNG.

use crate::decode::{DecodeError, DecodeLimits, damaged, limited};
use image::{
    AnimationDecoder, Frame, ImageFormat,
    codecs::{gif::GifDecoder, png::PngDecoder, webp::WebPDecoder},
};
use std::io::Cursor;
use taper_base::VideoFrame;

/// Browsers show frames that say they take no time for as long.
const SHORTEST: f64 = 0.1;

/// How files of videos begin that are not read: where, and with what.
const CONTAINERS: &[(usize, &[u8], &str)] = &[
    (4, b"ftyp", "MP4 or QuickTime"),
    (0, b"\x1aE\xdf\xa3", "Matroska or WebM"),
    (8, b"AVI ", "AVI"),
    (0, b"\0\0\x01\xba", "MPEG"),
    (0, b"OggS", "Ogg"),
    (0, b"FLV", "Flash Video"),
];

/// Frames of a GIF file, or of an animated WebP or PNG file, each as a PNG file, and when it is shown. What is transparent
/// is as [`crate::decode`] has it.
///
/// # Errors
/// The file is too large, or all of its frames together are; it is damaged, of another format, or does not move.
pub fn frames(bytes: &[u8], limits: &DecodeLimits) -> Result<Vec<VideoFrame>, DecodeError> {
    if bytes.len() > limits.bytes {
        return Err(DecodeError::TooManyBytes { bytes: bytes.len(), limit: limits.bytes });
    }
    let starts = |&&(at, head, _): &&(usize, &[u8], &str)| {
        bytes.get(at..).is_some_and(|rest| rest.starts_with(head))
    };
    if let Some((.., name)) = CONTAINERS.iter().find(starts) {
        return Err(DecodeError::Container(name));
    }
    let file = Cursor::new(bytes);
    match image::guess_format(bytes) {
        Ok(ImageFormat::Gif) => {
            let decoder = limited(GifDecoder::new(file).map_err(damaged)?, limits)?;
            collect(decoder.into_frames(), limits)
        }
        Ok(ImageFormat::WebP) => {
            let decoder = limited(WebPDecoder::new(file).map_err(damaged)?, limits)?;
            match decoder.has_animation() {
                true => collect(decoder.into_frames(), limits),
                false => Err(DecodeError::Still),
            }
        }
        Ok(ImageFormat::Png) => {
            let decoder = limited(PngDecoder::new(file).map_err(damaged)?, limits)?;
            match decoder.is_apng().map_err(damaged)? {
                true => collect(decoder.apng().map_err(damaged)?.into_frames(), limits),
                false => Err(DecodeError::Still),
            }
        }
        Ok(_) => Err(DecodeError::Still),
        Err(_) => Err(DecodeError::Format),
    }
}

fn collect(
    frames: image::Frames<'_>,
    limits: &DecodeLimits,
) -> Result<Vec<VideoFrame>, DecodeError> {
    let (mut all, mut seconds, mut pixels) = (Vec::new(), 0.0, 0u64);
    for frame in frames {
        let frame = frame.map_err(damaged)?;
        let (width, height) = frame.buffer().dimensions();
        pixels = pixels.saturating_add(u64::from(width) * u64::from(height));
        if pixels > limits.pixels {
            let limit = limits.pixels;
            return Err(DecodeError::TooManyPixels { width, height, limit });
        }
        let takes = takes(&frame);
        let mut file = Cursor::new(Vec::new());
        frame.into_buffer().write_to(&mut file, ImageFormat::Png).map_err(damaged)?;
        all.push(VideoFrame { file: file.into_inner(), seconds });
        seconds += takes;
    }
    if all.is_empty() { Err(DecodeError::Still) } else { Ok(all) }
}

/// Seconds that a frame is shown.
fn takes(frame: &Frame) -> f64 {
    let (numerator, denominator) = frame.delay().numer_denom_ms();
    let seconds = f64::from(numerator) / f64::from(denominator.max(1)) / 1000.0;
    if seconds > 0.0 { seconds } else { SHORTEST }
}
