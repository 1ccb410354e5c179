//! Mamba 2 (Dao & Gu, arXiv 2405.21060): a state space model whose state is a matrix per head, decayed by
//! one number a token. Nemotron-H, Granite 4 and Falcon-H1 have it in most layers.
//!
//! Rows of the state need no other, so heads and sequences run in parallel.

use super::{
    CausalConv, Columns, ConvShape, Part, RecurrentSegment, RunSegments, check_segments, rows_of,
    rows_there, softplus,
};
use crate::{
    Result, Tensor, TensorError,
    cpu::{gated, rms_norm},
    gpu::{
        Resident,
        recurrent::{Heads, HeadsShape, MAX_KEY, Rule, Strided, gated_rows},
    },
    host,
    ops::Activation,
    pool,
    tensor::GpuTensor,
};
use multiversion::multiversion;

/// Sizes of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mamba2Shape {
    /// Heads of the state.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Inputs and readers of the state that heads share; their number is a multiple of it.
    pub groups: usize,
    /// Elements that the state keeps of a channel.
    pub state: usize,
    /// Tokens that the convolution sees, the current one included.
    pub kernel: usize,
}

impl Mamba2Shape {
    /// Channels of all heads, and elements of the layer's output.
    #[must_use]
    pub fn inner(self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements that the convolution mixes: channels, and a group's input and reader.
    #[must_use]
    pub fn channels(self) -> usize {
        self.inner() + 2 * self.groups * self.state
    }

    /// Elements that a token is projected to: the output's gate, what is convolved, and a time step per
    /// head.
    #[must_use]
    pub fn projected(self) -> usize {
        self.inner() + self.channels() + self.heads
    }

    /// Whether GPUs have registers for a column of a head's state.
    #[must_use]
    pub fn fits_gpus(self) -> bool {
        self.state <= MAX_KEY
    }

    fn conv(self) -> ConvShape {
        ConvShape { channels: self.channels(), kernel: self.kernel }
    }

    /// Elements of the state: the convolution's last rows `[kernel - 1, channels]`, then a matrix
    /// `[state, head_dim]` per head, the other way round on a GPU.
    #[must_use]
    pub fn state_len(self) -> usize {
        self.conv().state_len() + self.inner() * self.state
    }
}

/// The norm of a layer's output, over the channels of each group.
#[derive(Debug, Clone)]
pub struct GatedNorm {
    /// One gain a channel.
    pub gains: Vec<f32>,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the gate is applied after the norm, and not before it.
    pub before_gate: bool,
}

/// The parameters of a layer that are no matrices.
#[derive(Debug, Clone)]
pub struct Mamba2Params {
    /// The depthwise convolution, `[channels, kernel]`.
    pub conv: Vec<f32>,
    /// Its bias, one a channel.
    pub conv_bias: Option<Vec<f32>>,
    /// `A_log`, one a head.
    pub a_log: Vec<f32>,
    /// `dt_bias`, one a head.
    pub dt_bias: Vec<f32>,
    /// `D`, one a head: what a token's channels add to its own output.
    pub skip: Vec<f32>,
    /// The least and the largest time step.
    pub time_step: (f32, f32),
    /// Factors of the gate, the channels, the inputs, the readers and the time steps, before anything else.
    pub factors: Option<[f32; 5]>,
    /// Without, the gate alone is applied.
    pub norm: Option<GatedNorm>,
}

/// The recurrence of a layer, between its projections.
#[derive(Debug, Clone)]
pub struct Mamba2 {
    shape: Mamba2Shape,
    conv: CausalConv,
    /// `exp(A_log)`.
    rates: Resident,
    dt_bias: Resident,
    skip: Resident,
    time_step: (f32, f32),
    factors: Option<Factors>,
    norm: Option<Norm>,
    /// As many as channels of a group.
    ones: Vec<f32>,
}

/// Factors of what a token is projected to.
#[derive(Debug, Clone)]
struct Factors {
    /// One an element.
    all: Vec<f32>,
    /// Factors of gates and of time steps.
    gate: f32,
    time: f32,
    /// The convolution's weights times those of what it reads.
    conv: Resident,
}

impl Factors {
    fn new(shape: Mamba2Shape, each: [f32; 5], conv: &CausalConv) -> Self {
        let (inner, shared) = (shape.inner(), shape.groups * shape.state);
        let widths = [inner, inner, shared, shared, shape.heads];
        let repeated = |(factor, width): (f32, usize)| std::iter::repeat_n(factor, width);
        let all: Vec<f32> = each.into_iter().zip(widths).flat_map(repeated).collect();
        let read = all[inner..].iter().take(shape.channels());
        let weights = conv.parameters().0.host().iter().zip(read.cycle());
        let conv = Resident::new(weights.map(|(weight, factor)| weight * factor).collect());
        Self { all, gate: each[0], time: each[4], conv }
    }
}

/// [`GatedNorm`] as it is applied.
#[derive(Debug, Clone)]
struct Norm {
    gains: Resident,
    eps: f32,
    before_gate: bool,
}

const OP: &str = "mamba 2";

impl Mamba2 {
    /// A layer's recurrence.
    ///
    /// # Errors
    /// Sizes of zero, heads that are no multiple of groups, parameters of another length, or time steps that
    /// are no range.
    pub fn new(shape: Mamba2Shape, params: Mamba2Params) -> Result<Self> {
        let Mamba2Shape { heads, head_dim, groups, state, kernel } = shape;
        let sizes = [heads, head_dim, groups, state, kernel];
        if sizes.contains(&0) || !heads.is_multiple_of(groups) {
            let expected = "positive sizes, heads a multiple of groups";
            return Err(TensorError::shape(OP, expected, &sizes));
        }
        let Mamba2Params { conv, conv_bias, a_log, dt_bias, skip, time_step, factors, norm } =
            params;
        let inner = shape.inner();
        let gains = norm.as_ref().map_or(inner, |norm| norm.gains.len());
        let lengths = [a_log.len(), dt_bias.len(), skip.len(), gains];
        let range = time_step.0 >= 0.0 && time_step.0 <= time_step.1;
        if lengths != [heads, heads, heads, inner] || !range {
            let expected = format!(
                "A_log, dt_bias and D [{heads}], gains [{inner}], and a range of time steps"
            );
            return Err(TensorError::shape(OP, expected, &lengths));
        }
        let conv = CausalConv::new(shape.conv(), &conv, conv_bias, true)?;
        let applied = |GatedNorm { gains, eps, before_gate }| Norm {
            gains: Resident::new(gains),
            eps,
            before_gate,
        };
        Ok(Self {
            shape,
            factors: factors.map(|each| Factors::new(shape, each, &conv)),
            conv,
            rates: Resident::new(a_log.iter().map(|a| a.exp()).collect()),
            dt_bias: Resident::new(dt_bias),
            skip: Resident::new(skip),
            time_step,
            norm: norm.map(applied),
            ones: vec![1.0; inner / groups],
        })
    }

