//! Boxes bound every logit of their pages, over keys as each codec gives them back.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use taper_kv_codecs::{KvGeometry, LayerPages};
use taper_recall::KeyBoxes;
use taper_tensor::Tensor;

const G: KvGeometry = KvGeometry { kv_heads: 2, head_dim: 64, block_tokens: 32 };
const PAGES: usize = 80;
const PAGE: usize = 64;
const QUERIES: usize = 640;

/// Normal numbers, of which some elements are far larger than others, as those of keys are.
fn rows(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 + 0.5) / (1 << 24) as f32
    };
    let width = G.kv_heads * G.head_dim;
    let size = |i: usize| match i % G.head_dim {
        5 => 30.0,
        17 => 8.0,
        _ => 1.0,
    };
    (0..n * width)
        .map(|i| {
            let normal = (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos();
            normal * size(i % width)
        })
        .collect()
}

/// A hundred thousand pairs of a query and a page, and none whose largest logit is above the bound.
#[test]
fn no_logit_is_above_its_bound() {
    let codecs = [
        "f32",
        "f16",
        "bf16",
        "affine4",
        "affine8",
        "turbo3",
        "turbo4",
        "turbo4v2",
        "turbo3-qjl",
        "taper2",
        "taper3",
        "taper4",
        "taper3-l9",
        "taper4v3",
    ];
    let queries = rows(QUERIES, 7);
    for name in codecs {
        let codec = taper_kv_codecs::parse(name).unwrap();
        let tokens = PAGES * PAGE;
        let mut pages = LayerPages::zeroed(codec.block_bytes(G), tokens / G.block_tokens);
        let slots: Vec<_> = (0..tokens).collect();
        let keys = Tensor::from_vec(rows(tokens, 3), &[tokens, G.kv_heads, G.head_dim]).unwrap();
        codec.encode(G, &keys, &keys, &slots, &mut pages).unwrap();
        let mut pairs = 0;
        for page in 0..PAGES {
            let slots = &slots[page * PAGE..(page + 1) * PAGE];
            let keys = codec.decode_keys(G, slots, &pages).unwrap().to_vec().unwrap();
            assert_eq!(keys, codec.decode(G, slots, &pages).unwrap().0.to_vec().unwrap());
            let boxes = KeyBoxes::of(&keys, G.kv_heads, G.head_dim);
            for (i, q) in queries.chunks_exact(G.head_dim).enumerate() {
                let head = i % G.kv_heads;
                let own = keys[head * G.head_dim..].chunks(G.kv_heads * G.head_dim);
                let dot = |k: &[f32]| -> f64 {
                    q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
                };
                let most = own.map(dot).fold(f64::NEG_INFINITY, f64::max);
                let (codes, scales) = boxes.head(head);
                let side = |i: usize, side: usize| {
                    f64::from(codes[side * G.head_dim + i]) * f64::from(scales[side])
                };
                let larger = |(i, &q): (usize, &f32)| {
                    (f64::from(q) * side(i, 0)).max(f64::from(q) * side(i, 1))
                };
                let bound: f64 = q.iter().enumerate().map(larger).sum();
                assert!(most <= bound, "{name}: page {page}, query {i}: {most} above {bound}");
                pairs += 1;
            }
        }
        assert!(pairs >= 100_000, "{pairs}");
    }
}
