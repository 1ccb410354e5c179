//! Tensors on the host as slices, and back.

use crate::{Device, Result, Tensor, TensorError};
use candle_core::{CpuStorage, Storage};

/// Calls `f` with the elements of a contiguous f32 tensor on the host.
pub(crate) fn read<R>(op: &'static str, x: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let x = x.to_host()?.contiguous()?;
    let (storage, layout) = x.storage_and_layout();
    let all = match &*storage {
        Storage::Cpu(CpuStorage::F32(all)) => all,
        Storage::Cpu(other) => return Err(TensorError::DType { op, got: dtype(other) }),
        _ => return Err(TensorError::Device { op, device: format!("{:?}", x.device()) }),
    };
    let start = layout.start_offset();
    Ok(f(&all[start..start + layout.shape().elem_count()]))
}

fn dtype(storage: &CpuStorage) -> candle_core::DType {
    use candle_core::backend::BackendStorage;
    storage.dtype()
}

/// A host tensor that takes over `data`.
pub(crate) fn tensor(data: Vec<f32>, shape: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(data, shape, &Device::Cpu)
}

pub(crate) fn dims2(op: &'static str, x: &Tensor) -> Result<(usize, usize)> {
    match *x.dims() {
        [t, k] => Ok((t, k)),
        _ => Err(TensorError::shape(op, "[t, features]", x.dims())),
    }
}
