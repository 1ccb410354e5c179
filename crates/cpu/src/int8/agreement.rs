//! Every level of this machine against the definition, to the bit.

use super::{Int8Level, Int8Rows, PackedWeight, gemm::one_tile, matmul_with, pack::TILE, portable};
use crate::{AffineFormat, AffineWeight, Bytes, DType, Rounding};
use half::{bf16, f16};
use std::ops::Range;

type Tile<'a> = &'a dyn Fn(&PackedWeight, usize, &Int8Rows, Range<usize>, &mut [f32]);

/// Every way to compute a tile of any rows here, by name.
fn for_each_way(mut f: impl FnMut(&str, Tile<'_>)) {
    for level in Int8Level::available().into_iter().filter(|&l| !matches!(l, Int8Level::Amx(_))) {
        f(&format!("{level:?}"), &|w, t, x, rows, out| one_tile(level, w, t, x, rows, out));
    }
    #[cfg(target_arch = "x86_64")]
    if crate::features::Avx512Vnni::detect().is_some() {
        // SAFETY: the instructions were detected; shapes are `check`'s.
        f("AvxVnni's twin", &|w, t, x, rows, out| unsafe {
            super::avx2::tile_evex(w, t, x, rows, out);
        });
    }
}

fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        s >> 11
    }
}

fn stored(dtype: DType, x: &[f32]) -> (DType, Bytes) {
    let bytes = match dtype {
        DType::F16 => x.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::BF16 => x.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        _ => x.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    (dtype, Bytes::from_vec(bytes))
}

/// A matrix with the largest codes in its first rows, and here and there an odd scale or bias.
fn weight(format: AffineFormat, dtype: DType, rows: usize, cols: usize) -> PackedWeight {
    const ODD: [f32; 6] =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MIN_POSITIVE];
    let mut next = random(rows as u64 * 1000 + cols as u64 + u64::from(format.bits));
    let bytes = format.row_bytes(cols);
    let codes = (0..rows * bytes).map(|i| if i < 3 * bytes { 255 } else { next() as u8 }).collect();
    let mut floats = || -> Vec<f32> {
        let one = |_| match next() % 64 {
            odd @ 0..6 => ODD[odd as usize],
            x => (x as f32 - 32.0) * 0.37,
        };
        (0..rows * cols / format.group).map(one).collect()
    };
    let (scales, biases) = (stored(dtype, &floats()), stored(dtype, &floats()));
    let codes = Bytes::from_vec(codes);
    PackedWeight::new(&AffineWeight::new(format, (rows, cols), codes, scales, biases).unwrap())
}

/// Rows of noise, but for one at each end of the range and one not finite.
fn activations(rows: usize, cols: usize, group: usize) -> Int8Rows {
    let mut next = random(rows as u64 + cols as u64);
    let one = |i: usize| match i / cols % 7 {
        2 => 5.0,
        3 => -5.0,
        5 if i.is_multiple_of(cols) => f32::NAN,
        _ => (next() % 2001) as f32 - 1000.0,
    };
    let x: Vec<f32> = (0..rows * cols).map(one).collect();
    Int8Rows::new(&x, cols, group, Rounding::Int8)
}

fn assert_same(got: &[f32], want: &[f32], what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(same, "{what}: {got} is not {want} at {i}");
    }
}

#[test]
fn every_level_is_the_definition_for_any_format_and_rows() {
    for bits in AffineFormat::BITS {
        for group in AffineFormat::GROUPS {
            for dtype in [DType::BF16, DType::F16, DType::F32] {
                let (rows, cols) = (TILE + 3, group * 3);
                let w = weight(AffineFormat { bits, group }, dtype, rows, cols);
                let x = activations(23, cols, group);
                // Whole blocks of each size, and every remainder.
                for range in [0..23, 0..16, 1..9, 7..14, 2..5, 3..5, 5..6, 22..23, 4..4] {
                    for t in 0..w.tiles() {
                        let mut want = vec![f32::NAN; range.len() * TILE];
                        portable::tile(&w, t, &x, range.clone(), &mut want);
                        for_each_way(|name, tile| {
                            let mut got = vec![1.25; range.len() * TILE];
                            tile(&w, t, &x, range.clone(), &mut got);
                            let what =
                                format!("{name}, {bits} bits by {group}, {dtype:?}, {range:?}");
                            assert_same(&got, &want, &what);
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn every_level_is_the_definition_for_whole_products() {
    for (bits, dtype) in [(4, DType::BF16), (4, DType::F16), (8, DType::F32), (8, DType::BF16)] {
        for group in AffineFormat::GROUPS {
            let (n, cols) = (2 * TILE + 3, group * 5);
            let w = weight(AffineFormat { bits, group }, dtype, n, cols);
            for rows in [1, 3, 4, 5, 8, 11, 13, 16, 17, 27, 32, 208, 211] {
                let x = activations(rows, cols, group);
                let mut want = vec![0.0; rows * n];
                matmul_with(Int8Level::Portable, &x, &w, None, &mut want);
                for level in Int8Level::available() {
                    let mut got = vec![1.25; rows * n];
                    matmul_with(level, &x, &w, None, &mut got);
                    let what = format!("{level:?}, {bits} bits by {group}, {dtype:?}, {rows} rows");
                    assert_same(&got, &want, &what);
                }
            }
        }
    }
}

#[test]
fn the_largest_products_do_not_saturate() {
    for (bits, largest) in [(4, 15), (8, 255)] {
        let format = AffineFormat { bits, group: 128 };
        let ones = stored(DType::F32, &[1.0; TILE]);
        let codes = Bytes::from_vec(vec![255; TILE * format.row_bytes(128)]);
        let w = AffineWeight::new(format, (TILE, 128), codes, ones.clone(), ones).unwrap();
        let w = PackedWeight::new(&w);
        for (sign, rows) in [(1.0, 1), (-1.0, 1), (1.0, 16), (-1.0, 16)] {
            let x = vec![sign * 127.0; rows * 128];
            let x = Int8Rows::new(&x, 128, 128, Rounding::Int8);
            for_each_way(|name, tile| {
                let mut got = vec![0.0; rows * TILE];
                tile(&w, 0, &x, 0..rows, &mut got);
                let want = vec![sign * (127 * 128 * (largest + 1)) as f32; rows * TILE];
                assert_same(&got, &want, &format!("{name}, {bits} bits, {rows} rows"));
            });
        }
    }
}
