//! C2 to C5, C10, C11: distortion of scalar codes.

use crate::{
    codebooks::SPHERE_D,
    support::{distance, dot, gaussian, near, square, unit_rows},
};
use taper_kv_codecs::{Polar, Rotation, SCALE_SEARCH, Scale};
use taper_tensor::cpu::codes::{CodeLevel, Int8Queries, RING, Scaling, TILE, dots};

fn polar(d: usize, bits: usize) -> Polar {
    Polar::new(Rotation::new(d, 1123).unwrap(), bits)
}

/// Mean squared error of unit rows.
fn error(polar: &Polar, d: usize, n: usize, scale: Scale) -> f64 {
    let x = unit_rows(n, d, 3);
    let one = |x: &[f32]| distance(x, &polar.decode(&polar.encode(x, &[1.0]), scale));
    x.chunks_exact(d).map(one).sum::<f64>() / n as f64
}

#[test]
fn c02_raw_error_is_the_code_books() {
    let raw = |d, bits| error(&polar(d, bits), d, 10_000, Scale::Raw);
    let check = |d, bits, want, tolerance| near(raw(d, bits), want, tolerance);
    check(128, 1, 0.3609, 0.0015);
    check(128, 2, 0.1160, 0.0008);
    check(128, 3, 0.0340, 0.0003);
    check(128, 4, 0.009_32, 0.000_12);
    check(64, 1, 0.3584, 0.002);
    check(64, 2, 0.1145, 0.0012);
    check(64, 3, 0.0334, 0.0005);
    check(64, 4, 0.009_13, 0.0002);
    check(256, 1, 0.3622, 0.001);
    check(256, 2, 0.1167, 0.0006);
    check(256, 3, 0.034_25, 0.0002);
    check(256, 4, 0.009_41, 0.0001);
    for (d, want) in SPHERE_D {
        if [80, 96, 112, 192].contains(&d) {
            want.into_iter().enumerate().for_each(|(i, w)| check(d, i + 1, w, 0.015 * w));
        }
    }
}

#[test]
fn c03_each_scale_has_its_error() {
    for (bits, unbiased, tolerance, matched, least) in [
        (2, 0.1306, 0.001, 0.1188, 0.1152),
        (3, 0.034_75, 0.0003, 0.0338, 0.0336),
        (4, 0.009_24, 0.000_12, 0.0092, 0.009_15),
    ] {
        let polar = polar(128, bits);
        let of = |scale| error(&polar, 128, 10_000, scale);
        near(of(Scale::Unbiased), unbiased, tolerance);
        near(of(Scale::Matched), matched, 0.0009 * f64::from(1 << (4 - bits)) / 4.0);
        near(of(Scale::LeastSquares), least, 0.0009 * f64::from(1 << (4 - bits)) / 4.0);
    }
}

/// Slope through the origin of estimated on true inner products, and `d E[error^2]`.
pub(crate) fn inner_products(
    n: usize,
    d: usize,
    correlated: bool,
    decode: impl Fn(&[f32]) -> Vec<f32>,
) -> (f64, f64) {
    let (x, z) = (unit_rows(n, d, 21), unit_rows(n, d, 22));
    let (mut xy, mut yy, mut errors) = (0.0, 0.0, 0.0);
    for (i, (x, z)) in x.chunks_exact(d).zip(z.chunks_exact(d)).enumerate() {
        let rho = if correlated { (i as f32 + 0.5) / n as f32 * 2.0 - 1.0 } else { 0.0 };
        let other = (1.0 - rho * rho).sqrt();
        let y: Vec<_> = x.iter().zip(z).map(|(x, z)| rho * x + other * z).collect();
        let (truth, got) = (dot(&y, x), dot(&y, &decode(x)));
        xy += truth * got;
        yy += truth * truth;
        errors += (truth - got).powi(2);
    }
    (xy / yy, errors / n as f64 * d as f64)
}

