//! Time of one choice over a vocabulary of 151,936 tokens by one thread and by all, the copy of the row included, which
//! as many threads make: so each has a part of it in its cache, as in the engine.
#![allow(missing_docs)] // what criterion's macros generate

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use taper_base::{Alone, SamplingParams, Threads};
use taper_sampler::{Sampler, draw_bits};
use taper_tensor::pool::Kernels;

const VOCAB: usize = 151_936;

/// Normally distributed logits, as sums of uniform ones, with `peaks` likely tokens above them.
fn row(deviation: f32, peaks: usize) -> Vec<f32> {
    let uniform = |i: usize| (draw_bits(1, i as u64) >> 40) as f32 / (1 << 24) as f32;
    let normal = |i: usize| (0..12).map(|j| uniform(12 * i + j)).sum::<f32>() - 6.0;
    let mut row: Vec<f32> = (0..VOCAB).map(|i| normal(i) * deviation).collect();
    for p in 0..peaks {
        row[p * 7919 % VOCAB] = 8.0 * deviation - p as f32 * 0.5;
    }
    row
}

fn copy(threads: &impl Threads, to: &mut [f32], from: &[f32]) {
    let each = to.len().div_ceil(threads.count());
    let mut parts: Vec<_> = to.chunks_mut(each).zip(from.chunks(each)).collect();
    threads.for_each(&mut parts, |(to, from)| to.copy_from_slice(from));
}

fn choices(c: &mut Criterion) {
    let base = SamplingParams::default();
    let with = |f: fn(&mut SamplingParams)| {
        let mut params = base.clone();
        f(&mut params);
        params
    };
    let cases = [
        ("greedy", SamplingParams::greedy()),
        ("temperature", base.clone()),
        ("top_k 50", with(|p| p.top_k = 50)),
        ("top_p 0.95", with(|p| p.top_p = 0.95)),
        ("top_k 20, top_p 0.95, temperature 0.6", {
            SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..base.clone() }
        }),
        ("min_p 0.05", with(|p| p.min_p = 0.05)),
        ("typical_p 0.9", with(|p| p.typical_p = 0.9)),
        ("top_p 0.95, typical_p 0.9", with(|p| (p.top_p, p.typical_p) = (0.95, 0.9))),
        ("greedy, logprobs 20", SamplingParams { logprobs: Some(20), ..SamplingParams::greedy() }),
        ("top_k 50, penalties over 4096 tokens", {
            SamplingParams { top_k: 50, repetition_penalty: 1.1, ..base.clone() }
        }),
    ];
    let prompt: Vec<u32> = (0..4096).map(|i| i * 31).collect();
    for (shape, source) in [("peaked", row(2.0, 20)), ("wide", row(2.5, 0)), ("flat", row(1.0, 0))]
    {
        let mut group = c.benchmark_group(shape);
        let mut logits = source.clone();
        group.bench_function("copy alone", |b| {
            b.iter(|| copy(&Alone, black_box(&mut logits), black_box(&source)));
        });
        group.bench_function("copy alone, all threads", |b| {
            b.iter(|| copy(&Kernels, black_box(&mut logits), black_box(&source)));
        });
        for (name, params) in &cases {
            let with = |seed| SamplingParams { seed, ..params.clone() };
            let samplers: Vec<_> =
                (0..64).map(|seed| Sampler::new(&with(seed), &prompt, VOCAB as u32)).collect();
            let mut next = samplers.iter().cycle();
            group.bench_function(*name, |b| {
                b.iter(|| {
                    copy(&Alone, &mut logits, &source);
                    next.next().map(|s| s.sample(black_box(&mut logits), &[]))
                });
            });
            group.bench_function(format!("{name}, all threads"), |b| {
                b.iter(|| {
                    copy(&Kernels, &mut logits, &source);
                    next.next().map(|s| s.sample_on(&Kernels, black_box(&mut logits), &[], None))
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, choices);
criterion_main!(benches);
