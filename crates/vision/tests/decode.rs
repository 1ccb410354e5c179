//! Files of every format, in every layout of pixels, damaged ones and such as would take too much memory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use image::{
    DynamicImage, ExtendedColorType, ImageBuffer, ImageEncoder, ImageFormat, Luma, LumaA, Rgb,
    Rgba, codecs::png::PngEncoder,
};
use std::io::Cursor;
use taper_vision::{DecodeError, DecodeLimits, decode};

const LIMITS: DecodeLimits = DecodeLimits { bytes: 1 << 20, pixels: 1 << 20 };

fn file(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    image.write_to(&mut file, format).unwrap();
    file.into_inner()
}

fn sample(x: u32, y: u32) -> Rgb<u8> {
    Rgb([(x * 31) as u8, (y * 17) as u8, (x * y) as u8])
}

fn samples() -> DynamicImage {
    ImageBuffer::from_fn(19, 11, sample).into()
}

#[test]
fn formats_without_loss_give_their_pixels() {
    for format in [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::WebP] {
        let image = decode(&file(&samples(), format), &LIMITS).unwrap();
        assert_eq!((image.width, image.height), (19, 11), "{format:?}");
        assert_eq!(image.pixels, samples().into_rgb8().into_raw(), "{format:?}");
    }
    let few = ImageBuffer::from_fn(8, 4, |x, y| Rgba([(x * 30) as u8, (y * 60) as u8, 7, 255]));
    let few: DynamicImage = few.into();
    let image = decode(&file(&few, ImageFormat::Gif), &LIMITS).unwrap();
    assert_eq!(image.pixels, few.into_rgb8().into_raw());
}

#[test]
fn jpeg_is_near_its_pixels() {
    let smooth = ImageBuffer::from_fn(32, 24, |x, y| Rgb([(x * 7) as u8, (y * 9) as u8, 90]));
    let smooth: DynamicImage = smooth.into();
    let image = decode(&file(&smooth, ImageFormat::Jpeg), &LIMITS).unwrap();
    assert_eq!((image.width, image.height), (32, 24));
    let worst = image.pixels.iter().zip(smooth.into_rgb8().into_raw()).map(|(a, b)| a.abs_diff(b));
    assert!(worst.max().unwrap() < 40);
}

#[test]
fn layouts_become_rgb() {
    let one =
        |image: DynamicImage| decode(&file(&image, ImageFormat::Png), &LIMITS).unwrap().pixels;
    let pixel = |x: u32| x as u16 * 1000;
    let gray: ImageBuffer<Luma<u8>, _> = ImageBuffer::from_pixel(2, 1, Luma([77]));
    assert_eq!(one(gray.into()), [77; 6]);
    let gray: ImageBuffer<Luma<u16>, _> = ImageBuffer::from_pixel(1, 1, Luma([0x12ff]));
    assert_eq!(one(gray.into()), [0x12; 3], "the upper 8 of 16 bits");
    let wide = ImageBuffer::from_fn(3, 1, |x, _| Rgb([pixel(x), 0x8000, 0xffff]));
    assert_eq!(one(wide.into()), [0, 128, 255, 3, 128, 255, 7, 128, 255]);
    let half: ImageBuffer<LumaA<u8>, _> = ImageBuffer::from_pixel(1, 1, LumaA([100, 128]));
    assert_eq!(one(half.into()), [177; 3], "over white");
    let clear: ImageBuffer<Rgba<u8>, _> = ImageBuffer::from_pixel(1, 1, Rgba([9, 8, 7, 0]));
    assert_eq!(one(clear.into()), [255; 3]);
    let full: ImageBuffer<Rgba<u16>, _> =
        ImageBuffer::from_pixel(1, 1, Rgba([0x0100, 0x0200, 0x0300, 0xffff]));
    assert_eq!(one(full.into()), [1, 2, 3]);
}

/// A JPEG file with an orientation in EXIF data.
fn turned(orientation: u8) -> Vec<u8> {
    let image: DynamicImage = ImageBuffer::from_fn(32, 16, |x, _| Luma([(x * 8) as u8])).into();
    let plain = file(&image, ImageFormat::Jpeg);
    let mut exif = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01".to_vec();
    exif.extend([0, orientation, 0, 0, 0, 0, 0, 0]);
    let length = (exif.len() as u16 + 2).to_be_bytes();
    [&plain[..2], &[0xff, 0xe1], &length, &exif, &plain[2..]].concat()
}

#[test]
fn images_are_turned_as_their_exif_data_say() {
    let sizes = |orientation| {
        let image = decode(&turned(orientation), &LIMITS).unwrap();
        let [first, last] = [image.pixels[0], *image.pixels.last().unwrap()];
        (image.width, image.height, first < last)
    };
    assert_eq!(sizes(1), (32, 16, true));
    assert_eq!(sizes(3), (32, 16, false));
    assert_eq!(sizes(6), (16, 32, true));
    assert_eq!(sizes(8), (16, 32, false));
    assert_eq!(sizes(99), (32, 16, true), "there is no such orientation");
}

#[test]
fn limits_hold_before_anything_is_decoded() {
    let png = file(&samples(), ImageFormat::Png);
    let limits = DecodeLimits { bytes: png.len() - 1, ..LIMITS };
    assert!(matches!(decode(&png, &limits), Err(DecodeError::TooManyBytes { .. })));
    let limits = DecodeLimits { pixels: 19 * 11 - 1, ..LIMITS };
    let error = decode(&png, &limits).unwrap_err();
    assert_eq!(error, DecodeError::TooManyPixels { width: 19, height: 11, limit: 208 });
    assert!(decode(&png, &DecodeLimits { bytes: png.len(), pixels: 19 * 11 }).is_ok());
}

