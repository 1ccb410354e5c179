//! Linear maps over any weight format.

use crate::{
    AffineWeight, Bytes, DType, DenseWeight, Result, Tensor, TensorError, cpu, cpu::RowSource,
    dense::FloatBytes, host,
};
use std::fmt;

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
    /// How it is stored.
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

    fn as_f32(&self) -> Option<&[f32]> {
        self.source().as_f32()
    }
}

/// `y = x Wᵀ + b`.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Weight,
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// A map without bias.
    #[must_use]
    pub fn new(weight: Weight) -> Self {
        Self { weight, bias: None }
    }

    /// Adds a bias of [`Self::out_features`] floats.
    ///
    /// # Errors
    /// The buffer has another length or is no float.
    pub fn with_bias(mut self, dtype: DType, bytes: Bytes) -> Result<Self> {
        let n = self.out_features();
        let mut bias = vec![0.0; n];
        FloatBytes::new("bias", dtype, bytes, n)?.read(0, &mut bias);
        self.bias = Some(bias);
        Ok(self)
    }

    /// Applies the map.
    ///
    /// # Shapes
    /// `x [t, in_features]` f32 -> `[t, out_features]` f32.
    ///
    /// # Errors
    /// Another shape or type, or a device without a kernel.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (t, k) = host::dims2("linear", x)?;
        if k != self.in_features() {
            let expected = format!("[t, {}]", self.in_features());
            return Err(TensorError::shape("linear", expected, x.dims()));
        }
        let n = self.out_features();
        let mut out = vec![0.0; t * n];
        host::read("linear", x, |x| {
            cpu::matmul(x, self.weight.source(), self.bias.as_deref(), &mut out);
        })?;
        host::tensor(out, &[t, n])
    }

    /// Inputs.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.weight.cols()
    }

    /// Outputs.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.weight.rows()
    }

    /// How the weight is stored.
    #[must_use]
    pub fn format(&self) -> WeightFormat {
        self.weight.format()
    }

    /// Bytes in memory or mapped.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.weight.bytes() + self.bias.as_ref().map_or(0, |b| 4 * b.len() as u64)
    }
}

/// Linear maps that read the same input, as the query, key and value projections do. A backend may
/// run them as one.
#[derive(Debug, Clone)]
pub struct LinearGroup<const N: usize>([Linear; N]);

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
        Ok(Self(parts))
    }

    /// Applies every map.
    ///
    /// # Shapes
    /// `x [t, in]` -> `[t, out_i]` each.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub fn forward(&self, x: &Tensor) -> Result<[Tensor; N]> {
        let mut failed = None;
        let outputs = self.0.each_ref().map(|part| match part.forward(x) {
            Ok(y) => Some(y),
            Err(e) => {
                failed.get_or_insert(e);
                None
            }
        });
        match failed {
            Some(e) => Err(e),
            None => Ok(outputs.map(|y| y.unwrap_or_else(|| x.clone()))),
        }
    }

    /// The maps.
    #[must_use]
    pub fn parts(&self) -> &[Linear; N] {
        &self.0
    }
}
