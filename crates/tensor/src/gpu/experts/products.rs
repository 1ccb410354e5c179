//! Products with the matrices that tokens chose, what is between them, and the sum.

use super::{Read, Routes, StackedExperts};
use crate::{
    Result, RmsNorm,
    gpu::{Buffer, Launch, Operand, count, gates::Curve, params},
    tensor::GpuTensor,
};

params!(
    /// Parameters of `experts_*`.
    ExpertParams {
        rows: u32,
        cols: u32,
        chosen: u32,
        experts: u32,
        stride: u32,
        group_shift: u32,
        scale_type: u32,
        packed: u32,
        curve: u32,
        flags: u32,
        limit: f32,
        eps: f32,
    }
);
params!(
    /// Parameters of `add_experts`.
    AddExpertsParams { n: u32, cols: u32, chosen: u32, experts: u32, flags: u32, scale: f32 }
);

params!(
    /// Parameters of `experts_sum_*`.
    ExpertSumParams {
        rows: u32,
        cols: u32,
        chosen: u32,
        experts: u32,
        group_shift: u32,
        scale_type: u32,
        packed: u32,
        flags: u32,
        scale: f32,
    }
);

const FAMILY: &str = "experts";
/// Rows that a threadgroup of `experts_*` computes.
const ROWS: u32 = 16;
/// Threads of kernels with a thread for each element.
const THREADS: u32 = 256;

const GATED: u32 = 1;
const BIAS: u32 = 2;
const WEIGHS_INPUT: u32 = 4;
/// The result is of halves.
pub(super) const HALVES: u32 = 8;
/// And these are in the order for wide products.
pub(super) const WIDE: u32 = 16;

const NORM: u32 = 16;

const ADD_BASE: u32 = 1;
const ADD_IDS: u32 = 2;
const ADD_BIAS: u32 = 4;
const ADD_WHOLE: u32 = 8;
const ADD_SHARED: u32 = 16;
const ADD_GATE: u32 = 32;

/// Rows that a threadgroup of `experts_sum_*` of this format computes.
fn sum_rows(format: &str) -> u32 {
    if format == "f32" { 2 } else { 4 }
}

fn flag(there: bool, flag: u32) -> u32 {
    if there { flag } else { 0 }
}

impl StackedExperts {
    /// The number of what is between the products, and its limit.
    pub(super) fn curve(&self) -> (u32, f32) {
        let curve = match self.kind.limit {
            Some(limit) => Curve::ClampedSwiglu(limit),
            None => Curve::Of(self.kind.activation),
        };
        let (number, [limit, ..]) = curve.params();
        (number, limit)
    }

    /// What is done beside multiplying with the first matrix.
    pub(super) fn flags(&self) -> u32 {
        flag(self.gated, GATED)
            | flag(self.first.bias.is_some(), BIAS)
            | flag(self.kind.weighs_input, WEIGHS_INPUT)
    }

    /// Inner elements of a pair, and as many as the second product reads.
    pub(super) fn inner(&self) -> (usize, usize) {
        (self.down.weight.cols(), self.down.weight.stored_cols())
    }

    /// The path for few tokens, and the exact one: each pair is multiplied by itself.
    pub(super) fn one_by_one(
        &self,
        read: &Read<'_>,
        routes: &Routes,
        chosen: usize,
    ) -> Result<GpuTensor> {
        let inner = self.inner_rows(read, routes, chosen)?;
        let (weight, out) = (&self.down.weight, GpuTensor::new(read.x.gpu(), &read.x.dims)?);
        let params = ExpertSumParams {
            rows: count(FAMILY, self.hidden())?,
            cols: count(FAMILY, weight.stored_cols())?,
            chosen: count(FAMILY, chosen)?,
            experts: count(FAMILY, self.experts)?,
            group_shift: weight.group_shift(),
            scale_type: weight.scale_type,
            packed: u32::from(weight.packed),
            flags: self.add_flags(read),
            scale: self.kind.scale,
        };
        let (name, _) = weight.kernel();
        let [data, scales] = weight.operands();
        let [x, weights, ids, normed, bias, shared, gate] = self.added(read, routes);
        let launch = Launch {
            family: FAMILY,
            kernel: &format!("experts_sum_{name}"),
            grid: [params.rows.div_ceil(sum_rows(name)), count(FAMILY, read.x.dims[0])?, 1],
            threads: THREADS,
            operands: &[
                data,
                scales,
                inner.input(),
                x,
                weights,
                ids,
                normed,
                bias,
                shared,
                gate,
                out.output(),
            ],
            params: bytemuck::bytes_of(&params),
        };
        out.gpu().launch_work(&launch, routes.pairs * self.hidden() * weight.cols())?;
        Ok(out)
    }

