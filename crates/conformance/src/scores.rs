//! Checks of key scores against sums in f64 over decoded keys.

use super::{Pair, noise};
use std::fmt;
use taper_base::BlockId;
use taper_kv_codecs::{KvCodecError, KvGeometry, LayerPages, parse_on};
use taper_tensor::{
    KeyScorer, Tensor,
    gpu::{Gpu, attention::BLOCK_TOKENS},
};

#[derive(Debug, Clone)]
pub(super) struct Case {
    codec: &'static str,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    tokens: usize,
}

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let names = ["f16", "bf16", "f32"].into_iter().chain(super::FORMATS);
    let mut cases = Vec::new();
    for (i, codec) in names.enumerate() {
        // More heads than a threadgroup takes at once; one token, whole and partial blocks, blocks
        // being filled.
        let shapes = [(2, 4, 128), (1, 11, 64), (2, 1, 24), (1, 3, 80), (1, 2, 256), (3, 8, 16)];
        let lengths = [129, 77, 32, 1, 65, 300];
        for j in 0..if quick { 2 } else { shapes.len() } {
            let at = (i + j) % shapes.len();
            let (kv_heads, group, head_dim) = shapes[if j == 0 { 0 } else { at }];
            cases.push(Case { codec, kv_heads, group, head_dim, tokens: lengths[(i + 2 * j) % 6] });
        }
    }
    cases
}

impl Case {
    pub(super) fn run(&self, gpu: &Gpu, seed: u64) -> Result<Pair, KvCodecError> {
        let &Self { kv_heads, group, head_dim: d, tokens, .. } = self;
        let g = KvGeometry { kv_heads, head_dim: d, block_tokens: BLOCK_TOKENS };
        let (codec, mut state) = (parse_on(self.codec, gpu)?, seed);
        let n = tokens.div_ceil(BLOCK_TOKENS);
        // Every other block, backwards or not.
        let all = 2 * n as u32 + 1;
        let backwards = super::next_bits(&mut state).is_multiple_of(2);
        let place = |i: u32| if backwards { all - 1 - 2 * i } else { 2 * i };
        let blocks: Vec<_> = (0..n as u32).map(|i| BlockId(place(i))).collect();
        let mut pages = LayerPages::zeroed(codec.block_bytes(g), all as usize);
        let bias = noise(&mut state, kv_heads * d);
        let mut keys = noise(&mut state, tokens * kv_heads * d);
        keys.iter_mut().enumerate().for_each(|(i, k)| *k += 2.0 * bias[i % bias.len()]);
        let rows = Tensor::from_vec(keys, &[tokens, kv_heads, d])?.to_gpu(gpu)?;
        let slots = super::slots(&blocks, tokens);
        codec.encode(g, &rows, &rows, &slots, &mut pages)?;
        let heads = kv_heads * group;
        let (vectors, weights) = (noise(&mut state, heads * d), noise(&mut state, heads * d / 2));
        let scorer = KeyScorer::new((heads, d), vectors, weights)?;
        let got = codec.key_scores(g, &scorer, &pages, (&blocks, tokens))?;
        let keys = codec.decode(g, &slots, &pages)?.0.to_vec()?;
        Ok((got, self.reference(&scorer, &keys)))
    }

    fn reference(&self, scorer: &KeyScorer, keys: &[f32]) -> Vec<f32> {
        let (d, heads) = (self.head_dim, self.kv_heads * self.group);
        let mut want = Vec::with_capacity(heads * self.tokens);
        for (head, vector) in scorer.vectors().chunks_exact(d).enumerate() {
            for token in 0..self.tokens {
                let at = (token * self.kv_heads + head / self.group) * d;
                let key: Vec<_> = keys[at..at + d].iter().map(|&x| f64::from(x)).collect();
                let product: f64 = vector.iter().zip(&key).map(|(&q, k)| f64::from(q) * k).sum();
                let weights = &scorer.weights()[head * d / 2..];
                let modulus = |f: usize| key[f].hypot(key[f + d / 2]);
                let sum: f64 = (0..d / 2).map(|f| f64::from(weights[f]) * modulus(f)).sum();
                want.push((product + sum) as f32);
            }
        }
        want
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self { codec, kv_heads, group, head_dim, tokens } = self;
        write!(f, "scores of {codec} {kv_heads}x{group}x{head_dim}, {tokens} tokens")
    }
}
