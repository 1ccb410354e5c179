//! Gated DeltaNet (Yang et al., arXiv 2412.06464): linear attention whose state is a matrix per head,
//! decayed and corrected by a delta rule at every token. Qwen3-Next and Qwen 3.5 have it in most layers.
//!
//! Tokens are taken one after the other in prefill and in decoding, so every way of cutting a prompt
//! gives identical bits. Rows of the state need no other, so heads and sequences run in parallel.

use crate::{
    Result, Tensor, TensorError,
    cpu::{gated, rms_norm, silu_mul_row},
    host,
    ops::Activation,
    pool,
};
use multiversion::multiversion;
use std::ops::Range;

/// Consecutive tokens of one sequence, and the state that the layer keeps for it.
#[derive(Debug)]
pub struct RecurrentSegment<'a> {
    /// The tokens' rows in the step.
    pub rows: Range<usize>,
    /// What the tokens before left, and where these leave theirs.
    pub state: &'a mut [f32],
}

/// Sizes of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDeltaShape {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`; value head `h` reads key head `h / r`.
    pub value_heads: usize,
    /// Elements of a query's and a key's head.
    pub key_dim: usize,
    /// Elements of a value's head.
    pub value_dim: usize,
    /// Tokens that the convolution sees, the current one included.
    pub kernel: usize,
}

impl GatedDeltaShape {
    /// Elements of all queries.
    fn keys(self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of all values, and of the layer's output.
    #[must_use]
    pub fn values(self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Elements that the convolution mixes: queries, keys and values of a token.
    #[must_use]
    pub fn channels(self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Rows that the convolution keeps of the tokens before, as elements.
    fn history(self) -> usize {
        self.kernel.saturating_sub(1) * self.channels()
    }

    /// Elements of the state: the convolution's last rows `[kernel - 1, channels]`, then a matrix
    /// `[key_dim, value_dim]` per value head.
    #[must_use]
    pub fn state_len(self) -> usize {
        self.history() + self.values() * self.key_dim
    }
}

/// The parameters of a layer that are no matrices.
#[derive(Debug, Clone)]
pub struct GatedDeltaParams {
    /// The depthwise convolution, `[channels, kernel]`.
    pub conv: Vec<f32>,
    /// `A_log`, one a value head.
    pub a_log: Vec<f32>,
    /// `dt_bias`, one a value head.
    pub dt_bias: Vec<f32>,
    /// Gains of the norm of each head's output, `value_dim`.
    pub norm: Vec<f32>,
    /// Added to that norm's mean square.
    pub norm_eps: f32,
}

/// What a step's tokens are projected to.
#[derive(Debug, Clone, Copy)]
pub struct GatedDeltaInputs<'a> {
    /// Queries, keys and values before the convolution, `[t, channels]`.
    pub qkv: &'a Tensor,
    /// The output's gate, `[t, values]`.
    pub z: &'a Tensor,
    /// How much of a value is written, before its sigmoid, `[t, value_heads]`.
    pub b: &'a Tensor,
    /// How much of the state stays, before its softplus, `[t, value_heads]`.
    pub a: &'a Tensor,
}

/// The recurrence of a layer, between its projections. Runs on the CPU.
#[derive(Debug, Clone)]
pub struct GatedDelta {
    shape: GatedDeltaShape,
    /// `[kernel, channels]`.
    conv: Vec<f32>,
    /// `-exp(A_log)`.
    decay: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
    norm_eps: f32,
    /// As many as channels.
    ones: Vec<f32>,
}

/// Calls a function with segments of the step, as often as the cache must cut it.
pub type RunSegments<'a> = dyn FnMut(&mut [RecurrentSegment<'_>]) -> Result<()> + 'a;

const OP: &str = "gated delta";

