//! Rows that a step brings, written and attended to in one go.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use taper_base::BlockId;
use taper_kv_codecs::{
    Arithmetic, AttnBatch, AttnParams, KvCodec, KvCodecError, KvGeometry, LayerPages, SeqSpan,
    parse,
};
use taper_tensor::{Projected, RmsNorm, RopeAngles, RopeTable, Tensor, ops};

const G: KvGeometry = KvGeometry { kv_heads: 2, head_dim: 32, block_tokens: 16 };
const HEADS: usize = 6;
const BLOCKS: usize = 12;
/// Tokens in the cache and of the step, of each sequence, and where its blocks are.
const STEPS: [&[(usize, usize, &[u32])]; 3] = [
    &[(50, 1, &[7, 2, 9, 0])],
    &[(20, 1, &[3, 5]), (0, 1, &[1]), (31, 1, &[8, 6])],
    &[(0, 70, &[10, 1, 4, 11, 2]), (5, 23, &[6, 0])],
];

fn rows(t: usize, heads: usize, seed: usize) -> Tensor {
    let x = (0..t * heads * G.head_dim).map(|i| ((i * 37 + seed * 101) as f32 * 0.013).sin());
    Tensor::from_vec(x.collect(), &[t, heads * G.head_dim]).unwrap()
}

struct Step {
    batch: AttnBatch<'static>,
    slots: Vec<usize>,
    positions: Vec<u32>,
}

impl Step {
    fn new(seqs: &[(usize, usize, &'static [u32])]) -> Self {
        let (mut slots, mut positions) = (Vec::new(), Vec::new());
        let mut spans = Vec::new();
        for &(start, len, blocks) in seqs {
            let slot =
                |i| blocks[i / G.block_tokens] as usize * G.block_tokens + i % G.block_tokens;
            slots.extend((start..start + len).map(slot));
            positions.extend((start..start + len).map(|i| i as u32));
            let blocks: Vec<_> = blocks.iter().map(|&b| BlockId(b)).collect();
            let blocks = blocks.leak();
            spans.push(SeqSpan {
                q_len: len,
                kv_len: start + len,
                blocks,
                exact: None,
                together: None,
            });
        }
        Self { batch: AttnBatch { seqs: spans }, slots, positions }
    }
}

fn filled(codec: &dyn KvCodec) -> LayerPages {
    let mut pages = LayerPages::zeroed(codec.block_bytes(G), BLOCKS);
    let slots: Vec<_> = (0..BLOCKS * G.block_tokens).collect();
    let side = |seed| {
        rows(slots.len(), G.kv_heads, seed).reshape(&[slots.len(), G.kv_heads, G.head_dim]).unwrap()
    };
    codec.encode(G, &side(5), &side(6), &slots, &mut pages).unwrap();
    pages
}

fn floats(x: &Tensor) -> Vec<f32> {
    ops::with_host_f32(x, <[f32]>::to_vec).unwrap()
}

fn check(codec: &dyn KvCodec, step: &Step, norms: Option<(&RmsNorm, &RmsNorm)>, turned: bool) {
    let t = step.slots.len();
    let [q, k, v] = [(HEADS, 1), (G.kv_heads, 2), (G.kv_heads, 3)].map(|(h, s)| rows(t, h, s));
    let angles: RopeAngles =
        RopeTable::new((0..12).map(|i| 0.7f32.powi(i)).collect(), 1.0).angles(&step.positions);
    let rope = turned.then_some(&angles);
    let rows = Projected { q: &q, k: &k, v: &v, head_dim: G.head_dim, norms, rope, next: None };
    for arithmetic in [Arithmetic::Exact, Arithmetic::Rounded] {
        let params = AttnParams { window: Some(40), arithmetic, ..AttnParams::new(0.17) };
        let (mut one, mut two) = (filled(codec), filled(codec));
        let got = codec.attend_new(G, &rows, &step.slots, &mut one, &step.batch, &params);
        let got = got.unwrap().unwrap();
        let [q, k, v] = rows.turned().unwrap();
        codec.encode(G, &k, &v, &step.slots, &mut two).unwrap();
        let want = codec.attend(G, &q, &two, &step.batch, &params).unwrap();
        assert_eq!(got.dims(), want.dims());
        assert!(floats(&got) == floats(&want), "{}: {arithmetic:?}", codec.name());
        assert!(one.k.as_slice() == two.k.as_slice() && one.v.as_slice() == two.v.as_slice());
    }
}

#[test]
fn they_are_what_turning_writing_and_attending_give_to_the_bit() {
    let [q_norm, k_norm] =
        [0.3, 0.8].map(|g| RmsNorm::new((0..32).map(|i| g + i as f32 * 0.01).collect(), 1e-6));
    for name in ["f32", "f16", "bf16"] {
        let codec = parse(name).unwrap();
        for seqs in STEPS {
            let step = Step::new(seqs);
            for norms in [None, Some((&q_norm, &k_norm))] {
                check(&*codec, &step, norms, false);
                check(&*codec, &step, norms, true);
            }
        }
    }
}

#[test]
fn others_are_refused_and_nothing_is_written() {
    let codec = parse("f16").unwrap();
    let step = Step::new(STEPS[1]);
    let (q, k) = (rows(3, HEADS, 1), rows(3, G.kv_heads, 2));
    let (short, wide) = (rows(2, G.kv_heads, 3), rows(3, G.kv_heads + 1, 3));
    let mut pages = filled(&*codec);
    let mut refused = |q: &Tensor, k: &Tensor, v: &Tensor, slots: &[usize]| {
        let rows = Projected { q, k, v, head_dim: G.head_dim, norms: None, rope: None, next: None };
        let params = AttnParams::new(1.0);
        codec.attend_new(G, &rows, slots, &mut pages, &step.batch, &params).unwrap_err()
    };
    for wrong in [&short, &wide] {
        let errors = [refused(&q, wrong, &k, &step.slots), refused(&q, &k, wrong, &step.slots)];
        assert!(errors.iter().all(|e| matches!(e, KvCodecError::Shape { .. })), "{errors:?}");
    }
    let error = refused(&q, &k, &k, &[0, 1, BLOCKS * G.block_tokens]);
    assert!(matches!(error, KvCodecError::Slot { .. }), "{error}");
    assert!(pages.k.as_slice() == filled(&*codec).k.as_slice());
}
