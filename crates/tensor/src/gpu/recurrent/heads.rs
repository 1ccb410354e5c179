//! Recurrences whose state is a matrix a head, on a GPU.

use super::GpuStates;
use crate::{
    Result, TensorError,
    gpu::{Gpu, LANES, Launch, Operand, Resident, count, params},
    tensor::GpuTensor,
};

params!(
    /// Parameters of `mix_heads`.
    MixParams {
        key_heads: u32,
        value_heads: u32,
        key_dim: u32,
        value_dim: u32,
        channels: u32,
        kept: u32,
        width: u32,
        query_at: u32,
        key_at: u32,
        value_at: u32,
        a_width: u32,
        decays: u32,
        delta: u32,
        stride: u32,
        rows: u32,
        write: f32,
        least: f32,
        most: f32,
        time_factor: f32,
    }
);
params!(
    /// Parameters of `walk_delta_*` and `walk_plain_*`.
    WalkParams {
        key_heads: u32,
        value_heads: u32,
        key_dim: u32,
        value_dim: u32,
        channels: u32,
        query_at: u32,
        key_at: u32,
        value_at: u32,
        decays: u32,
        stride: u32,
        splits: u32,
        simdgroups: u32,
        norm: u32,
        gate: u32,
        eps: f32,
    }
);
params!(
    /// Parameters of `gated_heads`.
    GatedHeadsParams { rows: u32, cols: u32, gate: u32, eps: f32 }
);
params!(
    /// Parameters of `gated_rows`.
    GatedRowsParams { groups: u32, cols: u32, width: u32, norm: u32, eps: f32, factor: f32 }
);

const FAMILY: &str = "heads";
const OP: &str = "recurrent heads";
/// Elements of the largest key.
pub(crate) const MAX_KEY: usize = 256;
/// Rows that a threadgroup of `mix_heads` takes at a time: more threads would lack registers on Apple's chips.
const ROWS: usize = 8;
/// Simdgroups that it has at least: they keep the inputs of what follows together.
const FEWEST: u32 = 4;
/// Columns that a simdgroup of `walk_*` has.
const COLUMNS: usize = 8;
/// Simdgroups of a part of a head, where it is not whole.
const PART: usize = 4;
/// Simdgroups of the largest head that one threadgroup has whole, with keys of [`WHOLE_KEYS`] elements at most:
/// its threads need registers.
const WHOLE: usize = 16;
const WHOLE_KEYS: usize = 128;
/// Up to so many tokens of a run a launch less is worth more than threadgroups for every part of a GPU.
const SHORT: usize = 8;

/// How heads lie in a token's channels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadsShape {
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
    /// Tokens that the convolution sees.
    pub(crate) kernel: usize,
    pub(crate) channels: usize,
    /// The first channel of queries, of keys and of values.
    pub(crate) at: [usize; 3],
    /// Decays of a token.
    pub(crate) decays: usize,
}

/// What is written of a value, and what stays of the state.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rule<'a> {
    /// The delta rule, which writes at most so much of a value.
    Delta { write: f32 },
    /// Values times their time step, from the least to the largest; times are multiplied by `factor` first, and
    /// each head's `skips` by values are added to outputs.
    Plain { time_step: (f32, f32), factor: f32, skips: &'a Resident },
}

/// Columns of a matrix, from `first` on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strided<'a> {
    pub(crate) x: &'a GpuTensor,
    pub(crate) first: usize,
}

impl<'a> Strided<'a> {
    /// All columns.
    pub(crate) fn all(x: &'a GpuTensor) -> Self {
        Self { x, first: 0 }
    }

    fn operand(self) -> Operand<'a> {
        Operand::In(&self.x.buffer, self.x.offset + 4 * self.first)
    }

    fn width(self) -> Result<u32> {
        count(OP, self.x.dims[1])
    }
}

/// A layer's recurrence, and what it reads in a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads<'a> {
    pub(crate) shape: HeadsShape,
    /// What is convolved.
    pub(crate) x: Strided<'a>,
    /// What decays come from.
    pub(crate) a: Strided<'a>,
    /// How much is written, of the delta rule.
    pub(crate) b: Option<&'a GpuTensor>,
    /// `[kernel, channels]`.
    pub(crate) weights: &'a Resident,
    /// One a channel.
    pub(crate) bias: &'a Resident,
    /// One a value head.
    pub(crate) rates: &'a Resident,
    /// One a decay.
    pub(crate) dt_bias: &'a Resident,
    pub(crate) rule: Rule<'a>,
    /// Of each head's rows of outputs.
    pub(crate) norm: Option<HeadNorm<'a>>,
}

