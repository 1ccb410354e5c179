//! `cargo bench -p taper-tensor`: the linear maps of a small model, in multiply-adds a second.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use taper_tensor::{Bytes, DType, DenseWeight, Linear, Weight, ops};

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
        group.bench_function(BenchmarkId::from_parameter(m), |b| b.iter(|| linear.forward(&x)));
    }
    group.finish();
}

criterion_group!(benches, linear);
criterion_main!(benches);
