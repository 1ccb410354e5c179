//! Attention after an eviction is attention over the rows that were kept, for every codec.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use taper_base::BlockId;
use taper_kv_codecs::{
    AttnBatch, AttnParams, Exact, ExactBlocks, KeptBlock, KeptRow, KvCodec, KvCodecError,
    KvGeometry, LayerPages, SeqSpan, parse,
};
use taper_tensor::{Tensor, ops};

/// Largest squared error of keys relative to their energy, where blocks have centres of their own:
/// that of two generations of codes.
const CENTRED: [(&str, f32); 5] = [
    ("taper4", 0.015),
    ("taper4v3", 0.015),
    ("taper3", 0.055),
    ("taper2", 0.21),
    ("taper3-l9", 0.05),
];
const MOVED: [&str; 14] = [
    "f32",
    "f16",
    "bf16",
    "affine8",
    "affine4g32",
    "turbo1",
    "turbo2",
    "turbo3",
    "turbo4",
    "turbo5",
    "turbo4v2",
    "turbo8v4",
    "turbo0v3",
    "turbo3-qjl",
];
const G: KvGeometry = KvGeometry { kv_heads: 2, head_dim: 80, block_tokens: 16 };
const WIDTH: usize = G.kv_heads * G.head_dim;
const LEN: usize = 150;
const BLOCKS: usize = 12;

fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 40) as f32 / (1 << 24) as f32 * 4.0 - 2.0
    };
    (0..n).map(|_| next()).collect()
}

fn tensor(x: Vec<f32>, heads: usize) -> Tensor {
    let t = x.len() / (heads * G.head_dim);
    Tensor::from_vec(x, &[t, heads, G.head_dim]).unwrap()
}

fn values(x: &Tensor) -> Vec<f32> {
    ops::with_host_f32(x, <[f32]>::to_vec).unwrap()
}

struct Cache {
    codec: std::sync::Arc<dyn KvCodec>,
    pages: LayerPages,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// `LEN` tokens in the first blocks, whose keys share `bias` times a constant.
fn cache(name: &str, bias: f32) -> Cache {
    let codec = parse(name).unwrap();
    let (mut k, v) = (noise(LEN * WIDTH, 1), noise(LEN * WIDTH, 2));
    let constant = noise(WIDTH, 3);
    k.iter_mut().enumerate().for_each(|(i, x)| *x += bias * constant[i % WIDTH]);
    let mut pages = LayerPages::zeroed(codec.block_bytes(G), BLOCKS);
    if let Some(bytes) = codec.exact_block_bytes(G) {
        pages = pages.with_exact(bytes, BLOCKS);
    }
    let slots: Vec<_> = (0..LEN).collect();
    let (kt, vt) = (tensor(k.clone(), G.kv_heads), tensor(v.clone(), G.kv_heads));
    codec.encode(G, &kt, &vt, &slots, &mut pages).unwrap();
    Cache { codec, pages, k, v }
}

impl Cache {
    fn decode(&self, slots: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let (k, v) = self.codec.decode(G, slots, &self.pages).unwrap();
        (values(&k), values(&v))
    }

