//! Root-mean-square normalisation (Zhang & Sennrich 2019).

use crate::{Result, Tensor, TensorError, cpu, host};

/// `x / sqrt(mean(x²) + eps) * gains` over the last dimension.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsNorm {
    gains: Vec<f32>,
    eps: f32,
}

impl RmsNorm {
    /// A norm of rows as long as `gains`.
    #[must_use]
    pub fn new(gains: Vec<f32>, eps: f32) -> Self {
        Self { gains, eps }
    }

    /// Norms every row.
    ///
    /// # Shapes
    /// `x [.., n]` for `n` gains -> as `x`.
    ///
    /// # Errors
    /// Another shape or type.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.check("rms_norm", x)?;
        let out = host::read("rms_norm", x, |x| cpu::rms_norm(x, &self.gains, self.eps))?;
        host::tensor(out, x.dims())
    }

    pub(crate) fn check(&self, op: &'static str, x: &Tensor) -> Result<()> {
        if self.gains.is_empty() || x.dims().last() != Some(&self.gains.len()) {
            return Err(TensorError::shape(op, format!("[.., {}]", self.gains.len()), x.dims()));
        }
        Ok(())
    }

    pub(crate) fn gains(&self) -> &[f32] {
        &self.gains
    }

    pub(crate) fn eps(&self) -> f32 {
        self.eps
    }
}
