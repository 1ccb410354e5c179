//! Rows that leave a sequence: what stays is what attention reads, and blocks that others hold stay as they are.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use taper_base::{LayerId, SeqId, TokenId};
use taper_kv_cache::{
    Eviction, EvictionPolicy, ExactRoom, KvCache, KvCacheError, KvConfig, SeqRange, StateSession,
};
use taper_kv_codecs::{AttnParams, Exact, KvGeometry};
use taper_tensor::{Projected, Tensor};
use taper_triattention::{
    Budget, Complex, HeadStatistics, Rope, Sharing, TriAttention, TriAttentionError,
};

const D: usize = 16;
const WIDTH: usize = 2 * D;
const SIZE: usize = 8;

fn cache(codec: &str, blocks: usize) -> KvCache {
    let geometry = KvGeometry { kv_heads: 2, head_dim: D, block_tokens: SIZE };
    let tokens = Exact { sink_tokens: SIZE, recent_tokens: 2 * SIZE };
    KvCache::new(KvConfig {
        exact: Some(ExactRoom::for_sequences(tokens, 8, 128, SIZE)),
        prefix_caching: true,
        ..KvConfig::new(taper_kv_codecs::parse(codec).unwrap(), 2, geometry, blocks)
    })
}

fn row(token: usize, side: usize) -> impl Iterator<Item = f32> {
    (0..WIDTH).map(move |i| ((token * 131 + i * 17 + side * 29) % 97) as f32 / 48.0 - 1.0)
}

/// A step of a sequence: `tokens` are what rows are made of, from token `start` of the sequence on. The output of
/// the last layer.
fn step(cache: &mut KvCache, seq: u64, start: usize, tokens: &[usize]) -> Vec<f32> {
    let range = SeqRange { seq: SeqId(seq), start, len: tokens.len() };
    let rows = cache.rows(SeqId(seq), start + tokens.len());
    cache.grow(SeqId(seq), rows).unwrap();
    let side = |side| {
        let rows = tokens.iter().flat_map(|&token| row(token, side)).collect();
        Tensor::from_vec(rows, &[tokens.len(), WIDTH]).unwrap()
    };
    let (q, k, v) = (side(0), side(1), side(2));
    let mut session = cache.session(&[range]).unwrap();
    let mut out = Vec::new();
    for layer in 0..2 {
        let rows =
            Projected { q: &q, k: &k, v: &v, head_dim: D, norms: None, rope: None, next: None };
        let layer = session.attend(LayerId(layer), &rows, &AttnParams::new(0.3)).unwrap();
        out = layer.to_vec().unwrap();
    }
    out
}

fn eviction(seq: u64, tokens: usize, evict: usize) -> Eviction {
    let (prefix, window) = (SIZE, 2 * SIZE);
    Eviction { seq: SeqId(seq), tokens, evict, prefix, window, room: 2 * SIZE }
}

fn scored(mean: f64) -> EvictionPolicy {
    let bands = D / 2;
    let head = HeadStatistics {
        mean: vec![Complex { re: mean, im: 0.3 }; bands],
        modulus: vec![1.5; bands],
    };
    let budget = Budget { keep: 1, every: 1, prefix: 0, window: 0 };
    let layers = vec![vec![head; 2]; 2];
    let rope = Rope::new(D, 1e4).unwrap();
    let policy = TriAttention::new(rope, layers, 2, budget, Sharing::All).unwrap();
    EvictionPolicy::TriAttention(Arc::new(policy))
}

#[test]
fn attention_reads_the_rows_that_stay() {
    for codec in ["f32", "f16"] {
        let mut c = cache(codec, 32);
        let all: Vec<usize> = (0..77).collect();
        step(&mut c, 1, 0, &all);
        c.evict(eviction(1, 77, 32), &EvictionPolicy::Window).unwrap();
        assert_eq!((c.rows(SeqId(1), 77), c.blocks(SeqId(1)).len()), (45, 8));
        // Twice, with tokens in between.
        step(&mut c, 1, 77, &[77, 78, 79, 80, 81, 82, 83, 84]);
        c.evict(eviction(1, 85, 16), &EvictionPolicy::Window).unwrap();
        let got = step(&mut c, 1, 85, &[85]);
        // The first eight, and the latest of 37.
        let stay: Vec<usize> = (0..8).chain(56..85).collect();
        let mut plain = cache(codec, 32);
        step(&mut plain, 1, 0, &stay);
        assert_eq!(got, step(&mut plain, 1, stay.len(), &[85]), "{codec}");
    }
}

#[test]
fn codes_stay_as_they_are_where_their_blocks_do() {
    for codec in ["turbo4", "taper3", "affine8"] {
        // All but the first block and the window goes: no block is built anew.
        let mut c = cache(codec, 32);
        let all: Vec<usize> = (0..72).collect();
        step(&mut c, 1, 0, &all);
        c.evict(Eviction { room: 0, ..eviction(1, 72, 48) }, &EvictionPolicy::Window).unwrap();
        let got = step(&mut c, 1, 72, &[72]);
        let mut plain = cache(codec, 32);
        let stay: Vec<usize> = (0..8).chain(56..72).collect();
        step(&mut plain, 1, 0, &stay);
        let want = step(&mut plain, 1, 24, &[72]);
        assert_eq!(got, want, "{codec}");
    }
}