impl GatedDelta {
    /// A layer's recurrence.
    ///
    /// # Errors
    /// Sizes of zero, value heads that are no multiple of key heads, or parameters of another length.
    pub fn new(shape: GatedDeltaShape, params: GatedDeltaParams) -> Result<Self> {
        let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim, kernel } = shape;
        let sizes = [key_heads, value_heads, key_dim, value_dim, kernel];
        if sizes.contains(&0) || !value_heads.is_multiple_of(key_heads) {
            let expected = "positive sizes, value heads a multiple of key heads";
            return Err(TensorError::shape(OP, expected, &sizes));
        }
        let GatedDeltaParams { conv, a_log, dt_bias, norm, norm_eps } = params;
        let channels = shape.channels();
        let lengths = [conv.len(), a_log.len(), dt_bias.len(), norm.len()];
        if lengths != [channels * kernel, value_heads, value_heads, value_dim] {
            let expected = format!(
                "conv [{channels}, {kernel}], A_log and dt_bias [{value_heads}], norm [{value_dim}]"
            );
            return Err(TensorError::shape(OP, expected, &lengths));
        }
        let column = |j: usize| conv.iter().skip(j).step_by(kernel).copied();
        Ok(Self {
            shape,
            conv: (0..kernel).flat_map(column).collect(),
            decay: a_log.iter().map(|a| -a.exp()).collect(),
            dt_bias,
            norm,
            norm_eps,
            ones: vec![1.0; channels],
        })
    }

    /// Sizes of the layer.
    #[must_use]
    pub fn shape(&self) -> GatedDeltaShape {
        self.shape
    }

    /// The layer's output before its last projection, `[t, values]`. `over` calls what it is given with
    /// the step's segments: each token once, those of one sequence in their order.
    ///
    /// # Errors
    /// Shapes that do not fit, a tensor on a GPU, or an error of `over`.
    pub fn forward<E: From<TensorError>>(
        &self,
        inputs: GatedDeltaInputs<'_>,
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let (values, heads) = (self.shape.values(), self.shape.value_heads);
        let (t, _) = host::dims2(OP, inputs.qkv)?;
        let host = |x: &Tensor, width| match *x.dims() == [t, width] {
            true => x.to_host(),
            false => Err(TensorError::shape(OP, format!("[{t}, {width}]"), x.dims())),
        };
        let qkv = host(inputs.qkv, self.shape.channels())?;
        let (z, b, a) = (host(inputs.z, values)?, host(inputs.b, heads)?, host(inputs.a, heads)?);
        let rows = Rows { qkv: qkv.as_slice(), b: b.as_slice(), a: a.as_slice() };
        let mut out = vec![0.0; t * values];
        over(&mut |segments| self.run(&rows, segments, &mut out))?;
        let normed = rms_norm(&out, &self.norm, self.norm_eps);
        Ok(Tensor::from_vec(gated(Activation::Silu, z.as_slice(), &normed), &[t, values])?)
    }

    /// Segments of different sequences.
    fn run(
        &self,
        rows: &Rows<'_>,
        segments: &mut [RecurrentSegment<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let (t, shape) = (out.len() / self.shape.values(), self.shape);
        for segment in segments.iter() {
            let (expected, got) = (shape.state_len(), segment.state.len());
            if got != expected || segment.rows.end > t || segment.rows.is_empty() {
                let expected = format!("rows of {t} and a state of {expected}");
                let got = [segment.rows.start, segment.rows.end, got];
                return Err(TensorError::shape(OP, expected, &got));
            }
        }
        let mixed: Vec<_> =
            segments.iter_mut().map(|segment| self.mix(rows.qkv, segment)).collect();
        let mut heads = Vec::with_capacity(segments.len() * shape.value_heads);
        for (segment, mixed) in segments.iter_mut().zip(&mixed) {
            let (_, matrices) = segment.state.split_at_mut(shape.history());
            let matrices = matrices.chunks_exact_mut(shape.key_dim * shape.value_dim);
            for (head, state) in matrices.enumerate() {
                let out = vec![0.0; segment.rows.len() * shape.value_dim];
                heads.push(Head { head, rows: segment.rows.clone(), mixed, state, out });
            }
        }
        pool::for_each(&mut heads, |_, head| self.recur(rows, head));
        for Head { head, rows, out: own, .. } in heads {
            for (row, own) in rows.zip(own.chunks_exact(shape.value_dim)) {
                let at = row * shape.values() + head * shape.value_dim;
                out[at..at + shape.value_dim].copy_from_slice(own);
            }
        }
        Ok(())
    }

    /// The convolution and its SiLU of a segment's rows, with queries and keys brought to length 1 (and
    /// queries scaled): `[rows, channels]`. Leaves the last rows in the state.
    fn mix(&self, qkv: &[f32], segment: &mut RecurrentSegment<'_>) -> Vec<f32> {
        let (channels, history) = (self.shape.channels(), self.shape.history());
        let before = &segment.state[..history];
        let own = &qkv[segment.rows.start * channels..segment.rows.end * channels];
        let row = |at: usize| match at * channels {
            at if at < history => &before[at..at + channels],
            at => &own[at - history..at - history + channels],
        };
        let mut mixed = vec![0.0; own.len()];
        let mut rows: Vec<_> = mixed.chunks_exact_mut(channels).collect();
        pool::for_each(&mut rows, |i, out| {
            let mut sums = vec![0.0; channels];
            for (j, weights) in self.conv.chunks_exact(channels).enumerate() {
                add_product(&mut sums, weights, row(i + j));
            }
            silu_mul_row(&sums, &self.ones, out);
            self.normalise(out);
        });
        let kept = segment.rows.len() * channels;
        let last: Vec<f32> = match kept.checked_sub(history) {
            Some(from) => own[from..].to_vec(),
            None => [&before[kept..], own].concat(),
        };
        segment.state[..history].copy_from_slice(&last);
        mixed
    }

    /// Queries and keys of a row divided by their length; queries by the root of their size, too.
    fn normalise(&self, row: &mut [f32]) {
        const EPS: f32 = 1e-6;
        let (keys, dim) = (self.shape.keys(), self.shape.key_dim);
        for (i, head) in row[..2 * keys].chunks_exact_mut(dim).enumerate() {
            let squares: f32 = head.iter().map(|x| x * x).sum();
            let scale = if i < self.shape.key_heads { (dim as f32).powf(-0.5) } else { 1.0 };
            let scale = scale / (squares + EPS).sqrt();
            head.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// A value head over its segment, token by token.
    fn recur(&self, rows: &Rows<'_>, job: &mut Head<'_>) {
        let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim, .. } = self.shape;
        let (h, channels, keys) = (job.head, self.shape.channels(), self.shape.keys());
        let key = h / (value_heads / key_heads) * key_dim;
        let mut delta = vec![0.0; value_dim];
        let tokens = job.mixed.chunks_exact(channels).zip(job.out.chunks_exact_mut(value_dim));
        for (row, (mixed, out)) in job.rows.clone().zip(tokens) {
            let at = row * value_heads + h;
            let keep = (self.decay[h] * softplus(rows.a[at] + self.dt_bias[h])).exp();
            let write = 1.0 / (1.0 + (-rows.b[at]).exp());
            let q = &mixed[key..][..key_dim];
            let k = &mixed[keys + key..][..key_dim];
            let v = &mixed[2 * keys + h * value_dim..][..value_dim];
            delta_step(job.state, (keep, write), (q, k, v), &mut delta, out);
        }
    }
}

/// A step's inputs on the host.
struct Rows<'a> {
    qkv: &'a [f32],
    b: &'a [f32],
    a: &'a [f32],
}

