//! The currency between layers.

use crate::{
    Result, TensorError,
    gpu::{Buffer, Gpu, Operand, Prepared},
};
use std::{ops::Range, sync::Arc};

/// An array of f32, on the host or on a GPU. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tensor(Repr);

#[derive(Debug, Clone)]
enum Repr {
    Host(HostTensor),
    Gpu(GpuTensor),
}

/// Contiguous f32 on the host.
#[derive(Debug, Clone)]
pub(crate) struct HostTensor {
    data: Arc<Vec<f32>>,
    /// Elements of `data` that the tensor has.
    range: Range<usize>,
    dims: Vec<usize>,
}

impl HostTensor {
    pub(crate) fn as_slice(&self) -> &[f32] {
        &self.data[self.range.clone()]
    }
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

    /// For a kernel that reads it.
    pub(crate) fn input(&self) -> Operand<'_> {
        Operand::In(&self.buffer, self.offset)
    }

    /// For a kernel that writes it.
    pub(crate) fn output(&self) -> Operand<'_> {
        Operand::Out(&self.buffer, self.offset)
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
    /// The dimensions have another number of elements.
    pub fn from_vec(data: Vec<f32>, dims: &[usize]) -> Result<Self> {
        let range = 0..data.len();
        if dims.iter().product::<usize>() != data.len() {
            let expected = format!("{} elements", data.len());
            return Err(TensorError::shape("tensor", expected, dims));
        }
        Ok(Self(Repr::Host(HostTensor { data: Arc::new(data), range, dims: dims.to_vec() })))
    }

    /// Length of each dimension.
    #[must_use]
    pub fn dims(&self) -> &[usize] {
        match &self.0 {
            Repr::Host(x) => &x.dims,
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
    /// There is no room.
    pub fn to_gpu(&self, gpu: &Gpu) -> Result<Self> {
        let data = crate::host::read(self, |x| gpu.upload(x))??;
        let dims = self.dims().to_vec();
        Ok(GpuTensor { buffer: Arc::new(data), offset: 0, dims, prepared: None }.into())
    }

    /// The tensor on the host: itself, or a copy once the GPU has computed it.
    pub(crate) fn to_host(&self) -> Result<HostTensor> {
        match &self.0 {
            Repr::Host(x) => Ok(x.clone()),
            Repr::Gpu(x) => {
                let data: Vec<f32> = x.buffer.read(x.offset, x.len())?;
                let range = 0..data.len();
                Ok(HostTensor { data: Arc::new(data), range, dims: x.dims.clone() })
            }
        }
    }

    /// All elements on the host; nothing is copied that is there and nobody else's.
    pub(crate) fn into_vec(self) -> Result<Vec<f32>> {
        let x = self.to_host()?;
        drop(self);
        match Arc::try_unwrap(x.data) {
            Ok(data) if x.range == (0..data.len()) => Ok(data),
            Ok(data) => Ok(data[x.range].to_vec()),
            Err(data) => Ok(data[x.range].to_vec()),
        }
    }

    /// Reshapes the tensor; nothing is copied.
    ///
    /// # Errors
    /// It has another number of elements.
    pub fn reshape(&self, dims: &[usize]) -> Result<Self> {
        let (len, dims) = (self.dims().iter().product::<usize>(), dims.to_vec());
        if dims.iter().product::<usize>() != len {
            return Err(TensorError::shape("reshape", format!("{len} elements"), &dims));
        }
        Ok(match &self.0 {
            Repr::Host(x) => Self(Repr::Host(HostTensor { dims, ..x.clone() })),
            Repr::Gpu(x) => GpuTensor { dims, ..x.clone() }.into(),
        })
    }

    /// Entries of the first dimension, on the host; nothing is copied that is there.
    ///
    /// # Errors
    /// They are not inside, or as the GPU's errors.
    pub fn entries(&self, entries: Range<usize>) -> Result<Self> {
        let mut x = self.to_host()?;
        let limit = x.dims.first().copied().unwrap_or(0);
        if entries.start > entries.end || entries.end > limit {
            return Err(TensorError::Index { op: "entries", index: entries.end, limit: limit + 1 });
        }
        let size = x.dims[1..].iter().product::<usize>();
        let start = x.range.start;
        x.range = start + entries.start * size..start + entries.end * size;
        x.dims[0] = entries.len();
        Ok(Self(Repr::Host(x)))
    }

    /// All elements, the last dimension's side by side.
    ///
    /// # Errors
    /// As the GPU's errors.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        Ok(self.to_host()?.as_slice().to_vec())
    }

    /// The rows of a matrix.
    ///
    /// # Errors
    /// Another shape, or as the GPU's errors.
    pub fn to_vec2(&self) -> Result<Vec<Vec<f32>>> {
        let (_, n) = crate::host::dims2("to_vec2", self)?;
        Ok(self.to_host()?.as_slice().chunks(n.max(1)).map(<[f32]>::to_vec).collect())
    }
}
