//! Layers whose heads differ, and layers that read the keys and values of others.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use taper_base::{LayerId, SeqId};
use taper_kv_cache::{KvCache, KvConfig, KvHeads, SeqRange, StateSession};
use taper_kv_codecs::{Arithmetic, AttnParams, KvCodecError, KvGeometry, Mutual};
use taper_tensor::{Projected, RopeTable, Tensor};

const SEQ: SeqId = SeqId(7);
const HEADS: [KvHeads; 2] = [heads(2, 8), heads(1, 24)];
const PARAMS: AttnParams<'_> = AttnParams {
    scale: 1.0,
    window: None,
    chunk: None,
    mutual: Mutual { spans: &[], past_window: false },
    soft_cap: None,
    sinks: None,
    value_dim: None,
    arithmetic: Arithmetic::Exact,
};

const fn heads(kv_heads: usize, head_dim: usize) -> KvHeads {
    KvHeads { kv_heads, head_dim, values_in_keys: false }
}

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
    let KvHeads { kv_heads, head_dim, .. } = HEADS[layer];
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
    for (layer, KvHeads { kv_heads, head_dim, .. }) in HEADS.into_iter().enumerate() {
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
        for (layer, KvHeads { kv_heads, head_dim, .. }) in HEADS.into_iter().enumerate() {
            let first = attend(&mut session, layer, 6).to_vec().unwrap();
            let q = rows(6, 2 * kv_heads * head_dim, 3);
            let q = q.reshape(&[6, 2 * kv_heads, head_dim]).unwrap();
            let again = session.attend_stored(LayerId(layer as u16), &q, None, &PARAMS).unwrap();
            assert_eq!(first, again.to_vec().unwrap(), "{codec}, layer {layer}");
            let (q, rows) = (taper_tensor::ops::take_rows, [1u32, 5]);
            let flat = again.reshape(&[6, 2 * kv_heads * head_dim]).unwrap();
            let wanted = q(&flat, &rows).unwrap().to_vec().unwrap();
            let some = q(&self::rows(6, 2 * kv_heads * head_dim, 3), &rows).unwrap();
            let some = some.reshape(&[2, 2 * kv_heads, head_dim]).unwrap();
            let id = LayerId(layer as u16);
            let few = session.attend_stored(id, &some, Some(&rows), &PARAMS).unwrap();
            assert_eq!(few.to_vec().unwrap(), wanted, "{codec}, layer {layer}, of some rows");
        }
        let q = rows(6, 16, 0).reshape(&[6, 2, 8]).unwrap();
        assert!(session.attend_stored(LayerId(2), &q, None, &PARAMS).is_err());
        assert!(session.attend_stored(LayerId(0), &q, Some(&[1, 9]), &PARAMS).is_err());
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

#[test]
fn values_at_the_ends_of_keys_take_no_room_of_their_own() {
    let rope = RopeTable::new(vec![1.0, 0.1], 1.0).angles(&[0, 1, 2, 3, 4, 5]);
    for (codec, saves) in [("f32", true), ("f16", true), ("turbo4", false)] {
        let results = [false, true].map(|values_in_keys| {
            let one = [KvHeads { values_in_keys, ..heads(1, 12) }];
            let geometry = KvGeometry { kv_heads: 1, head_dim: 12, block_tokens: 4 };
            let codec = taper_kv_codecs::parse(codec).unwrap();
            let config =
                KvConfig { layer_heads: one.to_vec(), ..KvConfig::new(codec, 1, geometry, 8) };
            let bytes = config.bytes_per_block();
            let mut cache = KvCache::new(config);
            cache.grow(SEQ, 6).unwrap();
            let mut session = cache.session(&[SeqRange { seq: SEQ, start: 0, len: 6 }]).unwrap();
            let (q, k) = (rows(6, 24, 3), rows(6, 12, 1));
            let (norms, rope, next) = (None, Some(&rope), None);
            let rows = Projected { q: &q, k: &k, v: &k, head_dim: 12, norms, rope, next };
            // The rotated elements are none of the value's.
            let params = AttnParams { value_dim: values_in_keys.then_some(8), ..PARAMS };
            let out = session.attend(LayerId(0), &rows, &params).unwrap();
            let (n, out) = (out.dims()[2], out.to_vec().unwrap());
            let ends: Vec<_> = out.chunks_exact(n).flat_map(|h| h[n - 8..].to_vec()).collect();
            (bytes, ends)
        });
        let [(two, apart), (one, within)] = results;
        assert_eq!(apart, within, "{codec}");
        assert_eq!(one, if saves { two / 2 } else { two }, "{codec}");
    }
}
