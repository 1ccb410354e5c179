//! Root-mean-square normalisation (Zhang & Sennrich 2019).

use crate::{
    Result, Tensor, TensorError,
    cpu::{self, maps::Norm},
    gpu::{self, Resident},
    host,
};

/// `x / sqrt(mean(x²) + eps) * gains` over the last dimension.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsNorm {
    gains: Resident,
    eps: f32,
}

impl RmsNorm {
    /// A norm of rows as long as `gains`.
    #[must_use]
    pub fn new(gains: Vec<f32>, eps: f32) -> Self {
        Self { gains: Resident::new(gains), eps }
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
        if let Some(x) = x.on_gpu() {
            return Ok(gpu::rms_norm(x, self)?.into());
        }
        let out = host::read(x, |x| cpu::rms_norm(x, self.gains(), self.eps))?;
        Tensor::from_vec(out, x.dims())
    }

    pub(crate) fn check(&self, op: &'static str, x: &Tensor) -> Result<()> {
        let n = self.gains().len();
        if n == 0 || x.dims().last() != Some(&n) {
            return Err(TensorError::shape(op, format!("[.., {n}]"), x.dims()));
        }
        Ok(())
    }

    pub(crate) fn on_host(&self) -> Norm<'_> {
        Norm { gains: self.gains(), eps: self.eps }
    }

    pub(crate) fn gains(&self) -> &[f32] {
        self.gains.host()
    }

    pub(crate) fn resident(&self) -> &Resident {
        &self.gains
    }

    pub(crate) fn eps(&self) -> f32 {
        self.eps
    }
}