/// A norm of each head's outputs, and their gates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadNorm<'a> {
    /// `[t, value_heads * value_dim]`.
    pub(crate) z: &'a GpuTensor,
    pub(crate) gains: &'a Resident,
    pub(crate) eps: f32,
    /// 0 SiLU, 1 sigmoid.
    pub(crate) gate: u32,
}

/// What heads of a step are made of.
struct Mixed {
    mixed: GpuTensor,
    keep: GpuTensor,
    write: GpuTensor,
    dots: GpuTensor,
}

impl Heads<'_> {
    /// Outputs of a step, into `out [t, value_heads * value_dim]`.
    pub(crate) fn launch(&self, states: &GpuStates<'_>, out: &GpuTensor) -> Result<()> {
        if self.shape.key_dim > MAX_KEY {
            let expected = format!("keys of at most {MAX_KEY} elements");
            return Err(TensorError::shape(OP, expected, &[self.shape.key_dim]));
        }
        let mixed = self.mix(states)?;
        self.walk(&mixed, states, out)
    }

    fn gpu(&self) -> &Gpu {
        self.x.x.gpu()
    }

    fn mix(&self, states: &GpuStates<'_>) -> Result<Mixed> {
        let (shape, gpu) = (self.shape, self.gpu());
        let t = self.x.x.dims[0];
        let tensor = |width: usize| GpuTensor::new(gpu, &[t, width]);
        let out = Mixed {
            mixed: tensor(shape.channels)?,
            keep: tensor(shape.decays)?,
            write: tensor(shape.value_heads)?,
            dots: tensor(shape.key_heads)?,
        };
        let (write, (least, most), time_factor) = match self.rule {
            Rule::Delta { write } => (write, (0.0, 0.0), 1.0),
            Rule::Plain { time_step, factor, .. } => (0.0, time_step, factor),
        };
        let [query_at, key_at, value_at] = self.shape.positions()?;
        let params = MixParams {
            key_heads: count(OP, shape.key_heads)?,
            value_heads: count(OP, shape.value_heads)?,
            key_dim: count(OP, shape.key_dim)?,
            value_dim: count(OP, shape.value_dim)?,
            channels: count(OP, shape.channels)?,
            kept: count(OP, shape.kernel - 1)?,
            width: self.x.width()?,
            query_at,
            key_at,
            value_at,
            a_width: self.a.width()?,
            decays: count(OP, shape.decays)?,
            delta: u32::from(matches!(self.rule, Rule::Delta { .. })),
            stride: states.stride(),
            rows: states.rows_at_a_time(ROWS).max(FEWEST),
            write,
            least,
            most,
            time_factor,
        };
        let (weights, bias) = (self.weights.on(gpu)?, self.bias.on(gpu)?);
        let (rates, dt_bias) = (self.rates.on(gpu)?, self.dt_bias.on(gpu)?);
        let [runs, cuts, slots] = states.operands(0);
        let x = self.x.operand();
        gpu.launch(&Launch {
            family: FAMILY,
            kernel: "mix_heads",
            grid: [params.key_heads + params.value_heads, states.count(), 1],
            threads: LANES * params.rows,
            // What is not there is never read; any buffer will do.
            operands: &[
                x,
                self.a.operand(),
                self.b.map_or(x, GpuTensor::input),
                Operand::In(&weights, 0),
                Operand::In(&bias, 0),
                Operand::In(&rates, 0),
                Operand::In(&dt_bias, 0),
                runs,
                cuts,
                slots,
                out.mixed.output(),
                out.keep.output(),
                out.write.output(),
                out.dots.output(),
            ],
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(out)
    }

    fn walk(&self, from: &Mixed, states: &GpuStates<'_>, out: &GpuTensor) -> Result<()> {
        let (shape, gpu) = (self.shape, self.gpu());
        let blocks = shape.value_dim.div_ceil(COLUMNS);
        let fits = blocks <= WHOLE && shape.key_dim <= WHOLE_KEYS && states.longest() <= SHORT;
        let whole = blocks <= PART || fits;
        let simdgroups = if whole { blocks } else { PART };
        let [query_at, key_at, value_at] = shape.positions()?;
        let params = WalkParams {
            key_heads: count(OP, shape.key_heads)?,
            value_heads: count(OP, shape.value_heads)?,
            key_dim: count(OP, shape.key_dim)?,
            value_dim: count(OP, shape.value_dim)?,
            channels: count(OP, shape.channels)?,
            query_at,
            key_at,
            value_at,
            decays: count(OP, shape.decays)?,
            stride: states.stride(),
            splits: count(OP, blocks.div_ceil(simdgroups))?,
            simdgroups: simdgroups as u32,
            norm: u32::from(whole && self.norm.is_some()),
            gate: self.norm.map_or(0, |norm| norm.gate),
            eps: self.norm.map_or(0.0, |norm| norm.eps),
        };
        let skips = match self.rule {
            Rule::Delta { .. } => None,
            Rule::Plain { skips, .. } => Some(skips.on(gpu)?),
        };
        let gains = self.norm.map(|norm| norm.gains.on(gpu)).transpose()?;
        let mixed = from.mixed.input();
        let [runs, cuts, slots] = states.operands((shape.kernel - 1) * shape.channels);
        gpu.launch(&Launch {
            family: FAMILY,
            kernel: self.kernel(),
            grid: [params.value_heads * params.splits, states.count(), 1],
            threads: LANES * params.simdgroups,
            operands: &[
                mixed,
                from.keep.input(),
                from.write.input(),
                from.dots.input(),
                skips.as_deref().map_or(mixed, |skips| Operand::In(skips, 0)),
                self.norm.map_or(mixed, |norm| norm.z.input()),
                gains.as_deref().map_or(mixed, |gains| Operand::In(gains, 0)),
                runs,
                cuts,
                slots,
                out.output(),
            ],
            params: bytemuck::bytes_of(&params),
        })?;
        match self.norm {
            Some(norm) if !whole => norm.launch(shape, out),
            _ => Ok(()),
        }
    }

    fn kernel(&self) -> &'static str {
        match (self.rule, self.shape.key_dim) {
            (Rule::Delta { .. }, 0..=32) => "walk_delta_1",
            (Rule::Delta { .. }, 33..=128) => "walk_delta_4",
            (Rule::Delta { .. }, _) => "walk_delta_8",
            (Rule::Plain { .. }, 0..=32) => "walk_plain_1",
            (Rule::Plain { .. }, 33..=128) => "walk_plain_4",
            (Rule::Plain { .. }, _) => "walk_plain_8",
        }
    }
}