    /// What the second product of each pair reads.
    fn inner_rows(&self, read: &Read<'_>, routes: &Routes, chosen: usize) -> Result<GpuTensor> {
        let (weight, (width, stride)) = (&self.first.weight, self.inner());
        let gpu = weight.gpu();
        let rows = weight.rows() / self.experts;
        let block = if rows == width { ROWS } else { ROWS / 2 };
        let out = GpuTensor::new(gpu, &[routes.pairs, stride])?;
        let gains = read.norm.map(|norm| norm.resident().on(gpu)).transpose()?;
        let (curve, limit) = self.curve();
        let params = ExpertParams {
            rows: count(FAMILY, rows)?,
            cols: count(FAMILY, weight.stored_cols())?,
            chosen: count(FAMILY, chosen)?,
            experts: count(FAMILY, self.experts)?,
            stride: count(FAMILY, stride)?,
            group_shift: weight.group_shift(),
            scale_type: weight.scale_type,
            packed: u32::from(weight.packed),
            curve,
            flags: self.flags() | flag(gains.is_some(), NORM),
            limit,
            eps: read.norm.map_or(0.0, RmsNorm::eps),
        };
        let [data, scales] = weight.operands();
        let (x, weights) = (read.x.input(), Operand::In(&routes.weights, 0));
        let launch = Launch {
            family: FAMILY,
            kernel: &format!("experts_{}", weight.kernel().0),
            grid: [count(FAMILY, routes.pairs)?, params.stride.div_ceil(block), 1],
            threads: 128,
            operands: &[
                data,
                scales,
                x,
                // What is not there is never read.
                gains.as_deref().map_or(x, |gains| Operand::In(gains, 0)),
                Operand::In(&routes.ids, 0),
                self.first.bias.as_deref().map_or(weights, |bias| Operand::In(bias, 0)),
                weights,
                Operand::Out(&out.buffer, 0),
            ],
            params: bytemuck::bytes_of(&params),
        };
        gpu.launch_work(&launch, routes.pairs * rows * weight.cols())?;
        Ok(out)
    }

    /// The weighted sum of each token's rows of `y`, and of all that is beside them: row `places[i]` is that of pair
    /// `i`.
    pub(super) fn add(
        &self,
        read: &Read<'_>,
        (y, places): (&GpuTensor, &Buffer),
        routes: &Routes,
        chosen: usize,
    ) -> Result<GpuTensor> {
        let out = GpuTensor::new(y.gpu(), &read.x.dims)?;
        let params = AddExpertsParams {
            n: count(FAMILY, out.len())?,
            cols: count(FAMILY, self.hidden())?,
            chosen: count(FAMILY, chosen)?,
            experts: count(FAMILY, self.experts)?,
            flags: self.add_flags(read),
            scale: self.kind.scale,
        };
        let [x, weights, ids, normed, bias, shared, gate] = self.added(read, routes);
        y.gpu().launch(&Launch {
            family: FAMILY,
            kernel: "add_experts",
            grid: [params.n.div_ceil(THREADS), 1, 1],
            threads: THREADS,
            operands: &[
                x,
                y.input(),
                weights,
                Operand::In(places, 0),
                ids,
                normed,
                bias,
                shared,
                gate,
                out.output(),
            ],
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(out)
    }

    /// What there is to add.
    fn add_flags(&self, read: &Read<'_>) -> u32 {
        let bias = self.down.bias.is_some();
        flag(read.residual.is_some(), ADD_BASE)
            | flag(bias || read.idle, ADD_IDS)
            | flag(bias, ADD_BIAS)
            | flag(self.kind.weighs_input, ADD_WHOLE)
            | flag(read.shared.is_some(), ADD_SHARED)
            | flag(read.shared.is_some_and(|(_, gate)| gate.is_some()), ADD_GATE)
    }

    /// The residual, weights and experts of pairs, what idle experts read, biases, and the shared expert's result and
    /// gate. What is not there is never read.
    fn added<'a>(&'a self, read: &Read<'a>, routes: &'a Routes) -> [Operand<'a>; 7] {
        let x = read.x.input();
        let (shared, gate) = read.shared.map_or((None, None), |(x, gate)| (Some(x), gate));
        [
            read.residual.map_or(x, GpuTensor::input),
            Operand::In(&routes.weights, 0),
            Operand::In(&routes.ids, 0),
            x,
            self.down.bias.as_deref().map_or(x, |bias| Operand::In(bias, 0)),
            shared.map_or(x, GpuTensor::input),
            gate.map_or(x, GpuTensor::input),
        ]
    }
}
