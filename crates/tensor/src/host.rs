//! Tensors on the host as slices, and back.

use crate::{Result, Tensor, TensorError};

/// Calls `f` with a tensor's elements on the host. From a GPU they are copied.
pub(crate) fn read<R>(x: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    Ok(f(x.to_host()?.as_slice()))
}

pub(crate) fn dims2(op: &'static str, x: &Tensor) -> Result<(usize, usize)> {
    match *x.dims() {
        [t, k] => Ok((t, k)),
        _ => Err(TensorError::shape(op, "[t, features]", x.dims())),
    }
}
