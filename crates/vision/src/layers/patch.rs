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
        Ok(Self(Linear::new(weight, bias)?))
    }

    /// `[patches, channels * sizes...]` to `[patches, outputs]`.
    pub(crate) fn forward(&self, patches: &Tensor) -> Result<Tensor> {
        self.0.forward(patches)
    }
}

/// Images `[n, c, h, w]` as rows of patches `[n * h / patch * w / patch, c * patch * patch]`.
pub(crate) fn cut(images: &Tensor, patch: usize) -> Result<Tensor> {
    let (n, c, h, w) = images.dims4()?;
    let (rows, cols) = (h / patch, w / patch);
    let images = images.narrow(2, 0, rows * patch)?.narrow(3, 0, cols * patch)?;
    let cut = images.contiguous()?.reshape(&[n, c, rows, patch, cols, patch][..])?;
    let cut = cut.permute([0, 2, 4, 1, 3, 5])?.contiguous()?;
    cut.reshape((n * rows * cols, c * patch * patch))
}

/// Squares of rows as one row: `[n, h, w, d]` to `[n * h / side * w / side, side * side * d]`, the square by rows.
pub(crate) fn squares(x: &Tensor, side: usize) -> Result<Tensor> {
    let (n, h, w, d) = x.dims4()?;
    if h % side != 0 || w % side != 0 {
        candle_core::bail!("{h} x {w} patches are no squares of {side}");
    }
    let (rows, cols) = (h / side, w / side);
    let x = x.contiguous()?.reshape(&[n, rows, side, cols, side, d][..])?;
    let x = x.permute([0, 1, 3, 2, 4, 5])?.contiguous()?;
    x.reshape((n * rows * cols, side * side * d))
}
