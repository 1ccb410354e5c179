//! Linear maps over any weight format.

mod gated;
mod input;
mod placed;

use crate::{
    AffineWeight, Bytes, DType, DenseWeight, Phase, Result, RmsNorm, Tensor, TensorError,
    cpu::{
        Floats, RowSource,
        dense::{PackedDense, Sums},
        int8::{PackedWeight, Product, Rounding},
        shared::SharedOut,
    },
    dense::FloatBytes,
    gpu::{GpuWeight, Resident},
    host,
};
use input::{Input, apply};
use std::{fmt, sync::Arc};

/// How a matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// Plain floats.
    Dense(DType),
    /// MLX affine quantization.
    Affine(crate::AffineFormat),
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dense(dtype) => write!(f, "{}", dtype.as_str()),
            Self::Affine(a) => write!(f, "{}-bit, group {}", a.bits, a.group),
        }
    }
}

/// A matrix `[out, in]` in its stored format.
#[derive(Debug, Clone)]
pub enum Weight {
    /// Plain floats.
    Dense(DenseWeight),
    /// MLX affine quantization.
    Affine(AffineWeight),
}

impl Weight {
    /// Format in which the weight is stored.
    #[must_use]
    pub fn format(&self) -> WeightFormat {
        match self {
            Self::Dense(w) => WeightFormat::Dense(w.dtype()),
            Self::Affine(w) => WeightFormat::Affine(w.format()),
        }
    }

    /// Bytes in memory or mapped.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Dense(w) => w.bytes(),
            Self::Affine(w) => w.bytes(),
        }
    }

    /// Rows `first..first + rows` over the same memory: how a fused checkpoint tensor is split.
    ///
    /// # Errors
    /// The range is not inside.
    pub fn row_range(&self, first: usize, rows: usize) -> Result<Self> {
        let part = match self {
            Self::Dense(w) => w.row_range(first, rows).map(Self::Dense),
            Self::Affine(w) => w.row_range(first, rows).map(Self::Affine),
        };
        let limit = self.rows() + 1;
        part.ok_or(TensorError::Index { op: "row_range", index: first + rows, limit })
    }

    fn source(&self) -> &dyn RowSource {
        match self {
            Self::Dense(w) => w,
            Self::Affine(w) => w,
        }
    }
}

impl RowSource for Weight {
    fn rows(&self) -> usize {
        self.source().rows()
    }

    fn cols(&self) -> usize {
        self.source().cols()
    }

    fn read_rows(&self, first: usize, out: &mut [f32]) {
        self.source().read_rows(first, out);
    }

    fn floats(&self) -> Option<Floats<'_>> {
        self.source().floats()
    }
}

/// A matrix as a layer holds it: as stored, or repacked for its kernels.
#[derive(Debug, Clone)]
pub(crate) enum Matrix {
    Stored(Weight),
    Packed(Arc<PackedWeight>, Rounding),
    Dense(Arc<PackedDense>),
    Gpu(GpuWeight),
}

impl Matrix {
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Stored(w) => w.rows(),
            Self::Packed(w, _) => w.rows(),
            Self::Dense(w) => w.rows(),
            Self::Gpu(w) => w.rows(),
        }
    }

    pub(crate) fn cols(&self) -> usize {
        match self {
            Self::Stored(w) => w.cols(),
            Self::Packed(w, _) => w.cols(),
            Self::Dense(w) => w.cols(),
            Self::Gpu(w) => w.cols(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Stored(w) => w.bytes(),
            Self::Packed(w, _) => w.bytes(),
            Self::Dense(w) => w.bytes(),
            Self::Gpu(w) => w.bytes(),
        }
    }

    pub(crate) fn read_row(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Stored(w) => w.read_rows(row, out),
            Self::Packed(w, _) => w.read_row(row, out),
            Self::Dense(w) => w.read_row(row, out),
            Self::Gpu(_) => unreachable!("an embedding on a GPU looks its rows up there"),
        }
    }

    /// Repacks what is stored; those bytes are let go.
    pub(crate) fn pack(self, rounding: Rounding) -> Self {
        match self {
            Self::Stored(Weight::Affine(w)) => {
                let packed = PackedWeight::new(&w);
                w.release();
                Self::Packed(Arc::new(packed), rounding)
            }
            Self::Stored(Weight::Dense(w)) => {
                let packed = PackedDense::new(&w);
                w.release();
                Self::Dense(Arc::new(packed))
            }
            packed => packed,
        }
    }
}

