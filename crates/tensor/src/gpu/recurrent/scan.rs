//! Recurrences whose channels keep a few numbers each, on a GPU.

use super::GpuStates;
use crate::{
    Result, TensorError,
    gpu::{LANES, Launch, Operand, Resident, count, params},
    tensor::GpuTensor,
};

params!(
    /// Parameters of `selective_scan`.
    ScanParams { channels: u32, state: u32, stride: u32 }
);
params!(
    /// Parameters of `lru_gates`.
    LruGatesParams { width: u32, dim: u32, parts: u32 }
);
params!(
    /// Parameters of `lru`.
    LruParams { width: u32, stride: u32 }
);

const FAMILY: &str = "scan";
/// Channels of a threadgroup.
const CHANNELS: u32 = 64;
/// Numbers that a channel of a scan keeps at most.
pub(crate) const MOST_STATE: usize = 16;

/// A layer's selective scan, and what it reads in a step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scan<'a> {
    /// Channels, gates and time steps, `[t, channels]`.
    pub(crate) x: &'a GpuTensor,
    pub(crate) z: &'a GpuTensor,
    pub(crate) dt: &'a GpuTensor,
    /// What writes and what reads, `[t, state]`.
    pub(crate) b: &'a GpuTensor,
    pub(crate) c: &'a GpuTensor,
    /// `[channels, state]`.
    pub(crate) rates: &'a Resident,
    pub(crate) skip: &'a Resident,
}

impl Scan<'_> {
    /// Outputs of a step, into `out [t, channels]`.
    pub(crate) fn launch(&self, states: &GpuStates<'_>, out: &GpuTensor) -> Result<()> {
        let (op, gpu) = ("selective scan", self.x.gpu());
        let state = self.b.dims[1];
        if state > MOST_STATE {
            let expected = format!("at most {MOST_STATE} numbers a channel");
            return Err(TensorError::shape(op, expected, &[state]));
        }
        let channels = count(op, self.x.dims[1])?;
        let params = ScanParams { channels, state: count(op, state)?, stride: states.stride() };
        let (rates, skip) = (self.rates.on(gpu)?, self.skip.on(gpu)?);
        let [runs, cuts, slots] = states.operands(0);
        gpu.launch(&Launch {
            family: FAMILY,
            kernel: "selective_scan",
            grid: [channels.div_ceil(CHANNELS), states.count(), 1],
            threads: CHANNELS,
            operands: &[
                self.x.input(),
                self.z.input(),
                self.dt.input(),
                self.b.input(),
                self.c.input(),
                Operand::In(&rates, 0),
                Operand::In(&skip, 0),
                runs,
                cuts,
                slots,
                out.output(),
            ],
            params: bytemuck::bytes_of(&params),
        })
    }
}

/// A layer's gated linear recurrence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lru<'a> {
    /// Channels of a head.
    pub(crate) dim: usize,
    /// Maps `[heads, dim, dim]` and biases of the gate of what is written, and of what is let go.
    pub(crate) input: [&'a Resident; 2],
    pub(crate) recurrent: [&'a Resident; 2],
    pub(crate) rates: &'a Resident,
}

impl Lru<'_> {
    /// States after each token of `x [t, width]`, into `out`.
    pub(crate) fn launch(
        &self,
        x: &GpuTensor,
        states: &GpuStates<'_>,
        out: &GpuTensor,
    ) -> Result<()> {
        let (op, gpu) = ("rg-lru", x.gpu());
        let width = count(op, x.dims[1])?;
        let dim = count(op, self.dim)?;
        let (gated, logs) = (GpuTensor::new(gpu, &x.dims)?, GpuTensor::new(gpu, &x.dims)?);
        let [input, input_bias] = self.input;
        let [recurrent, recurrent_bias] = self.recurrent;
        let all = [input, input_bias, recurrent, recurrent_bias, self.rates];
        let there = all.iter().map(|own| own.on(gpu)).collect::<Result<Vec<_>>>()?;
        let params = LruGatesParams { width, dim, parts: dim.div_ceil(LANES) };
        let mut operands = vec![x.input()];
        operands.extend(there.iter().map(|own| Operand::In(own, 0)));
        operands.extend([gated.output(), logs.output()]);
        gpu.launch(&Launch {
            family: FAMILY,
            kernel: "lru_gates",
            grid: [width / dim * params.parts, count(op, x.dims[0])?, 1],
            threads: LANES,
            operands: &operands,
            params: bytemuck::bytes_of(&params),
        })?;
        let [runs, cuts, slots] = states.operands(0);
        gpu.launch(&Launch {
            family: FAMILY,
            kernel: "lru",
            grid: [width.div_ceil(CHANNELS), states.count(), 1],
            threads: CHANNELS,
            operands: &[gated.input(), logs.input(), runs, cuts, slots, out.output()],
            params: bytemuck::bytes_of(&LruParams { width, stride: states.stride() }),
        })
    }
}
