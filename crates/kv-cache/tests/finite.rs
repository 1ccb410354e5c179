//! Blocks whose rows are not finite are not published.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use taper_base::{LayerId, SeqId, TokenId};
use taper_kv_cache::{ExactRoom, KvCache, KvConfig, SeqRange, StateSession};
use taper_kv_codecs::{AttnParams, Exact, KvGeometry};
use taper_tensor::{Projected, Tensor};

const LAYERS: u16 = 2;
const WIDTH: usize = 2 * 8;

fn cache(codec: &str) -> KvCache {
    let geometry = KvGeometry { kv_heads: 2, head_dim: 8, block_tokens: 4 };
    let codec = taper_kv_codecs::parse(codec).unwrap();
    let tokens = Exact { sink_tokens: 4, recent_tokens: 4 };
    KvCache::new(KvConfig {
        exact: Some(ExactRoom::for_sequences(tokens, 8, 64, 4)),
        prefix_caching: true,
        ..KvConfig::new(codec, LAYERS.into(), geometry, 32)
    })
}

/// One step of some sequences, all of whose rows are ones but for `bad`: the layer, the row, whether it is of
/// values, and what is there.
fn step(cache: &mut KvCache, ranges: &[SeqRange], bad: Option<(u16, usize, bool, f32)>) {
    let t: usize = ranges.iter().map(|range| range.len).sum();
    let ones = || vec![1.0; t * WIDTH];
    let tensor = |x: Vec<f32>| Tensor::from_vec(x, &[t, WIDTH]).unwrap();
    let q: Tensor = tensor(ones());
    let mut session = cache.session(ranges).unwrap();
    for layer in 0..LAYERS {
        let (mut k, mut v) = (ones(), ones());
        if let Some((_, row, value, x)) = bad.filter(|(of, ..)| *of == layer) {
            let side = if value { &mut v } else { &mut k };
            side[row * WIDTH + 3] = x;
        }
        let (k, v) = (tensor(k), tensor(v));
        let rows =
            Projected { q: &q, k: &k, v: &v, head_dim: 8, norms: None, rope: None, next: None };
        session.attend(LayerId(layer), &rows, &AttnParams::new(0.3)).unwrap();
    }
}

#[test]
fn a_block_with_a_row_that_is_not_finite_and_all_after_it_stay_private() {
    let tokens: Vec<TokenId> = (0..24).collect();
    for codec in ["f32", "f16", "taper4", "turbo4", "affine8"] {
        for (value, x) in [(false, f32::NAN), (true, f32::INFINITY), (true, f32::NEG_INFINITY)] {
            let mut c = cache(codec);
            c.grow(SeqId(1), 24).unwrap();
            c.grow(SeqId(2), 24).unwrap();
            // The second sequence's rows come after the first's in the step.
            let other: Vec<TokenId> = (100..124).collect();
            let both = [(1, 0, 6), (2, 0, 10)].map(|(seq, start, len)| SeqRange {
                seq: SeqId(seq),
                start,
                len,
            });
            step(&mut c, &both, Some((LAYERS - 1, 6 + 5, value, x)));
            c.publish(SeqId(1), &tokens[..6]);
            c.publish(SeqId(2), &other[..10]);
            let rest = [(1, 6, 18), (2, 10, 14)].map(|(seq, start, len)| SeqRange {
                seq: SeqId(seq),
                start,
                len,
            });
            step(&mut c, &rest, None);
            c.publish(SeqId(1), &tokens);
            c.publish(SeqId(2), &other);
            assert_eq!(c.adopt(SeqId(3), &tokens), 24, "{codec} {x}: sound ones");
            assert_eq!(c.adopt(SeqId(4), &other), 4, "{codec} {x}: up to the row's block");
            (1..5).for_each(|seq| c.release(SeqId(seq)));
            // The tokens are not to blame: rows that are computed anew may be finite.
            c.grow(SeqId(5), 24).unwrap();
            step(&mut c, &[SeqRange { seq: SeqId(5), start: 0, len: 24 }], None);
            c.publish(SeqId(5), &other);
            assert_eq!(c.adopt(SeqId(6), &other), 24, "{codec} {x}: anew");
        }
    }
}
