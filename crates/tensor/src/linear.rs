//! Linear maps over any weight format.

mod adapt;
mod gated;
mod image;
mod placed;

use crate::{
    Bytes, DType, Phase, Precision, Result, RmsNorm, Tensor, TensorError, Weight,
    cpu::{
        maps::{self, Input, Map, Watch, apply},
        read_floats,
    },
    gpu::{Gpu, GpuWeight, Resident},
    host,
};
use std::sync::Arc;

pub use adapt::{ChangedRows, LowRankChanges, Module, Pass};
pub use image::LinearLayout;

/// Where maps are computed, and how precisely.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place<'a> {
    /// The GPU; `None` is the CPU.
    pub gpu: Option<&'a Gpu>,
    /// How activations are rounded. On a GPU, products of many rows round weights and activations to `f16`
    /// unless it is [`Precision::F32`].
    pub precision: Precision,
}

/// A matrix as a layer holds it.
#[derive(Debug, Clone)]
pub(crate) enum Matrix {
    Host(maps::Matrix),
    Gpu(GpuWeight),
}

impl Matrix {
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Host(w) => w.rows(),
            Self::Gpu(w) => w.rows(),
        }
    }

    pub(crate) fn cols(&self) -> usize {
        match self {
            Self::Host(w) => w.cols(),
            Self::Gpu(w) => w.cols(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Host(w) => w.bytes(),
            Self::Gpu(w) => w.bytes(),
        }
    }

    /// Repacks what is stored on the host; those bytes are let go.
    pub(crate) fn pack(self, precision: Precision) -> Self {
        match self {
            Self::Host(w) => Self::Host(w.pack(precision)),
            there @ Self::Gpu(_) => there,
        }
    }
}

impl From<Weight> for Matrix {
    fn from(weight: Weight) -> Self {
        Self::Host(maps::Matrix::Stored(weight))
    }
}

/// `y = x Wᵀ + b`.
#[derive(Debug, Clone)]
pub struct Linear {
    matrix: Matrix,
    bias: Option<Resident>,
    module: Option<Arc<Module>>,
}

impl Linear {
    /// A map without bias, computed in f32.
    #[must_use]
    pub fn new(weight: Weight) -> Self {
        Self::over(weight.into())
    }

    pub(crate) fn over(matrix: Matrix) -> Self {
        Self { matrix, bias: None, module: None }
    }

    /// The map with inputs that are shown to somebody. It stays as it is stored, and on the host.
    ///
    /// # Errors
    /// The weight was repacked or is on a GPU.
    pub fn watched(self, watch: Watch) -> Result<Self> {
        let weight = self.stored_for("watched")?.clone();
        Ok(Self { matrix: Matrix::Host(maps::Matrix::Watched(weight, watch)), ..self })
    }

    /// Repacks the weights for speed, unless they are to be exact. Activations of a quantized weight are rounded
    /// group by group (see [`crate::cpu::int8`]), those of a `bf16` weight to `bf16` where the processor
    /// multiplies that (see [`crate::cpu::dense`]). Prompts are multiplied with quantized weights as with `bf16`
    /// ones, or rounded to 16 bits (see [`Precision`]).
    #[must_use]
    pub fn pack(self, precision: Precision) -> Self {
        Self { matrix: self.matrix.pack(precision), ..self }
    }

    /// Adds a bias of [`Self::out_features`] floats.
    ///
    /// # Errors
    /// The buffer has another length or is no float.
    pub fn with_bias(mut self, dtype: DType, bytes: Bytes) -> Result<Self> {
        let bias = read_floats("bias", dtype, bytes, self.out_features())?;
        self.bias = Some(Resident::new(bias));
        Ok(self)
    }

    /// The map to so many outputs from the first, over the same memory: how a fused tensor is split.
    ///
    /// # Errors
    /// They are not all there, or the weight was repacked or is on a GPU.
    pub fn outputs(&self, first: usize, n: usize) -> Result<Self> {
        let weight = self.stored_for("outputs")?.row_range(first, n)?;
        let matrix = self.alike(weight);
        let part = |bias: &Resident| bias.host().iter().skip(first).take(n).copied().collect();
        let bias = self.bias.as_ref().map(|bias| Resident::new(part(bias)));
        let module = self.module.as_ref().map(|module| Arc::new(module.take(first..first + n)));
        Ok(Self { matrix, bias, module })
    }

    /// The weight as its file has it.
    fn stored_for(&self, op: &'static str) -> Result<&Weight> {
        match &self.matrix {
            Matrix::Host(maps::Matrix::Stored(weight) | maps::Matrix::Watched(weight, _)) => {
                Ok(weight)
            }
            _ => Err(TensorError::Device { op, device: "a packed weight".into() }),
        }
    }

    /// Another weight of the same inputs, watched if this one is.
    fn alike(&self, weight: Weight) -> Matrix {
        match &self.matrix {
            Matrix::Host(maps::Matrix::Watched(_, watch)) => {
                Matrix::Host(maps::Matrix::Watched(weight, watch.clone()))
            }
            _ => weight.into(),
        }
    }

