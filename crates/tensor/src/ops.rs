//! The fused operations of a transformer on [`Tensor`]s.

use crate::{Result, Tensor, TensorError, cpu, gpu::Elements, host, tensor::GpuTensor};

mod gates;
mod rows;

pub use crate::{
    cpu::Activation,
    parts::{columns, join_columns, resize_heads, split_heads},
};
pub use gates::{
    Xielu, activate, clamped_swiglu, mul_sigmoid, mul_softplus, scale_columns, scale_rows, xielu,
};
pub use rows::{WeightedRows, add_weighted_rows, put_rows, take_rows};

/// `activation(gate) * up`, element by element.
///
/// # Errors
/// The shapes differ, or another type.
pub fn gated(activation: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    same_shape("gated", gate, up)?;
    if let Some((gate, up)) = both_on_gpu("gated", gate, up)? {
        return Ok(Elements::Gated(activation).of(gate, up)?.into());
    }
    let both = |g: &[f32]| host::read(up, |u| cpu::gated(activation, g, u));
    Tensor::from_vec(host::read(gate, both)??, gate.dims())
}

/// `x + y`, element by element.
///
/// # Errors
/// The shapes differ, or another type.
pub fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    same_shape("add", x, y)?;
    if let Some((x, y)) = both_on_gpu("add", x, y)? {
        return Ok(Elements::Add.of(x, y)?.into());
    }
    let both = |x: &[f32]| host::read(y, |y| cpu::add(x, y));
    Tensor::from_vec(host::read(x, both)??, x.dims())
}

/// `x * s`.
///
/// # Errors
/// Another type.
pub fn scale(x: &Tensor, s: f32) -> Result<Tensor> {
    if let Some(x) = x.on_gpu() {
        return Ok(Elements::Scale(s).of(x, x)?.into());
    }
    let out = host::read(x, |x| x.iter().map(|v| v * s).collect())?;
    Tensor::from_vec(out, x.dims())
}

/// `cap * tanh(x / cap)` (Gemma 2's logit cap).
///
/// # Errors
/// Another type.
pub fn soft_cap(x: &Tensor, cap: f32) -> Result<Tensor> {
    if let Some(x) = x.on_gpu() {
        return Ok(Elements::SoftCap(cap).of(x, x)?.into());
    }
    let mut out = host::read(x, <[f32]>::to_vec)?;
    cpu::soft_cap(&mut out, cap);
    Tensor::from_vec(out, x.dims())
}

/// Reads a tensor's elements as f32 on the host, for kernels of other crates. From a GPU they are
/// copied, once it has computed them.
///
/// # Errors
/// Another type or device.
pub fn with_host_f32<R>(x: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    host::read(x, f)
}

/// Two operands on one GPU; `None` when both are on the host.
pub(crate) fn both_on_gpu<'a>(
    op: &'static str,
    x: &'a Tensor,
    y: &'a Tensor,
) -> Result<Option<(&'a GpuTensor, &'a GpuTensor)>> {
    match (x.on_gpu(), y.on_gpu()) {
        (None, None) => Ok(None),
        (Some(x), Some(y)) => Ok(Some((x, y))),
        _ => Err(TensorError::Device { op, device: "another than the other operand's".into() }),
    }
}

fn same_shape(op: &'static str, x: &Tensor, y: &Tensor) -> Result<()> {
    if x.dims() == y.dims() {
        return Ok(());
    }
    Err(TensorError::shape(op, format!("{:?}", x.dims()), y.dims()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_checked() {
        let x = Tensor::from_vec(vec![1.0; 6], &[2, 3]).unwrap();
        let y = Tensor::from_vec(vec![1.0; 6], &[3, 2]).unwrap();
        assert!(add(&x, &y).is_err());
        assert!(gated(Activation::Silu, &x, &y).is_err());
        assert!(crate::RmsNorm::new(vec![1.0; 2], 0.0).forward(&x).is_err());
    }
}
