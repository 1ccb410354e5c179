//! Linear maps on a GPU.

use super::{Linear, LinearGroup, Matrix, Place};
use crate::{
    Precision, Result, RmsNorm, Tensor, TensorError,
    cpu::{Activation, maps},
    gpu::{Elements, Gpu, GpuWeight, Next, Order, PARTS, Product, Resident, is_fused},
    tensor::GpuTensor,
};

/// The maps of a group as one matrix and one bias.
#[derive(Debug, Clone)]
pub(super) struct Stacked {
    weight: GpuWeight,
    bias: Option<Resident>,
}

impl Place<'_> {
    pub(crate) fn is_exact(&self) -> bool {
        self.precision == Precision::F32
    }
}

impl Matrix {
    pub(crate) fn place(self, place: Place<'_>) -> Result<Self> {
        match place.gpu {
            Some(gpu) => self.on(gpu, place.is_exact()),
            None => Ok(self.pack(place.precision)),
        }
    }

    pub(crate) fn on(self, gpu: &Gpu, exact: bool) -> Result<Self> {
        match self {
            Self::Host(maps::Matrix::Stored(weight)) => {
                match GpuWeight::stack(gpu, &[&weight], exact)? {
                    Some(there) => Ok(Self::Gpu(there)),
                    None => Ok(weight.into()),
                }
            }
            Self::Host(_) => Err(TensorError::Device { op: "repacked weight", device: gpu.name() }),
            Self::Gpu(weight) => Ok(Self::Gpu(weight)),
        }
    }
}

impl Linear {
    /// The map where and as it will be computed: on a GPU, or repacked for the CPU.
    ///
    /// # Errors
    /// As [`Self::on`].
    pub fn place(self, place: Place<'_>) -> Result<Self> {
        Ok(Self { matrix: self.matrix.place(place)?, ..self })
    }

    /// Copies the weights to a GPU, for inputs that are there. Unless it is to be `exact`, products of many
    /// rows may round weights and activations to f16.
    ///
    /// # Errors
    /// There is no room or no kernel for the format, or the weight was repacked for the CPU.
    pub fn on(self, gpu: &Gpu, exact: bool) -> Result<Self> {
        Ok(Self { matrix: self.matrix.on(gpu, exact)?, ..self })
    }

    pub(super) fn check_place(&self, x: &Tensor) -> Result<()> {
        match (&self.matrix, x.gpu()) {
            (Matrix::Gpu(w), Some(gpu)) if gpu.is(w.gpu()) => Ok(()),
            (Matrix::Host(_), None) => Ok(()),
            (_, gpu) => {
                let device = gpu.map_or_else(|| "cpu".into(), Gpu::name);
                Err(TensorError::Device { op: "linear", device })
            }
        }
    }

    fn weight_there(&self) -> Result<&GpuWeight> {
        match &self.matrix {
            Matrix::Gpu(weight) => Ok(weight),
            _ => Err(TensorError::Device { op: "linear", device: "cpu".into() }),
        }
    }

    /// The order in which a product on a GPU takes so many rows as halves, if it does.
    pub(crate) fn order(&self, tokens: usize) -> Option<Order> {
        self.weight_there().ok()?.order(tokens)
    }

    pub(super) fn multiply(
        &self,
        x: &GpuTensor,
        residual: Option<&GpuTensor>,
        next: Option<&RmsNorm>,
    ) -> Result<Tensor> {
        let next = next.map(Next::Normed);
        let product = Product { bias: self.bias.as_ref(), residual, next, ..Product::default() };
        let weight = self.weight_there()?;
        let [out] = weight.multiply(x, product, [weight.rows()])?;
        Ok(out.into())
    }

    fn multiply_normed(&self, x: &GpuTensor, norm: Option<&RmsNorm>) -> Result<GpuTensor> {
        let product = Product { norm, bias: self.bias.as_ref(), ..Product::default() };
        let weight = self.weight_there()?;
        let [out] = weight.multiply(x, product, [weight.rows()])?;
        Ok(out)
    }
}

impl<const N: usize> LinearGroup<N> {
    /// The maps where and as they will be computed.
    ///
    /// # Errors
    /// As [`Linear::on`].
    pub fn place(self, place: Place<'_>) -> Result<Self> {
        match place.gpu {
            Some(gpu) => self.on(gpu, place.is_exact()),
            None => Ok(self.pack(place.precision)),
        }
    }

