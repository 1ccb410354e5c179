//! Patches to vectors: a convolution whose stride is its size, as one product.

use super::Linear;
use crate::{VisionError, weights::Weights};
use candle_core::{Result, Tensor};

/// A convolution over patches, of `[outputs, channels, sizes...]`.
#[derive(Debug)]
pub(crate) struct PatchEmbedding(Linear);

impl PatchEmbedding {
    /// Reads `name.weight`, and `name.bias` where there is one. Files for MLX have channels last.
    pub(crate) fn load(
        weights: &Weights<'_>,
        name: &str,
        outputs: usize,
        sizes: &[usize],
    ) -> std::result::Result<Self, VisionError> {
        let (inputs, own) = (sizes.iter().product::<usize>(), format!("{name}.weight"));
        let stored = weights.stored(&own)?;
        let first = [&[outputs], sizes].concat();
        let last = [&[outputs], &sizes[1..], &sizes[..1]].concat();
        let weight = match stored.dims() {
            dims if dims == first || dims == [outputs, inputs] => {
                stored.reshape((outputs, inputs))?
            }
            dims if dims == last => {
                let n = dims.len();
                let order = [&[0, n - 1], &(1..n - 1).collect::<Vec<_>>()[..]].concat();
                stored.permute(order)?.contiguous()?.reshape((outputs, inputs))?
            }
            dims => return weights.misshapen(&own, &first, dims),
        };
        let bias = format!("{name}.bias");
        let bias = weights.has(&bias).then(|| weights.tensor(&bias, &[outputs])).transpose()?;
        Ok(Self(Linear::new(weight, bias)))
    }

    /// `[patches, channels * sizes...]` to `[patches, outputs]`.
    pub(crate) fn forward(&self, patches: &Tensor) -> Result<Tensor> {
        self.0.forward(patches)
    }
}

/// `[c, h, w]` as rows of patches `[h / patch * w / patch, c * patch * patch]`.
pub(crate) fn cut(planes: &Tensor, patch: usize) -> Result<Tensor> {
    let (c, h, w) = planes.dims3()?;
    let (rows, cols) = (h / patch, w / patch);
    let planes = planes.narrow(1, 0, rows * patch)?.narrow(2, 0, cols * patch)?;
    let cut = planes.contiguous()?.reshape((c, rows, patch, cols, patch))?;
    cut.permute((1, 3, 0, 2, 4))?.contiguous()?.reshape((rows * cols, c * patch * patch))
}
