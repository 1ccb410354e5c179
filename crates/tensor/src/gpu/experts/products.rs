//! Products with the matrices that tokens chose, what is between them, and the sum.

use super::{Groups, Read, Routes, Stack, StackedExperts};
use crate::{
    Result,
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
    }
);
params!(
    /// Parameters of `between_experts`.
    BetweenParams { n: u32, rows: u32, experts: u32, stride: u32, curve: u32, flags: u32, limit: f32 }
);
params!(
    /// Parameters of `add_experts`.
    AddExpertsParams { n: u32, cols: u32, chosen: u32, experts: u32, flags: u32, scale: f32 }
);

const FAMILY: &str = "experts";
/// Rows that a threadgroup of `experts_*` computes.
const ROWS: usize = 16;
/// Threads of kernels with a thread for each element.
const THREADS: u32 = 256;

const GATED: u32 = 1;
const BIAS: u32 = 2;
const WEIGHS_INPUT: u32 = 4;

const ADD_PLACED: u32 = 1;
const ADD_BASE: u32 = 2;
const ADD_IDS: u32 = 4;
const ADD_BIAS: u32 = 8;
const ADD_WHOLE: u32 = 16;
const ADD_SHARED: u32 = 32;
const ADD_GATE: u32 = 64;

fn flag(there: bool, flag: u32) -> u32 {
    if there { flag } else { 0 }
}

impl StackedExperts {
    /// The number of what is between the products, and its limit.
    fn curve(&self) -> (u32, f32) {
        let curve = match self.kind.limit {
            Some(limit) => Curve::ClampedSwiglu(limit),
            None => Curve::Of(self.kind.activation),
        };
        let (number, [limit, ..]) = curve.params();
        (number, limit)
    }

    /// What is done beside multiplying with the first matrix.
    fn flags(&self) -> u32 {
        flag(self.gated, GATED)
            | flag(self.first.bias.is_some(), BIAS)
            | flag(self.kind.weighs_input, WEIGHS_INPUT)
    }

    /// Inner elements of a pair, and as many as the second product reads.
    fn inner(&self) -> (usize, usize) {
        (self.down.weight.cols(), self.down.weight.stored_cols())
    }

    /// Both products of each pair, without the biases of the second.
    pub(super) fn one_by_one(
        &self,
        x: &GpuTensor,
        routes: &Routes,
        chosen: usize,
    ) -> Result<GpuTensor> {
        let (width, stride) = self.inner();
        let params = ExpertParams {
            chosen: count(FAMILY, chosen)?,
            stride: count(FAMILY, stride)?,
            curve: self.curve().0,
            flags: self.flags(),
            limit: self.curve().1,
            ..ExpertParams::default()
        };
        let inner = self.product(&self.first, (x, routes), params, width)?;
        let hidden = self.hidden();
        let stride = count(FAMILY, hidden)?;
        let params = ExpertParams { chosen: 1, stride, ..ExpertParams::default() };
        self.product(&self.down, (&inner, routes), params, hidden)
    }

    /// Each pair's row of `x` with its expert's matrix.
    fn product(
        &self,
        stack: &Stack,
        (x, routes): (&GpuTensor, &Routes),
        params: ExpertParams,
        width: usize,
    ) -> Result<GpuTensor> {
        let weight = &stack.weight;
        let rows = weight.rows() / self.experts;
        let block = if rows == width { ROWS } else { ROWS / 2 };
        let out = GpuTensor::new(x.gpu(), &[routes.pairs, params.stride as usize])?;
        let params = ExpertParams {
            rows: count(FAMILY, rows)?,
            cols: count(FAMILY, weight.stored_cols())?,
            experts: count(FAMILY, self.experts)?,
            group_shift: weight.group_shift(),
            scale_type: weight.scale_type,
            packed: u32::from(weight.packed),
            ..params
        };
        let [data, scales] = weight.operands();
        let weights = Operand::In(&routes.weights, 0);
        let launch = Launch {
            family: FAMILY,
            kernel: &format!("experts_{}", weight.kernel().0),
            grid: [count(FAMILY, routes.pairs)?, params.stride.div_ceil(block as u32), 1],
            threads: 128,
            operands: &[
                data,
                scales,
                x.input(),
                Operand::In(&routes.ids, 0),
                // Not read where there is none, and by the second product.
                stack.bias.as_deref().map_or(weights, |bias| Operand::In(bias, 0)),
                weights,
                Operand::Out(&out.buffer, 0),
            ],
            params: bytemuck::bytes_of(&params),
        };
        x.gpu().launch_work(&launch, routes.pairs * rows * weight.cols())?;
        Ok(out)
    }