    /// Sizes of the layer.
    #[must_use]
    pub fn shape(&self) -> Mamba2Shape {
        self.shape
    }

    /// The layer's output before its last projection. `over` calls what it is given with the step's
    /// segments: each token once, those of one sequence in their order.
    ///
    /// # Shapes
    /// The gate, what is convolved and the time steps side by side, `[t, projected]` -> `[t, inner]`.
    ///
    /// # Errors
    /// Shapes that do not fit, or an error of `over`.
    pub fn forward<E: From<TensorError>>(
        &self,
        projected: &Tensor,
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let (t, _) = host::dims2(OP, projected)?;
        let (width, inner) = (self.shape.projected(), self.shape.inner());
        if projected.gpu().is_some() {
            return self.forward_there(rows_there(OP, projected, t, width)?, over);
        }
        let mut data = rows_of(OP, projected, t, width)?;
        if let Some(Factors { all, .. }) = &self.factors {
            let rows = data.chunks_exact_mut(width);
            rows.for_each(|row| row.iter_mut().zip(all).for_each(|(x, factor)| *x *= factor));
        }
        let columns = |range| Columns { data: &data, width, range };
        let convolved = columns(inner..inner + self.shape.channels());
        let times = columns(width - self.shape.heads..width);
        let mut out = vec![0.0; t * inner];
        over(&mut |segments| self.run((&convolved, &times), segments.on_host(OP)?, &mut out))?;
        let out = self.gate(&columns(0..inner).to_vec(), &out);
        Ok(Tensor::from_vec(out, &[t, inner])?)
    }

