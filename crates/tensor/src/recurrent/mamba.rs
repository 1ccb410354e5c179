//! The selective scan of Mamba (Gu & Dao, arXiv 2312.00752): a state space model that keeps a few numbers of
//! each channel. Jamba and Falcon Mamba have it. Its convolution is apart, because projections are between
//! both.
//!
//! Channels need no other, so blocks of them and sequences run in parallel.

use super::{Part, RecurrentSegment, RunSegments, check_segments, rows_of, rows_there, softplus};
use crate::{
    Result, Tensor, TensorError,
    cpu::gated,
    gpu::{
        Resident,
        recurrent::{MOST_STATE, Scan},
    },
    host,
    ops::Activation,
    pool,
    tensor::GpuTensor,
};
use multiversion::multiversion;

/// Sizes of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectiveScanShape {
    /// Channels of the layer.
    pub channels: usize,
    /// Elements that the state keeps of a channel.
    pub state: usize,
}

impl SelectiveScanShape {
    /// Whether GPUs have registers for a channel's numbers.
    #[must_use]
    pub fn fits_gpus(self) -> bool {
        self.state <= MOST_STATE
    }

    /// Elements of the state: blocks of channels, `[state, channels of the block]` each; one block on a GPU.
    #[must_use]
    pub fn state_len(self) -> usize {
        self.channels * self.state
    }
}

/// The parameters of a layer that are no matrices.
#[derive(Debug, Clone)]
pub struct SelectiveScanParams {
    /// `A_log`, `[channels, state]`.
    pub a_log: Vec<f32>,
    /// `D`, one a channel: what a token's channel adds to its own output.
    pub skip: Vec<f32>,
}

/// What a step's tokens are projected to.
#[derive(Debug, Clone, Copy)]
pub struct SelectiveScanInputs<'a> {
    /// Channels after the convolution, `[t, channels]`.
    pub x: &'a Tensor,
    /// The output's gate, `[t, channels]`.
    pub z: &'a Tensor,
    /// Time steps before their softplus, `[t, channels]`.
    pub dt: &'a Tensor,
    /// What writes to the state, `[t, state]`.
    pub b: &'a Tensor,
    /// What reads from the state, `[t, state]`.
    pub c: &'a Tensor,
}

/// The scan of a layer, between its projections.
#[derive(Debug, Clone)]
pub struct SelectiveScan {
    shape: SelectiveScanShape,
    /// `-exp(A_log)`, in the state's order.
    rates: Vec<f32>,
    /// `exp(A_log)`, `[channels, state]`.
    rates_there: Resident,
    skip: Resident,
}

const OP: &str = "selective scan";
/// Channels of a block.
const BLOCK: usize = 64;

impl SelectiveScan {
    /// A layer's scan.
    ///
    /// # Errors
    /// Sizes of zero, or parameters of another length.
    pub fn new(shape: SelectiveScanShape, params: SelectiveScanParams) -> Result<Self> {
        let SelectiveScanShape { channels, state } = shape;
        let SelectiveScanParams { a_log, skip } = params;
        let lengths = [a_log.len(), skip.len()];
        if channels == 0 || state == 0 || lengths != [channels * state, channels] {
            let expected = format!("A_log [{channels}, {state}] and D [{channels}]");
            return Err(TensorError::shape(OP, expected, &lengths));
        }
        let mut rates = Vec::with_capacity(a_log.len());
        for block in a_log.chunks(BLOCK * state) {
            for n in 0..state {
                rates.extend(block.iter().skip(n).step_by(state).map(|a| -a.exp()));
            }
        }
        let rates_there = Resident::new(a_log.iter().map(|a| a.exp()).collect());
        Ok(Self { shape, rates, rates_there, skip: Resident::new(skip) })
    }

    /// Sizes of the layer.
    #[must_use]
    pub fn shape(&self) -> SelectiveScanShape {
        self.shape
    }

