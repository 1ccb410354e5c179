//! Rows taken apart, put together and mixed.

use super::{Operand, count, ops::element_wise, params};
use crate::{Result, tensor::GpuTensor};

params!(
    /// Parameters of `take_parts`.
    TakeParams { n: u32, from: u32, first: u32, to: u32 }
);
params!(
    /// Parameters of `join_parts`.
    JoinParams { n: u32, left: u32, right: u32 }
);
params!(
    /// Parameters of `mix_streams`.
    MixParams { n: u32, width: u32, outs: u32, ins: u32, alike: u32, plus: f32 }
);

/// What is taken of every part of a tensor: `to` of its `from` elements from the one at `first` on, and zeros past its
/// end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taking {
    pub(crate) from: usize,
    pub(crate) first: usize,
    pub(crate) to: usize,
}

/// What is taken of `x`, which is whole parts, in this shape. Of a single part nothing is copied.
pub(crate) fn take_parts(x: &GpuTensor, taking: Taking, dims: &[usize]) -> Result<GpuTensor> {
    let Taking { from, first, to } = taking;
    let offset = x.offset + 4 * first;
    // Products want their inputs to begin so.
    if x.len() == from && first + to <= from && offset.is_multiple_of(16) {
        return Ok(GpuTensor { offset, dims: dims.to_vec(), prepared: None, ..x.clone() });
    }
    let out = GpuTensor::new(x.gpu(), dims)?;
    let part = |n| count("take_parts", n);
    let (n, from) = (part(out.len())?, part(from)?);
    let params = TakeParams { n, from, first: part(first)?, to: part(to)? };
    let operands = [x.input(), Operand::Out(&out.buffer, 0)];
    element_wise(x.gpu(), ("shapes", "take_parts"), n, &operands, &params)?;
    Ok(out)
}

/// Parts of `left` elements of `x` and of `right` elements of `y`, by turns, in this shape.
pub(crate) fn join_parts(
    (x, left): (&GpuTensor, usize),
    (y, right): (&GpuTensor, usize),
    dims: &[usize],
) -> Result<GpuTensor> {
    let out = GpuTensor::new(x.gpu(), dims)?;
    let n = count("join_parts", out.len())?;
    let (left, right) = (count("join_parts", left)?, count("join_parts", right)?);
    let operands = [x.input(), y.input(), Operand::Out(&out.buffer, 0)];
    let params = JoinParams { n, left, right };
    element_wise(x.gpu(), ("shapes", "join_parts"), n, &operands, &params)?;
    Ok(out)
}

/// `x` plus what the coefficients, with `plus` added to each, make of `y`: `[outs, ins]` of them for each row, or one
/// such for all.
pub(crate) fn mix_streams(
    x: &GpuTensor,
    y: &GpuTensor,
    (coefs, plus): (&GpuTensor, f32),
    [outs, ins, width]: [usize; 3],
) -> Result<GpuTensor> {
    let out = GpuTensor::new(x.gpu(), &x.dims)?;
    let part = |n| count("mix_streams", n);
    let params = MixParams {
        n: part(x.len())?,
        width: part(width)?,
        outs: part(outs)?,
        ins: part(ins)?,
        alike: u32::from(coefs.dims[0] == 1),
        plus,
    };
    let operands = [x.input(), y.input(), coefs.input(), Operand::Out(&out.buffer, 0)];
    element_wise(x.gpu(), ("shapes", "mix_streams"), params.n, &operands, &params)?;
    Ok(out)
}