/// `y = x Wᵀ + b`.
#[derive(Debug, Clone)]
pub struct Linear {
    matrix: Matrix,
    bias: Option<Resident>,
}

impl Linear {
    /// A map without bias, computed in f32.
    #[must_use]
    pub fn new(weight: Weight) -> Self {
        Self::over(Matrix::Stored(weight))
    }

    pub(crate) fn over(matrix: Matrix) -> Self {
        Self { matrix, bias: None }
    }

    /// Repacks the weights for speed. Activations of a quantized weight are rounded
    /// group by group (see [`cpu::int8`]), those of a `bf16` weight to `bf16` where the processor
    /// multiplies that (see [`cpu::dense`]). Prompts are multiplied with quantized weights as with `bf16`
    /// ones, or rounded to 16 bits (see [`Rounding`]).
    #[must_use]
    pub fn pack(self, rounding: Rounding) -> Self {
        Self { matrix: self.matrix.pack(rounding), ..self }
    }

    /// Adds a bias of [`Self::out_features`] floats.
    ///
    /// # Errors
    /// The buffer has another length or is no float.
    pub fn with_bias(mut self, dtype: DType, bytes: Bytes) -> Result<Self> {
        let n = self.out_features();
        let mut bias = vec![0.0; n];
        FloatBytes::new("bias", dtype, bytes, n)?.read(0, &mut bias);
        self.bias = Some(Resident::new(bias));
        Ok(self)
    }

    /// Applies the map in the arithmetic of a phase.
    ///
    /// # Shapes
    /// `x [t, in_features]` f32 -> `[t, out_features]` f32.
    ///
    /// # Errors
    /// Another shape or type, or a device without a kernel.
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        self.of_rows(x, |rows| Input::new(rows, phase))
    }

    /// As [`Self::forward`] for the few rows whose logits are asked for, in an arithmetic of its own where weights
    /// would be widened for prompts.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_few(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        self.of_rows(x, |rows| Input::few(rows, phase))
    }

    /// Applies the map to rows that are made an input.
    fn of_rows(&self, x: &Tensor, input: impl Fn(&[f32]) -> Input<'_>) -> Result<Tensor> {
        let t = self.check(x)?;
        if let Some(x) = x.on_gpu() {
            return self.multiply(x, None, None);
        }
        let out = host::read(x, |x| self.apply(&mut input(x), None))?;
        Tensor::from_vec(out, &[t, self.out_features()])
    }

    /// Applies the map and adds `residual`. A norm that is `next` to read the result, before other maps, may be
    /// applied at once, for these to find.
    ///
    /// # Shapes
    /// `x [t, in_features]`, `residual [t, out_features]` -> `[t, out_features]`.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_add(
        &self,
        x: &Tensor,
        residual: &Tensor,
        next: Option<&RmsNorm>,
        phase: Phase,
    ) -> Result<Tensor> {
        let shape = [self.check(x)?, self.out_features()];
        Self::check_residual(residual, shape)?;
        if let (Some(x), Some(residual)) = (x.on_gpu(), residual.on_gpu()) {
            return self.multiply(x, Some(residual), next);
        }
        let out = host::read(x, |x| {
            host::read(residual, |r| self.apply(&mut Input::new(x, phase), Some(r)))
        })??;
        Tensor::from_vec(out, &shape)
    }

    fn check_residual(residual: &Tensor, shape: [usize; 2]) -> Result<()> {
        if *residual.dims() == shape {
            return Ok(());
        }
        let expected = format!("a residual of {shape:?}");
        Err(TensorError::shape("linear", expected, residual.dims()))
    }

    fn check(&self, x: &Tensor) -> Result<usize> {
        match host::dims2("linear", x)? {
            (t, k) if k == self.in_features() => self.check_place(x).map(|()| t),
            _ => {
                let expected = format!("[t, {}]", self.in_features());
                Err(TensorError::shape("linear", expected, x.dims()))
            }
        }
    }

    fn apply(&self, x: &mut Input<'_>, residual: Option<&[f32]>) -> Vec<f32> {
        let [out] = apply([(self, residual)], x);
        out
    }

    fn bias(&self) -> Option<&[f32]> {
        self.bias.as_ref().map(Resident::host)
    }

    fn sums<'a>(&'a self, residual: Option<&'a [f32]>, out: SharedOut) -> Sums<'a> {
        Sums { bias: self.bias(), residual, out }
    }

    fn product<'a>(
        &'a self,
        weight: &'a PackedWeight,
        residual: Option<&'a [f32]>,
        out: SharedOut,
    ) -> Product<'a> {
        Product { weight, bias: self.bias(), residual, out }
    }

    /// Number of inputs.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.matrix.cols()
    }

    /// Number of outputs.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.matrix.rows()
    }

    /// Bytes in memory or mapped.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.matrix.bytes() + self.bias.as_ref().map_or(0, |b| 4 * b.host().len() as u64)
    }
}