/// One value head of one segment.
struct Head<'a> {
    head: usize,
    rows: Range<usize>,
    mixed: &'a [f32],
    /// `[key_dim, value_dim]`.
    state: &'a mut [f32],
    /// `[rows, value_dim]`.
    out: Vec<f32>,
}

/// `ln(1 + exp(x))`, as torch computes it.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `sums += weights * x`, element by element.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn add_product(sums: &mut [f32], weights: &[f32], x: &[f32]) {
    for ((sum, w), x) in sums.iter_mut().zip(weights).zip(x) {
        *sum += w * x;
    }
}

/// One token: `S = keep S; d = write (v - Sᵀk); S += k dᵀ; out = Sᵀq`, with `S [key_dim, value_dim]`.
///
/// Products and sums are not fused, and each element is summed over keys in their order: every set of
/// vector instructions gives identical bits.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn delta_step(
    state: &mut [f32],
    (keep, write): (f32, f32),
    (q, k, v): (&[f32], &[f32], &[f32]),
    delta: &mut [f32],
    out: &mut [f32],
) {
    let n = v.len();
    delta.fill(0.0);
    for (row, k) in state.chunks_exact_mut(n).zip(k) {
        for (s, d) in row.iter_mut().zip(delta.iter_mut()) {
            *s *= keep;
            *d += k * *s;
        }
    }
    for (d, v) in delta.iter_mut().zip(v) {
        *d = write * (v - *d);
    }
    out.fill(0.0);
    for ((row, k), q) in state.chunks_exact_mut(n).zip(k).zip(q) {
        for ((s, d), o) in row.iter_mut().zip(delta.iter()).zip(out.iter_mut()) {
            *s += k * d;
            *o += q * *s;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: GatedDeltaShape =
        GatedDeltaShape { key_heads: 2, value_heads: 4, key_dim: 4, value_dim: 3, kernel: 4 };

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    fn layer() -> GatedDelta {
        let params = GatedDeltaParams {
            conv: noise(SHAPE.channels() * SHAPE.kernel, 1),
            a_log: noise(SHAPE.value_heads, 2),
            dt_bias: noise(SHAPE.value_heads, 3),
            norm: noise(SHAPE.value_dim, 4),
            norm_eps: 1e-6,
        };
        GatedDelta::new(SHAPE, params).unwrap()
    }

    fn inputs(t: usize) -> [Tensor; 4] {
        let widths = [SHAPE.channels(), SHAPE.values(), SHAPE.value_heads, SHAPE.value_heads];
        let mut seed = 10;
        widths.map(|width| {
            seed += 1;
            Tensor::from_vec(noise(t * width, seed), &[t, width]).unwrap()
        })
    }

    /// Output over segments that end at `cuts`, and the state after them.
    fn run(t: usize, cuts: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let [qkv, z, b, a] = &inputs(t);
        let mut state = vec![0.0; SHAPE.state_len()];
        let out = layer().forward(GatedDeltaInputs { qkv, z, b, a }, |run| {
            let mut from = 0;
            for &to in cuts {
                run(&mut [RecurrentSegment { rows: from..to, state: &mut state }])?;
                from = to;
            }
            Ok::<_, TensorError>(())
        });
        (host::read(&out.unwrap(), <[f32]>::to_vec).unwrap(), state)
    }

    #[test]
    fn every_cut_gives_identical_bits() {
        let whole = run(9, &[9]);
        for cut in 1..9 {
            assert_eq!(run(9, &[cut, 9]), whole, "cut at {cut}");
        }
        assert_eq!(run(9, &(1..=9).collect::<Vec<_>>()), whole);
    }

    #[test]
    fn sequences_of_a_step_do_not_touch_each_other() {
        let [qkv, z, b, a] = &inputs(9);
        let mut states = [vec![0.0; SHAPE.state_len()], vec![0.0; SHAPE.state_len()]];
        let [first, second] = &mut states;
        let out = layer().forward(GatedDeltaInputs { qkv, z, b, a }, |run| {
            run(&mut [
                RecurrentSegment { rows: 0..5, state: first },
                RecurrentSegment { rows: 5..9, state: second },
            ])
        });
        let out = host::read(&out.unwrap(), <[f32]>::to_vec).unwrap();
        let (alone, state) = run(5, &[5]);
        // Rows of `inputs` depend on their number, so the first five are compared by the longer run.
        let (longer, longer_state) = run(9, &[5, 9]);
        assert_eq!(out[..5 * SHAPE.values()], longer[..5 * SHAPE.values()]);
        assert_ne!(states[1], longer_state, "the second began anew");
        assert_eq!((alone.len(), state.len()), (5 * SHAPE.values(), SHAPE.state_len()));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let [qkv, z, b, a] = &inputs(2);
        let mut short = vec![0.0; SHAPE.state_len() - 1];
        let out = layer().forward(GatedDeltaInputs { qkv, z, b, a }, |run| {
            run(&mut [RecurrentSegment { rows: 0..2, state: &mut short }])
        });
        assert!(matches!(out, Err(TensorError::Shape { op: OP, .. })));
        let wrong = GatedDeltaInputs { qkv: z, z, b, a };
        let out = layer().forward(wrong, |_| Ok::<_, TensorError>(()));
        assert!(matches!(out, Err(TensorError::Shape { op: OP, .. })));
        let odd = GatedDeltaShape { key_heads: 3, ..SHAPE };
        let params = GatedDeltaParams {
            conv: vec![],
            a_log: vec![],
            dt_bias: vec![],
            norm: vec![],
            norm_eps: 0.0,
        };
        assert!(GatedDelta::new(odd, params.clone()).is_err());
        assert!(GatedDelta::new(SHAPE, params).is_err());
    }
}
