//! Resampling with antialiasing in the integers that torchvision and Pillow use.
//!
//! Both filter rows, round to bytes, then filter columns (Pillow's `Resample.c`). Weights are rounded to as many bits as
//! 16-bit integers hold, as in torchvision's kernels for bytes; Pillow's have 22 bits, so that its bytes differ by one at
//! most.

use taper_base::RgbImage;

/// How pixels between pixels are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    Nearest,
    Bilinear,
    Bicubic,
    Lanczos,
}

impl Filter {
    /// By PIL's number, `resample` of processors' files.
    pub(crate) fn of_pil(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Nearest),
            1 => Some(Self::Lanczos),
            2 => Some(Self::Bilinear),
            3 => Some(Self::Bicubic),
            _ => None,
        }
    }

    fn support(self) -> f64 {
        match self {
            Self::Nearest => 0.0,
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn at(self, x: f64) -> f64 {
        const A: f64 = -0.5;
        let x = x.abs();
        match self {
            Self::Bilinear if x < 1.0 => 1.0 - x,
            Self::Bicubic if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    let x = x * std::f64::consts::PI;
    if x == 0.0 { 1.0 } else { x.sin() / x }
}

/// Which pixels a new one is a sum of, and by which weights.
struct Tap {
    first: usize,
    weights: Vec<i32>,
}

/// The image in another size.
pub(crate) fn resize(image: &RgbImage, width: u32, height: u32, filter: Filter) -> RgbImage {
    let (old_width, old_height) = (image.width as usize, image.height as usize);
    let (w, h) = (width as usize, height as usize);
    if filter == Filter::Nearest {
        let nearest = |i: usize, old: usize, new: usize| (i * old / new).min(old - 1);
        let pixel = |y, x| {
            let at = 3 * (nearest(y, old_height, h) * old_width + nearest(x, old_width, w));
            [image.pixels[at], image.pixels[at + 1], image.pixels[at + 2]]
        };
        let pixels = (0..h).flat_map(|y| (0..w).flat_map(move |x| pixel(y, x))).collect();
        return RgbImage { width, height, pixels };
    }
    let mut pixels = image.pixels.clone();
    if w != old_width {
        pixels = filter_rows(&pixels, old_width, &taps(old_width, w, filter));
    }
    if h != old_height {
        pixels = filter_columns(&pixels, w, &taps(old_height, h, filter));
    }
    RgbImage { width, height, pixels }
}

/// For each new pixel of a line the first old one that it is a sum of, and the weights of this and the next ones.
pub(crate) fn weights(old: usize, new: usize, filter: Filter) -> Vec<(usize, Vec<f64>)> {
    let scale = old as f64 / new as f64;
    let support = filter.support() * scale.max(1.0);
    let inverse = 1.0 / scale.max(1.0);
    let line = |i: usize| {
        let center = scale * (i as f64 + 0.5);
        // Both are within the image: never negative, never beyond it.
        let first = (center - support + 0.5).max(0.0) as usize;
        let end = ((center + support + 0.5) as usize).min(old);
        let weights = (first..end).map(|j| filter.at((j as f64 - center + 0.5) * inverse));
        let weights: Vec<_> = weights.collect();
        let sum: f64 = weights.iter().sum();
        let weights: Vec<_> =
            weights.iter().map(|w| if sum == 0.0 { *w } else { w / sum }).collect();
        (first, weights)
    };
    (0..new).map(line).collect()
}

/// Weights and the number of bits behind their point.
fn taps(old: usize, new: usize, filter: Filter) -> (Vec<Tap>, u32) {
    let lines = weights(old, new, filter);
    let most = lines.iter().flat_map(|(_, weights)| weights).copied().fold(0.0, f64::max);
    let fits = |bits: u32| 0.5 + most * f64::from(1u32 << (bits + 1)) < f64::from(1 << 15);
    let bits = (0..22).find(|&bits| !fits(bits)).unwrap_or(22);
    let fixed = |w: f64| (w * f64::from(1u32 << bits)).round() as i32;
    let tap = |(first, weights): (usize, Vec<f64>)| Tap {
        first,
        weights: weights.into_iter().map(fixed).collect(),
    };
    (lines.into_iter().map(tap).collect(), bits)
}

fn byte(sum: i32, bits: u32) -> u8 {
    (sum >> bits).clamp(0, 255) as u8
}

fn filter_rows(pixels: &[u8], width: usize, (taps, bits): &(Vec<Tap>, u32)) -> Vec<u8> {
    let mut out = Vec::with_capacity(pixels.len() / width * taps.len());
    for row in pixels.chunks_exact(3 * width) {
        for tap in taps {
            let mut sums = [1i32 << bits >> 1; 3];
            for (pixel, weight) in row[3 * tap.first..].chunks_exact(3).zip(&tap.weights) {
                for (sum, &x) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(x) * weight;
                }
            }
            out.extend(sums.map(|sum| byte(sum, *bits)));
        }
    }
    out
}

fn filter_columns(pixels: &[u8], width: usize, (taps, bits): &(Vec<Tap>, u32)) -> Vec<u8> {
    let row = 3 * width;
    let mut out = Vec::with_capacity(taps.len() * row);
    let mut sums = vec![0i32; row];
    for tap in taps {
        sums.fill(1 << bits >> 1);
        let rows = pixels[row * tap.first..].chunks_exact(row);
        for (pixels, weight) in rows.zip(&tap.weights) {
            for (sum, &x) in sums.iter_mut().zip(pixels) {
                *sum += i32::from(x) * weight;
            }
        }
        out.extend(sums.iter().map(|&sum| byte(sum, *bits)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pixels: &[u8]) -> RgbImage {
        let width = pixels.len() as u32;
        RgbImage { width, height: 1, pixels: pixels.iter().flat_map(|&x| [x; 3]).collect() }
    }

    /// Made by Pillow 13: `Image.fromarray(row).resize((n, 1), resample)`.
    #[test]
    fn rows_are_pillows() {
        const OLD: [u8; 11] = [3, 250, 17, 90, 90, 200, 0, 255, 128, 64, 33];
        let cases: [(Filter, &[u8]); 6] = [
            (Filter::Bilinear, &[102, 94, 85, 135, 136, 131, 45]),
            (
                Filter::Bilinear,
                &[
                    3, 57, 175, 209, 98, 27, 61, 90, 90, 95, 147, 200, 104, 9, 111, 233, 205, 145,
                    106, 75, 55, 40, 33,
                ],
            ),
            (Filter::Bicubic, &[105, 99, 84, 130, 139, 138, 40]),
            (
                Filter::Bicubic,
                &[
                    0, 46, 196, 234, 94, 12, 52, 92, 86, 93, 161, 200, 97, 0, 100, 245, 230, 144,
                    100, 72, 51, 37, 30,
                ],
            ),
            (Filter::Lanczos, &[110, 105, 81, 124, 140, 148, 31]),
            (Filter::Lanczos, &[101, 94, 147, 85]),
        ];
        for (filter, new) in cases {
            let got = resize(&row(&OLD), new.len() as u32, 1, filter);
            let got: Vec<_> = got.pixels.chunks(3).map(|p| p[0]).collect();
            assert_eq!(got, new, "{filter:?}");
        }
    }

    #[test]
    fn a_constant_stays_and_edges_do_not_overflow() {
        for filter in [Filter::Nearest, Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
            for (width, height) in [(1, 1), (7, 3), (200, 1), (33, 90)] {
                let image = RgbImage { width: 33, height: 20, pixels: vec![200; 33 * 20 * 3] };
                let got = resize(&image, width, height, filter);
                assert_eq!(got.pixels.len(), 3 * (width * height) as usize);
                assert!(got.pixels.iter().all(|x| x.abs_diff(200) <= 1));
            }
            let edge: Vec<_> = [0, 0, 0, 255, 255, 255, 0].repeat(5);
            assert_eq!(resize(&row(&edge), 71, 2, filter).pixels.len(), 71 * 2 * 3);
        }
    }
}
