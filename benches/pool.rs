//! `cargo bench -p taper-tensor --bench pool`: what it costs to share a kernel's work among threads,
//! beside rayon (candle's own pool is private). A layer's product takes some ten microseconds, and a step has some
//! two hundred of them one after the other.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rayon::prelude::*;
use std::{hint::black_box, ops::Range, time::Duration};
use taper_cpu::pool;

/// Parts of a job that a thread can take.
const PARTS: usize = 8;
/// Jobs one after the other.
const JOBS: usize = 200;

/// Some multiply-adds for each part.
fn work(parts: Range<usize>, rounds: usize) {
    for part in parts {
        let mut x = [part as f32; 16];
        for _ in 0..rounds {
            x.iter_mut().for_each(|x| *x = x.mul_add(0.999, 0.5));
        }
        black_box(x);
    }
}

fn pools(c: &mut Criterion) {
    let threads = pool::threads();
    let Ok(rayon) = rayon::ThreadPoolBuilder::new().num_threads(threads).build() else { return };
    let mut group = c.benchmark_group(format!("{JOBS} jobs, {threads} threads"));
    group.sample_size(20).warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_secs(2));
    for rounds in [0, 100, 1000, 10_000] {
        let mut add = |name: &str, job: &dyn Fn()| {
            group.bench_function(BenchmarkId::new(name, rounds), |b| {
                b.iter(|| (0..JOBS).for_each(|_| job()));
            });
        };
        add("one thread", &|| work(0..PARTS, rounds));
        add("taper", &|| pool::run(PARTS, |i| work(i..i + 1, rounds)));
        add("rayon", &|| {
            rayon.install(|| (0..PARTS).into_par_iter().for_each(|i| work(i..i + 1, rounds)));
        });
    }
    group.finish();
}

criterion_group!(benches, pools);
criterion_main!(benches);
