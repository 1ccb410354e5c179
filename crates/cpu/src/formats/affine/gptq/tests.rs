//! GPTQ beside the inverse-Cholesky method of the paper, and beside rounding alone.

use super::*;
use crate::{AffineWeight, Bytes, RowSource, ScaleMethod, quantize_by};

const ROWS: usize = 8;
const COLS: usize = 128;
const GROUP: usize = 32;
const DAMPING: f32 = 0.01;

struct Noise(u32);

impl Noise {
    /// Roughly normal.
    fn next(&mut self) -> f32 {
        let mut one = || {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.0 >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        one() + one() + one()
    }
}

/// Weights, and inputs that depend on each other, of very different sizes.
fn layer(inputs: usize) -> (Vec<f32>, Vec<f32>) {
    let mut noise = Noise(11);
    let weights = (0..ROWS * COLS).map(|_| noise.next()).collect();
    let mix: Vec<f32> = (0..16 * COLS).map(|_| noise.next()).collect();
    let mut x = Vec::new();
    for _ in 0..inputs {
        let hidden: Vec<f32> = (0..16).map(|_| noise.next()).collect();
        for c in 0..COLS {
            let sum: f32 = hidden.iter().enumerate().map(|(h, v)| v * mix[h * COLS + c]).sum();
            x.push((sum + 0.3 * noise.next()) * (1 + c % 7) as f32);
        }
    }
    (weights, x)
}

fn read(parts: &AffineParts, format: AffineFormat) -> Vec<f32> {
    let side = |bytes: &Vec<u8>| (DType::F32, Bytes::from_vec(bytes.clone()));
    let codes = Bytes::from_vec(parts.codes.clone());
    let (scales, biases) = (side(&parts.scales), side(&parts.biases));
    let weight = AffineWeight::new(format, (ROWS, COLS), codes, scales, biases).unwrap();
    let mut out = vec![0.0; ROWS * COLS];
    weight.read_rows(0, &mut out);
    out
}

/// The mean square of what the outputs differ by.
fn error(weights: &[f32], others: &[f32], x: &[f32]) -> f64 {
    let mut sum = 0.0;
    for x in x.chunks_exact(COLS) {
        for (a, b) in weights.chunks_exact(COLS).zip(others.chunks_exact(COLS)) {
            let off: f64 = (0..COLS).map(|i| f64::from(x[i]) * f64::from(a[i] - b[i])).sum();
            sum += off * off;
        }
    }
    sum / (x.len() / COLS * ROWS) as f64
}

/// As the paper has it: the inverse of the Hessian, its upper factor, and each error spread over the weights that are
/// not yet rounded.
fn by_the_paper(weights: &[f32], x: &[f32], format: AffineFormat) -> Vec<f32> {
    let steps = f32::from((1u16 << format.bits) - 1);
    let mut h = vec![vec![0.0f64; COLS]; COLS];
    for row in x.chunks_exact(COLS) {
        for i in 0..COLS {
            for j in 0..COLS {
                h[i][j] += f64::from(row[i]) * f64::from(row[j]);
            }
        }
    }
    let mean = (0..COLS).map(|i| h[i][i]).sum::<f64>() / COLS as f64;
    let diagonal: Vec<f32> = (0..COLS).map(|i| h[i][i] as f32).collect();
    let first_last: Vec<usize> =
        order(&diagonal, format.group).into_iter().rev().map(|i| i as usize).collect();
    let damped = |i: usize, j: usize| {
        let (a, b) = (first_last[i], first_last[j]);
        h[a][b] + if i == j { f64::from(DAMPING) * mean } else { 0.0 }
    };
    // Gauss and Jordan.
    let mut left: Vec<Vec<f64>> =
        (0..COLS).map(|i| (0..COLS).map(|j| damped(i, j)).collect()).collect();
    let mut inverse = vec![vec![0.0f64; COLS]; COLS];
    (0..COLS).for_each(|i| inverse[i][i] = 1.0);
    for p in 0..COLS {
        let pivot = left[p][p];
        (0..COLS).for_each(|j| {
            (left[p][j], inverse[p][j]) = (left[p][j] / pivot, inverse[p][j] / pivot);
        });
        for r in (0..COLS).filter(|&r| r != p) {
            let f = left[r][p];
            for j in 0..COLS {
                left[r][j] -= f * left[p][j];
                inverse[r][j] -= f * inverse[p][j];
            }
        }
    }
    // The inverse is the product of the turned upper factor and the factor.
    let mut upper = vec![vec![0.0f64; COLS]; COLS];
    for i in 0..COLS {
        for j in i..COLS {
            let sum: f64 = (0..i).map(|k| upper[k][i] * upper[k][j]).sum();
            let rest = inverse[i][j] - sum;
            upper[i][j] = if i == j { rest.sqrt() } else { rest / upper[i][i] };
        }
    }
    let mut out = vec![0.0; weights.len()];
    for (row, out) in weights.chunks_exact(COLS).zip(out.chunks_exact_mut(COLS)) {
        let mut w: Vec<f64> = first_last.iter().map(|&c| f64::from(row[c])).collect();
        let (mut scale, mut bias) = (0.0, 0.0);
        for i in 0..COLS {
            if i.is_multiple_of(format.group) {
                let own: Vec<f32> = w[i..i + format.group].iter().map(|&x| x as f32).collect();
                let each = |j: usize| (1.0 / upper[j][j].powi(2)) as f32;
                let counts: Vec<f32> = (i..i + format.group).map(each).collect();
                (scale, bias) = fitted(&own, &counts, steps, DType::F32);
            }
            let q = f32::from(code(w[i] as f32, scale, bias, steps)) * scale + bias;
            out[first_last[i]] = q;
            let spread = (w[i] - f64::from(q)) / upper[i][i];
            (i + 1..COLS).for_each(|j| w[j] -= spread * upper[i][j]);
        }
    }
    out
}

fn compensated(weights: &[f32], x: &[f32], format: AffineFormat) -> Vec<f32> {
    let mut gram = Gram::new(COLS);
    gram.add(x);
    let own = Compensation::new(gram, format.group, DAMPING).unwrap();
    read(&gptq(weights, format, DType::F32, &own).unwrap(), format)
}

#[test]
fn codes_are_those_of_the_paper() {
    let (weights, x) = layer(300);
    for bits in [2, 3, 4, 8] {
        let format = AffineFormat { bits, group: GROUP };
        let (ours, theirs) =
            (compensated(&weights, &x, format), by_the_paper(&weights, &x, format));
        let step = 2.0 / f32::from(1u16 << bits);
        let others = ours.iter().zip(&theirs).filter(|(a, b)| (*a - *b).abs() > 0.05 * step);
        assert_eq!(others.count(), 0, "of {bits} bits");
    }
}

#[test]
fn outputs_change_less_than_by_rounding() {
    let (weights, x) = layer(600);
    let (seen, unseen) = x.split_at(300 * COLS);
    for bits in [2, 3, 4] {
        let format = AffineFormat { bits, group: GROUP };
        let own = error(&weights, &compensated(&weights, seen, format), unseen);
        let by = |method| {
            let parts = quantize_by(method, &weights, COLS, format, DType::F32).unwrap();
            error(&weights, &read(&parts, format), unseen)
        };
        let (range, least) = (by(ScaleMethod::Range), by(ScaleMethod::LeastSquares));
        assert!(own < 0.25 * range && own < 0.35 * least, "{bits}: {own} of {range}, {least}");
    }
}

#[test]
fn what_says_nothing_of_inputs_is_no_compensation() {
    let format = AffineFormat { bits: 4, group: GROUP };
    assert!(Compensation::new(Gram::new(COLS), GROUP, DAMPING).is_none());
    let mut gram = Gram::new(COLS);
    gram.add(&[f32::NAN; COLS]);
    assert_eq!(gram.rows(), 0);
    // One row has no factor without damping.
    gram.add(&[1.0; COLS]);
    assert!(Compensation::new(gram.clone(), 48, DAMPING).is_none());
    let own = Compensation::new(gram, GROUP, 0.0);
    assert!(own.is_none(), "nothing is what ten times nothing is");
    let mut gram = Gram::new(COLS);
    gram.add(&[1.0; COLS]);
    let own = Compensation::new(gram, GROUP, DAMPING).unwrap();
    assert!(gptq(&[0.0; COLS], AffineFormat { group: 64, ..format }, DType::F32, &own).is_err());
    assert!(gptq(&[0.0; COLS + 1], format, DType::F32, &own).is_err());
    assert!(gptq(&[f32::NAN; COLS], format, DType::F16, &own).is_ok());
    assert_eq!(gptq(&[], format, DType::F16, &own).unwrap().codes.len(), 0);
}
