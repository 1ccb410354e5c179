//! Operations on activations.

use super::{
    Buffer, Gpu, LANES, Launch, Operand, Resident, count,
    gates::{self, Curve},
    params,
};
use crate::{Result, RmsNorm, TensorError, ops::Activation, tensor::GpuTensor};
use std::sync::Arc;

params!(
    /// Parameters of `rms_norm`.
    NormParams { cols: u32, eps: f32 }
);
params!(
    /// Parameters of `latent_norm`.
    LatentParams { cols: u32, rest: u32, eps: f32 }
);
params!(
    /// Parameters of `norm_rope` and `norm_rope_wide`.
    RopeParams {
        x_heads: u32,
        y_heads: u32,
        all_x: u32,
        all: u32,
        head_dim: u32,
        pairs: u32,
        x_norm: u32,
        y_norm: u32,
        x_eps: f32,
        y_eps: f32,
    }
);
params!(
    /// Parameters of the kernels that take one element a thread.
    ElementParams { n: u32, kind: u32, value: f32 }
);
params!(
    /// Parameters of `take_rows`, `put_rows` and `add_bias`.
    RowsParams { n: u32, cols: u32 }
);
params!(
    /// Parameters of `sum_words`.
    SumParams { pieces: u32, threads: u32 }
);

/// Threads of element-wise kernels.
pub(super) const THREADS: u32 = 256;
/// Elements of the largest head that `norm_rope` takes, and `norm_rope_wide`.
const MAX_HEAD: [usize; 2] = [256, 576];

/// Whether products compute the gate as they store their results.
pub(crate) fn is_fused(activation: Activation) -> bool {
    matches!(activation, Activation::Silu | Activation::GeluTanh)
}

/// As kernels of products number activations; 0 for none.
pub(crate) fn gate(activation: Option<Activation>) -> Result<u32> {
    match activation {
        None => Ok(0),
        Some(Activation::Silu) => Ok(1),
        Some(Activation::GeluTanh) => Ok(2),
        Some(other) => {
            let op = match other {
                Activation::Gelu => "gelu",
                Activation::Relu2 => "relu2",
                _ => "swiglu_oai",
            };
            Err(TensorError::Device { op, device: "gpu".to_owned() })
        }
    }
}

/// `x / rms(x) * gains` for every row.
pub(crate) fn rms_norm(x: &GpuTensor, norm: &RmsNorm) -> Result<GpuTensor> {
    let out = GpuTensor::new(x.gpu(), &x.dims)?;
    let gains = norm.resident().on(x.gpu())?;
    let cols = norm.gains().len();
    x.gpu().launch(&Launch {
        family: "rows",
        kernel: "rms_norm",
        grid: [count("rms_norm", x.len() / cols)?, 1, 1],
        threads: THREADS,
        operands: &[x.input(), Operand::In(&gains, 0), Operand::Out(&out.buffer, 0)],
        params: bytemuck::bytes_of(&NormParams { cols: cols as u32, eps: norm.eps() }),
    })?;
    Ok(out)
}

/// The first elements of every row, as many as there are gains, normed, after the others.
pub(crate) fn latent_norm(x: &GpuTensor, norm: &RmsNorm) -> Result<GpuTensor> {
    let out = GpuTensor::new(x.gpu(), &x.dims)?;
    let gains = norm.resident().on(x.gpu())?;
    let (cols, width) = (norm.gains().len(), x.dims[1]);
    let params = LatentParams {
        cols: count("latent_norm", cols)?,
        rest: count("latent_norm", width - cols)?,
        eps: norm.eps(),
    };
    x.gpu().launch(&Launch {
        family: "rows",
        kernel: "latent_norm",
        grid: [count("latent_norm", x.dims[0])?, 1, 1],
        threads: THREADS,
        operands: &[x.input(), Operand::In(&gains, 0), Operand::Out(&out.buffer, 0)],
        params: bytemuck::bytes_of(&params),
    })?;
    Ok(out)
}