#[test]
fn c04_the_unbiased_scale_is_unbiased_and_the_raw_one_is_not() {
    for (bits, raw) in [(3, 0.966), (4, 0.991)] {
        let polar = polar(128, bits);
        let slope = |scale| {
            let decode = |x: &[f32]| polar.decode(&polar.encode(x, &[1.0]), scale);
            inner_products(40_000, 128, true, decode).0
        };
        near(slope(Scale::Unbiased), 1.0, 0.001);
        near(slope(Scale::Raw), raw, 0.002);
        for x in gaussian(50 * 128, 8).chunks_exact(128) {
            let back = polar.decode(&polar.encode(x, &[1.0]), Scale::Unbiased);
            near(dot(x, &back) / square(x), 1.0, 1e-5);
        }
    }
}

#[test]
fn c05_inner_product_errors() {
    for (bits, want) in [(2, 0.1308), (3, 0.0348), (4, 0.009_23)] {
        let polar = polar(128, bits);
        let decode = |x: &[f32]| polar.decode(&polar.encode(x, &[1.0]), Scale::Unbiased);
        near(inner_products(40_000, 128, false, decode).1, want, 0.04 * want);
    }
}

/// The levels rounded to int8, as the paged codecs store them.
fn rounded(polar: &Polar) -> (Polar, Vec<i8>, f32) {
    let most = polar.levels().iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let step = most / 127.0;
    let entries: Vec<_> = polar.levels().iter().map(|c| (c / step).round() as i8).collect();
    let levels = entries.iter().map(|&e| f32::from(e) * step).collect();
    (Polar::with_levels(polar.rotation().clone(), levels), entries, step)
}

#[test]
fn c10_int8_levels_and_queries_cost_next_to_nothing() {
    let (d, n) = (128, 10_000);
    let exact = polar(d, 4);
    let (coarse, entries, step) = rounded(&exact);
    let of = |polar: &Polar| error(polar, d, n, Scale::Unbiased);
    let distortion = of(&exact);
    assert!(of(&coarse) < distortion * 1.002, "table");

    // The same codes: exact levels and floats against int8 levels and an int8 query.
    let (keys, queries) = (unit_rows(n, d, 5), unit_rows(n, d, 6));
    let (mut squares, mut most, mut query_only) = (0.0, 0.0f64, 0.0);
    let mut int8 = Int8Queries::default();
    let mut tiles = vec![0u8; 4 * d];
    for (key, q) in keys.chunks_exact(d).zip(queries.chunks_exact(d)) {
        let mut rotated = q.to_vec();
        exact.rotation().apply(&mut rotated);
        let coded = exact.encode(key, &[1.0]);
        let gamma = coded.gamma(Scale::Unbiased);
        int8.set(&rotated, d);
        for (i, &code) in coded.codes.iter().enumerate() {
            tiles[i / RING * TILE + i % RING] = entries[usize::from(code)] as u8 ^ 0x80;
        }
        let mut scores = [0.0; 4];
        let gammas = [gamma * step; 4];
        dots(CodeLevel::detect(), &int8, &tiles, Scaling::of(&gammas), (&mut scores, 4));
        let levels: Vec<_> = coded.codes.iter().map(|&c| exact.levels()[usize::from(c)]).collect();
        let off = f64::from(scores[0]) - dot(&rotated, &levels) * f64::from(gamma);
        squares += off * off;
        most = most.max(off.abs());
        let coarse: Vec<_> = coded.codes.iter().map(|&c| coarse.levels()[usize::from(c)]).collect();
        query_only += (f64::from(scores[0]) - dot(&rotated, &coarse) * f64::from(gamma)).powi(2);
    }
    let rms = (squares / n as f64).sqrt();
    assert!(rms <= 1e-3 && most <= 4e-3, "{rms} {most}");
    assert!(query_only / n as f64 * d as f64 <= 0.007 * distortion, "query");
}

#[test]
fn c11_the_scale_search_pays_and_never_harms() {
    let (polar, d, n) = (polar(128, 4), 128, 10_000);
    let mut total = 0.0;
    for x in unit_rows(n, d, 3).chunks_exact(d) {
        let (plain, best) = (polar.encode(x, &[1.0]), polar.encode(x, &SCALE_SEARCH));
        let of = |coded| distance(x, &polar.decode(coded, Scale::Unbiased));
        let (plain, best) = (of(&plain), of(&best));
        assert!(best <= plain * 1.001 + 1e-9, "{best} {plain}");
        total += best;
    }
    near(total / n as f64, 0.007_93, 0.0001);
}
