//! What a query may not attend to never changes its output, whatever it holds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{ops::Range, sync::Arc};
use taper_base::BlockId;
use taper_kv_codecs::{
    Arithmetic, AttnBatch, AttnParams, Exact, ExactBlocks, KvCodec, KvGeometry, LayerPages,
    SeqSpan, parse,
};
use taper_tensor::Tensor;

const CODECS: [&str; 18] = [
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
    "taper4",
    "taper3",
    "taper2",
    "taper3-l9",
];
const G: KvGeometry = KvGeometry { kv_heads: 2, head_dim: 64, block_tokens: 32 };
const HEADS: usize = 4;
/// Tokens of the sequence, the last block not full and its last tile neither.
const LEN: usize = 171;
const EXACT: Exact = Exact { sink_tokens: 32, recent_tokens: 64 };

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

fn rows(values: &[f32], heads: usize) -> Tensor {
    Tensor::from_vec(values.to_vec(), &[values.len() / heads / G.head_dim, heads, G.head_dim])
        .unwrap()
}

/// A cache of one sequence.
struct Cache {
    codec: Arc<dyn KvCodec>,
    pages: LayerPages,
    blocks: Vec<BlockId>,
    exact: Option<Vec<Option<BlockId>>>,
}

impl Cache {
    /// Empty pages, all of whose bytes are `fill`.
    fn new(name: &str, exact: bool, fill: u8) -> Self {
        let codec = parse(name).unwrap();
        let n = LEN.div_ceil(G.block_tokens);
        let mut pages = LayerPages::zeroed(codec.block_bytes(G), n + 1);
        if exact {
            pages = pages.with_exact(codec.exact_block_bytes(G).unwrap(), n);
        }
        for side in [&mut pages.k, &mut pages.v, &mut pages.exact_k, &mut pages.exact_v] {
            side.as_mut_slice().fill(fill);
        }
        let blocks = (0..n as u32).rev().map(BlockId).collect();
        let exact = exact.then(|| (0..n as u32).map(|b| Some(BlockId(b))).collect());
        Self { codec, pages, blocks, exact }
    }

    fn write(&mut self, at: Range<usize>, k: &[f32], v: &[f32]) {
        let width = G.kv_heads * G.head_dim;
        let part = |x: &[f32]| rows(&x[at.start * width..at.end * width], G.kv_heads);
        let slot =
            |block: BlockId, i: usize| block.0 as usize * G.block_tokens + i % G.block_tokens;
        let slots: Vec<_> = at.clone().map(|i| slot(self.blocks[i / G.block_tokens], i)).collect();
        let (k, v) = (part(k), part(v));
        self.codec.encode(G, &k, &v, &slots, &mut self.pages).unwrap();
        if let Some(exact) = &self.exact {
            let at = at.map(|i| exact[i / G.block_tokens].map(|block| slot(block, i)));
            let at: Vec<_> = at.collect();
            self.codec.encode_exact(G, &k, &v, &at, &mut self.pages).unwrap();
        }
    }

    /// Answers of the tokens `at`, as bits, a vector a token.
    fn answers(&self, at: Range<usize>, q: &[f32], params: &AttnParams<'_>) -> Vec<Vec<u32>> {
        let width = HEADS * G.head_dim;
        let exact = self.exact.as_deref();
        let exact = exact.map(|blocks| ExactBlocks { tokens: EXACT, blocks, skipped: 0 });
        let span = SeqSpan {
            q_len: at.len(),
            kv_len: at.end,
            blocks: &self.blocks,
            exact,
            together: None,
        };
        let batch = AttnBatch { seqs: vec![span] };
        let q = rows(&q[at.start * width..at.end * width], HEADS);
        let out = self.codec.attend(G, &q, &self.pages, &batch, params).unwrap();
        let out: Vec<f32> = out.to_vec().unwrap();
        out.chunks(width).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
    }
}

/// Every codec, with and without exact tokens; those without exact blocks once.
fn each(mut check: impl FnMut(&str, bool)) {
    for name in CODECS {
        check(name, false);
        if parse(name).unwrap().exact_block_bytes(G).is_some() {
            check(name, true);
        }
    }
}

/// Exact and rounded arithmetic, whole and windowed.
fn settings() -> [AttnParams<'static>; 4] {
    let all = AttnParams::new(0.2);
    let exact = AttnParams { arithmetic: Arithmetic::Exact, ..all };
    let rounded = AttnParams { arithmetic: Arithmetic::Rounded, ..all };
    let windowed = |params| AttnParams { window: Some(50), ..params };
    [exact, rounded, windowed(exact), windowed(rounded)]
}

