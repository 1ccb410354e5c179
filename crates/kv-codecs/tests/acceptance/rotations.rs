//! C7 and C8: rotations.

use crate::support::{distance, gaussian, near, square, unit_rows};
use taper_kv_codecs::{Polar, Rotation, Scale};

const SIZES: [usize; 8] = [64, 80, 96, 112, 128, 192, 256, 512];

#[test]
fn c07_rotations_keep_lengths_and_invert() {
    for d in SIZES {
        let rotation = Rotation::new(d, 31).unwrap();
        let x = gaussian(50 * d, 4);
        let mut y = x.clone();
        rotation.apply(&mut y);
        for (x, y) in x.chunks_exact(d).zip(y.chunks_exact(d)) {
            near((square(y) / square(x)).sqrt(), 1.0, 1e-6);
        }
        rotation.undo(&mut y);
        assert!(distance(&x, &y) < 1e-11 * square(&x), "{d}");
    }
}

/// Mean error of `n` Gaussian rows relative to their energy.
fn error(rotation_seed: u64, data_seed: u64, n: usize) -> f64 {
    let d = 128;
    let polar = Polar::new(Rotation::new(d, rotation_seed).unwrap(), 4);
    let x = unit_rows(n, d, data_seed);
    let one = |x: &[f32]| distance(x, &polar.decode(&polar.encode(x, &[1.0]), Scale::Unbiased));
    x.chunks_exact(d).map(one).sum::<f64>() / n as f64
}

#[test]
fn c07_the_error_does_not_depend_on_the_seeds() {
    for (rotation, data) in [(1, 2), (42, 7), (42, 42), (1123, 1123)] {
        near(error(rotation, data, 3000), 0.009_24, 0.000_15);
    }
}

/// Mean 4-bit error of a row relative to its energy over 256 sign seeds, and without signs.
fn structured(x: &[f32]) -> (f64, f64) {
    let d = x.len();
    let with = |rotation| {
        let polar = Polar::new(rotation, 4);
        distance(x, &polar.decode(&polar.encode(x, &[1.0]), Scale::Unbiased)) / square(x)
    };
    // Sign seeds share one code book.
    let books = Polar::new(Rotation::new(d, 0).unwrap(), 4);
    let signed = |seed| {
        let rotation = Rotation::with_rounds(d, seed, 1).unwrap();
        let polar = Polar::with_levels(rotation, books.levels().to_vec());
        distance(x, &polar.decode(&polar.encode(x, &[1.0]), Scale::Unbiased)) / square(x)
    };
    let mean = (0..256).map(signed).sum::<f64>() / 256.0;
    // Signs of a rotation applied beforehand cancel its own.
    let mut plain = x.to_vec();
    let rotation = Rotation::with_rounds(d, 5, 1).unwrap();
    let mut unit = vec![0.0; d];
    for (i, x) in plain.iter_mut().enumerate() {
        unit.fill(0.0);
        unit[i] = 1.0;
        rotation.apply(&mut unit);
        // The first row of a Sylvester matrix is all ones: its entry is the sign.
        *x *= unit[0].signum();
    }
    let polar = Polar::new(rotation, 4);
    let got = polar.decode(&polar.encode(&plain, &[1.0]), Scale::Unbiased);
    let _ = with;
    (mean, distance(&plain, &got) / square(&plain))
}

#[test]
fn c08_structured_rows_need_the_signs() {
    let d = 128;
    let noise = gaussian(d, 9);
    let offset: Vec<_> = noise.iter().map(|x| 3.0 + x).collect();
    let row: Vec<_> = (0..d)
        .map(|i| if (i & 0b101_0011).count_ones() % 2 == 1 { -1.0 } else { 1.0 })
        .zip(&noise)
        .map(|(h, x): (f32, _)| h + 0.1 * x)
        .collect();
    let hot: Vec<_> = (0..d).map(|i| f32::from(u8::from(i == 17))).collect();
    let ramp: Vec<_> = (0..d).map(|i| (i as f32 * 0.02).cos() * (1.0 + i as f32 / 64.0)).collect();
    for (x, unsigned) in [(offset, 0.2), (row, 0.1), (ramp, 0.05)] {
        let (mean, without) = structured(&x);
        assert!(mean <= 0.012, "{mean}");
        assert!(without > unsigned, "without signs: {without}");
    }
    assert!(structured(&hot).0 <= 0.012);
}
