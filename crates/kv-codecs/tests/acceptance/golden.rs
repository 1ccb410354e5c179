//! C17: a golden row.

use crate::support::{dot, near, square};
use taper_kv_codecs::{Polar, Rotation, Scale};

#[rustfmt::skip]
const CODES: [(usize, &str, u64); 3] = [
    (2, "22211031121201120002213023121230111121010332113201102332112021202211111331101031110121302222223012220232200012011221132200102232", 0x0d05_794d_fc6c_2017),
    (3, "44433163352423252115426046252461323253030665335423214765225242425523233762313063321343614545456134541475511124123443365511314475", 0x6c9c_a5c3_fdd1_0ede),
    (4, "999672c76a49475b433a85c19b5a59d46474a6160cdb76b847429dda54b49584ba57467ec47361d6752687d28a8a9bc278a928fab323483579976cab237388db", 0xbe23_cf9a_151d_ff2a),
];
/// Matched, least squares, unbiased: gamma, error, and the unbiased inner product.
type Figures = ([f64; 3], [f64; 3], f64);
const FIGURES: [Figures; 3] = [
    ([10.828_281, 10.139_345, 11.564_027], [0.127_248, 0.123_200, 0.140_510], 1.065_003),
    ([10.823_852, 10.634_250, 11.016_834], [0.035_034, 0.034_727, 0.035_977], 1.910_114),
    ([10.374_497, 10.333_297, 10.415_862], [0.007_943, 0.007_927, 0.007_990], 1.693_442),
];

#[test]
fn c17_golden_row() {
    let at = |f: fn(f64) -> f64| (0..128).map(|i| f(f64::from(i)) as f32).collect::<Vec<_>>();
    let x = at(|i| (0.37 * i + 0.1).sin() + 0.25 * (1.9 * i).cos() + 0.5);
    let y = at(|i| (0.23 * i).cos() - 0.3 * (0.71 * i + 0.4).sin());
    near(square(&x).sqrt(), 10.255_777_010, 1e-6);
    near(dot(&x, &y), 0.146_100_810, 1e-5);
    let rotation = Rotation::new(128, 1123).unwrap();
    let mut u = x.clone();
    rotation.apply(&mut u);
    for (u, want) in u.iter().zip([0.031_803_52, 0.024_240_73, 0.029_607_58, -0.038_805_21]) {
        near(f64::from(*u) / 10.255_777_010, want, 1e-6);
    }
    for ((bits, codes, hash), (gammas, errors, product)) in CODES.into_iter().zip(FIGURES) {
        let polar = Polar::new(rotation.clone(), bits);
        let coded = polar.encode(&x, &[1.0]);
        let text: String = coded.codes.iter().map(|c| format!("{c:x}")).collect();
        assert_eq!(text, codes);
        let fnv = |h: u64, c: &u8| (h ^ u64::from(*c)).wrapping_mul(0x0000_0100_0000_01b3);
        assert_eq!(coded.codes.iter().fold(0xcbf2_9ce4_8422_2325, fnv), hash);
        // The figures were computed with levels of six digits.
        let digits = |x: &f32| (f64::from(*x) * 1e6).round() as f32 * 1e-6;
        let levels = polar.levels().iter().map(digits).collect();
        let polar = Polar::with_levels(rotation.clone(), levels);
        let coded = polar.encode(&x, &[1.0]);
        let scales = [Scale::Matched, Scale::LeastSquares, Scale::Unbiased];
        for ((scale, gamma), error) in scales.into_iter().zip(gammas).zip(errors) {
            near(f64::from(coded.gamma(scale)), gamma, 2e-5);
            let back = polar.decode(&coded, scale);
            near(crate::support::distance(&x, &back) / square(&x), error, 2e-6);
        }
        near(dot(&y, &polar.decode(&coded, Scale::Unbiased)), product, 2e-4);
    }
}