/// A PNG file whose header says how large it is, and that holds next to nothing.
fn bomb(width: u32, height: u32) -> Vec<u8> {
    let mut png = Vec::new();
    PngEncoder::new(&mut png).write_image(&[0; 4], 2, 2, ExtendedColorType::L8).unwrap();
    png[16..20].copy_from_slice(&width.to_be_bytes());
    png[20..24].copy_from_slice(&height.to_be_bytes());
    let sum = crc(&png[12..29]);
    png[29..33].copy_from_slice(&sum.to_be_bytes());
    png
}

fn crc(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), step))
}

#[test]
fn small_files_of_huge_images_are_refused() {
    for (width, height) in [(60_000, 60_000), (u32::MAX >> 1, 1), (1, u32::MAX >> 1)] {
        let error = decode(&bomb(width, height), &DecodeLimits::default()).unwrap_err();
        let is_size = matches!(error, DecodeError::TooManyPixels { .. } | DecodeError::Damaged(_));
        assert!(is_size, "{error}");
    }
    // Few pixels, of which a resized copy with one side as it was has many.
    for (width, height) in [(1, 65_536), (65_536, 1)] {
        let error = decode(&bomb(width, height), &DecodeLimits::default()).unwrap_err();
        assert_eq!(error, DecodeError::TooLong { width, height, limit: 65_535 });
    }
    assert!(matches!(decode(&bomb(2, 1000), &LIMITS), Err(DecodeError::Damaged(_))));
    assert!(matches!(decode(&bomb(0, 5), &LIMITS), Err(DecodeError::Damaged(_))));
}

#[test]
fn other_files_are_refused() {
    for other in [&b""[..], b"hello, world", b"II*\0\x08\0\0\0\0\0", b"<svg></svg>", &[0xff; 64]] {
        assert!(decode(other, &LIMITS).is_err(), "{other:?}");
    }
    assert_eq!(decode(b"II*\0\x08\0\0\0\0\0", &LIMITS), Err(DecodeError::Format), "TIFF");
}

#[test]
fn damaged_files_are_errors_or_images() {
    use ImageFormat::{Bmp, Gif, Jpeg, Png, WebP};
    let mut state = 1u32;
    let mut random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize
    };
    for format in [Png, Jpeg, WebP, Gif, Bmp] {
        let image = if format == Gif { samples().into_rgba8().into() } else { samples() };
        let good = file(&image, format);
        for cut in 0..good.len().min(200) {
            let _ = decode(&good[..cut], &LIMITS);
        }
        for _ in 0..300 {
            let mut bad = good.clone();
            for _ in 0..1 + random() % 4 {
                let at = random() % bad.len();
                bad[at] = random() as u8;
            }
            if let Ok(image) = decode(&bad, &LIMITS) {
                assert_eq!(image.pixels.len(), 3 * (image.width * image.height) as usize);
            }
        }
    }
}

mod published {
    //! Files that Pillow wrote, and what it reads from them.

    use safetensors::SafeTensors;
    use std::{collections::BTreeMap, fs, path::PathBuf};
    use taper_vision::{DecodeLimits, decode};

    /// Decoders of lossy formats round differently.
    const LOSSY: u8 = 4;

    fn folder() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/images")
    }

    /// A byte of a colour over white, as PIL's `alpha_composite` has it.
    fn over_white(x: u8, alpha: u32) -> u8 {
        let sum = (u32::from(x) * alpha + 255 * (255 - alpha)) * 128 + (0x80 << 7);
        (((sum >> 8) + sum) >> 8 >> 7) as u8
    }

    /// Pillow drops alpha; transformers lays what is transparent over white.
    fn transparent(name: &str, width: usize, pixels: &[u8]) -> Option<Vec<u8>> {
        let has_alpha = ["rgba.png", "grey_alpha.png", "alpha.webp"].contains(&name);
        let alpha = |column: usize| (255.0 * column as f64 / (width - 1) as f64).round_ties_even();
        let over = |(i, &x): (usize, &u8)| over_white(x, alpha(i / 3 % width) as u32);
        has_alpha.then(|| pixels.iter().enumerate().map(over).collect())
    }

    #[test]
    fn pixels_are_pillows() {
        let file = fs::read(folder().join("expected.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&file).unwrap();
        for (name, view) in expected.tensors() {
            let bytes = fs::read(folder().join(&name)).unwrap();
            let image = decode(&bytes, &DecodeLimits::default()).unwrap();
            let size = [image.height as usize, image.width as usize, 3];
            assert_eq!(size.as_slice(), view.shape(), "{name}");
            let expected = transparent(&name, size[1], view.data());
            let expected = expected.as_deref().unwrap_or(view.data());
            if name == "palette_clear.png" {
                let mut pixels = image.pixels.chunks(3).zip(expected.chunks(3));
                assert!(pixels.all(|(got, old)| got == old || got == [255; 3]), "{name}");
                continue;
            }
            let worst =
                image.pixels.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
            println!("{name}: {worst}");
            let is_lossy = name.ends_with("jpg") || name.contains("lossy") || name.contains("jpeg");
            let limit = if is_lossy { LOSSY } else { 0 };
            assert!(worst <= limit, "{name}: pixels differ by {worst}");
        }
    }

    #[test]
    fn damaged_files_are_refused() {
        let names = fs::read(folder().join("refused.json")).unwrap();
        let names: BTreeMap<String, String> = serde_json::from_slice(&names).unwrap();
        for (name, why) in names {
            let bytes = fs::read(folder().join(&name)).unwrap();
            let error = decode(&bytes, &DecodeLimits::default()).expect_err(&name);
            println!("{name} ({why}): {error}");
        }
    }
}