    /// The map to the outputs of these numbers, in their order.
    ///
    /// # Errors
    /// An output is not there, or the weight was repacked or is on a GPU.
    pub fn take_outputs(&self, rows: &[usize]) -> Result<Self> {
        let weight = self.stored_for("take_outputs")?.take_rows(rows)?;
        let take = |bias: &Resident| {
            let bias = bias.host();
            Resident::new(rows.iter().filter_map(|&row| bias.get(row)).copied().collect())
        };
        let take_module = |module: &Arc<Module>| Arc::new(module.take(rows.iter().copied()));
        let module = self.module.as_ref().map(take_module);
        Ok(Self { matrix: self.alike(weight), bias: self.bias.as_ref().map(take), module })
    }

    /// Applies the map in the arithmetic of a phase, with the changes that a pass has of it.
    ///
    /// # Shapes
    /// `x [t, in_features]` f32 -> `[t, out_features]` f32.
    ///
    /// # Errors
    /// Another shape or type, or a device without a kernel.
    pub fn forward<'a>(&self, x: &Tensor, pass: impl Into<Pass<'a>>) -> Result<Tensor> {
        let pass = pass.into();
        self.changed(x, self.of_rows(x, |rows| Input::new(rows, pass.phase))?, pass)
    }

    /// As [`Self::forward`] for the few rows whose logits are asked for, in an arithmetic of its own where weights
    /// would be widened for prompts.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn forward_few<'a>(&self, x: &Tensor, pass: impl Into<Pass<'a>>) -> Result<Tensor> {
        let pass = pass.into();
        self.changed(x, self.of_rows(x, |rows| Input::few(rows, pass.phase))?, pass)
    }

    /// Applies the map to rows that are made an input.
    fn of_rows(&self, x: &Tensor, input: impl Fn(&[f32]) -> Input<'_>) -> Result<Tensor> {
        let t = self.check(x)?;
        if let Some(x) = x.on_gpu() {
            return self.multiply(x, None, None);
        }
        let map = self.map(None)?;
        let [out] = host::read(x, |x| apply([map], &mut input(x)))?;
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
    pub fn forward_add<'a>(
        &self,
        x: &Tensor,
        residual: &Tensor,
        next: Option<&RmsNorm>,
        pass: impl Into<Pass<'a>>,
    ) -> Result<Tensor> {
        let pass = pass.into();
        let next = next.filter(|_| !pass.changes(self));
        self.changed(x, self.added(x, residual, next, pass.phase)?, pass)
    }

    fn added(
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
        let [out] = host::read(x, |x| {
            host::read(residual, |r| Ok(apply([self.map(Some(r))?], &mut Input::new(x, phase))))
        })???;
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

    pub(crate) fn bias(&self) -> Option<&[f32]> {
        self.bias.as_ref().map(Resident::host)
    }

    /// The map on the host.
    ///
    /// # Errors
    /// It is on a GPU.
    fn map<'a>(&'a self, residual: Option<&'a [f32]>) -> Result<Map<'a>> {
        match &self.matrix {
            Matrix::Host(matrix) => Ok(Map { matrix, bias: self.bias(), residual }),
            Matrix::Gpu(there) => {
                Err(TensorError::Device { op: "linear", device: there.gpu().name() })
            }
        }
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
    pub fn pack(self, precision: Precision) -> Self {
        Self { parts: self.parts.map(|part| part.pack(precision)), ..self }
    }

    /// Applies every map to `norm(x)`, or to `x` itself without a norm, in the arithmetic of a phase, with the
    /// changes that a pass has of it.
    ///
    /// # Shapes
    /// `x [t, in]` -> `[t, out_i]` each.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub fn forward_normed<'a>(
        &self,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        pass: impl Into<Pass<'a>>,
    ) -> Result<[Tensor; N]> {
        let pass = pass.into();
        self.changed(x, norm, self.of_normed(x, norm, pass.phase)?, pass)
    }

    fn of_normed(&self, x: &Tensor, norm: Option<&RmsNorm>, phase: Phase) -> Result<[Tensor; N]> {
        let t = self.check(x, norm)?;
        if let Some(x) = x.on_gpu() {
            return self.multiply(x, norm);
        }
        let mut maps = Vec::with_capacity(N);
        for part in &self.parts {
            maps.push(part.map(None)?);
        }
        let got = [maps.len()];
        let maps: [Map<'_>; N] =
            maps.try_into().map_err(|_| TensorError::shape("linear group", "every map", &got))?;
        let outputs = host::read(x, |x| apply(maps, &mut input(x, norm, phase)))?;
        let mut tensors = Vec::with_capacity(N);
        for (out, part) in outputs.into_iter().zip(&self.parts) {
            tensors.push(Tensor::from_vec(out, &[t, part.out_features()])?);
        }
        let got = [tensors.len()];
        tensors
            .try_into()
            .map_err(|_| TensorError::shape("linear group", "one output a part", &got))
    }

    fn check(&self, x: &Tensor, norm: Option<&RmsNorm>) -> Result<usize> {
        if let Some(norm) = norm {
            norm.check("linear group", x)?;
        }
        self.parts.first().map_or(Ok(0), |first| first.check(x))
    }

    /// The group's maps.
    #[must_use]
    pub fn parts(&self) -> &[Linear; N] {
        &self.parts
    }
}

/// Rows on the host that maps read, normed if they are to be.
fn input<'a>(x: &'a [f32], norm: Option<&'a RmsNorm>, phase: Phase) -> Input<'a> {
    match norm {
        Some(norm) => Input::normed(x, norm.on_host(), phase),
        None => Input::new(x, phase),
    }
}
