//! Every level against f64, and rows alone against rows in company.

use super::{
    DenseLevel, DenseRows, PackedDense, Product, SplitRows, pack::PANEL, products, split::ROWS,
    tiles,
};
use crate::{
    Bytes, DType, DenseWeight,
    cpu::{Level, RowSource, shared::SharedOut},
};
use half::{bf16, f16};

/// What the registers do, in plain Rust: pairs are added in order.
pub(super) struct Emulated;

impl tiles::Unit for Emulated {
    unsafe fn sums(x: &[*const bf16], w: *const bf16, chunks: usize, out: &mut [tiles::Sums; 4]) {
        for (i, sums) in out.iter_mut().enumerate().take(2 * x.len()) {
            sums.fill(0.0);
            for pair in 0..chunks * 16 {
                // SAFETY: the caller's promise: a pair of inputs of a panel and of sixteen lines.
                let (x, w) = unsafe {
                    let w = w.add(pair * 2 * PANEL + i % 2 * 2 * tiles::OUTPUTS);
                    let x = std::slice::from_raw_parts(x[i / 2], chunks * tiles::TILE);
                    (x, std::slice::from_raw_parts(w, 2 * tiles::OUTPUTS))
                };
                for line in 0..2 * ROWS {
                    let x = &x[pair / 16 * tiles::TILE + line * 32 + pair % 16 * 2..][..2];
                    for (j, sum) in
                        sums[line * tiles::OUTPUTS..][..tiles::OUTPUTS].iter_mut().enumerate()
                    {
                        *sum += x[0].to_f32() * w[2 * j].to_f32()
                            + x[1].to_f32() * w[2 * j + 1].to_f32();
                    }
                }
            }
        }
    }
}

fn levels() -> Vec<DenseLevel> {
    let mut levels = DenseLevel::available();
    levels.push(DenseLevel::Emulated);
    levels
}

fn noise(n: usize, seed: u32) -> Vec<f32> {
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

fn product(
    level: DenseLevel,
    x: &[f32],
    weight: &PackedDense,
    bias: &[f32],
    residual: &[f32],
) -> Vec<f32> {
    let cols = weight.cols();
    let mut out = vec![f32::NAN; residual.len()];
    let split = level.splits(weight.dtype()).then(|| SplitRows::new(x, cols));
    let rows = DenseRows { x, cols, split: split.as_ref() };
    let shared = SharedOut::new(&mut out);
    let (bias, residual) = (Some(bias), Some(residual));
    products(level, rows, &[Product { weight, bias, residual, out: shared }]);
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
                for i in 0..m {
                    let (x, residual) = (&x[i * k..][..k], &residual[i * n..][..n]);
                    let alone = product(level, x, &packed, &bias, residual);
                    assert_eq!(alone, out[i * n..][..n], "{level:?} {dtype:?} {m}x{n}x{k}");
                    for j in 0..n {
                        let dot = x
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
        let split = SplitRows::new(&x, k);
        let rows = DenseRows { x: &x, cols: k, split: Some(&split) };
        let mut outs = packed.each_ref().map(|w| vec![f32::NAN; m * w.rows()]);
        let mut all = Vec::new();
        for (weight, out) in packed.iter().zip(&mut outs) {
            let out = SharedOut::new(out);
            all.push(Product { weight, bias: None, residual: None, out });
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
fn what_two_parts_leave_out_is_below_2_to_the_minus_17() {
    let cols = 64;
    let x: Vec<f32> = noise(9 * cols, 8).iter().map(|x| x * 1e3).collect();
    let split = SplitRows::new(&x, cols);
    for (i, &want) in x.iter().enumerate() {
        let (row, k) = (i / cols, i % cols);
        let tile = &split.blocks(row / 8 * 8..row + 1)[k / 32 * 512..];
        let part = |part: usize| tile[row % 8 * 64 + part * 32 + k % 32].to_f32();
        assert_eq!(part(0), bf16::from_f32(want).to_f32());
        let error = (f64::from(want) - f64::from(part(0)) - f64::from(part(1))).abs();
        assert!(error <= f64::from(want).abs() * 2f64.powi(-17), "{want}");
    }
    for odd in [f32::NAN, f32::INFINITY] {
        let split = SplitRows::new(&[odd; 32], 32);
        let sum = split.blocks(0..1)[0].to_f32() + split.blocks(0..1)[32].to_f32();
        assert!(!sum.is_finite(), "{odd} shows in the outputs");
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
