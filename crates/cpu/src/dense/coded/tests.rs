//! Coded weights are the weights, to the bit, and so are products with them.

use super::{
    super::{
        DenseLevel, PackedDense,
        pack::{BLOCK, PANEL, Panel, tile_line},
        tests::{levels, noise, product},
    },
    CODED, Chunk, Coded, encode, encode_portable, frequent, histogram, tables,
};
use crate::{Bytes, DType, DenseWeight};
use half::bf16;
use proptest::{collection::vec, prelude::*};

fn matrix(cols: usize, weights: &[bf16]) -> DenseWeight {
    let bytes = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
    DenseWeight::new((weights.len() / cols, cols), DType::BF16, Bytes::from_vec(bytes)).unwrap()
}

/// Normally distributed, each row of its own size.
fn normal(rows: usize, cols: usize) -> Vec<bf16> {
    let (a, b) = (noise(rows * cols, 5), noise(rows * cols, 6));
    let radius = a.iter().map(|a| (-2.0 * (a + 0.5 + 1e-9).ln()).sqrt());
    let values = radius.zip(b).map(|(r, b)| r * (b * std::f32::consts::TAU).cos());
    let size = |i: usize| 0.02 * (1 + i / cols % 5) as f32;
    values.enumerate().map(|(i, x)| bf16::from_f32(x * size(i))).collect()
}

fn bits(weights: &[bf16]) -> Vec<u16> {
    weights.iter().map(|w| w.to_bits()).collect()
}

/// Packs and unpacks in every way there is.
fn comes_back(cols: usize, weights: &[bf16]) {
    let stored = matrix(cols, weights);
    let [plain, coded] = [false, true].map(|coded| PackedDense::laid_out(&stored, coded));
    for panel in 0..plain.panels() {
        let (Panel::Plain(want), Panel::Coded(got)) = (plain.panel(panel), coded.panel(panel))
        else {
            panic!("one of each layout");
        };
        let want = want.as_bf16().unwrap();
        let rows = PANEL.min(plain.rows() - panel * PANEL);
        let in_rows = |weights: &[u16]| -> Vec<u16> {
            let place = |row, k| tile_line(k / 2, row) + k % 2;
            (0..rows)
                .flat_map(|r| (0..cols).map(move |k| place(r, k)))
                .map(|i| weights[i])
                .collect()
        };
        let mut chunks = vec![Chunk::ZERO; got.chunks()];
        for portable in [true, false] {
            match portable {
                true => got.decode_portable(&mut chunks),
                false => got.decode(&mut chunks),
            }
            let got = in_rows(&bits(Chunk::weights(&chunks)));
            assert_eq!(got, in_rows(&bits(want)), "portable: {portable}");
        }
    }
    let mut row = vec![0.0; cols];
    for (i, want) in weights.chunks(cols).enumerate() {
        coded.read_row(i, &mut row);
        let got: Vec<_> = row.iter().map(|x| x.to_bits()).collect();
        let want: Vec<_> = want.iter().map(|x| x.to_f32().to_bits()).collect();
        assert_eq!(got, want, "row {i}");
    }
}

#[test]
fn every_pattern_comes_back() {
    let all: Vec<_> = (0..=u16::MAX).map(bf16::from_bits).collect();
    comes_back(64, &all);
    comes_back(1024, &all);
    let stirred: Vec<_> = (0..=u16::MAX).map(|i| bf16::from_bits(i.wrapping_mul(40_503))).collect();
    comes_back(32, &stirred);
}

#[test]
fn rows_of_a_part_of_a_panel_come_back() {
    for (rows, cols) in [(1, 32), (63, 64), (65, 96), (130, 32)] {
        comes_back(cols, &normal(rows, cols));
    }
}

