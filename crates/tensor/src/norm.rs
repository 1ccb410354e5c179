//! Norms of rows: by the root of the mean square (Zhang & Sennrich 2019), and by mean and deviation.

use crate::{
    Result, Tensor, TensorError,
    cpu::{self, maps::Norm},
    gpu::{self, Resident},
    host, join_heads, pool, split_heads_at,
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

    /// Norms the first elements of every row, as many as there are gains, and puts the others before them: the
    /// latent of multi-head latent attention, after what is rotated.
    ///
    /// # Shapes
    /// `x [t, n + rest]` for `n` gains -> `[t, rest + n]`.
    ///
    /// # Errors
    /// Another shape or type.
    pub fn forward_latent(&self, x: &Tensor) -> Result<Tensor> {
        let n = self.gains().len();
        let (&[_, width], false) = (x.dims(), n == 0) else {
            return Err(TensorError::shape("latent_norm", format!("[t, {n} and more]"), x.dims()));
        };
        if let Some(x) = x.on_gpu().filter(|_| n <= width) {
            return Ok(gpu::latent_norm(x, self)?.into());
        }
        let [latent, rest] = split_heads_at(x, width, n)?;
        join_heads(&rest, &self.forward(&latent)?, 1)
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

/// `(x - mean(x)) / sqrt(var(x) + eps) * gains + bias` over the last dimension (Ba et al. 2016).
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNorm {
    gains: Resident,
    bias: Option<Resident>,
    eps: f32,
}

impl LayerNorm {
    /// A norm of rows as long as `gains`, and as `bias` where there is one.
    ///
    /// # Errors
    /// They differ in their lengths.
    pub fn new(gains: Vec<f32>, bias: Option<Vec<f32>>, eps: f32) -> Result<Self> {
        match &bias {
            Some(bias) if bias.len() != gains.len() => {
                let expected = format!("a bias of {}", gains.len());
                Err(TensorError::shape("layer_norm", expected, &[bias.len()]))
            }
            _ => Ok(Self { gains: Resident::new(gains), bias: bias.map(Resident::new), eps }),
        }
    }

    /// Norms every row.
    ///
    /// # Shapes
    /// `x [.., n]` for `n` gains -> as `x`.
    ///
    /// # Errors
    /// Another shape or type.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let n = self.gains.host().len();
        if n == 0 || x.dims().last() != Some(&n) {
            return Err(TensorError::shape("layer_norm", format!("[.., {n}]"), x.dims()));
        }
        if let Some(x) = x.on_gpu() {
            return Ok(gpu::layer_norm(x, &self.gains, self.bias.as_ref(), self.eps)?.into());
        }
        let mut out = host::read(x, <[f32]>::to_vec)?;
        let mut rows: Vec<_> = out.chunks_exact_mut(n).collect();
        pool::for_each(&mut rows, |_, row| self.row(row));
        Tensor::from_vec(out, x.dims())
    }

    fn row(&self, row: &mut [f32]) {
        let n = row.len() as f64;
        // In f64, so that the order of the sum does not show.
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
        let inverse = 1.0 / (squares / n + f64::from(self.eps)).sqrt();
        for (x, gain) in row.iter_mut().zip(self.gains.host()) {
            *x = ((f64::from(*x) - mean) * inverse) as f32 * gain;
        }
        if let Some(bias) = &self.bias {
            row.iter_mut().zip(bias.host()).for_each(|(x, bias)| *x += bias);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_norm_centres_scales_and_shifts() {
        let norm = LayerNorm::new(vec![1.0, 2.0, 1.0, 0.5], Some(vec![0.0, 0.0, 1.0, 0.0]), 0.0);
        let x = Tensor::from_vec(vec![1.0, 1.0, 3.0, 3.0], &[1, 4]).unwrap();
        let y = norm.unwrap().forward(&x).unwrap();
        assert_eq!(host::read(&y, <[f32]>::to_vec).unwrap(), [-1.0, -2.0, 2.0, 0.5]);
        assert!(LayerNorm::new(vec![1.0; 4], Some(vec![0.0]), 0.0).is_err());
        let other = LayerNorm::new(vec![1.0; 3], None, 0.0).unwrap();
        assert!(matches!(other.forward(&x), Err(TensorError::Shape { op: "layer_norm", .. })));
    }
}
