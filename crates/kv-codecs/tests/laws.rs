//! The laws of [`KvCodec`], for every codec there is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use std::sync::Arc;
use taper_base::BlockId;
use taper_kv_codecs::{
    Arithmetic, AttnBatch, AttnParams, Exact, ExactBlocks, KvCodec, KvCodecError, KvGeometry,
    LayerPages, Mutual, MutualSpan, SeqSpan, Together, parse,
};
use taper_tensor::{Sinks, Tensor};

/// How near a row must come back.
#[derive(Debug, Clone, Copy)]
enum Error {
    /// Each element, relative to itself.
    Element(f32),
    /// The squared error of all rows of a side relative to their energy.
    Energy(f32),
}
use Error::{Element, Energy};

/// Name, error of stored rows, and largest difference of attention from the oracle: codecs that
/// multiply bytes round queries and weights, affine ones to 15 bits.
const CODECS: [(&str, Error, f64); 18] = [
    ("f32", Element(0.0), 3e-5),
    ("f16", Element(5e-4), 3e-5),
    ("bf16", Element(4e-3), 3e-5),
    ("affine8", Energy(1e-4), 3e-4),
    ("affine4g32", Energy(0.02), 3e-4),
    ("turbo1", Energy(1.0), 0.1),
    ("turbo2", Energy(0.3), 0.1),
    ("turbo3", Energy(0.08), 0.1),
    ("turbo4", Energy(0.03), 0.1),
    ("turbo5", Energy(0.01), 0.1),
    ("turbo4v2", Energy(0.3), 0.1),
    ("turbo8v4", Energy(0.03), 0.1),
    ("turbo0v3", Energy(0.08), 0.1),
    ("turbo3-qjl", Energy(0.3), 0.1),
    ("taper4", Energy(0.02), 0.1),
    ("taper3", Energy(0.06), 0.1),
    ("taper2", Energy(0.2), 0.1),
    ("taper3-l9", Energy(0.06), 0.1),
];

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

fn tensor(t: usize, h: usize, d: usize, seed: u64) -> Tensor {
    Tensor::from_vec(noise(t * h * d, seed), &[t, h, d]).unwrap()
}

/// How far off attention may be that rounds its operands to `bf16`.
const ROUNDED: f64 = 0.03;

/// A sequence of `len` tokens spread over shuffled blocks.
struct Case {
    codec: Arc<dyn KvCodec>,
    geometry: KvGeometry,
    pages: LayerPages,
    blocks: Vec<BlockId>,
    k: Tensor,
    v: Tensor,
}

impl Case {
    fn new(name: &str, geometry: KvGeometry, len: usize, seed: u64) -> Self {
        let codec = parse(name).unwrap();
        let n = len.div_ceil(geometry.block_tokens);
        let blocks: Vec<_> = (0..n).map(|i| BlockId(((i * 5 + 2) % (n + 3)) as u32)).collect();
        let blocks = if n.is_multiple_of(5) || (n + 3).is_multiple_of(5) {
            (0..n as u32).rev().map(BlockId).collect()
        } else {
            blocks
        };
        let mut pages = LayerPages::zeroed(codec.block_bytes(geometry), n + 3);
        let side = |s| tensor(len, geometry.kv_heads, geometry.head_dim, s);
        let (k, v) = (side(seed), side(seed + 1));
        let slots = slots(geometry, &blocks, len);
        codec.encode(geometry, &k, &v, &slots, &mut pages).unwrap();
        Self { codec, geometry, pages, blocks, k, v }
    }

    fn attend(&self, q: &Tensor, kv_len: usize, params: &AttnParams<'_>) -> Vec<f32> {
        let q_len = q.dims()[0];
        let batch = AttnBatch {
            seqs: vec![SeqSpan {
                q_len,
                kv_len,
                blocks: &self.blocks,
                exact: None,
                together: None,
            }],
        };
        let out = self.codec.attend(self.geometry, q, &self.pages, &batch, params).unwrap();
        out.to_vec().unwrap()
    }
}