#[test]
fn blocks_are_coded_as_defined() {
    let stirred = (0..=u16::MAX).map(|i| bf16::from_bits(i.wrapping_mul(40_503)));
    let weights: Vec<_> = normal(64, 1024).into_iter().chain(stirred).collect();
    let (_, indices) = tables(frequent(&histogram(&weights, 1024)));
    let (mut want, mut got) = ([0; CODED], [0; CODED]);
    for block in weights.as_chunks::<BLOCK>().0 {
        let odd = encode_portable(block, &indices, &mut want);
        assert_eq!((encode(block, &indices, &mut got), got), (odd, want));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn anything_comes_back(weights in vec(prop_oneof![
        8 => (0x3c00u16..0x3f00).prop_map(|x| x),
        4 => (0xbc00u16..0xbf00).prop_map(|x| x),
        1 => any::<u16>(),
        1 => prop_oneof![Just(0), Just(0x8000), Just(0x7f80), Just(0xff80), Just(0x7f81), Just(1)],
    ], 70 * 32)) {
        comes_back(32, &weights.into_iter().map(bf16::from_bits).collect::<Vec<_>>());
    }
}

#[test]
fn products_are_those_of_the_plain_layout() {
    let (n, k) = (130, 160);
    let mut weights = normal(n, k);
    // More exceptions than usual: one in fifty, of any size that keeps sums finite.
    for (i, w) in weights.iter_mut().step_by(50).enumerate() {
        *w = bf16::from_f32([0.0, -0.0, 1e-30, -1e-38, 1e3, 1e-40][i % 6]);
    }
    let stored = matrix(k, &weights);
    let [plain, coded] = [false, true].map(|coded| PackedDense::laid_out(&stored, coded));
    for level in levels() {
        for m in [1, 2, 3, 4, 5, 6, 7, 8, 13, 17, 100] {
            let x = noise(m * k, 7);
            let (bias, residual) = (vec![0.0; n], vec![0.0; m * n]);
            let all = [&plain, &coded].map(|w| product(level, &x, w, &bias, &residual));
            let [want, got] = all.map(|out| out.into_iter().map(f32::to_bits).collect::<Vec<_>>());
            assert_eq!(got, want, "{level:?}, {m} rows");
        }
    }
}

#[test]
fn weights_that_are_not_finite_show_and_spoil_no_other_output() {
    let (n, k) = (64, 64);
    let mut weights = normal(n, k);
    weights[5 * k + 3] = bf16::NAN;
    weights[9 * k + 60] = bf16::INFINITY;
    let coded = PackedDense::laid_out(&matrix(k, &weights), true);
    for level in levels() {
        let out = product(level, &vec![1.0; k], &coded, &vec![0.0; n], &vec![0.0; n]);
        for (i, out) in out.iter().enumerate() {
            match i {
                5 => assert!(out.is_nan(), "{level:?}"),
                9 => assert_eq!(*out, f32::INFINITY, "{level:?}"),
                _ => assert!(out.is_finite(), "{level:?} {i}"),
            }
        }
    }
}

#[test]
fn normal_weights_take_twelve_bits_and_wild_ones_stay() {
    let weights = normal(256, 1024);
    assert!(Coded::pays(&weights, 1024));
    let bits = Coded::new(&weights, 1024).bytes() as f64 * 8.0 / weights.len() as f64;
    assert!((12.0..12.1).contains(&bits), "{bits} bits a weight");
    let wild: Vec<_> = (0..=u16::MAX).map(bf16::from_bits).collect();
    assert!(!Coded::pays(&wild, 64));
    assert!(!Coded::pays(&weights, 1000), "inputs that are no whole chunks");
    assert!(!Coded::pays(&[], 1024));
}

#[test]
fn only_a_machine_that_unpacks_them_fast_has_them_coded() {
    let packed = PackedDense::new(&matrix(1024, &normal(64, 1024)));
    let coded = matches!(packed.panel(0), Panel::Coded(_));
    assert_eq!(coded, DenseLevel::detect().codes());
}