#[test]
fn how_a_prompt_came_is_not_seen_in_what_stays() {
    for codec in ["f32", "turbo4", "taper3", "taper4"] {
        let outputs = [77, 1, 5, 16].map(|chunk: usize| {
            let mut c = cache(codec, 40);
            let all: Vec<usize> = (0..77).collect();
            for (i, tokens) in all.chunks(chunk).enumerate() {
                step(&mut c, 1, i * chunk, tokens);
            }
            c.evict(eviction(1, 77, 32), &scored(0.7)).unwrap();
            (77..120).map(|t| step(&mut c, 1, t, &[t])).collect::<Vec<_>>()
        });
        assert!(outputs.iter().all(|out| *out == outputs[0]), "{codec}");
    }
}

#[test]
fn shared_blocks_are_left_to_others() {
    for codec in ["f16", "taper4"] {
        let mut c = cache(codec, 40);
        let tokens: Vec<usize> = (0..64).collect();
        let ids: Vec<TokenId> = (0..64).collect();
        step(&mut c, 1, 0, &tokens);
        c.publish(SeqId(1), &ids);
        for seq in 2..4 {
            assert_eq!(c.adopt(SeqId(seq), &ids), 64);
        }
        c.evict(eviction(2, 64, 32), &scored(0.7)).unwrap();
        // Nothing of it is found from here on.
        let longer: Vec<TokenId> = (0..80).collect();
        step(&mut c, 2, 64, &(64..80).collect::<Vec<_>>());
        c.publish(SeqId(2), &longer);
        assert_eq!(c.adopt(SeqId(5), &longer), 64);
        let (one, other) = (step(&mut c, 1, 64, &[64]), step(&mut c, 3, 64, &[64]));
        let mut plain = cache(codec, 32);
        step(&mut plain, 1, 0, &tokens);
        let want = step(&mut plain, 1, 64, &[64]);
        assert!(one == want && other == want, "{codec}");
        (1..6).for_each(|seq| c.release(SeqId(seq)));
        let usage = c.usage();
        assert_eq!((usage.used_blocks, usage.promised_exact_blocks), (0, 0));
    }
}

#[test]
fn without_a_block_to_write_nothing_changes() {
    let mut c = cache("f16", 8);
    let tokens: Vec<usize> = (0..64).collect();
    let ids: Vec<TokenId> = (0..64).collect();
    step(&mut c, 1, 0, &tokens);
    c.publish(SeqId(1), &ids);
    assert_eq!(c.adopt(SeqId(2), &ids), 64);
    let held = c.blocks(SeqId(1)).to_vec();
    let full = c.evict(eviction(1, 64, 32), &scored(0.7));
    assert!(matches!(full, Err(KvCacheError::Full { free: 0, .. })), "{full:?}");
    assert_eq!(c.blocks(SeqId(1)), held);
    // Nobody else reads its published blocks: they are taken, and found no more.
    c.release(SeqId(2));
    c.evict(eviction(1, 64, 32), &scored(0.7)).unwrap();
    assert_eq!(c.rows(SeqId(1), 64), 32);
    c.release(SeqId(1));
    assert!(c.adopt(SeqId(3), &ids) < 64);
    c.release(SeqId(3));
    assert_eq!(c.usage().used_blocks, 0);
}

#[test]
fn what_cannot_be_evicted_is_refused() {
    let mut c = cache("taper4", 16);
    step(&mut c, 1, 0, &(0..64).collect::<Vec<_>>());
    let window = EvictionPolicy::Window;
    for wrong in [
        eviction(1, 64, 0),
        eviction(1, 64, 8),
        eviction(1, 64, 48),
        eviction(1, 64, 96),
        Eviction { prefix: 0, ..eviction(1, 64, 32) },
        Eviction { window: 8, ..eviction(1, 64, 32) },
    ] {
        let error = c.evict(wrong, &window);
        assert!(matches!(error, Err(KvCacheError::Eviction { .. })), "{wrong:?}: {error:?}");
    }
    let nobody = c.evict(eviction(9, 64, 32), &window);
    assert!(matches!(nobody, Err(KvCacheError::NoSequence { seq: SeqId(9) })));
    let nan = c.evict(eviction(1, 64, 32), &scored(f64::NAN));
    let not_finite = matches!(nan, Err(KvCacheError::Policy(TriAttentionError::NotFinite { .. })));
    assert!(not_finite, "{nan:?}");
    c.evict(eviction(1, 64, 32), &window).unwrap();
    let ranges = [SeqRange { seq: SeqId(1), start: 16, len: 1 }];
    let gone = c.session(&ranges).map(|_| ());
    assert!(matches!(gone, Err(KvCacheError::Evicted { start: 16, evicted: 32, .. })));
}
