//! C12: trellis codes.

use crate::support::{distance, square, unit_rows};
use taper_kv_codecs::{Polar, Rotation, TrellisCode};

fn decode(code: &TrellisCode, symbols: &[u8], gamma: f32) -> Vec<f32> {
    code.states(symbols).into_iter().map(|s| code.level(s) * gamma).collect()
}

#[test]
fn c12_trellis_codes_beat_scalar_codes_of_the_same_bits() {
    let (d, n) = (128, 2000);
    let codes = [4, 3, 2].map(TrellisCode::new).into_iter().zip([0.0070, 0.0255, 0.0920]);
    for (code, most) in codes.chain([(TrellisCode::wide(), 0.0218)]) {
        let bits = code.bits();
        let polar = Polar::new(Rotation::new(d, 1).unwrap(), bits);
        let (mut trellis, mut scalar) = (0.0, 0.0);
        for x in unit_rows(n, d, 12).chunks_exact(d) {
            let walk = code.encode_rotated(x);
            let error = distance(x, &decode(&code, &walk.symbols, walk.gamma));
            assert!((error - f64::from(walk.error)).abs() < 1e-5, "{error} {}", walk.error);
            trellis += error / n as f64;
            let coded = polar.encode_rotated(x, &[1.0]);
            scalar += f64::from(coded.unbiased_error()) / n as f64;
        }
        println!("{bits} bits: trellis {trellis:.5}, scalar {scalar:.5}");
        assert!(trellis <= most, "{bits} bits: {trellis}");
        assert!(trellis < 0.80 * scalar, "{bits} bits: {trellis} {scalar}");
    }
}

#[test]
fn c12_states_are_windows_of_closed_walks() {
    for bits in 2..=4 {
        let code = TrellisCode::new(bits);
        let symbols = code.encode_rotated(&unit_rows(1, 64, 5)).symbols;
        for (ring, states) in symbols.chunks_exact(16).zip(code.states(&symbols).chunks_exact(16)) {
            // The bits of the ring around each symbol's end.
            let bit = |at: usize| ring[at / bits % 16] >> (at % bits) & 1;
            for (i, &state) in states.iter().enumerate() {
                let end = (i + 1) * bits + 16 * bits;
                let window = (0..6).fold(0, |w, b| w | u16::from(bit(end - 6 + b)) << b);
                assert_eq!(window, state, "{bits} bits, element {i}");
            }
        }
    }
}

#[test]
fn c12_wide_states_are_windows_of_walks_that_close_over_the_row() {
    let code = TrellisCode::wide();
    for d in [16, 80, 128] {
        let symbols = code.encode_rotated(&unit_rows(1, d, 5)).symbols;
        let n = symbols.len();
        for (i, &state) in code.states(&symbols).iter().enumerate() {
            let symbol = |back: usize| u16::from(symbols[(i + n - back) % n]);
            assert_eq!(state, symbol(0) << 6 | symbol(1) << 3 | symbol(2), "element {i} of {n}");
        }
    }
}

#[test]
fn c12_unbiased() {
    for code in [2, 3, 4].map(TrellisCode::new).into_iter().chain([TrellisCode::wide()]) {
        for x in unit_rows(20, 96, 6).chunks_exact(96) {
            let walk = code.encode_rotated(x);
            let back = decode(&code, &walk.symbols, walk.gamma);
            let along = crate::support::dot(x, &back) / square(x);
            assert!((along - 1.0).abs() < 1e-5, "{along}");
        }
    }
}