    /// The layer's output before its last projection, `[t, channels]`. `over` calls what it is given with
    /// the step's segments: each token once, those of one sequence in their order.
    ///
    /// # Errors
    /// Shapes that do not fit, or an error of `over`.
    pub fn forward<E: From<TensorError>>(
        &self,
        inputs: SelectiveScanInputs<'_>,
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let SelectiveScanShape { channels, state } = self.shape;
        let (t, _) = host::dims2(OP, inputs.x)?;
        if inputs.x.gpu().is_some() {
            return self.forward_there(inputs, t, over);
        }
        let x = rows_of(OP, inputs.x, t, channels)?;
        let z = rows_of(OP, inputs.z, t, channels)?;
        let dt = rows_of(OP, inputs.dt, t, channels)?;
        let b = rows_of(OP, inputs.b, t, state)?;
        let c = rows_of(OP, inputs.c, t, state)?;
        let rows = Rows { x: &x, dt: &dt, b: &b, c: &c };
        let mut out = vec![0.0; t * channels];
        over(&mut |segments| self.run(&rows, segments.on_host(OP)?, &mut out))?;
        Ok(Tensor::from_vec(gated(Activation::Silu, &z, &out), &[t, channels])?)
    }

    /// [`Self::forward`] on a GPU.
    fn forward_there<E: From<TensorError>>(
        &self,
        inputs: SelectiveScanInputs<'_>,
        t: usize,
        over: impl FnOnce(&mut RunSegments<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<Tensor, E> {
        let SelectiveScanShape { channels, state } = self.shape;
        let scan = Scan {
            x: rows_there(OP, inputs.x, t, channels)?,
            z: rows_there(OP, inputs.z, t, channels)?,
            dt: rows_there(OP, inputs.dt, t, channels)?,
            b: rows_there(OP, inputs.b, t, state)?,
            c: rows_there(OP, inputs.c, t, state)?,
            rates: &self.rates_there,
            skip: &self.skip,
        };
        let out = GpuTensor::new(scan.x.gpu(), &[t, channels])?;
        over(&mut |segments| {
            let states = segments.on_gpu(OP)?;
            states.check(OP, t, self.shape.state_len())?;
            scan.launch(&states, &out)
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
        let SelectiveScanShape { channels, state } = self.shape;
        check_segments(OP, segments, out.len() / channels, self.shape.state_len())?;
        let mixed = vec![Vec::new(); segments.len()];
        let mut blocks = Part::all(segments, &mixed, 0, (BLOCK, state));
        pool::for_each(&mut blocks, |_, block| self.scan(rows, block));
        Part::gather(blocks, channels, out);
        Ok(())
    }

    /// A block of channels over its segment, token by token. Its state is `[state, channels of the block]`.
    fn scan(&self, rows: &Rows<'_>, job: &mut Part<'_>) {
        let SelectiveScanShape { channels, state } = self.shape;
        let (columns, width) = (job.columns.clone(), job.columns.len());
        let rates = &self.rates[columns.start * state..columns.end * state];
        let skip = &self.skip.host()[columns.clone()];
        let (mut dt, mut timed) = (vec![0.0; width], vec![0.0; width]);
        for (row, out) in job.rows.clone().zip(job.out.chunks_exact_mut(width)) {
            let own = |all: &'_ [f32]| all[row * channels..][columns.clone()].to_vec();
            let x = own(rows.x);
            dt.iter_mut().zip(own(rows.dt)).for_each(|(dt, raw)| *dt = softplus(raw));
            for (i, out) in out.iter_mut().enumerate() {
                timed[i] = dt[i] * x[i];
                *out = skip[i] * x[i];
            }
            let (b, c) = (&rows.b[row * state..][..state], &rows.c[row * state..][..state]);
            let places = job.state.chunks_exact_mut(width).zip(rates.chunks_exact(width));
            for ((state, rates), (b, c)) in places.zip(b.iter().zip(c)) {
                let keep: Vec<f32> =
                    rates.iter().zip(&dt).map(|(rate, dt)| (rate * dt).exp()).collect();
                place_step(state, &keep, (&timed, *b, *c), out);
            }
        }
    }
}

/// A step's inputs on the host.
struct Rows<'a> {
    x: &'a [f32],
    dt: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
}

/// One token and one place of the state of some channels: `s = keep s + b x; out += c s`, element by element.
/// Products and sums are not fused: every set of vector instructions gives identical bits.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn place_step(state: &mut [f32], keep: &[f32], (x, b, c): (&[f32], f32, f32), out: &mut [f32]) {
    for (((s, keep), x), o) in state.iter_mut().zip(keep).zip(x).zip(out.iter_mut()) {
        *s = keep * *s + b * x;
        *o += c * *s;
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::noise::{check_cuts, cut, difference, noise},
        *,
    };

    /// Two blocks, the second one not whole.
    const SHAPE: SelectiveScanShape = SelectiveScanShape { channels: 70, state: 3 };

    fn layer() -> SelectiveScan {
        let params = SelectiveScanParams {
            a_log: noise(SHAPE.channels * SHAPE.state, 1),
            skip: noise(SHAPE.channels, 2),
        };
        SelectiveScan::new(SHAPE, params).unwrap()
    }

    fn inputs(t: usize) -> [Tensor; 5] {
        let (n, state) = (SHAPE.channels, SHAPE.state);
        let mut seed = 10;
        [n, n, n, state, state].map(|width| {
            seed += 1;
            Tensor::from_vec(noise(t * width, seed), &[t, width]).unwrap()
        })
    }

    #[test]
    fn every_cut_gives_identical_bits() {
        check_cuts(SHAPE.state_len(), |t, over| {
            let [x, z, dt, b, c] = &inputs(t);
            layer().forward(SelectiveScanInputs { x, z, dt, b, c }, over)?.to_vec()
        });
    }

    #[test]
    fn the_scan_is_the_sum_over_the_tokens_before() {
        let t = 40;
        let [x, z, dt, b, c] = &inputs(t);
        let mut state = vec![0.0; SHAPE.state_len()];
        let got: Result<Tensor> = layer()
            .forward(SelectiveScanInputs { x, z, dt, b, c }, |run| cut(run, &[t], &mut state));
        let read = |tensor: &Tensor| tensor.to_vec().unwrap();
        let (x, z, dt, b, c) = (read(x), read(z), read(dt), read(b), read(c));
        let (n, size) = (SHAPE.channels, SHAPE.state);
        let (a_log, skip) = (noise(n * size, 1), noise(n, 2));
        let step = |i: usize, d: usize| f64::from(dt[i * n + d]).exp().ln_1p();
        let mut want = Vec::new();
        for i in 0..t {
            for d in 0..n {
                let mut y = f64::from(skip[d]) * f64::from(x[i * n + d]);
                for k in 0..size {
                    let rate = -f64::from(a_log[d * size + k]).exp();
                    for j in 0..=i {
                        let between: f64 = (j + 1..=i).map(|l| step(l, d)).sum();
                        let written = step(j, d) * f64::from(x[j * n + d] * b[j * size + k]);
                        y += f64::from(c[i * size + k]) * (rate * between).exp() * written;
                    }
                }
                let z = f64::from(z[i * n + d]);
                want.push(y * z / (1.0 + (-z).exp()));
            }
        }
        assert!(difference(&read(&got.unwrap()), &want) < 1e-5);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let [x, z, dt, b, c] = &inputs(2);
        let wrong = SelectiveScanInputs { x, z, dt, b: c, c: x };
        let out = layer().forward(wrong, |_| Ok::<_, TensorError>(()));
        assert!(matches!(out, Err(TensorError::Shape { op: OP, .. })));
        let short = SelectiveScanInputs { x, z, dt: b, b, c };
        assert!(layer().forward(short, |_| Ok::<_, TensorError>(())).is_err());
        let params = SelectiveScanParams { a_log: vec![0.0; 4], skip: vec![0.0; 2] };
        assert!(SelectiveScan::new(SHAPE, params.clone()).is_err());
        let none = SelectiveScanShape { channels: 0, state: 2 };
        assert!(SelectiveScan::new(none, params).is_err());
    }
}
