//! `cargo bench -p taper-kv-codecs`: one token's attention over 1024 tokens of one KV head in the
//! second-level cache, in keys a second, for 1, 4 and 8 query heads; and the last tokens of a prompt, on
//! all threads.

mod least;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use least::Least;
use taper_base::BlockId;
use taper_kv_codecs::{
    Arithmetic, AttnBatch, AttnParams, KvCodecError, KvGeometry, LayerPages, SeqSpan, parse,
};
use taper_tensor::Tensor;

const CODECS: [&str; 9] =
    ["f16", "turbo4", "turbo3", "turbo2", "taper4", "taper3", "taper2", "affine8", "turbo3-qjl"];
const TOKENS: usize = 1024;

fn noise(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * i) as f32 * 0.37).sin() * 1.5).collect()
}

fn attend(c: &mut Criterion) -> Result<(), KvCodecError> {
    let g = KvGeometry { kv_heads: 1, head_dim: 128, block_tokens: 64 };
    let blocks: Vec<_> = (0..(TOKENS / g.block_tokens) as u32).map(BlockId).collect();
    let slots: Vec<_> = (0..TOKENS).collect();
    let x = Tensor::from_vec(noise(TOKENS * 128), &[TOKENS, 1, 128])?;
    for heads in [1, 4, 8] {
        let mut group = c.benchmark_group(format!("attend, {heads} query heads"));
        group.throughput(Throughput::Elements(TOKENS as u64));
        for name in CODECS {
            let codec = parse(name)?;
            let mut pages = LayerPages::zeroed(codec.block_bytes(g), blocks.len());
            codec.encode(g, &x, &x, &slots, &mut pages)?;
            let q = Tensor::from_vec(noise(heads * 128), &[1, heads, 128])?;
            let seqs = vec![SeqSpan {
                q_len: 1,
                kv_len: TOKENS,
                blocks: &blocks,
                exact: None,
                together: None,
            }];
            let batch = AttnBatch { seqs };
            let params = AttnParams::new(0.05);
            group.bench_function(BenchmarkId::from_parameter(name), |b| {
                let mut least = Least::default();
                b.iter_custom(|n| {
                    least.of(n, || drop(codec.attend(g, &q, &pages, &batch, &params)))
                });
            });
        }
        group.finish();
    }
    Ok(())
}

/// 512 tokens of a prompt after 3,584 others: 8 KV heads of two query heads each, in products of query,
/// key and head a second.
fn prompt(c: &mut Criterion) -> Result<(), KvCodecError> {
    const TOKENS: usize = 4096;
    const QUERIES: usize = 512;
    let g = KvGeometry { kv_heads: 8, head_dim: 128, block_tokens: 32 };
    let blocks: Vec<_> = (0..(TOKENS / g.block_tokens) as u32).map(BlockId).collect();
    let slots: Vec<_> = (0..TOKENS).collect();
    let x = Tensor::from_vec(noise(TOKENS * 8 * 128), &[TOKENS, 8, 128])?;
    let q = Tensor::from_vec(noise(QUERIES * 16 * 128), &[QUERIES, 16, 128])?;
    let mut group = c.benchmark_group("attend, a prompt");
    group.sample_size(10);
    group.throughput(Throughput::Elements((16 * QUERIES * (TOKENS - QUERIES / 2)) as u64));
    for name in CODECS {
        let codec = parse(name)?;
        let mut pages = LayerPages::zeroed(codec.block_bytes(g), blocks.len());
        codec.encode(g, &x, &x, &slots, &mut pages)?;
        for arithmetic in [Arithmetic::Exact, Arithmetic::Rounded] {
            let seqs = vec![SeqSpan {
                q_len: QUERIES,
                kv_len: TOKENS,
                blocks: &blocks,
                exact: None,
                together: None,
            }];
            let batch = AttnBatch { seqs };
            let params = AttnParams { arithmetic, ..AttnParams::new(0.05) };
            group.bench_function(BenchmarkId::new(name, format!("{arithmetic:?}")), |b| {
                b.iter(|| codec.attend(g, &q, &pages, &batch, &params));
            });
        }
    }
    group.finish();
    Ok(())
}

fn encode(c: &mut Criterion) -> Result<(), KvCodecError> {
    let g = KvGeometry { kv_heads: 1, head_dim: 128, block_tokens: 64 };
    let x = Tensor::from_vec(noise(64 * 128), &[64, 1, 128])?;
    let slots: Vec<_> = (0..64).collect();
    let mut group = c.benchmark_group("encode a block");
    group.throughput(Throughput::Elements(2 * 64));
    for name in CODECS {
        let codec = parse(name)?;
        let mut pages = LayerPages::zeroed(codec.block_bytes(g), 1);
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| codec.encode(g, &x, &x, &slots, &mut pages));
        });
    }
    group.finish();
    Ok(())
}

#[allow(clippy::expect_used, reason = "a benchmark of nothing is none")]
fn all(c: &mut Criterion) {
    attend(c).expect("the codecs take these shapes");
    prompt(c).expect("the codecs take these shapes");
    encode(c).expect("the codecs take these shapes");
}

criterion_group!(benches, all);
criterion_main!(benches);