fn slots(g: KvGeometry, blocks: &[BlockId], len: usize) -> Vec<usize> {
    let at = |i: usize| blocks[i / g.block_tokens].0 as usize * g.block_tokens;
    (0..len).map(|i| at(i) + i % g.block_tokens).collect()
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap()
}

/// Dense softmax attention in f64 over what the codec decodes to.
fn oracle(case: &Case, q: &Tensor, kv_len: usize, params: &AttnParams<'_>) -> Vec<f64> {
    let g = case.geometry;
    let slots = slots(g, &case.blocks, kv_len);
    let (k, v) = case.codec.decode(g, &slots, &case.pages).unwrap();
    softmax(g, q, (&values(&k), &values(&v)), params)
}

/// Dense softmax attention in f64; the queries are the last tokens.
fn softmax(
    g: KvGeometry,
    q: &Tensor,
    (k, v): (&[f32], &[f32]),
    params: &AttnParams<'_>,
) -> Vec<f64> {
    let (qs, kv_len) = (values(q), k.len() / (g.kv_heads * g.head_dim));
    let (t, heads, d) = (q.dims()[0], q.dims()[1], g.head_dim);
    let mut out = vec![0.0; t * heads * d];
    for token in 0..t {
        let end = kv_len - t + token + 1;
        let start = params.window.map_or(0, |w| end.saturating_sub(w));
        for head in 0..heads {
            let kv_head = head / (heads / g.kv_heads);
            let row = &qs[(token * heads + head) * d..][..d];
            let key = |j: usize| &k[(j * g.kv_heads + kv_head) * d..][..d];
            let score = |j: usize| -> f64 {
                let dot = row.iter().zip(key(j)).map(|(a, b)| f64::from(*a) * f64::from(*b));
                let s = dot.sum::<f64>() * f64::from(params.scale);
                params.soft_cap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
            };
            let scores: Vec<_> = (start..end).map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sink = params.sinks.map_or(0.0, |s| (f64::from(s.scores()[head]) - max).exp());
            let total: f64 = scores.iter().map(|s| (s - max).exp()).sum::<f64>() + sink;
            for (s, j) in scores.iter().zip(start..end) {
                let value = &v[(j * g.kv_heads + kv_head) * d..][..d];
                for (o, x) in out[(token * heads + head) * d..].iter_mut().zip(value) {
                    *o += (s - max).exp() / total * f64::from(*x);
                }
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    #[test]
    fn attend_equals_decode_then_softmax(
        codec in 0..CODECS.len(),
        kv_heads in 1usize..4,
        group in 1usize..5,
        head_dim in prop::sample::select(vec![8usize, 20, 64, 128]),
        block_tokens in prop::sample::select(vec![4usize, 16, 32]),
        len in 1usize..150,
        q_share in 0.0f64..1.0,
        window in prop::option::of(1usize..70),
        soft_cap in prop::option::of(0.5f32..5.0),
        sink in prop::option::of(-3.0f32..4.0),
        rounded in any::<bool>(),
        seed in 0u64..1000,
    ) {
        let (name, error, tolerance) = CODECS[codec];
        let geometry = KvGeometry { kv_heads, head_dim, block_tokens };
        let case = Case::new(name, geometry, len, seed);
        let slots = slots(geometry, &case.blocks, len);
        let (k, v) = case.codec.decode(geometry, &slots, &case.pages).unwrap();
        for (side, back) in [(&case.k, k), (&case.v, v)] {
            let (x, y) = (values(side), values(&back));
            match error {
                Element(error) => for (x, y) in x.iter().zip(y) {
                    prop_assert!((x - y).abs() <= error * x.abs().max(1e-3), "{name}: {x} {y}");
                },
                Energy(error) => {
                    let off: f32 = x.iter().zip(y).map(|(x, y)| (x - y).powi(2)).sum();
                    let all: f32 = x.iter().map(|x| x * x).sum();
                    prop_assert!(off <= error * all, "{name}: {off} of {all}");
                }
            }
        }
        let q_len = 1 + ((len - 1) as f64 * q_share) as usize;
        let q = tensor(q_len, kv_heads * group, head_dim, seed + 7);
        let arithmetic = if rounded { Arithmetic::Rounded } else { Arithmetic::Exact };
        let scale = (head_dim as f32).powf(-0.5);
        let sinks = sink.map(|s| Sinks::new((0..kv_heads * group).map(|h| s + h as f32 * 0.3).collect()));
        let sinks = sinks.as_ref();
        let params = AttnParams { window, soft_cap, sinks, arithmetic, ..AttnParams::new(scale) };
        let tolerance = if rounded { tolerance.max(ROUNDED) } else { tolerance };
        let got = case.attend(&q, len, &params);
        for (g, w) in got.iter().zip(oracle(&case, &q, len, &params)) {
            prop_assert!((f64::from(*g) - w).abs() < tolerance, "{name}: {g} {w}");
        }
        // Prefill and token-by-token agree to the bit.
        let width = kv_heads * group * head_dim;
        for token in 0..q_len {
            let one = q.entries(token..token + 1).unwrap();
            let alone = case.attend(&one, len - q_len + token + 1, &params);
            prop_assert_eq!(&alone, &got[token * width..][..width]);
        }
    }
}

/// Long contexts of few rows are shared out by keys, those of many rows are not.
#[test]
fn a_row_over_many_blocks_is_the_same_alone_and_in_company() {
    let (len, q_len, d) = (700, 60, 32);
    let geometry = KvGeometry { kv_heads: 4, head_dim: d, block_tokens: 4 };
    let sinks = Sinks::new(vec![0.5, -1.0, 2.0, 0.0, 1.0, -3.0, 4.0, 0.25]);
    let exact = AttnParams { sinks: Some(&sinks), ..AttnParams::new(0.25) };
    let rounded = AttnParams { arithmetic: Arithmetic::Rounded, ..exact };
    let all = CODECS.iter().flat_map(|&(name, _, tolerance)| {
        [(name, tolerance, exact), (name, tolerance.max(ROUNDED), rounded)]
    });
    for (name, tolerance, params) in all {
        let case = Case::new(name, geometry, len, 3);
        let q = tensor(q_len, 8, d, 4);
        let got = case.attend(&q, len, &params);
        for (g, w) in got.iter().zip(oracle(&case, &q, len, &params)) {
            assert!((f64::from(*g) - w).abs() < tolerance, "{name}: {g} {w}");
        }
        for (token, got) in got.chunks_exact(8 * d).enumerate().step_by(3) {
            let one = q.entries(token..token + 1).unwrap();
            let alone = case.attend(&one, len - q_len + token + 1, &params);
            assert_eq!(alone, got, "{name}, token {token}");
        }
    }
}

/// A token that sees tokens after it gives the bits of the last of them with its query.
#[test]
fn a_row_that_sees_tokens_after_it_is_one_further_back() {
    let (q_len, kv_len, end, d) = (20, 60, 90, 32);
    let geometry = KvGeometry { kv_heads: 2, head_dim: d, block_tokens: 16 };
    for (name, ..) in CODECS {
        let case = Case::new(name, geometry, 150, 11);
        let q = tensor(q_len, 4, d, 12);
        // A window, where tokens that see each other begin, and how far back a token sees then.
        let far: &dyn Fn(usize) -> usize = &|_| end;
        let near: &dyn Fn(usize) -> usize = &|at| end - (at - 29);
        let inside: &dyn Fn(usize) -> usize = &|at| end - (at - 9);
        let all: &dyn Fn(usize) -> usize = &|_| end - 40;
        for (window, from, sees) in [
            (None, None, far),
            (None, Some(40), far),
            (Some(30), Some(40), near),
            (Some(10), None, inside),
            (Some(1), Some(40), all),
        ] {
            for arithmetic in [Arithmetic::Exact, Arithmetic::Rounded] {
                let params = AttnParams { window, arithmetic, ..AttnParams::new(0.2) };
                let together = Some(Together { from, end });
                let span = SeqSpan { q_len, kv_len, blocks: &case.blocks, exact: None, together };
                let batch = AttnBatch { seqs: vec![span] };
                let got = case.codec.attend(geometry, &q, &case.pages, &batch, &params).unwrap();
                let got = values(&got);
                for (row, got) in got.chunks_exact(4 * d).enumerate() {
                    let window = Some(sees(kv_len - q_len + row));
                    let params = AttnParams { window, ..params };
                    let alone = case.attend(&q.entries(row..row + 1).unwrap(), end, &params);
                    assert_eq!(alone, got, "{name}, {window:?}, row {row}");
                }
            }
        }
        let spans = [MutualSpan { start: 0, end: 2, before: 0 }];
        let mutual = Mutual { spans: &spans, past_window: false };
        let params = AttnParams { mutual, ..AttnParams::new(0.2) };
        let together = Some(Together { from: None, end: 1000 });
        for (params, together) in [(params, None), (AttnParams::new(0.2), together)] {
            let span = SeqSpan { q_len, kv_len, blocks: &case.blocks, exact: None, together };
            let batch = AttnBatch { seqs: vec![span] };
            assert!(case.codec.attend(geometry, &q, &case.pages, &batch, &params).is_err());
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let geometry = KvGeometry { kv_heads: 2, head_dim: 8, block_tokens: 4 };
    for (name, ..) in CODECS {
        let mut case = Case::new(name, geometry, 9, 1);
        let params = AttnParams::new(1.0);
        let attend = |q: &Tensor, kv_len, blocks: &[BlockId]| {
            let seqs =
                vec![SeqSpan { q_len: q.dims()[0], kv_len, blocks, exact: None, together: None }];
            case.codec.attend(geometry, q, &case.pages, &AttnBatch { seqs }, &params)
        };
        let q = tensor(1, 4, 8, 3);
        assert!(attend(&q, 9, &case.blocks).is_ok());
        let slot = |r| matches!(r, Err(KvCodecError::Slot { .. }));
        assert!(slot(attend(&q, 13, &case.blocks)), "more tokens than blocks");
        assert!(slot(attend(&q, 4, &[BlockId(99)])), "no such block");
        let shape = |r| matches!(r, Err(KvCodecError::Shape { .. }));
        assert!(shape(attend(&tensor(1, 3, 8, 3), 9, &case.blocks)), "heads");
        let three = Sinks::new(vec![0.0; 3]);
        let sinks = AttnParams { sinks: Some(&three), ..params };
        let seqs = vec![SeqSpan {
            q_len: 1,
            kv_len: 9,
            blocks: &case.blocks,
            exact: None,
            together: None,
        }];
        let got = case.codec.attend(geometry, &q, &case.pages, &AttnBatch { seqs }, &sinks);
        assert!(shape(got), "sinks");
        assert!(shape(attend(&tensor(1, 4, 16, 3), 9, &case.blocks)), "head_dim");
        let (k, v) = (tensor(1, 2, 8, 5), tensor(1, 2, 8, 6));
        let encode = case.codec.encode(geometry, &k, &v, &[1000], &mut case.pages);
        assert!(matches!(encode, Err(KvCodecError::Slot { slot: 1000, .. })));
    }
}

/// Exact rows are written, or refused: never dropped.
#[test]
fn a_codec_without_exact_blocks_refuses_exact_rows() {
    let geometry = KvGeometry { kv_heads: 2, head_dim: 8, block_tokens: 4 };
    for (name, ..) in CODECS {
        let mut case = Case::new(name, geometry, 4, 1);
        let bytes = case.codec.exact_block_bytes(geometry);
        if let Some(bytes) = bytes {
            let block = case.codec.block_bytes(geometry);
            case.pages = LayerPages::zeroed(block, 1).with_exact(bytes, 1);
        }
        let slots: Vec<_> = (0..4).map(Some).collect();
        let done = case.codec.encode_exact(geometry, &case.k, &case.v, &slots, &mut case.pages);
        match bytes {
            Some(_) => done.unwrap(),
            None => assert!(
                matches!(done, Err(KvCodecError::NoExactRows { codec }) if codec == name),
                "{name}"
            ),
        }
    }
}

/// Rows that a query reads exactly replace decoded ones, however the step is cut.
#[test]
fn exact_blocks_take_the_place_of_codes() {
    let (len, size, d) = (90, 8, 20);
    let geometry = KvGeometry { kv_heads: 2, head_dim: d, block_tokens: size };
    let tokens = Exact { sink_tokens: 8, recent_tokens: 16 };
    let params = AttnParams::new(0.3);
    for (name, _, tolerance) in CODECS {
        let mut case = Case::new(name, geometry, len, 8);
        let Some(bytes) = case.codec.exact_block_bytes(geometry) else { continue };
        let blocks = case.blocks.len();
        let pages = std::mem::replace(&mut case.pages, LayerPages::zeroed(bytes, 0));
        case.pages = pages.with_exact(bytes, blocks);
        // The exact blocks stand in another order than the coded ones.
        let places: Vec<_> = (0..blocks as u32).rev().map(|i| Some(BlockId(i))).collect();
        let slot = |i: usize| places[i / size].map(|b| b.0 as usize * size + i % size);
        let at: Vec<_> = (0..len).map(slot).collect();
        case.codec.encode_exact(geometry, &case.k, &case.v, &at, &mut case.pages).unwrap();
        let attend = |q: &Tensor, kv_len, places: &[Option<BlockId>]| {
            let exact = Some(ExactBlocks { tokens, blocks: places, skipped: 0 });
            let span =
                SeqSpan { q_len: q.dims()[0], kv_len, blocks: &case.blocks, exact, together: None };
            let batch = AttnBatch { seqs: vec![span] };
            case.codec.attend(geometry, q, &case.pages, &batch, &params).map(|x| values(&x))
        };
        let q = tensor(len, 4, d, 5);
        let got = attend(&q, len, &places).unwrap();
        for at in 0..len {
            let one = q.entries(at..at + 1).unwrap();
            let alone = attend(&one, at + 1, &places).unwrap();
            assert_eq!(alone, got[at * 4 * d..][..4 * d], "{name}, token {at}");
            // Codes that nobody reads may be anything: decode, and put what is exact over it.
            let slots = slots(geometry, &case.blocks, at + 1);
            let (k, v) = case.codec.decode(geometry, &slots, &case.pages).unwrap();
            let mix = |coded: &Tensor, side: &Tensor| {
                let (mut coded, side) = (values(coded), values(side));
                for (i, row) in coded.chunks_exact_mut(2 * d).enumerate() {
                    if i < 8 || i >= at / 16 * 16 {
                        row.copy_from_slice(&side[i * 2 * d..][..2 * d]);
                    }
                }
                coded
            };
            let want = softmax(geometry, &one, (&mix(&k, &case.k), &mix(&v, &case.v)), &params);
            for (g, w) in alone.iter().zip(want) {
                assert!((f64::from(*g) - w).abs() < tolerance.max(2e-3), "{name} {at}: {g} {w}");
            }
        }
        let missing = vec![None; blocks];
        assert!(matches!(attend(&q, len, &missing), Err(KvCodecError::Slot { .. })), "{name}");
    }
}
