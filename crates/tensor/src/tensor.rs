//! The currency between layers.

use crate::{
    DType, Device, Result, TensorError,
    gpu::{Buffer, Gpu, Prepared},
};
use candle_core::{IndexOp, Shape, WithDType};
use std::sync::Arc;

/// An array on the host, or f32 activations on a GPU. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tensor(Repr);

#[derive(Debug, Clone)]
enum Repr {
    Host(candle_core::Tensor),
    Gpu(GpuTensor),
}

/// Contiguous f32 on a GPU.
#[derive(Debug, Clone)]
pub(crate) struct GpuTensor {
    pub(crate) buffer: Arc<Buffer>,
    /// Bytes before the first element.
    pub(crate) offset: usize,
    pub(crate) dims: Vec<usize>,
    /// What the next product makes of it, if a kernel made that at once.
    pub(crate) prepared: Option<Arc<Prepared>>,
}

impl GpuTensor {
    /// A new one, whose contents a kernel is to write.
    pub(crate) fn new(gpu: &Gpu, dims: &[usize]) -> Result<Self> {
        let buffer = Arc::new(gpu.temporary(4 * dims.iter().product::<usize>())?);
        Ok(Self { buffer, offset: 0, dims: dims.to_vec(), prepared: None })
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        self.buffer.gpu()
    }

    pub(crate) fn len(&self) -> usize {
        self.dims.iter().product()
    }
}

impl From<GpuTensor> for Tensor {
    fn from(tensor: GpuTensor) -> Self {
        Self(Repr::Gpu(tensor))
    }
}

impl Tensor {
    /// A tensor on the host that takes over `data`.
    ///
    /// # Errors
    /// The shape has another number of elements.
    pub fn from_vec<D: WithDType>(
        data: Vec<D>,
        shape: impl Into<Shape>,
        device: &Device,
    ) -> Result<Self> {
        let shape: Shape = shape.into();
        Ok(Self(Repr::Host(candle_core::Tensor::from_vec(data, shape, device)?)))
    }

    /// A tensor of ones on the host.
    ///
    /// # Errors
    /// The device cannot have it.
    pub fn ones(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Self> {
        let shape: Shape = shape.into();
        Ok(Self(Repr::Host(candle_core::Tensor::ones(shape, dtype, device)?)))
    }

    /// Length of each dimension.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        match &self.0 {
            Repr::Host(x) => x.dims(),
            Repr::Gpu(x) => &x.dims,
        }
    }

    /// Where it is, if on a GPU.
    pub(crate) fn on_gpu(&self) -> Option<&GpuTensor> {
        match &self.0 {
            Repr::Host(_) => None,
            Repr::Gpu(x) => Some(x),
        }
    }

    /// The GPU it is on.
    #[must_use]
    pub fn gpu(&self) -> Option<&Gpu> {
        self.on_gpu().map(GpuTensor::gpu)
    }

    /// A copy on a GPU.
    ///
    /// # Errors
    /// It is not f32, or there is no room.
    pub fn to_gpu(&self, gpu: &Gpu) -> Result<Self> {
        let data = crate::host::read("to_gpu", self, |x| gpu.upload(x))??;
        let dims = self.dims().to_vec();
        Ok(GpuTensor { buffer: Arc::new(data), offset: 0, dims, prepared: None }.into())
    }

    /// The tensor on the host: itself, or a copy once the GPU has computed it.
    pub(crate) fn to_host(&self) -> Result<candle_core::Tensor> {
        match &self.0 {
            Repr::Host(x) => Ok(x.clone()),
            Repr::Gpu(x) => {
                let data: Vec<f32> = x.buffer.read(x.offset, x.len())?;
                Ok(candle_core::Tensor::from_vec(data, x.dims.as_slice(), &Device::Cpu)?)
            }
        }
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match &self.0 {
            Repr::Host(x) => x.dtype(),
            Repr::Gpu(_) => DType::F32,
        }
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    /// It has another number of elements.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape: Shape = shape.into();
        match &self.0 {
            Repr::Host(x) => Ok(Self(Repr::Host(x.reshape(shape)?))),
            Repr::Gpu(x) if shape.elem_count() == x.len() => {
                Ok(GpuTensor { dims: shape.into_dims(), ..x.clone() }.into())
            }
            Repr::Gpu(x) => {
                Err(TensorError::shape("reshape", format!("{} elements", x.len()), shape.dims()))
            }
        }
    }

    /// One dimension, on the host.
    ///
    /// # Errors
    /// As the GPU's errors.
    pub fn flatten_all(&self) -> Result<Self> {
        self.reshape(self.dims().iter().product::<usize>())
    }

    /// Two dimensions exchanged, on the host.
    ///
    /// # Errors
    /// It has fewer than two.
    pub fn t(&self) -> Result<Self> {
        Ok(Self(Repr::Host(self.to_host()?.t()?)))
    }

    /// `len` entries of dimension `dim` from `start` on, on the host.
    ///
    /// # Errors
    /// They are not inside.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        Ok(Self(Repr::Host(self.to_host()?.narrow(dim, start, len)?)))
    }

    /// Entry `index` of the first dimension, on the host.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn get(&self, index: usize) -> Result<Self> {
        Ok(Self(Repr::Host(self.to_host()?.i(index)?)))
    }

    /// The elements of a vector.
    ///
    /// # Errors
    /// Another shape or type.
    pub fn to_vec1<D: WithDType>(&self) -> Result<Vec<D>> {
        Ok(self.to_host()?.to_vec1()?)
    }

    /// The elements of a matrix.
    ///
    /// # Errors
    /// Another shape or type.
    pub fn to_vec2<D: WithDType>(&self) -> Result<Vec<Vec<D>>> {
        Ok(self.to_host()?.to_vec2()?)
    }

    /// The elements of three dimensions.
    ///
    /// # Errors
    /// Another shape or type.
    pub fn to_vec3<D: WithDType>(&self) -> Result<Vec<Vec<Vec<D>>>> {
        Ok(self.to_host()?.to_vec3()?)
    }
}
