//! Causal convolutions on a GPU.

use super::GpuStates;
use crate::{
    ConvShape, Result,
    gpu::{LANES, Launch, Operand, Resident, count, params},
    tensor::GpuTensor,
};

params!(
    /// Parameters of `causal_conv`.
    ConvParams {
        channels: u32,
        kept: u32,
        width: u32,
        column: u32,
        in_gate: u32,
        out_gate: u32,
        gated: u32,
        silu: u32,
        stride: u32,
        rows: u32,
    }
);

/// Rows that a threadgroup convolves at a time.
const ROWS: usize = 8;

/// A convolution of some columns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conv<'a> {
    pub(crate) shape: ConvShape,
    /// `[kernel, channels]`.
    pub(crate) weights: &'a Resident,
    /// One a channel.
    pub(crate) bias: &'a Resident,
    pub(crate) silu: bool,
    /// The first column that is convolved.
    pub(crate) column: usize,
    /// The first columns that input and output are multiplied with.
    pub(crate) gates: Option<[usize; 2]>,
}

impl Conv<'_> {
    /// Into `out [t, channels]`. The layer's state is that of the convolution.
    pub(crate) fn launch(
        &self,
        x: &GpuTensor,
        states: &GpuStates<'_>,
        out: &GpuTensor,
    ) -> Result<()> {
        let (op, gpu) = ("causal convolution", x.gpu());
        let [in_gate, out_gate] = self.gates.unwrap_or_default();
        let params = ConvParams {
            channels: count(op, self.shape.channels)?,
            kept: count(op, self.shape.kernel - 1)?,
            width: count(op, x.dims[1])?,
            column: count(op, self.column)?,
            in_gate: count(op, in_gate)?,
            out_gate: count(op, out_gate)?,
            gated: u32::from(self.gates.is_some()),
            silu: u32::from(self.silu),
            stride: states.stride(),
            rows: states.rows_at_a_time(ROWS),
        };
        let (weights, bias) = (self.weights.on(gpu)?, self.bias.on(gpu)?);
        let [runs, cuts, slots] = states.operands(0);
        gpu.launch(&Launch {
            family: "conv",
            kernel: "causal_conv",
            grid: [params.channels.div_ceil(LANES), states.count(), 1],
            threads: LANES * params.rows,
            operands: &[
                x.input(),
                Operand::In(&weights, 0),
                Operand::In(&bias, 0),
                runs,
                cuts,
                slots,
                out.output(),
            ],
            params: bytemuck::bytes_of(&params),
        })
    }
}