fn sides() -> [Vec<f32>; 3] {
    let width = |heads: usize| LEN * heads * G.head_dim;
    [noise(width(HEADS), 1), noise(width(G.kv_heads), 2), noise(width(G.kv_heads), 3)]
}

#[test]
fn rows_behind_a_sequence_and_what_pages_held_before_change_no_bit() {
    let [q, k, v] = sides();
    each(|name, exact| {
        // All bits set is not a number in every format of floats; 0x7c is a large one.
        let mut caches = [0, 0xff, 0x7c].map(|fill| Cache::new(name, exact, fill));
        let mut written = 0;
        for (len, q_len) in [(1, 1), (5, 5), (33, 1), (130, 70), (LEN, 1), (LEN, 9), (LEN, LEN)] {
            caches.iter_mut().for_each(|cache| cache.write(written..len, &k, &v));
            written = len;
            for params in settings() {
                let [clean, stale, large] =
                    caches.each_ref().map(|cache| cache.answers(len - q_len..len, &q, &params));
                assert_eq!(clean, stale, "{name} {exact} {params:?} {len} {q_len}");
                assert_eq!(clean, large, "{name} {exact} {params:?} {len} {q_len}");
            }
        }
    });
}

#[test]
fn tokens_that_a_query_does_not_see_change_no_bit() {
    let [q, k, v] = sides();
    let width = G.kv_heads * G.head_dim;
    each(|name, exact| {
        let cache = |damage: Option<(usize, f32)>| {
            let (mut k, mut v) = (k.clone(), v.clone());
            if let Some((bad, what)) = damage {
                k[bad * width..(bad + 1) * width].fill(what);
                v[bad * width..(bad + 1) * width].fill(what);
            }
            let mut cache = Cache::new(name, exact, 0);
            cache.write(0..LEN, &k, &v);
            cache
        };
        let clean = cache(None);
        // Rows of a block may share a code, so the damage starts at a block of its own, which windows
        // leave behind as a whole.
        for (bad, what) in [(64, f32::NAN), (96, f32::INFINITY), (128, f32::NAN)] {
            let damaged = cache(Some((bad, what)));
            for params in settings() {
                let [clean, damaged] =
                    [&clean, &damaged].map(|cache| cache.answers(0..LEN, &q, &params));
                for (token, (clean, damaged)) in clean.iter().zip(&damaged).enumerate() {
                    let first = params.window.map_or(0, |w| (token + 1).saturating_sub(w));
                    if token < bad || first >= bad + G.block_tokens {
                        assert_eq!(clean, damaged, "{name} {exact} {params:?} {bad} {token}");
                    }
                }
            }
        }
    });
}

#[test]
fn who_sees_a_value_that_is_not_a_number_answers_none() {
    let [q, mut k, mut v] = sides();
    let (width, bad) = (G.kv_heads * G.head_dim, 96);
    k[bad * width..(bad + 1) * width].fill(f32::NAN);
    v[bad * width..(bad + 1) * width].fill(f32::NAN);
    for name in ["f32", "f16", "bf16"] {
        for arithmetic in [Arithmetic::Exact, Arithmetic::Rounded] {
            let params = AttnParams { arithmetic, ..AttnParams::new(0.2) };
            let mut cache = Cache::new(name, false, 0);
            cache.write(0..LEN, &k, &v);
            for (token, row) in cache.answers(0..LEN, &q, &params).iter().enumerate() {
                let finite = row.iter().all(|x| f32::from_bits(*x).is_finite());
                assert_eq!(finite, token < bad, "{name} {arithmetic:?} token {token}");
            }
        }
    }
}

#[test]
fn halves_saturate() {
    let [q, k, v] = sides();
    let large = |x: &[f32]| x.iter().map(|x| x * 1e5).collect::<Vec<_>>();
    for (name, exact) in [("f16", false), ("taper4", true), ("turbo4", true), ("affine8", true)] {
        let mut cache = Cache::new(name, exact, 0);
        cache.write(0..LEN, &large(&k), &large(&v));
        let answers = cache.answers(0..LEN, &q, &AttnParams::new(1e-6));
        assert!(answers.iter().flatten().all(|x| f32::from_bits(*x).is_finite()), "{name}");
    }
}
