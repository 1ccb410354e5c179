//! `cargo bench -p taper-tensor`: the linear maps of a small model, in multiply-adds a second; and attention's
//! products with keys and values, in rows a second.

mod least;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use least::Least;
use std::time::Duration;
use taper_tensor::{
    AffineFormat, AffineWeight, Bytes, DType, DenseWeight, Linear, Phase, Rounding, Tensor, Weight,
    cpu::{
        Floats,
        codes::{
            CodeLevel, Codes, DenseRows, Int8Queries, Scaling, TILE_ROWS, Windows, add_rows,
            dot_rows,
        },
        int8::{Int8Level, Int8Rows, PackedWeight, matmul_with},
    },
};

fn linear(c: &mut Criterion) {
    let mut group = c.benchmark_group("linear 1024 x 3072 bf16");
    let (k, n) = (1024, 3072);
    let Ok(weight) = DenseWeight::new((n, k), DType::BF16, Bytes::from_vec(vec![0x3c; n * k * 2]))
    else {
        return;
    };
    let linear = Linear::new(Weight::Dense(weight));
    for m in [1usize, 16, 512] {
        let Ok(x) = Tensor::from_vec(vec![0.5; m * k], &[m, k]) else { return };
        group.throughput(Throughput::Elements((m * n * k) as u64));
        group.bench_function(BenchmarkId::from_parameter(m), |b| {
            b.iter(|| linear.forward(&x, Phase::Decode));
        });
    }
    group.finish();
}

/// A matrix of `n` rows of 1024, in groups of 64 with bf16 scales.
fn packed(bits: u8, n: usize) -> Option<PackedWeight> {
    let (k, format) = (1024, AffineFormat { bits, group: 64 });
    let codes = (0..n * format.row_bytes(k)).map(|i| (i * 37 % 251) as u8).collect();
    let floats = || (DType::BF16, Bytes::from_vec(vec![0x3c; n * k / 64 * 2]));
    let weight = AffineWeight::new(format, (n, k), Bytes::from_vec(codes), floats(), floats());
    Some(PackedWeight::new(&weight.ok()?))
}

/// Every level of this machine: a matrix that stays in the cache, by rows of activations.
fn levels(c: &mut Criterion) {
    let (k, n) = (1024, 3072);
    for bits in [4, 8] {
        let Some(weight) = packed(bits, n) else { return };
        let mut group = c.benchmark_group(format!("integers 1024 x 3072, {bits} bits"));
        group.sample_size(10).warm_up_time(Duration::from_millis(300));
        group.measurement_time(Duration::from_secs(1));
        for m in [1usize, 8, 16, 256] {
            let x = Int8Rows::new(&vec![0.5; m * k], k, 64, Rounding::Int8);
            let mut out = vec![0.0; m * n];
            group.throughput(Throughput::Elements((m * n * k) as u64));
            for level in Int8Level::available() {
                group.bench_function(BenchmarkId::new(format!("{level:?}"), m), |b| {
                    b.iter(|| matmul_with(level, &x, &weight, None, &mut out));
                });
            }
        }
        group.finish();
    }
}

/// Every level but the slowest: one row against a matrix that does not fit the cache, in bytes.
fn stream(c: &mut Criterion) {
    let (k, n) = (1024, 151_936);
    for bits in [4, 8] {
        let Some(weight) = packed(bits, n) else { return };
        let mut group = c.benchmark_group(format!("one row 1024 x {n}, {bits} bits"));
        group.sample_size(20).warm_up_time(Duration::from_millis(300));
        group.measurement_time(Duration::from_secs(1));
        group.throughput(Throughput::Bytes(weight.bytes()));
        let x = Int8Rows::new(&vec![0.5; k], k, 64, Rounding::Int8);
        let mut out = vec![0.0; n];
        for level in Int8Level::available() {
            if level == Int8Level::Portable {
                continue;
            }
            group.bench_function(format!("{level:?}"), |b| {
                b.iter(|| matmul_with(level, &x, &weight, None, &mut out));
            });
        }
        group.finish();
    }
}

/// Keys and values of one head in the second-level cache: products alone, without what a call of attention
/// does beside them (`cargo bench -p taper-kv-codecs`).
fn rows(c: &mut Criterion) {
    const N: usize = 1024;
    const D: usize = 128;
    let level = CodeLevel::detect();
    let table = |i: usize| (i as i8).wrapping_mul(37);
    let formats = [
        ("four bits", Windows::nibbles(&std::array::from_fn(table))),
        ("four bits, trellis", Windows::new(4, 2, &std::array::from_fn(table))),
        ("three bits, trellis", Windows::new(3, 3, &std::array::from_fn(table))),
    ];
    let halves = vec![half::f16::from_f32(0.5); N * D];
    let dense = DenseRows::last(Floats::F16(&halves));
    for queries in [1, 4, 8] {
        let (q, weights) = (vec![0.5; queries * D], vec![0.1; queries * N]);
        let (mut scores, mut sums) = (vec![0.0; queries * N], vec![0.0; queries * D]);
        let mut int8 = Int8Queries::default();
        int8.set(&q, D);
        let (gamma, scales, bytes) = (vec![1.0; N], vec![1.0; queries], vec![100; queries * N]);
        let mut group = c.benchmark_group(format!("rows of {D}, {queries} query heads"));
        group.sample_size(10).warm_up_time(Duration::from_millis(100));
        group
            .measurement_time(Duration::from_millis(300))
            .throughput(Throughput::Elements(N as u64));
        group.bench_function("keys, f16", |b| {
            let mut least = Least::default();
            b.iter_custom(|n| least.of(n, || dot_rows(&q, dense, D, (&mut scores, N))));
        });
        group.bench_function("values, f16", |b| {
            let mut least = Least::default();
            b.iter_custom(|n| least.of(n, || add_rows((&weights, N), dense, D, &mut sums)));
        });
        for (name, windows) in &formats {
            let codes = (0..N / TILE_ROWS * D / 16 * windows.tile_bytes()).map(|i| (i * 37) as u8);
            let codes: Vec<u8> = codes.collect();
            let (codes, mut scratch) = (Codes::last(&codes), vec![0; N * D]);
            group.bench_function(format!("keys, {name}"), |b| {
                let scaling = Scaling::of(&gamma);
                let mut least = Least::default();
                b.iter_custom(|n| {
                    let out = &mut scores;
                    least.of(n, || {
                        windows.dots(level, &int8, codes, scaling, &mut scratch, (&mut *out, N));
                    })
                });
            });
            group.bench_function(format!("values, {name}"), |b| {
                let mut least = Least::default();
                b.iter_custom(|n| {
                    let (s, acc) = (&mut scratch, &mut sums);
                    least.of(n, || windows.add_weighted(level, &bytes, &scales, codes, s, acc))
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, linear, levels, stream, rows);
criterion_main!(benches);
