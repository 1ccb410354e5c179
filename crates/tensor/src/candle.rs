//! Tensors of candle, and back: for encoders and other models that run in candle.

use crate::{Tensor, TensorError};
use candle_core::{DType, Device, Error, Result};

impl Tensor {
    /// A copy of a candle tensor on the host, widened to f32.
    ///
    /// # Errors
    /// candle cannot convert or copy it.
    pub fn from_candle(x: &candle_core::Tensor) -> Result<Self> {
        let data = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        Self::from_vec(data, x.dims()).map_err(Error::wrap)
    }

    /// A copy as a candle tensor on a device.
    ///
    /// # Errors
    /// Either backend cannot copy it.
    pub fn to_candle(&self, device: &Device) -> Result<candle_core::Tensor> {
        let data = self.to_vec().map_err(|error: TensorError| Error::wrap(error))?;
        candle_core::Tensor::from_vec(data, self.dims(), device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() -> Result<()> {
        let x = candle_core::Tensor::arange(0f32, 6.0, &Device::Cpu)?.reshape((2, 3))?;
        let ours = Tensor::from_candle(&x.t()?.to_dtype(DType::BF16)?)?;
        assert_eq!(ours.dims(), [3, 2]);
        assert_eq!(ours.to_vec().map_err(Error::wrap)?, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        let back = ours.to_candle(&Device::Cpu)?;
        assert_eq!(back.t()?.to_vec2::<f32>()?, x.to_vec2::<f32>()?);
        Ok(())
    }
}
