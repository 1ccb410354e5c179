//! Rows of affine codes.

use super::*;

const SHAPES: [(usize, usize, usize); 8] = [
    (128, 8, 64),
    (80, 8, 32),
    (256, 8, 128),
    (20, 8, 64),
    (128, 4, 64),
    (20, 4, 32),
    (65, 4, 64),
    (256, 4, 128),
];

/// Rows of random codes, with scales of either sign.
fn rows(shape: Affine, n: usize) -> Vec<u8> {
    let mut rows = bytes(n * shape.row_bytes(), 3);
    let scales = floats(2 * n * shape.groups(), 4);
    let mut scales = scales.as_chunks::<2>().0.iter();
    for row in rows.chunks_exact_mut(shape.row_bytes()) {
        for at in row[shape.code_bytes()..].as_chunks_mut::<4>().0 {
            let [scale, bias] = scales.next().copied().unwrap_or_default();
            let halves = [scale / 16.0, bias].map(|x| half::f16::from_f32(x).to_le_bytes());
            at.copy_from_slice(halves.as_flattened());
        }
    }
    rows
}

#[test]
fn products_are_those_of_the_floats_and_the_same_bits_on_every_level() {
    for ((d, bits, group), n, m) in SHAPES
        .into_iter()
        .zip([32, 4, 20, 12, 32, 8, 16, 36])
        .zip([2, 1, 3, 5, 2, 4, 1, 3])
        .map(|((shape, n), m)| (shape, n, m))
    {
        let shape = Affine { d, bits, group };
        let mut rows = rows(shape, n);
        // A row without weight may be anything.
        let last = rows.len() - shape.groups() * 4;
        rows[last..].fill(0xff);
        let mut x = vec![0.0; n * d];
        for (row, x) in rows.chunks_exact(shape.row_bytes()).zip(x.chunks_exact_mut(d)) {
            shape.read(row, x);
        }
        let (q, old) = (floats(m * d, 5), floats(m * d, 6));
        let mut p: Vec<_> = floats(m * n, 7).iter().map(|p| p.abs()).collect();
        p.chunks_exact_mut(n).for_each(|p| p[n - 1] = 0.0);
        let run = |level| {
            let mut queries = AffineQueries::default();
            queries.set(&q, shape);
            let mut scales = AffineScales::default();
            scales.set(level, &rows, shape, Order::Rows);
            let mut scores = vec![0.0; m * n];
            shape.dots(level, &queries, Codes::last(&rows), &scales, &mut scores);
            scales.set(level, &rows, shape, Order::Elements);
            let (mut weights, mut acc) = (AffineWeights::default(), old.clone());
            let codes = Codes::last(&rows);
            shape.add_weighted(level, &p, codes, &scales, 0.0, &mut weights, &mut acc);
            (scores, acc)
        };
        let (scores, acc) = run(CodeLevel::Portable);
        let most = x[..(n - 1) * d].iter().fold(0.0f32, |m, x| m.max(x.abs()));
        for i in 0..m {
            for j in 0..n - 1 {
                let want: f32 = (0..d).map(|e| q[i * d + e] * x[j * d + e]).sum();
                let got = scores[i * n + j];
                let near = 2e-4 * most * (d as f32).sqrt();
                assert!((got - want).abs() < near, "{shape:?} {i} {j}: {got} {want}");
            }
            for e in 0..d {
                let sum: f32 = (0..n - 1).map(|j| p[i * n + j] * x[j * d + e]).sum();
                let (got, want) = (acc[i * d + e], old[i * d + e] + sum);
                let near = 2e-4 * most * (n as f32).sqrt();
                assert!((got - want).abs() < near, "{shape:?} {i} {e}: {got} {want}");
            }
        }
        for level in CodeLevel::available() {
            let (other, sums) = run(level);
            let seen = |x: &[f32]| -> Vec<f32> {
                x.chunks_exact(n).flat_map(|x| &x[..n - 1]).copied().collect()
            };
            assert_eq!(seen(&other), seen(&scores), "{level:?} {shape:?}");
            assert_eq!(sums, acc, "{level:?} {shape:?}");
        }
    }
}

#[test]
fn sums_of_many_rows_fit() {
    let (shape, n) = (Affine { d: 64, bits: 8, group: 64 }, 2048);
    let mut rows = vec![255; n * shape.row_bytes()];
    for row in rows.chunks_exact_mut(shape.row_bytes()) {
        row[64..].copy_from_slice(&[0, 0x3c, 0, 0]);
    }
    let (mut scales, mut weights) = (AffineScales::default(), AffineWeights::default());
    for level in CodeLevel::available() {
        scales.set(level, &rows, shape, Order::Elements);
        let (mut acc, p, codes) = (vec![0.0; 64], vec![1.0; n], Codes::last(&rows));
        shape.add_weighted(level, &p, codes, &scales, 0.0, &mut weights, &mut acc);
        let want = 255.0 * n as f32;
        assert!(acc.iter().all(|x| (x - want).abs() < 1e-3 * want), "{level:?} {}", acc[0]);
    }
}

#[test]
fn weights_below_the_threshold_add_nothing() {
    let shape = Affine { d: 64, bits: 8, group: 64 };
    let rows = rows(shape, 4);
    let (mut scales, mut weights) = (AffineScales::default(), AffineWeights::default());
    for level in CodeLevel::available() {
        scales.set(level, &rows, shape, Order::Elements);
        let mut acc = vec![1.0; 128];
        let p = [1e-7, 0.0, 1e-8, 0.0, 0.5, 0.0, 0.0, 0.0];
        let codes = Codes::last(&rows);
        shape.add_weighted(level, &p, codes, &scales, 1e-6, &mut weights, &mut acc);
        assert!(acc[..64].iter().all(|&x| x == 1.0) && acc[64..].iter().any(|&x| x != 1.0));
    }
}