    /// Copies the weights to a GPU, as one matrix where their formats agree. `exact` is that of [`Linear::on`].
    ///
    /// # Errors
    /// As [`Linear::on`].
    pub fn on(self, gpu: &Gpu, exact: bool) -> Result<Self> {
        let stored: Vec<_> = self.parts.iter().filter_map(Linear::stored).collect();
        if stored.len() == N
            && let Some(weight) = GpuWeight::stack(gpu, &stored, exact)?
        {
            return Ok(self.over(weight));
        }
        let mut parts = Vec::with_capacity(N);
        for part in self.parts {
            parts.push(part.on(gpu, exact)?);
        }
        let got = [parts.len()];
        let parts = parts.try_into();
        let parts = parts.map_err(|_| TensorError::shape("linear group", "every map", &got))?;
        Ok(Self { parts, stacked: None })
    }

    /// The maps as parts of one matrix.
    fn over(self, weight: GpuWeight) -> Self {
        let bias = self.parts.iter().any(|p| p.bias.is_some()).then(|| {
            let one = |p: &Linear| match &p.bias {
                Some(bias) => bias.host().to_vec(),
                None => vec![0.0; p.out_features()],
            };
            Resident::new(self.parts.iter().flat_map(one).collect())
        });
        let mut first = 0;
        let parts = self.parts.map(|part| {
            let rows = part.out_features();
            let matrix = Matrix::Gpu(weight.part(first, rows));
            first += rows;
            Linear { matrix, ..part }
        });
        Self { parts, stacked: Some(Stacked { weight, bias }) }
    }

    pub(super) fn multiply(&self, x: &GpuTensor, norm: Option<&RmsNorm>) -> Result<[Tensor; N]> {
        Ok(self.multiply_there(x, norm)?.map(Tensor::from))
    }

    fn multiply_there(&self, x: &GpuTensor, norm: Option<&RmsNorm>) -> Result<[GpuTensor; N]> {
        // A launch has one bias from its first row on.
        let one = |all: &&Stacked| N <= PARTS || x.dims[0] == 1 || all.bias.is_none();
        let Some(Stacked { weight, bias }) = self.stacked.as_ref().filter(one) else {
            let mut outs = Vec::with_capacity(N);
            for part in &self.parts {
                outs.push(part.multiply_normed(x, norm)?);
            }
            let got = [outs.len()];
            let outs = outs.try_into();
            return outs.map_err(|_| TensorError::shape("linear group", "every map", &got));
        };
        let product = Product { norm, bias: bias.as_ref(), ..Product::default() };
        let mut end = 0;
        let ends = self.parts.each_ref().map(|part| {
            end += part.out_features();
            end
        });
        weight.multiply(x, product, ends)
    }
}

impl LinearGroup<2> {
    pub(super) fn multiply_gated(
        &self,
        x: &GpuTensor,
        norm: Option<&RmsNorm>,
        activation: Activation,
        down: Option<&Linear>,
    ) -> Result<Tensor> {
        let stacked = self.stacked.as_ref().filter(|_| is_fused(activation));
        let Some(Stacked { weight, bias }) = stacked else {
            let [gate, up] = self.multiply_there(x, norm)?;
            return Ok(Elements::Gated(activation).of(&gate, &up)?.into());
        };
        let next = down.and_then(|down| down.order(x.dims[0])).map(Next::Alone);
        let gate = Some(activation);
        let product = Product { norm, bias: bias.as_ref(), gate, next, ..Product::default() };
        let [out] = weight.multiply(x, product, [weight.rows()])?;
        Ok(out.into())
    }
}

impl Linear {
    /// The weight as stored, where nothing is added to its products.
    pub(crate) fn plain(&self) -> Option<&crate::Weight> {
        self.stored().filter(|_| self.bias.is_none())
    }

    /// The weight as its file has it, on the host.
    pub(crate) fn stored(&self) -> Option<&crate::Weight> {
        match &self.matrix {
            Matrix::Host(maps::Matrix::Stored(weight) | maps::Matrix::Watched(weight, _)) => {
                Some(weight)
            }
            _ => None,
        }
    }
}
