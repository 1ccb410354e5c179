//! Layers whose heads differ, and layers that read the keys and values of others.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use taper_base::{LayerId, SeqId};
use taper_kv_cache::{KvCache, KvConfig, KvHeads, SeqRange, StateSession};
use taper_kv_codecs::{Arithmetic, AttnParams, KvCodecError, KvGeometry};
use taper_tensor::{Projected, Tensor};

const SEQ: SeqId = SeqId(7);
const HEADS: [KvHeads; 2] =
    [KvHeads { kv_heads: 2, head_dim: 8 }, KvHeads { kv_heads: 1, head_dim: 24 }];
const PARAMS: AttnParams<'_> = AttnParams {
    scale: 1.0,
    window: None,
    soft_cap: None,
    sinks: None,
    arithmetic: Arithmetic::Exact,
};

fn config(codec: &str) -> KvConfig {
    let geometry = KvGeometry { kv_heads: 2, head_dim: 8, block_tokens: 4 };
    let codec = taper_kv_codecs::parse(codec).unwrap();
    KvConfig { layer_heads: HEADS.to_vec(), ..KvConfig::new(codec, 2, geometry, 8) }
}

fn rows(tokens: usize, width: usize, seed: usize) -> Tensor {
    let value = |i: usize| ((i * 37 + seed * 101) % 23) as f32 / 11.0 - 1.0;
    Tensor::from_vec((0..tokens * width).map(value).collect(), &[tokens, width]).unwrap()
}

/// Attends in a layer, with two query heads a head of keys.
fn attend(session: &mut impl StateSession, layer: usize, tokens: usize) -> Tensor {
    let KvHeads { kv_heads, head_dim } = HEADS[layer];
    let width = kv_heads * head_dim;
    let (q, k, v) =
        (rows(tokens, 2 * width, 3), rows(tokens, width, layer), rows(tokens, width, 5));
    let rows = Projected { q: &q, k: &k, v: &v, head_dim, norms: None, rope: None, next: None };
    session.attend(LayerId(layer as u16), &rows, &PARAMS).unwrap()
}

#[test]
fn each_layer_keeps_rows_of_its_own_shape() {
    let config = config("f32");
    assert_eq!(config.bytes_per_block(), (2 * 8 + 24) * 4 * 4 * 2);
    let mut cache = KvCache::new(config);
    cache.grow(SEQ, 6).unwrap();
    let mut session = cache.session(&[SeqRange { seq: SEQ, start: 0, len: 6 }]).unwrap();
    for (layer, KvHeads { kv_heads, head_dim }) in HEADS.into_iter().enumerate() {
        let out = attend(&mut session, layer, 6);
        assert_eq!(out.dims(), [6, 2 * kv_heads, head_dim]);
    }
}

#[test]
fn stored_rows_are_read_again_as_they_were_attended_to() {
    for codec in ["f32", "f16", "turbo4", "taper3"] {
        let mut cache = KvCache::new(config(codec));
        cache.grow(SEQ, 6).unwrap();
        let mut session = cache.session(&[SeqRange { seq: SEQ, start: 0, len: 6 }]).unwrap();
        for (layer, KvHeads { kv_heads, head_dim }) in HEADS.into_iter().enumerate() {
            let first = attend(&mut session, layer, 6).to_vec().unwrap();
            let q = rows(6, 2 * kv_heads * head_dim, 3);
            let q = q.reshape(&[6, 2 * kv_heads, head_dim]).unwrap();
            let again = session.attend_stored(LayerId(layer as u16), &q, &PARAMS).unwrap();
            assert_eq!(first, again.to_vec().unwrap(), "{codec}, layer {layer}");
        }
        let q = rows(6, 16, 0).reshape(&[6, 2, 8]).unwrap();
        assert!(session.attend_stored(LayerId(2), &q, &PARAMS).is_err());
    }
}

#[test]
fn a_codec_that_cannot_keep_a_layer_says_so_before_it_is_asked_to() {
    assert!(config("turbo4").check().is_ok());
    let mut odd = config("turbo4");
    odd.layer_heads[1].head_dim = 7;
    assert!(matches!(odd.check(), Err(KvCodecError::HeadDim { head_dim: 7 })));
    let mut plain = config("f16");
    plain.layer_heads[1].head_dim = 7;
    assert!(plain.check().is_ok());
}