impl HeadsShape {
    fn positions(&self) -> Result<[u32; 3]> {
        let [query, key, value] = self.at;
        Ok([count(OP, query)?, count(OP, key)?, count(OP, value)?])
    }
}

impl HeadNorm<'_> {
    fn launch(&self, shape: HeadsShape, out: &GpuTensor) -> Result<()> {
        let gains = self.gains.on(out.gpu())?;
        let params = GatedHeadsParams {
            rows: count(OP, out.len() / shape.value_dim)?,
            cols: count(OP, shape.value_dim)?,
            gate: self.gate,
            eps: self.eps,
        };
        out.gpu().launch(&Launch {
            family: FAMILY,
            kernel: "gated_heads",
            grid: [params.rows.div_ceil(8), 1, 1],
            threads: 8 * LANES,
            operands: &[out.output(), self.z.input(), Operand::In(&gains, 0)],
            params: bytemuck::bytes_of(&params),
        })
    }
}

/// Gates rows of `out` in place by columns of `z` times `factor`, and norms them in `groups`: by gains and an epsilon,
/// before the gate or after it.
pub(crate) fn gated_rows(
    out: &GpuTensor,
    z: Strided<'_>,
    factor: f32,
    groups: usize,
    norm: Option<(&Resident, f32, bool)>,
) -> Result<()> {
    let gpu = out.gpu();
    let gains = norm.map(|(gains, ..)| gains.on(gpu)).transpose()?;
    let params = GatedRowsParams {
        groups: count(OP, groups)?,
        cols: count(OP, out.dims[1] / groups)?,
        width: z.width()?,
        norm: norm.map_or(0, |(.., before)| 1 + u32::from(before)),
        eps: norm.map_or(0.0, |(_, eps, _)| eps),
        factor,
    };
    gpu.launch(&Launch {
        family: FAMILY,
        kernel: "gated_rows",
        grid: [params.groups, count(OP, out.dims[0])?, 1],
        threads: 8 * LANES,
        operands: &[
            out.output(),
            z.operand(),
            gains.as_deref().map_or(z.operand(), |gains| Operand::In(gains, 0)),
        ],
        params: bytemuck::bytes_of(&params),
    })
}