    /// Keeps the rows of these slots in the first blocks; gives what was there.
    fn keep(&mut self, kept: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let before = self.decode(kept);
        let rows: Vec<_> = kept.iter().map(|&slot| KeptRow { slot, exact: None }).collect();
        let into: Vec<_> = (0..kept.len().div_ceil(G.block_tokens) as u32)
            .map(|b| KeptBlock { block: BlockId(b), exact: None })
            .collect();
        self.codec.compact(G, &rows, &into, &mut self.pages).unwrap();
        before
    }
}

/// A third of the tokens go; from a prefix that stays whole on, with a gap of whole blocks.
fn some() -> Vec<usize> {
    (0..LEN).filter(|i| *i < 20 || (i % 3 != 1 && !(60..95).contains(i))).collect()
}

/// Causal softmax attention of the last rows in f64.
fn softmax(q: &[f32], (k, v): (&[f32], &[f32]), heads: usize) -> Vec<f64> {
    let (n, d) = (k.len() / WIDTH, G.head_dim);
    let t = q.len() / (heads * d);
    let mut out = vec![0.0; q.len()];
    for (row, (q, out)) in q.chunks_exact(d).zip(out.chunks_exact_mut(d)).enumerate() {
        let (end, head) = (n - t + row / heads + 1, row % heads / (heads / G.kv_heads));
        let at = |j: usize| (j * G.kv_heads + head) * d;
        let dot = |j: usize| -> f64 {
            q.iter().zip(&k[at(j)..]).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let p: Vec<_> = (0..end).map(|j| (dot(j) * 0.1).exp()).collect();
        let total: f64 = p.iter().sum();
        for (j, p) in p.iter().enumerate() {
            let v = &v[at(j)..];
            out.iter_mut().zip(v).for_each(|(o, v)| *o += p / total * f64::from(*v));
        }
    }
    out
}

fn attends_like(cache: &Cache, n: usize, rows: (&[f32], &[f32]), name: &str) {
    let q = noise(3 * 4 * G.head_dim, 9);
    let blocks: Vec<_> = (0..BLOCKS as u32).map(BlockId).collect();
    let seqs = vec![SeqSpan { q_len: 3, kv_len: n, blocks: &blocks, exact: None, together: None }];
    let params = AttnParams::new(0.1);
    let batch = AttnBatch { seqs };
    let q_rows = tensor(q.clone(), 4);
    let got = cache.codec.attend(G, &q_rows, &cache.pages, &batch, &params).unwrap();
    for (g, w) in values(&got).iter().zip(softmax(&q, rows, 4)) {
        assert!((f64::from(*g) - w).abs() < 0.05, "{name}: {g} {w}");
    }
}

#[test]
fn rows_move_as_they_are() {
    let kept = some();
    let first: Vec<_> = (0..kept.len()).collect();
    for name in MOVED {
        let mut cache = cache(name, 1.0);
        let before = cache.keep(&kept);
        assert!(cache.decode(&first) == before, "{name}");
        attends_like(&cache, kept.len(), (&before.0, &before.1), name);
    }
    for (name, _) in CENTRED {
        let mut cache = cache(name, 0.0);
        let before = cache.keep(&kept);
        assert!(cache.decode(&first).1 == before.1, "values of {name}");
        let after = cache.decode(&first);
        attends_like(&cache, kept.len(), (&after.0, &before.1), name);
    }
}

fn energy(x: impl Iterator<Item = f32>) -> f32 {
    x.map(|x| x * x).sum()
}

#[test]
fn keys_of_several_blocks_stay_within_the_codecs_error() {
    let kept = some();
    for (name, most) in CENTRED {
        for bias in [0.0, 1.0, 10.0] {
            let mut cache = cache(name, bias);
            cache.keep(&kept);
            let first: Vec<_> = (0..kept.len()).collect();
            let (got, _) = cache.decode(&first);
            let of = |x: &[f32], i: usize| -> Vec<f32> { x[i * WIDTH..][..WIDTH].to_vec() };
            let want: Vec<_> = kept.iter().flat_map(|&i| of(&cache.k, i)).collect();
            let varying = energy(noise(LEN * WIDTH, 1).into_iter()) / LEN as f32;
            let off = energy(got.iter().zip(&want).map(|(a, b)| a - b)) / kept.len() as f32;
            assert!(off <= most * varying, "{name}, bias {bias}: {}", off / varying);
        }
    }
}

#[test]
fn keys_that_fill_gaps_leave_the_others_alone() {
    for (name, _) in CENTRED {
        // Tokens 40 and 41 go; the last two of the sequence fill their slots.
        let mut cache = cache(name, 1.0);
        let kept: Vec<_> = (0..144).map(|i| if i == 40 || i == 41 { i + 104 } else { i }).collect();
        let before = cache.keep(&kept);
        let (after, _) = cache.decode(&(0..144).collect::<Vec<_>>());
        let stay = |x: &[f32]| [&x[..40 * WIDTH], &x[42 * WIDTH..]].concat();
        assert!(stay(&after) == stay(&before.0), "{name}");
    }
}

#[test]
fn shared_centres_move_as_they_are() {
    for (name, _) in CENTRED {
        let mut cache = cache(name, 1.0);
        let kept: Vec<_> = (16..32).filter(|i| i % 4 != 2).collect();
        let before = cache.keep(&kept);
        assert!(cache.decode(&(0..kept.len()).collect::<Vec<_>>()) == before, "{name}");
        // The block goes on from there.
        let one = |x: &[f32]| tensor(x[..WIDTH].to_vec(), G.kv_heads);
        let next = (one(&cache.k), one(&cache.v));
        cache.codec.encode(G, &next.0, &next.1, &[kept.len()], &mut cache.pages).unwrap();
        let (k, _) = cache.decode(&[kept.len()]);
        let off = energy(k.iter().zip(&cache.k).map(|(a, b)| a - b));
        assert!(off < 0.3 * energy(k.iter().copied()), "{name}");
    }
}

#[test]
fn exact_rows_come_from_exact_rows_and_from_codes() {
    let tokens = Exact { sink_tokens: 0, recent_tokens: 16 };
    for name in ["affine8", "turbo4", "turbo3-qjl", "taper4", "taper2"] {
        let mut cache = cache(name, 0.0);
        let (k, v) = (tensor(cache.k.clone(), G.kv_heads), tensor(cache.v.clone(), G.kv_heads));
        // Tokens from 40 on are exact, in other blocks than their codes.
        let exact = |i: usize| (i >= 40).then_some(i + 16);
        let slots: Vec<_> = (0..LEN).map(exact).collect();
        cache.codec.encode_exact(G, &k, &v, &slots, &mut cache.pages).unwrap();
        let kept: Vec<_> = (32..48).collect();
        let (decoded_k, decoded_v) = cache.decode(&kept);
        let rows: Vec<_> = kept.iter().map(|&slot| KeptRow { slot, exact: exact(slot) }).collect();
        let into = [KeptBlock { block: BlockId(2), exact: Some(BlockId(3)) }];
        cache.codec.compact(G, &rows, &into, &mut cache.pages).unwrap();
        let mix = |decoded: &[f32], x: &[f32]| {
            [&decoded[..8 * WIDTH], &x[40 * WIDTH..48 * WIDTH]].concat()
        };
        let want = (mix(&decoded_k, &cache.k), mix(&decoded_v, &cache.v));
        let q = noise(4 * G.head_dim, 9);
        let (blocks, places) = ([BlockId(2)], [Some(BlockId(3))]);
        let exact = Some(ExactBlocks { tokens, blocks: &places, skipped: 0 });
        let seqs = vec![SeqSpan { q_len: 1, kv_len: 16, blocks: &blocks, exact, together: None }];
        let params = AttnParams::new(0.1);
        let (rows, batch) = (tensor(q.clone(), 4), AttnBatch { seqs });
        let got = cache.codec.attend(G, &rows, &cache.pages, &batch, &params).unwrap();
        for (g, w) in values(&got).iter().zip(softmax(&q, (&want.0, &want.1), 4)) {
            assert!((f64::from(*g) - w).abs() < 2e-3, "{name}: {g} {w}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for name in ["f16", "turbo4", "taper4"] {
        let mut cache = cache(name, 0.0);
        let before = cache.pages.k.as_slice().to_vec();
        let mut compact = |slots: &[usize], blocks: &[u32], exact: Option<usize>| {
            let rows: Vec<_> = slots.iter().map(|&slot| KeptRow { slot, exact }).collect();
            let block = |&b: &u32| KeptBlock { block: BlockId(b), exact: None };
            let into: Vec<_> = blocks.iter().map(block).collect();
            cache.codec.compact(G, &rows, &into, &mut cache.pages)
        };
        let all: Vec<_> = (0..20).collect();
        let misfit = |r| matches!(r, Err(KvCodecError::Compact { .. }));
        assert!(misfit(compact(&all, &[1], None)), "too few blocks");
        assert!(misfit(compact(&all, &[1, 2, 3], None)), "too many blocks");
        assert!(misfit(compact(&all, &[1, 1], None)), "one block twice");
        let slot = |r| matches!(r, Err(KvCodecError::Slot { .. }));
        assert!(slot(compact(&[16 * 99], &[1], None)), "no such row");
        assert!(slot(compact(&[1], &[99], None)), "no such block");
        assert!(slot(compact(&[1], &[1], Some(16 * 99))), "no such exact row");
        assert!(compact(&[], &[], None).is_ok());
        assert!(cache.pages.k.as_slice() == before, "{name}: nothing was written");
    }
}