    /// [`Self::forward`] on a GPU.
    fn forward_there<E: From<TensorError>>(
        &self,
        projected: &GpuTensor,
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let Mamba2Shape { heads, head_dim, groups, state, kernel } = self.shape;
        let (t, inner, channels) = (projected.dims[0], self.shape.inner(), self.shape.channels());
        let (weights, bias) = self.conv.parameters();
        let (gate, factor, weights) = match &self.factors {
            Some(factors) => (factors.gate, factors.time, &factors.conv),
            None => (1.0, 1.0, weights),
        };
        let columns = |first: usize| Strided { x: projected, first };
        let layer = Heads {
            shape: HeadsShape {
                key_heads: groups,
                value_heads: heads,
                key_dim: state,
                value_dim: head_dim,
                kernel,
                channels,
                at: [inner + groups * state, inner, 0],
                decays: heads,
            },
            x: columns(inner),
            a: columns(inner + channels),
            b: None,
            weights,
            bias,
            rates: &self.rates,
            dt_bias: &self.dt_bias,
            rule: Rule::Plain { time_step: self.time_step, factor, skips: &self.skip },
            norm: None,
        };
        let out = GpuTensor::new(projected.gpu(), &[t, inner])?;
        over(&mut |segments| {
            let states = segments.on_gpu(OP)?;
            states.check(OP, t, self.shape.state_len())?;
            layer.launch(&states, &out)
        })?;
        let norm = self.norm.as_ref().map(|norm| (&norm.gains, norm.eps, norm.before_gate));
        let groups = if norm.is_some() { groups } else { 1 };
        gated_rows(&out, columns(0), gate, groups, norm)?;
        Ok(out.into())
    }

    /// Segments of different sequences.
    fn run(
        &self,
        (convolved, times): (&Columns<'_>, &Columns<'_>),
        segments: &mut [RecurrentSegment<'_>],
        out: &mut [f32],
    ) -> Result<()> {
        let (shape, inner) = (self.shape, self.shape.inner());
        check_segments(OP, segments, out.len() / inner, shape.state_len())?;
        let history = shape.conv().state_len();
        let mix = |segment: &mut RecurrentSegment<'_>| {
            self.conv.run(convolved, &segment.rows, &mut segment.state[..history], |_| ())
        };
        let mixed: Vec<_> = segments.iter_mut().map(mix).collect();
        let mut heads = Part::all(segments, &mixed, history, (shape.head_dim, shape.state));
        pool::for_each(&mut heads, |_, head| self.recur(times, head));
        Part::gather(heads, inner, out);
        Ok(())
    }

    /// A head over its segment, token by token. Its state is `[state, head_dim]`.
    fn recur(&self, times: &Columns<'_>, job: &mut Part<'_>) {
        let Mamba2Shape { heads, head_dim, groups, state, .. } = self.shape;
        let (h, channels, inner) = (job.index, self.shape.channels(), self.shape.inner());
        let group = h / (heads / groups) * state;
        let (least, most) = self.time_step;
        let (dt_bias, rate) = (self.dt_bias.host()[h], self.rates.host()[h]);
        let skip = self.skip.host()[h];
        let mut timed = vec![0.0; head_dim];
        let tokens = job.mixed.chunks_exact(channels).zip(job.out.chunks_exact_mut(head_dim));
        for (row, (mixed, out)) in job.rows.clone().zip(tokens) {
            let dt = softplus(times.row(row)[h] + dt_bias).max(least).min(most);
            let keep = (-rate * dt).exp();
            let x = &mixed[h * head_dim..][..head_dim];
            let b = &mixed[inner + group..][..state];
            let c = &mixed[inner + groups * state + group..][..state];
            timed.iter_mut().zip(x).for_each(|(timed, x)| *timed = dt * x);
            out.iter_mut().zip(x).for_each(|(out, x)| *out = skip * x);
            state_step(job.state, keep, (&timed, b, c), out);
        }
    }

    /// The gate and the norm of outputs.
    fn gate(&self, z: &[f32], out: &[f32]) -> Vec<f32> {
        let Some(Norm { gains, eps, before_gate }) = &self.norm else {
            return gated(Activation::Silu, z, out);
        };
        let norm = |x: &[f32]| {
            let mut normed = rms_norm(x, &self.ones, *eps);
            let gains = gains.host();
            let rows = normed.chunks_exact_mut(gains.len());
            rows.for_each(|row| row.iter_mut().zip(gains).for_each(|(x, gain)| *x *= gain));
            normed
        };
        match before_gate {
            true => gated(Activation::Silu, z, &norm(out)),
            false => norm(&gated(Activation::Silu, z, out)),
        }
    }
}

/// One token: `S = keep S + b xᵀ; out += Sᵀc`, with `S [state, channels]`.
///
/// Products and sums are not fused, and each element is summed over the state in its order: every set of
/// vector instructions gives identical bits.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn state_step(state: &mut [f32], keep: f32, (x, b, c): (&[f32], &[f32], &[f32]), out: &mut [f32]) {
    for ((row, b), c) in state.chunks_exact_mut(x.len()).zip(b).zip(c) {
        for ((s, x), o) in row.iter_mut().zip(x).zip(out.iter_mut()) {
            *s = keep * *s + b * x;
            *o += c * *s;
        }
    }
}

#[cfg(test)]
mod tests;
