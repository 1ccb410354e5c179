//! Gaussian rows and small sums.

use taper_base::BlockId;
use taper_kv_codecs::{
    AttnBatch, AttnParams, KvCodec, KvGeometry, LayerPages, PagedCodec, Scheme, SeqSpan,
};
use taper_tensor::Tensor;

/// Independent `N(0, 1)`; seeds have nothing to do with those of rotations.
pub(crate) fn gaussian(n: usize, seed: u64) -> Vec<f32> {
    let mut s = (seed ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        ((s >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    (0..10).for_each(|_| {
        uniform();
    });
    let mut out = Vec::with_capacity(n + 1);
    while out.len() < n {
        let (a, b) = (uniform(), uniform());
        let (r, t) = ((-2.0 * a.ln()).sqrt(), 2.0 * std::f64::consts::PI * b);
        out.extend([(r * t.cos()) as f32, (r * t.sin()) as f32]);
    }
    out.truncate(n);
    out
}

pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

pub(crate) fn square(x: &[f32]) -> f64 {
    dot(x, x)
}

pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum()
}

/// Rows of unit length.
pub(crate) fn unit_rows(n: usize, d: usize, seed: u64) -> Vec<f32> {
    let mut x = gaussian(n * d, seed);
    for row in x.chunks_exact_mut(d) {
        let norm = square(row).sqrt() as f32;
        row.iter_mut().for_each(|x| *x /= norm);
    }
    x
}

#[track_caller]
pub(crate) fn near(got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance, "{got} is not {want} +- {tolerance}");
}

/// Softmax in f64.
pub(crate) fn softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|l| (l - max).exp()).sum();
    logits.iter().map(|l| (l - max).exp() / total).collect()
}

/// A sequence in the pages of a codec, one block after the other.
pub(crate) struct Stored {
    pub(crate) codec: PagedCodec,
    pub(crate) geometry: KvGeometry,
    pub(crate) pages: LayerPages,
    pub(crate) tokens: usize,
}

impl Stored {
    /// `k`, `v`: `[tokens, kv_heads, head_dim]`.
    pub(crate) fn new(name: &str, geometry: KvGeometry, k: &[f32], v: &[f32]) -> Self {
        Self::with(PagedCodec::new(name, Scheme::parse(name).unwrap()), geometry, k, v)
    }

    pub(crate) fn with(codec: PagedCodec, geometry: KvGeometry, k: &[f32], v: &[f32]) -> Self {
        let tokens = k.len() / (geometry.kv_heads * geometry.head_dim);
        let blocks = tokens.div_ceil(geometry.block_tokens);
        let mut pages = LayerPages::zeroed(codec.block_bytes(geometry), blocks);
        let slots: Vec<_> = (0..tokens).collect();
        let (k, v) = (rows(geometry, k), rows(geometry, v));
        codec.encode(geometry, &k, &v, &slots, &mut pages).unwrap();
        Self { codec, geometry, pages, tokens }
    }

    pub(crate) fn decode(&self) -> (Vec<f32>, Vec<f32>) {
        let slots: Vec<_> = (0..self.tokens).collect();
        let (k, v) = self.codec.decode(self.geometry, &slots, &self.pages).unwrap();
        (values(&k), values(&v))
    }

    /// Attention of the last token, `[heads, head_dim]`.
    pub(crate) fn attend(&self, q: &[f32], scale: f32) -> Vec<f32> {
        self.attend_with(&self.codec, q, scale)
    }

    pub(crate) fn attend_with(&self, codec: &PagedCodec, q: &[f32], scale: f32) -> Vec<f32> {
        let d = self.geometry.head_dim;
        let blocks: Vec<_> =
            (0..self.tokens.div_ceil(self.geometry.block_tokens) as u32).map(BlockId).collect();
        let seqs = vec![SeqSpan {
            q_len: 1,
            kv_len: self.tokens,
            blocks: &blocks,
            exact: None,
            together: None,
        }];
        let q = Tensor::from_vec(q.to_vec(), &[1, q.len() / d, d]).unwrap();
        let params = AttnParams::new(scale);
        let batch = AttnBatch { seqs };
        values(&codec.attend(self.geometry, &q, &self.pages, &batch, &params).unwrap())
    }
}

pub(crate) fn rows(g: KvGeometry, x: &[f32]) -> Tensor {
    let tokens = x.len() / (g.kv_heads * g.head_dim);
    Tensor::from_vec(x.to_vec(), &[tokens, g.kv_heads, g.head_dim]).unwrap()
}

pub(crate) fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap()
}

/// One KV head of 128 in blocks of 64.
pub(crate) const ONE_HEAD: KvGeometry = KvGeometry { kv_heads: 1, head_dim: 128, block_tokens: 64 };

/// Softmax attention in f64 over rows of one KV head: `[heads, d]`.
pub(crate) fn reference(q: &[f32], k: &[f32], v: &[f32], d: usize, scale: f32) -> Vec<f32> {
    let mut out = Vec::new();
    for q in q.chunks_exact(d) {
        let logits: Vec<_> = k.chunks_exact(d).map(|k| dot(q, k) * f64::from(scale)).collect();
        let mut sum = vec![0.0; d];
        for (p, v) in softmax(&logits).into_iter().zip(v.chunks_exact(d)) {
            sum.iter_mut().zip(v).for_each(|(s, v)| *s += p * f64::from(*v));
        }
        out.extend(sum.into_iter().map(|x| x as f32));
    }
    out
}