/// Heads of tokens of two tensors, normed and rotated; `angles` are cosines, sines and pairs a token.
pub(crate) fn norm_rope(
    [(x, x_norm), (y, y_norm)]: [(&GpuTensor, Option<&RmsNorm>); 2],
    head_dim: usize,
    angles: Option<(&Resident, &Resident, usize)>,
) -> Result<[GpuTensor; 2]> {
    let [most, widest] = MAX_HEAD;
    if head_dim > widest {
        let expected = format!("heads of at most {widest}");
        return Err(TensorError::shape("norm_rope", expected, &[head_dim]));
    }
    let gpu = x.gpu();
    let (tokens, both) = (x.dims[0], Arc::new(gpu.temporary(4 * (x.len() + y.len()))?));
    let out = |of: &GpuTensor, offset| GpuTensor {
        buffer: Arc::clone(&both),
        offset,
        dims: vec![tokens, of.dims[1] / head_dim, head_dim],
        prepared: None,
    };
    let outs = [out(x, 0), out(y, 4 * x.len())];
    let gains = |norm: Option<&RmsNorm>| norm.map(|n| n.resident().on(gpu)).transpose();
    let (x_gains, y_gains) = (gains(x_norm)?, gains(y_norm)?);
    let there = angles.map(|(cos, sin, _)| Ok::<_, TensorError>((cos.on(gpu)?, sin.on(gpu)?)));
    let there = there.transpose()?;
    let heads = [&outs[0], &outs[1]].map(|o| o.dims[1] as u32);
    let eps = |norm: Option<&RmsNorm>| norm.map_or(0.0, RmsNorm::eps);
    let params = RopeParams {
        x_heads: heads[0],
        y_heads: heads[1],
        all_x: count("norm_rope", x.len() / head_dim)?,
        all: count("norm_rope", (x.len() + y.len()) / head_dim)?,
        head_dim: head_dim as u32,
        pairs: angles.map_or(0, |(.., pairs)| pairs as u32),
        x_norm: u32::from(x_norm.is_some()),
        y_norm: u32::from(y_norm.is_some()),
        x_eps: eps(x_norm),
        y_eps: eps(y_norm),
    };
    // What is not there is never read; any buffer will do.
    let x_in = x.input();
    gpu.launch(&Launch {
        family: "rows",
        kernel: if head_dim > most { "norm_rope_wide" } else { "norm_rope" },
        grid: [params.all.div_ceil(4), 1, 1],
        threads: 4 * LANES,
        operands: &[
            x_in,
            y.input(),
            x_gains.as_deref().map_or(x_in, |b| Operand::In(b, 0)),
            y_gains.as_deref().map_or(x_in, |b| Operand::In(b, 0)),
            there.as_ref().map_or(x_in, |(cos, _)| Operand::In(cos, 0)),
            there.as_ref().map_or(x_in, |(_, sin)| Operand::In(sin, 0)),
            Operand::Out(&both, 0),
        ],
        params: bytemuck::bytes_of(&params),
    })?;
    Ok(outs)
}

/// What to do with each element.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Elements {
    /// `x + y`.
    Add,
    /// `activation(x) * y`.
    Gated(Activation),
    /// `x * s`.
    Scale(f32),
    /// `cap * tanh(x / cap)`.
    SoftCap(f32),
}

impl Elements {
    /// A new tensor; operations of one operand take it for `y` too.
    pub(crate) fn of(self, x: &GpuTensor, y: &GpuTensor) -> Result<GpuTensor> {
        let out = GpuTensor::new(x.gpu(), &x.dims)?;
        self.to(x, y, &out)?;
        Ok(out)
    }

    /// Into `out`, which may be `x`.
    pub(crate) fn to(self, x: &GpuTensor, y: &GpuTensor, out: &GpuTensor) -> Result<()> {
        if let Self::Gated(activation) = self
            && !is_fused(activation)
        {
            return gates::activation(Curve::Of(activation), x, Some(y), out);
        }
        let n = count("elements", x.len())?;
        let (kernel, kind, value) = match self {
            Self::Add => ("add", 0, 0.0),
            Self::Gated(activation) => ("gated", gate(Some(activation))?, 0.0),
            Self::Scale(s) => ("scale", 0, s),
            Self::SoftCap(cap) => ("soft_cap", 0, cap),
        };
        let operands = [x.input(), y.input(), out.output()];
        let params = ElementParams { n, kind, value };
        element_wise(x.gpu(), (FAMILY, kernel), n, &operands, &params)
    }
}

/// The file of the kernels here that take one element a thread.
const FAMILY: &str = "elementwise";

