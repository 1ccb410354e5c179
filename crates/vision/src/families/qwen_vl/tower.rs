//! The tower of all four versions.

use super::windows::Windows;
use crate::{
    VisionError,
    encoder::{self, Rows},
    layers::{
        Activation, Block, Grid, Linear, Norm, NormKind, PatchEmbedding, Rope, Sampling, resampled,
    },
    weights::Weights,
};
use candle_core::{Device, Result, Tensor};
use taper_base::PreparedImage;

/// Learned positions of a square, resampled to an image's grid.
#[derive(Debug)]
pub(super) struct Table {
    /// `[side * side, hidden]`.
    pub(super) rows: Tensor,
    pub(super) side: usize,
}

/// How a merger's tensors are called.
#[derive(Debug, Clone, Copy)]
pub(super) struct MergerNames {
    pub(super) norm: &'static str,
    pub(super) maps: [&'static str; 2],
}

/// A square of patches to a row of the language model.
#[derive(Debug)]
pub(super) struct Merger {
    norm: Norm,
    /// The norm is over the square, not over each patch.
    over_square: bool,
    maps: [Linear; 2],
    merged: usize,
}

impl Merger {
    /// From `merged` elements to `output`, with a norm over `normed`.
    pub(super) fn load(
        weights: &Weights<'_>,
        names: &MergerNames,
        [merged, output]: [usize; 2],
        normed: usize,
        kind: NormKind,
    ) -> std::result::Result<Self, VisionError> {
        Ok(Self {
            norm: Norm::load(weights, names.norm, normed, kind, super::EPS)?,
            over_square: normed == merged,
            maps: [
                Linear::load(weights, names.maps[0], merged, merged)?,
                Linear::load(weights, names.maps[1], merged, output)?,
            ],
            merged,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let squares = |x: &Tensor| x.reshape(((), self.merged));
        let x = match self.over_square {
            true => self.norm.forward(&squares(x)?)?,
            false => squares(&self.norm.forward(x)?)?,
        };
        self.maps[1].forward(&self.maps[0].forward_act(&x, Activation::Gelu)?)
    }
}

/// Patches, layers, merger.
#[derive(Debug)]
pub(super) struct Tower {
    pub(super) patch: PatchEmbedding,
    pub(super) table: Option<Table>,
    pub(super) blocks: Vec<Block>,
    pub(super) windows: Option<Windows>,
    pub(super) merger: Option<Merger>,
    /// Mergers of hidden states behind layers, by the layers' numbers.
    pub(super) deep: Vec<(usize, Merger)>,
    pub(super) merge: usize,
    pub(super) head_dim: usize,
    pub(super) theta: f64,
    pub(super) device: Device,
}

impl Tower {
    fn grid(&self, image: &PreparedImage) -> Result<Grid> {
        let &PreparedImage { grid: Some([1, height, width]), .. } = image else {
            candle_core::bail!("the image has no grid");
        };
        let merge = self.merge;
        Ok(Grid { height: height as usize * merge, width: width as usize * merge, merge })
    }

    /// Squares of patches in another order.
    fn reorder(&self, x: &Tensor, order: &[u32]) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let square = rows / order.len();
        let order = Tensor::new(order, &self.device)?;
        let x = x.reshape((rows / square, square * width))?;
        x.index_select(&order, 0)?.reshape((rows, width))
    }
}

impl encoder::Tower for Tower {
    fn forward(&self, image: &PreparedImage) -> Result<Rows> {
        let grid = self.grid(image)?;
        let pixels = Tensor::from_slice(&image.pixels, image.shape.as_slice(), &self.device)?;
        let mut x = self.patch.forward(&pixels)?;
        if let Some(table) = &self.table {
            x = (x + resampled(&table.rows, table.side, grid, Sampling::Corners)?)?;
        }
        let whole = [grid.patches()];
        let mut positions = grid.positions();
        let windows = self.windows.as_ref().map(|windows| (windows, windows.order(grid)));
        if let Some((_, (order, _))) = &windows {
            x = self.reorder(&x, order)?;
            let square = grid.merge * grid.merge;
            let of = |i: &u32| positions[*i as usize * square..][..square].iter().copied();
            positions = order.iter().flat_map(of).collect();
        }
        let rope = Rope::axial(&positions, self.head_dim, self.theta, &self.device)?;
        let mut deep = Vec::with_capacity(self.deep.len());
        for (i, block) in self.blocks.iter().enumerate() {
            let segments = match &windows {
                Some((windows, (_, ends))) if !windows.full.contains(&i) => ends.as_slice(),
                _ => &whole,
            };
            x = block.forward(&x, Some(&rope), segments)?;
            for (_, merger) in self.deep.iter().filter(|(layer, _)| *layer == i) {
                deep.push(merger.forward(&x)?);
            }
        }
        if let Some(merger) = &self.merger {
            x = merger.forward(&x)?;
        }
        if let Some((_, (order, _))) = &windows {
            let mut inverse = vec![0; order.len()];
            for (i, &to) in order.iter().enumerate() {
                inverse[to as usize] = i as u32;
            }
            x = self.reorder(&x, &inverse)?;
        }
        Ok(Rows { rows: x, deep })
    }
}
