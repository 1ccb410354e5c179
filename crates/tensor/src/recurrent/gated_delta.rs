//! Gated DeltaNet (Yang et al., arXiv 2412.06464): linear attention whose state is a matrix per head,
//! decayed and corrected by a delta rule at every token. Qwen3-Next, Qwen 3.5 and OLMo Hybrid have it in
//! most layers. Kimi Delta Attention (arXiv 2510.26692) decays each key channel on its own.
//!
//! Rows of the state need no other, so heads and sequences run in parallel.

use super::{
    CausalConv, Columns, ConvShape, Part, RecurrentSegment, RunSegments, check_segments, rows_of,
    rows_there, sigmoid, softplus,
};
use crate::{
    Result, Tensor, TensorError,
    cpu::{gated, rms_norm},
    gpu::{
        Resident,
        recurrent::{HeadNorm, Heads, HeadsShape, MAX_KEY, Rule, Strided},
    },
    host,
    ops::Activation,
    pool,
    tensor::GpuTensor,
};
use multiversion::multiversion;

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
    /// Whether each key channel of the state decays on its own, and not each head (Kimi Delta Attention).
    pub decay_per_key: bool,
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

    /// Decays of a token.
    #[must_use]
    pub fn decays(self) -> usize {
        self.value_heads * if self.decay_per_key { self.key_dim } else { 1 }
    }

    /// Whether GPUs have registers for a column of a head's state.
    #[must_use]
    pub fn fits_gpus(self) -> bool {
        self.key_dim <= MAX_KEY
    }

    fn conv(self) -> ConvShape {
        ConvShape { channels: self.channels(), kernel: self.kernel }
    }

    /// Elements of the state: the convolution's last rows `[kernel - 1, channels]`, then a matrix
    /// `[key_dim, value_dim]` per value head, the other way round on a GPU.
    #[must_use]
    pub fn state_len(self) -> usize {
        self.conv().state_len() + self.values() * self.key_dim
    }
}

/// What makes a token's output of what was read from the state, beside the norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputGate {
    /// `z * sigmoid(z)`.
    Silu,
    /// `sigmoid(z)`.
    Sigmoid,
}

/// The parameters of a layer that are no matrices.
#[derive(Debug, Clone)]
pub struct GatedDeltaParams {
    /// The depthwise convolution, `[channels, kernel]`.
    pub conv: Vec<f32>,
    /// `A_log`, one a value head.
    pub a_log: Vec<f32>,
    /// `dt_bias`, one a decay.
    pub dt_bias: Vec<f32>,
    /// What is written of a value, at most: 2 allows the state negative eigenvalues (arXiv 2411.12537).
    pub write: f32,
    /// How `z` gates the output.
    pub gate: OutputGate,
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
    /// How much of the state stays, before its softplus, `[t, decays]`.
    pub a: &'a Tensor,
}

/// The recurrence of a layer, between its projections.
#[derive(Debug, Clone)]
pub struct GatedDelta {
    shape: GatedDeltaShape,
    conv: CausalConv,
    /// `exp(A_log)`.
    rates: Resident,
    dt_bias: Resident,
    write: f32,
    gate: OutputGate,
    norm: Resident,
    norm_eps: f32,
}

const OP: &str = "gated delta";

impl GatedDelta {
    /// A layer's recurrence.
    ///
    /// # Errors
    /// Sizes of zero, value heads that are no multiple of key heads, or parameters of another length.
    pub fn new(shape: GatedDeltaShape, params: GatedDeltaParams) -> Result<Self> {
        let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim, kernel, .. } = shape;
        let sizes = [key_heads, value_heads, key_dim, value_dim, kernel];
        if sizes.contains(&0) || !value_heads.is_multiple_of(key_heads) {
            let expected = "positive sizes, value heads a multiple of key heads";
            return Err(TensorError::shape(OP, expected, &sizes));
        }
        let GatedDeltaParams { conv, a_log, dt_bias, write, gate, norm, norm_eps } = params;
        let (decays, lengths) = (shape.decays(), [a_log.len(), dt_bias.len(), norm.len()]);
        if lengths != [value_heads, decays, value_dim] {
            let expected = format!("A_log [{value_heads}], dt_bias [{decays}], norm [{value_dim}]");
            return Err(TensorError::shape(OP, expected, &lengths));
        }
        let conv = CausalConv::new(shape.conv(), &conv, None, true)?;
        let rates = Resident::new(a_log.iter().map(|a| a.exp()).collect());
        let (dt_bias, norm) = (Resident::new(dt_bias), Resident::new(norm));
        Ok(Self { shape, conv, rates, dt_bias, write, gate, norm, norm_eps })
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
    /// Shapes that do not fit, or an error of `over`.
    pub fn forward<E: From<TensorError>>(
        &self,
        inputs: GatedDeltaInputs<'_>,
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let (shape, values) = (self.shape, self.shape.values());
        let (t, _) = host::dims2(OP, inputs.qkv)?;
        if inputs.qkv.gpu().is_some() {
            return self.forward_there(inputs, t, over);
        }
        let qkv = rows_of(OP, inputs.qkv, t, shape.channels())?;
        let z = rows_of(OP, inputs.z, t, values)?;
        let b = rows_of(OP, inputs.b, t, shape.value_heads)?;
        let a = rows_of(OP, inputs.a, t, shape.decays())?;
        let rows = Rows { qkv: Columns::all(&qkv, shape.channels()), b: &b, a: &a };
        let mut out = vec![0.0; t * values];
        over(&mut |segments| self.run(&rows, segments.on_host(OP)?, &mut out))?;
        let mut normed = rms_norm(&out, self.norm.host(), self.norm_eps);
        let out = match self.gate {
            OutputGate::Silu => gated(Activation::Silu, &z, &normed),
            OutputGate::Sigmoid => {
                normed.iter_mut().zip(&z).for_each(|(x, z)| *x *= sigmoid(*z));
                normed
            }
        };
        Ok(Tensor::from_vec(out, &[t, values])?)
    }