    /// What the second products read, of what the first ones gave to pairs ordered by expert.
    pub(super) fn between(
        &self,
        raw: &GpuTensor,
        routes: &Routes,
        groups: &Groups,
    ) -> Result<GpuTensor> {
        let (gpu, (_, stride)) = (raw.gpu(), self.inner());
        let out = GpuTensor::new(gpu, &[routes.pairs, stride])?;
        let (curve, limit) = self.curve();
        let params = BetweenParams {
            n: count(FAMILY, out.len())?,
            rows: count(FAMILY, raw.dims[1])?,
            experts: count(FAMILY, self.experts)?,
            stride: count(FAMILY, stride)?,
            curve,
            flags: self.flags(),
            limit,
        };
        let pairs = gpu.upload(&groups.pairs)?;
        let weights = Operand::In(&routes.weights, 0);
        gpu.launch(&Launch {
            family: FAMILY,
            kernel: "between_experts",
            grid: [params.n.div_ceil(THREADS), 1, 1],
            threads: THREADS,
            operands: &[
                raw.input(),
                Operand::In(&pairs, 0),
                Operand::In(&routes.ids, 0),
                self.first.bias.as_deref().map_or(weights, |bias| Operand::In(bias, 0)),
                weights,
                Operand::Out(&out.buffer, 0),
            ],
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(out)
    }

    /// The weighted sum of each token's rows of `y`, and of all that is beside them: row `places[i]` is that of pair
    /// `i`, or row `i`.
    pub(super) fn add(
        &self,
        read: &Read<'_>,
        y: &GpuTensor,
        routes: &Routes,
        places: Option<&Buffer>,
        (chosen, outputs): (usize, usize),
    ) -> Result<GpuTensor> {
        let (x, down_bias) = (read.x, self.down.bias.as_deref());
        let out = GpuTensor::new(x.gpu(), &x.dims)?;
        let (shared, gate) = read.shared.map_or((None, None), |(x, gate)| (Some(x), gate));
        let params = AddExpertsParams {
            n: count(FAMILY, x.len())?,
            cols: count(FAMILY, x.dims[1])?,
            chosen: count(FAMILY, chosen)?,
            experts: count(FAMILY, self.experts)?,
            flags: flag(places.is_some(), ADD_PLACED)
                | flag(read.residual.is_some(), ADD_BASE)
                | flag(down_bias.is_some() || outputs > self.experts, ADD_IDS)
                | flag(down_bias.is_some(), ADD_BIAS)
                | flag(self.kind.weighs_input, ADD_WHOLE)
                | flag(shared.is_some(), ADD_SHARED)
                | flag(gate.is_some(), ADD_GATE),
            scale: self.kind.scale,
        };
        let x_in = x.input();
        // What is not there is never read.
        let ids = Operand::In(&routes.ids, 0);
        x.gpu().launch(&Launch {
            family: FAMILY,
            kernel: "add_experts",
            grid: [params.n.div_ceil(THREADS), 1, 1],
            threads: THREADS,
            operands: &[
                read.residual.unwrap_or(x).input(),
                y.input(),
                Operand::In(&routes.weights, 0),
                places.map_or(ids, |places| Operand::In(places, 0)),
                ids,
                x_in,
                down_bias.map_or(x_in, |bias| Operand::In(bias, 0)),
                shared.unwrap_or(x).input(),
                gate.unwrap_or(x).input(),
                Operand::Out(&out.buffer, 0),
            ],
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(out)
    }
}