/// Runs a kernel of a file with a thread for each of `n` elements.
pub(super) fn element_wise<P: bytemuck::Pod>(
    gpu: &Gpu,
    (family, kernel): (&'static str, &str),
    n: u32,
    operands: &[Operand<'_>],
    params: &P,
) -> Result<()> {
    gpu.launch(&Launch {
        family,
        kernel,
        grid: [n.div_ceil(THREADS), 1, 1],
        threads: THREADS,
        operands,
        params: bytemuck::bytes_of(params),
    })
}

/// `x + bias[first..]` for every row, into `out`, which may be `x`.
pub(crate) fn add_bias(x: &GpuTensor, bias: &Buffer, first: usize, out: &GpuTensor) -> Result<()> {
    let n = count("add_bias", x.len())?;
    let params = RowsParams { n, cols: count("add_bias", x.dims[1])? };
    let operands = [x.input(), Operand::In(bias, 4 * first), out.output()];
    element_wise(x.gpu(), (FAMILY, "add_bias"), n, &operands, &params)
}

/// The elements rounded to f16.
pub(crate) fn to_half(x: &GpuTensor) -> Result<Buffer> {
    let out = x.gpu().temporary(2 * x.len())?;
    let by_four = x.offset.is_multiple_of(16) && x.len().is_multiple_of(4);
    let n = count("to_half", if by_four { x.len() / 4 } else { x.len() })?;
    let operands = [x.input(), Operand::Out(&out, 0)];
    let params = ElementParams { n, kind: by_four.into(), value: 0.0 };
    element_wise(x.gpu(), (FAMILY, "to_half"), n, &operands, &params)?;
    Ok(out)
}

/// The rows `ids`, which are below the number of rows.
pub(crate) fn take_rows(x: &GpuTensor, ids: &[u32]) -> Result<GpuTensor> {
    let cols = x.dims[1];
    if ids.iter().copied().eq(0..x.dims[0] as u32) {
        return Ok(x.clone());
    }
    let out = GpuTensor::new(x.gpu(), &[ids.len(), cols])?;
    let there = x.gpu().upload(ids)?;
    let params = RowsParams { n: count("take_rows", out.len())?, cols: cols as u32 };
    let operands = [x.input(), Operand::In(&there, 0), Operand::Out(&out.buffer, 0)];
    element_wise(x.gpu(), (FAMILY, "take_rows"), params.n, &operands, &params)?;
    Ok(out)
}

/// `x` with `rows` in the places `ids`, which are below the number of rows and differ.
pub(crate) fn put_rows(x: &GpuTensor, ids: &[u32], rows: &GpuTensor) -> Result<GpuTensor> {
    let out = Elements::Scale(1.0).of(x, x)?;
    let there = x.gpu().upload(ids)?;
    let params = RowsParams { n: count("put_rows", rows.len())?, cols: x.dims[1] as u32 };
    let operands = [rows.input(), Operand::In(&there, 0), out.output()];
    element_wise(x.gpu(), (FAMILY, "put_rows"), params.n, &operands, &params)?;
    Ok(out)
}

/// Sums of a buffer's 32-bit words modulo 2^32, one a thread of so many threadgroups: their sum is the
/// buffer's. It reads as fast as plain loads can, for whoever asks how fast that is.
///
/// # Errors
/// The buffer's length is no multiple of 16 bytes, or above 64 GB.
pub fn sum_words(buffer: &Buffer, threadgroups: u32) -> Result<Buffer> {
    let (gpu, threads) = (buffer.gpu(), threadgroups * THREADS);
    let pieces = pieces(buffer.len(), threads)?;
    let out = gpu.temporary(4 * threads as usize)?;
    gpu.launch(&Launch {
        family: FAMILY,
        kernel: "sum_words",
        grid: [threadgroups, 1, 1],
        threads: THREADS,
        operands: &[Operand::In(buffer, 0), Operand::Out(&out, 0)],
        params: bytemuck::bytes_of(&SumParams { pieces, threads }),
    })?;
    Ok(out)
}

/// Pieces of 16 bytes that so many threads count. A thread counts up to a run past the end.
fn pieces(bytes: usize, threads: u32) -> Result<u32> {
    if !bytes.is_multiple_of(16) {
        return Err(TensorError::shape("sum_words", "whole pieces of 16 bytes", &[bytes]));
    }
    count("sum_words", bytes / 16 + 8 * threads as usize)?;
    count("sum_words", bytes / 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_summed_in_whole_pieces_that_can_be_counted() {
        assert_eq!(pieces(0, 256).unwrap(), 0);
        assert_eq!(pieces(4096, 256).unwrap(), 256);
        for bytes in [1, 15, 17, 4095] {
            let error = pieces(bytes, 256).unwrap_err().to_string();
            assert!(error.contains("whole pieces of 16 bytes"), "{error}");
        }
        let most = 16 * (u32::MAX as usize - 8 * 256);
        assert_eq!(pieces(most, 256).unwrap(), u32::MAX - 8 * 256);
        assert!(matches!(pieces(most + 16, 256), Err(TensorError::Index { .. })));
    }
}