/// Linear maps that read the same input, as the query, key and value projections do. A backend may
/// run them as one.
#[derive(Debug, Clone)]
pub struct LinearGroup<const N: usize> {
    parts: [Linear; N],
    /// All maps, one below the other, on a GPU.
    stacked: Option<placed::Stacked>,
}

impl<const N: usize> LinearGroup<N> {
    /// Groups maps of one input.
    ///
    /// # Errors
    /// Their inputs differ in length.
    pub fn new(parts: [Linear; N]) -> Result<Self> {
        for part in &parts {
            if part.in_features() != parts[0].in_features() {
                let expected = format!("[out, {}]", parts[0].in_features());
                let got = [part.out_features(), part.in_features()];
                return Err(TensorError::shape("linear group", expected, &got));
            }
        }
        Ok(Self { parts, stacked: None })
    }

    /// As [`Linear::pack`], for every map.
    #[must_use]
    pub fn pack(self, rounding: Rounding) -> Self {
        Self { parts: self.parts.map(|part| part.pack(rounding)), ..self }
    }

    /// Applies every map to `norm(x)`, in the arithmetic of a phase.
    ///
    /// # Shapes
    /// `x [t, in]` -> `[t, out_i]` each.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub fn forward_normed(&self, x: &Tensor, norm: &RmsNorm, phase: Phase) -> Result<[Tensor; N]> {
        let t = self.check(x, norm)?;
        if let Some(x) = x.on_gpu() {
            return self.multiply(x, norm);
        }
        let outputs = host::read(x, |x| {
            let mut input = Input::normed(x, norm, phase);
            apply(self.parts.each_ref().map(|part| (part, None)), &mut input)
        })?;
        let mut tensors = Vec::with_capacity(N);
        for (out, part) in outputs.into_iter().zip(&self.parts) {
            tensors.push(Tensor::from_vec(out, &[t, part.out_features()])?);
        }
        let got = [tensors.len()];
        tensors
            .try_into()
            .map_err(|_| TensorError::shape("linear group", "one output a part", &got))
    }

    fn check(&self, x: &Tensor, norm: &RmsNorm) -> Result<usize> {
        norm.check("linear group", x)?;
        self.parts.first().map_or(Ok(0), |first| first.check(x))
    }

    /// The group's maps.
    #[must_use]
    pub fn parts(&self) -> &[Linear; N] {
        &self.parts
    }
}
