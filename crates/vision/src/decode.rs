//! From a file's bytes to pixels, as PIL and transformers' `convert_to_rgb` give them.

use image::{
    DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits, metadata::Orientation,
};
use std::io::Cursor;
use taper_base::RgbImage;
use thiserror::Error;

/// How large a file may be, and the image in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Bytes of the file.
    pub bytes: usize,
    /// Pixels of the image. Decoding takes at most some 20 bytes a pixel.
    pub pixels: u64,
}

/// The longest side of an image: JPEG and GIF have none longer.
const LONGEST_SIDE: u32 = 65_535;

impl Default for DecodeLimits {
    /// 20 MiB, and 64 megapixels.
    fn default() -> Self {
        Self { bytes: 20 << 20, pixels: 64 << 20 }
    }
}

/// A file is no image that can be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The file is larger than is allowed.
    #[error("the file has {bytes} bytes, and {limit} are allowed")]
    TooManyBytes {
        /// Bytes of the file.
        bytes: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The image is larger than is allowed. It was not decoded.
    #[error("the image has {width} x {height} pixels, and {limit} are allowed")]
    TooManyPixels {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// What is allowed, columns times rows.
        limit: u64,
    },
    /// The image is longer on one side than is allowed. It was not decoded: resizing keeps a side at first.
    #[error("the image has {width} x {height} pixels, and a side may have {limit}")]
    TooLong {
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// What is allowed.
        limit: u32,
    },
    /// The bytes begin like no format that is read.
    #[error("it is none of PNG, JPEG, WebP, GIF and BMP")]
    Format,
    /// A video in a container that is not read.
    #[error(
        "{0} is not read: send a GIF, an animated WebP or PNG, or frames as data:video/jpeg;base64,<frame>,<frame>,... (for example those of ffmpeg -i video -vf fps=2 frame-%03d.jpg)"
    )]
    Container(&'static str),
    /// A file without frames, where a video is wanted.
    #[error("the file does not move: send it as an image")]
    Still,
    /// The file is damaged, truncated, or uses what the decoder does not know.
    #[error("the file cannot be decoded: {0}")]
    Damaged(String),
}

/// Reads a PNG, JPEG, WebP, GIF (the first frame) or BMP file.
///
/// The image is turned as its EXIF data say. Of 16 bits the upper 8 stay. What is transparent is laid over white,
/// which is what transformers' `convert_to_rgb` does. Colour profiles are not applied.
///
/// # Errors
/// The file is too large or the image in it, of another format, or damaged. Sizes are checked before memory is taken.
pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<RgbImage, DecodeError> {
    if bytes.len() > limits.bytes {
        return Err(DecodeError::TooManyBytes { bytes: bytes.len(), limit: limits.bytes });
    }
    let mut reader = ImageReader::new(Cursor::new(bytes));
    reader.set_format(format(bytes)?);
    reader.limits(allowed(limits));
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    check_size(&decoder, limits)?;
    // Metadata that cannot be read do not make the image worse.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    image.apply_orientation(orientation);
    let (width, height) = (image.width(), image.height());
    Ok(RgbImage { width, height, pixels: rgb(image) })
}

/// What a decoder may take of memory.
fn allowed(limits: &DecodeLimits) -> Limits {
    let mut allowed = Limits::default();
    // Metadata of a file without pixels wants memory too.
    allowed.max_alloc = Some(limits.pixels.saturating_mul(16).saturating_add(1 << 24));
    allowed
}

/// A decoder of an image that is not too large, and takes no more memory than it may.
pub(crate) fn limited<D: ImageDecoder>(
    mut decoder: D,
    limits: &DecodeLimits,
) -> Result<D, DecodeError> {
    check_size(&decoder, limits)?;
    decoder.set_limits(allowed(limits)).map_err(damaged)?;
    Ok(decoder)
}

fn check_size(decoder: &impl ImageDecoder, limits: &DecodeLimits) -> Result<(), DecodeError> {
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > limits.pixels {
        return Err(DecodeError::TooManyPixels { width, height, limit: limits.pixels });
    }
    if width.max(height) > LONGEST_SIDE {
        return Err(DecodeError::TooLong { width, height, limit: LONGEST_SIDE });
    }
    match width == 0 || height == 0 {
        true => Err(DecodeError::Damaged("it has no pixels".to_owned())),
        false => Ok(()),
    }
}

fn format(bytes: &[u8]) -> Result<ImageFormat, DecodeError> {
    use ImageFormat::{Bmp, Gif, Jpeg, Png, WebP};
    let format = image::guess_format(bytes).map_err(|_| DecodeError::Format)?;
    match format {
        Png | Jpeg | WebP | Gif | Bmp => Ok(format),
        _ => Err(DecodeError::Format),
    }
}

// By value: it is the argument of `map_err`.
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn damaged(error: ImageError) -> DecodeError {
    DecodeError::Damaged(error.to_string())
}

fn rgb(image: DynamicImage) -> Vec<u8> {
    let upper = |x: u16| x.to_be_bytes()[0];
    match image {
        DynamicImage::ImageRgb8(pixels) => pixels.into_raw(),
        DynamicImage::ImageLuma8(pixels) => pixels.iter().flat_map(|&l| [l; 3]).collect(),
        DynamicImage::ImageRgb16(pixels) => pixels.iter().map(|&x| upper(x)).collect(),
        DynamicImage::ImageLuma16(pixels) => pixels.iter().flat_map(|&l| [upper(l); 3]).collect(),
        DynamicImage::ImageRgba16(pixels) => {
            let pixels = pixels.chunks_exact(4);
            pixels.flat_map(|p| over_white([p[0], p[1], p[2]].map(upper), upper(p[3]))).collect()
        }
        DynamicImage::ImageLumaA16(pixels) => {
            let pixels = pixels.chunks_exact(2);
            pixels.flat_map(|p| over_white([upper(p[0]); 3], upper(p[1]))).collect()
        }
        other => {
            let pixels = other.into_rgba8();
            pixels.chunks_exact(4).flat_map(|p| over_white([p[0], p[1], p[2]], p[3])).collect()
        }
    }
}

/// PIL's `alpha_composite` over opaque white.
fn over_white(rgb: [u8; 3], alpha: u8) -> [u8; 3] {
    let alpha = u32::from(alpha);
    rgb.map(|x| {
        let sum = (u32::from(x) * alpha + 255 * (255 - alpha)) * 128 + (0x80 << 7);
        let quotient = ((sum >> 8) + sum) >> 8;
        // A mean of bytes is a byte.
        u8::try_from(quotient >> 7).unwrap_or(u8::MAX)
    })
}
