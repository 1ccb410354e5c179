//! What is made of a row's mean and spread.

use super::{Launch, Operand, Resident, count, ops::THREADS, params};
use crate::{Result, tensor::GpuTensor};

params!(
    /// Parameters of `layer_norm`, `sparse_gates` and `match_rows`.
    LayerParams { cols: u32, bias: u32, eps: f32, deviations: f32 }
);

/// Runs a kernel with a threadgroup a row of `x`, whose result is shaped as that.
fn by_rows(
    kernel: &str,
    x: &GpuTensor,
    others: &[Operand<'_>],
    (cols, params): (usize, LayerParams),
) -> Result<GpuTensor> {
    let out = GpuTensor::new(x.gpu(), &x.dims)?;
    let params = LayerParams { cols: count("layer", cols)?, ..params };
    let mut operands = vec![x.input()];
    operands.extend(others);
    operands.push(Operand::Out(&out.buffer, 0));
    x.gpu().launch(&Launch {
        family: "layer",
        kernel,
        grid: [count("layer", x.len() / cols)?, 1, 1],
        threads: THREADS,
        operands: &operands,
        params: bytemuck::bytes_of(&params),
    })?;
    Ok(out)
}

/// `(x - mean(x)) / sqrt(var(x) + eps) * gains + bias` for every row.
pub(crate) fn layer_norm(
    x: &GpuTensor,
    gains: &Resident,
    bias: Option<&Resident>,
    eps: f32,
) -> Result<GpuTensor> {
    let cols = gains.host().len();
    let there = gains.on(x.gpu())?;
    let bias = bias.map(|bias| bias.on(x.gpu())).transpose()?;
    let params = LayerParams { bias: u32::from(bias.is_some()), eps, ..LayerParams::default() };
    // A bias that is not there is never read.
    let others = [&there, bias.as_ref().unwrap_or(&there)].map(|b| Operand::In(b, 0));
    by_rows("layer_norm", x, &others, (cols, params))
}

/// What elements of each row are beyond so many standard deviations above its mean.
pub(crate) fn sparse_gates(x: &GpuTensor, deviations: f32) -> Result<GpuTensor> {
    let params = LayerParams { deviations, ..LayerParams::default() };
    by_rows("sparse_gates", x, &[], (x.dims[1], params))
}

/// Rows of `x` with the root of the mean square of those of `like`; their own mean square counts as `least` at least.
pub(crate) fn match_rows(x: &GpuTensor, like: &GpuTensor, least: f32) -> Result<GpuTensor> {
    let params = LayerParams { eps: least, ..LayerParams::default() };
    by_rows("match_rows", x, &[like.input()], (x.dims[1], params))
}
