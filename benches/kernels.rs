//! `cargo bench -p taper-tensor`: the linear maps of a small model, in multiply-adds a second.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::time::Duration;
use taper_tensor::{
    AffineFormat, AffineWeight, Bytes, DType, DenseWeight, Linear, Phase, Weight,
    cpu::int8::{Int8Level, Int8Rows, PackedWeight, Rounding, matmul_with},
    ops,
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
        let Ok(x) = ops::from_host_f32(vec![0.5; m * k], &[m, k]) else { return };
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

criterion_group!(benches, linear, levels, stream);
criterion_main!(benches);
