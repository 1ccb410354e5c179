//! Every level against f64, and rows alone against rows in a batch.

use super::{
    Bf16Rows, DenseLevel, DenseRows, PackedDense, Product, Sums,
    beside::Beside,
    pack::{LINE, OUTPUTS, PANEL, tile_line},
    products,
    rounded::{ROWS, TILE},
    tiles, widened,
};
use crate::{
    AffineFormat, AffineWeight, Bytes, DType, DenseWeight,
    {Activation, Level, RowSource, int8::PackedWeight, shared::SharedOut},
};
use half::{bf16, f16};

/// What the registers do, in plain Rust: pairs are added in order.
pub(super) struct Emulated;

impl tiles::Unit for Emulated {
    unsafe fn sums(
        x: &[*const bf16],
        w: *const bf16,
        chunks: usize,
        (out, more): (*mut f32, bool),
        beside: &mut impl Beside,
    ) {
        (0..chunks).for_each(|_| beside.next());
        for (block, &x) in x.iter().enumerate() {
            // SAFETY: `x` and `w` have as many tiles as the caller says, and `out` a panel a row.
            let x = unsafe { std::slice::from_raw_parts(x, chunks * TILE) };
            for row in 0..ROWS {
                // SAFETY: `out` has a panel of 32 outputs for each row.
                let sums = unsafe {
                    std::slice::from_raw_parts_mut(out.add((block * ROWS + row) * PANEL), 32)
                };
                if !more {
                    sums.fill(0.0);
                }
                for pair in 0..chunks * 16 {
                    let x = &x[pair / 16 * TILE + row * 32 + pair % 16 * 2..][..2];
                    // SAFETY: `w` has as many tiles as `x`, so there is a line at each `at`.
                    for (tile, sums) in sums.chunks_mut(OUTPUTS).enumerate() {
                        let at = tile_line(pair, tile * OUTPUTS);
                        let w = unsafe { std::slice::from_raw_parts(w.add(at), LINE) };
                        for (sum, w) in sums.iter_mut().zip(w.as_chunks::<2>().0) {
                            *sum += x[0].to_f32() * w[0].to_f32() + x[1].to_f32() * w[1].to_f32();
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn levels() -> Vec<DenseLevel> {
    let mut levels = DenseLevel::available();
    levels.push(DenseLevel::Emulated);
    levels
}

pub(super) fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut s = seed;
    let mut next = || {
        s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (s >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

fn weight(rows: usize, cols: usize, dtype: DType) -> DenseWeight {
    let x = noise(rows * cols, 3);
    let bytes = match dtype {
        DType::F16 => x.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        DType::BF16 => x.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        _ => x.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    DenseWeight::new((rows, cols), dtype, Bytes::from_vec(bytes)).unwrap()
}

pub(super) fn product(
    level: DenseLevel,
    x: &[f32],
    weight: &PackedDense,
    bias: &[f32],
    residual: &[f32],
) -> Vec<f32> {
    let cols = weight.cols();
    let mut out = vec![f32::NAN; residual.len()];
    let rounded = level.rounds(weight.dtype()).then(|| Bf16Rows::new(x, cols));
    let rows = DenseRows { x, cols, rounded: rounded.as_ref() };
    let shared = SharedOut::new(&mut out);
    let (bias, residual) = (Some(bias), Some(residual));
    let to = Sums { bias, residual, out: shared };
    products(level, rows, &[Product { weight, to }]);
    out
}

#[test]
fn every_level_agrees_with_f64_and_rows_do_not_depend_on_the_batch() {
    let shapes = [
        (1, 1, 1),
        (3, 5, 7),
        (6, 70, 33),
        (50, 131, 260),
        (9, 64, 96),
        (130, 65, 64),
        (16, 64, 1031),
    ];
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for (m, n, k) in shapes {
            let (x, bias, residual) = (noise(m * k, 1), noise(n, 2), noise(m * n, 4));
            let stored = weight(n, k, dtype);
            let packed = PackedDense::new(&stored);
            let mut wide = vec![0.0; n * k];
            stored.read_rows(0, &mut wide);
            for level in levels() {
                let out = product(level, &x, &packed, &bias, &residual);
                let seen: Vec<_> = match level.rounds(dtype) {
                    true => x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
                    false => x.clone(),
                };
                for i in 0..m {
                    let seen = &seen[i * k..][..k];
                    let (x, residual) = (&x[i * k..][..k], &residual[i * n..][..n]);
                    let alone = product(level, x, &packed, &bias, residual);
                    assert_eq!(alone, out[i * n..][..n], "{level:?} {dtype:?} {m}x{n}x{k}");
                    for j in 0..n {
                        let dot = seen
                            .iter()
                            .zip(&wide[j * k..])
                            .map(|(&x, &w)| f64::from(x) * f64::from(w));
                        let want = dot.sum::<f64>() + f64::from(bias[j]) + f64::from(residual[j]);
                        let got = f64::from(out[i * n + j]);
                        let what = format!("{level:?} {dtype:?} {m}x{n}x{k}: {got} {want}");
                        assert!((got - want).abs() < 2e-5, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn several_products_are_the_same_as_each() {
    let (m, k) = (4, 200);
    let x = noise(m * k, 1);
    let packed = [30, 64, 150].map(|n| PackedDense::new(&weight(n, k, DType::BF16)));
    for level in levels() {
        let rounded = Bf16Rows::new(&x, k);
        let rows = DenseRows { x: &x, cols: k, rounded: Some(&rounded) };
        let mut outs = packed.each_ref().map(|w| vec![f32::NAN; m * w.rows()]);
        let mut all = Vec::new();
        for (weight, out) in packed.iter().zip(&mut outs) {
            let out = SharedOut::new(out);
            let to = Sums { bias: None, residual: None, out };
            all.push(Product { weight, to });
        }
        products(level, rows, &all);
        for (weight, out) in packed.iter().zip(outs) {
            let (bias, residual) = (vec![0.0; weight.rows()], vec![0.0; out.len()]);
            assert_eq!(out, product(level, &x, weight, &bias, &residual), "{level:?}");
        }
    }
}

#[test]
fn rows_come_back_as_they_were() {
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        let (rows, cols) = (67, 35);
        let stored = weight(rows, cols, dtype);
        let packed = PackedDense::new(&stored);
        let (mut want, mut got) = (vec![0.0; cols], vec![0.0; cols]);
        for row in 0..rows {
            stored.read_rows(row, &mut want);
            packed.read_row(row, &mut got);
            assert_eq!(got, want, "{dtype:?} row {row}");
        }
    }
}

#[test]
fn activations_are_rounded_as_bf16_are() {
    let cols = 64;
    let mut x: Vec<f32> = noise(17 * cols, 8).iter().map(|x| x * 1e3).collect();
    x[..6].copy_from_slice(&[f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX, -0.0, 1e-40]);
    let rounded = Bf16Rows::new(&x, cols);
    for (i, &x) in x.iter().enumerate() {
        let (row, k) = (i / cols, i % cols);
        let tile = &rounded.blocks(row / ROWS * ROWS..row + 1)[k / 32 * TILE..];
        let (got, want) = (tile[row % ROWS * 32 + k % 32], bf16::from_f32(x));
        assert!(got == want || got.is_nan() && want.is_nan(), "{x}");
    }
}

#[test]
fn a_row_that_is_not_finite_shows_and_spoils_no_other() {
    let (n, k) = (64, 64);
    let packed = PackedDense::new(&weight(n, k, DType::BF16));
    let mut x = noise(2 * k, 1);
    x[3] = f32::NAN;
    for level in levels() {
        let out = product(level, &x, &packed, &vec![0.0; n], &vec![0.0; 2 * n]);
        assert!(out[..n].iter().all(|o| o.is_nan()), "{level:?}");
        assert!(out[n..].iter().all(|o| o.is_finite()), "{level:?}");
    }
}

#[test]
fn one_level_comes_first_everywhere() {
    assert!(DenseLevel::available().contains(&DenseLevel::detect()));
    assert!(DenseLevel::available().contains(&DenseLevel::Fma(Level::Portable)));
}

/// A quantized matrix, and the `bf16` matrix that it is widened to.
fn quantized(
    format: AffineFormat,
    rows: usize,
    cols: usize,
    seed: u32,
) -> (PackedWeight, PackedDense) {
    let codes = noise(rows * format.row_bytes(cols), seed);
    let codes = codes.iter().map(|v| ((v + 0.5) * 255.0) as u8).collect();
    let floats = |seed| {
        let x = noise(rows * cols / format.group, seed);
        let bytes = x.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        (DType::BF16, Bytes::from_vec(bytes))
    };
    let codes = Bytes::from_vec(codes);
    let weight = AffineWeight::new(format, (rows, cols), codes, floats(6), floats(7)).unwrap();
    let mut wide = vec![0.0; rows * cols];
    weight.read_rows(0, &mut wide);
    let wide = wide.iter().flat_map(|&w| bf16::from_f32(w).to_le_bytes()).collect();
    let wide = DenseWeight::new((rows, cols), DType::BF16, Bytes::from_vec(wide)).unwrap();
    (PackedWeight::new(&weight), PackedDense::laid_out(&wide, false))
}

#[test]
fn quantized_weights_are_multiplied_as_what_they_are_widened_to() {
    let (m, n, k) = (37, 150, 256);
    let x = noise(m * k, 1);
    let (bias, residual) = (noise(n, 2), noise(m * n, 4));
    let rows = Bf16Rows::new(&x, k);
    for (bits, group) in [(4, 64), (8, 64), (3, 32), (6, 128)] {
        let (weight, wide) = quantized(AffineFormat { bits, group }, n, k, 5);
        for level in levels().into_iter().filter(|level| level.rounds(DType::BF16)) {
            let mut out = vec![f32::NAN; m * n];
            let to = SharedOut::new(&mut out);
            let to = Sums { bias: Some(&bias), residual: Some(&residual), out: to };
            widened::products(level, &rows, &[(&weight, to)]);
            let want = product(level, &x, &wide, &bias, &residual);
            assert_eq!(out, want, "{level:?}, {bits} bits");
        }
    }
}

#[test]
fn gated_products_go_into_the_next_one() {
    let (m, n, k) = (37, 160, 256);
    let x = noise(m * k, 1);
    let (bias, none) = (noise(n, 2), vec![0.0; m * n]);
    let rows = Bf16Rows::new(&x, k);
    let format = AffineFormat { bits: 4, group: 32 };
    let [gate, up] = [5, 8].map(|seed| quantized(format, n, k, seed));
    let down = quantized(format, 70, n, 9).0;
    for level in levels().into_iter().filter(|level| level.rounds(DType::BF16)) {
        let inner =
            widened::gated(level, &rows, Activation::Silu, [(&gate.0, Some(&bias)), (&up.0, None)]);
        let g = product(level, &x, &gate.1, &bias, &none);
        let u = product(level, &x, &up.1, &vec![0.0; n], &none);
        let want = Bf16Rows::new(&crate::gated(Activation::Silu, &g, &u), n);
        let run = |inner: &Bf16Rows| {
            let mut out = vec![f32::NAN; m * 70];
            let to = Sums { bias: None, residual: None, out: SharedOut::new(&mut out) };
            widened::products(level, inner, &[(&down, to)]);
            out
        };
        assert_eq!(run(&inner), run(&want), "{level:?}");
    }
}