    /// [`Self::forward`] on a GPU.
    fn forward_there<E: From<TensorError>>(
        &self,
        inputs: GatedDeltaInputs<'_>,
        t: usize,
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let (shape, keys) = (self.shape, self.shape.keys());
        let (weights, bias) = self.conv.parameters();
        let norm = HeadNorm {
            z: rows_there(OP, inputs.z, t, shape.values())?,
            gains: &self.norm,
            eps: self.norm_eps,
            gate: u32::from(self.gate == OutputGate::Sigmoid),
        };
        let heads = Heads {
            shape: HeadsShape {
                key_heads: shape.key_heads,
                value_heads: shape.value_heads,
                key_dim: shape.key_dim,
                value_dim: shape.value_dim,
                kernel: shape.kernel,
                channels: shape.channels(),
                at: [0, keys, 2 * keys],
                decays: shape.decays(),
            },
            x: Strided::all(rows_there(OP, inputs.qkv, t, shape.channels())?),
            a: Strided::all(rows_there(OP, inputs.a, t, shape.decays())?),
            b: Some(rows_there(OP, inputs.b, t, shape.value_heads)?),
            weights,
            bias,
            rates: &self.rates,
            dt_bias: &self.dt_bias,
            rule: Rule::Delta { write: self.write },
            norm: Some(norm),
        };
        let out = GpuTensor::new(norm.z.gpu(), &[t, shape.values()])?;
        over(&mut |segments| {
            let states = segments.on_gpu(OP)?;
            states.check(OP, t, shape.state_len())?;
            heads.launch(&states, &out)
        })?;
        Ok(out.into())
    }

    /// Segments of different sequences.
    fn run(
        &self,
        rows: &Rows<'_>,
        segments: &mut [RecurrentSegment<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let (shape, values) = (self.shape, self.shape.values());
        check_segments(OP, segments, out.len() / values, shape.state_len())?;
        let history = shape.conv().state_len();
        let mix = |segment: &mut RecurrentSegment<'_>| {
            let before = &mut segment.state[..history];
            self.conv.run(&rows.qkv, &segment.rows, before, |row| self.normalise(row))
        };
        let mixed: Vec<_> = segments.iter_mut().map(mix).collect();
        let mut heads = Part::all(segments, &mixed, history, (shape.value_dim, shape.key_dim));
        pool::for_each(&mut heads, |_, head| self.recur(rows, head));
        Part::gather(heads, values, out);
        Ok(())
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

    /// A value head over its segment, token by token. Its state is `[key_dim, value_dim]`.
    fn recur(&self, rows: &Rows<'_>, job: &mut Part<'_>) {
        let GatedDeltaShape { key_heads, value_heads, key_dim, value_dim, .. } = self.shape;
        let (h, channels, keys) = (job.index, self.shape.channels(), self.shape.keys());
        let key = h / (value_heads / key_heads) * key_dim;
        let (mut delta, mut keep) = (vec![0.0; value_dim], vec![0.0; key_dim]);
        let tokens = job.mixed.chunks_exact(channels).zip(job.out.chunks_exact_mut(value_dim));
        for (row, (mixed, out)) in job.rows.clone().zip(tokens) {
            self.decays(rows.a, (row, h), &mut keep);
            let write = self.write * sigmoid(rows.b[row * value_heads + h]);
            let q = &mixed[key..][..key_dim];
            let k = &mixed[keys + key..][..key_dim];
            let v = &mixed[2 * keys + h * value_dim..][..value_dim];
            delta_step(job.state, (&keep, write), (q, k, v), &mut delta, out);
        }
    }

    /// What stays of each key channel of a head's state.
    fn decays(&self, a: &[f32], (row, head): (usize, usize), keep: &mut [f32]) {
        let (rate, dt_bias) = (self.rates.host()[head], self.dt_bias.host());
        let decay = |x: f32| (-rate * softplus(x)).exp();
        let at = row * self.shape.decays();
        if self.shape.decay_per_key {
            let own = head * keep.len()..(head + 1) * keep.len();
            let inputs = a[at..][own.clone()].iter().zip(&dt_bias[own]);
            keep.iter_mut().zip(inputs).for_each(|(keep, (a, bias))| *keep = decay(a + bias));
        } else {
            keep.fill(decay(a[at + head] + dt_bias[head]));
        }
    }
}

/// A step's inputs on the host.
struct Rows<'a> {
    qkv: Columns<'a>,
    b: &'a [f32],
    a: &'a [f32],
}

/// One token: `S = diag(keep) S; d = write (v - Sᵀk); S += k dᵀ; out = Sᵀq`, with `S [key_dim, value_dim]`.
///
/// Products and sums are not fused, and each element is summed over keys in their order: every set of
/// vector instructions gives identical bits.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn delta_step(
    state: &mut [f32],
    (keep, write): (&[f32], f32),
    (q, k, v): (&[f32], &[f32], &[f32]),
    delta: &mut [f32],
    out: &mut [f32],
) {
    let n = v.len();
    delta.fill(0.0);
    for ((row, k), keep) in state.chunks_exact_mut(n).zip(k).zip(keep) {
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
mod tests;
