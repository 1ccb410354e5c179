//! Where patches are in an image.

use crate::resize::{Filter, weights};
use candle_core::{Result, Tensor};

/// Rows and columns of patches, which are in the order of squares of `merge` by `merge`: within a square by rows, and
/// squares by rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) merge: usize,
}

impl Grid {
    pub(crate) fn patches(self) -> usize {
        self.height * self.width
    }

    /// Row and column of each patch.
    pub(crate) fn positions(self) -> Vec<[u32; 2]> {
        let m = self.merge;
        let mut out = Vec::with_capacity(self.patches());
        for top in (0..self.height).step_by(m) {
            for left in (0..self.width).step_by(m) {
                for y in top..(top + m).min(self.height) {
                    out.extend((left..(left + m).min(self.width)).map(|x| [y as u32, x as u32]));
                }
            }
        }
        out
    }
}

/// How a table of positions is made for another grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// Linear between rows, with antialiasing.
    Antialias,
    /// Linear between rows; the corners of the grid are the table's.
    Corners,
    /// Cubic between rows, with torch's parameter of -0.75.
    Cubic,
}

impl Sampling {
    /// Shares of the table's rows in each of `size` new ones, along one axis.
    fn axis(self, side: usize, size: usize) -> Vec<Vec<(usize, f32)>> {
        let clamped = |at: f32| (at.max(0.0) as usize).min(side - 1);
        let line = |i: usize| match self {
            Self::Antialias => Vec::new(),
            Self::Corners => {
                let source = i as f32 * (side - 1) as f32 / (size.max(2) - 1) as f32;
                let rest = source - source.floor();
                vec![(clamped(source.floor()), 1.0 - rest), (clamped(source.floor() + 1.0), rest)]
            }
            Self::Cubic => {
                let source = (i as f32 + 0.5) * side as f32 / size as f32 - 0.5;
                let tap = |j: f32| {
                    let at = source.floor() + j;
                    (clamped(at), cubic((source - at).abs()))
                };
                [-1.0, 0.0, 1.0, 2.0].map(tap).to_vec()
            }
        };
        if self == Self::Antialias {
            let lines = weights(side, size, Filter::Bilinear).into_iter();
            let share = |(first, weights): (usize, Vec<f64>)| {
                weights.into_iter().enumerate().map(|(i, w)| (first + i, w as f32)).collect()
            };
            return lines.map(share).collect();
        }
        (0..size).map(line).collect()
    }
}

fn cubic(x: f32) -> f32 {
    const A: f32 = -0.75;
    if x <= 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else {
        ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
    }
}

/// A table of `side * side` rows, resampled to a grid, in the grid's order.
pub(crate) fn resampled(table: &Tensor, side: usize, grid: Grid, how: Sampling) -> Result<Tensor> {
    let Grid { height, width, merge } = grid;
    let matrix = |new: usize| {
        let mut matrix = vec![0f32; new * side];
        for (row, shares) in matrix.chunks_exact_mut(side).zip(how.axis(side, new)) {
            shares.into_iter().for_each(|(at, share)| row[at] += share);
        }
        Tensor::from_vec(matrix, (new, side), table.device())
    };
    let elements = table.dim(1)?;
    let x = table.reshape((side, side * elements))?;
    let x = matrix(height)?.matmul(&x)?.reshape((height, side, elements))?;
    let x = x.transpose(0, 1)?.contiguous()?.reshape((side, height * elements))?;
    let x = matrix(width)?.matmul(&x)?.reshape((width, height, elements))?;
    let x = x.transpose(0, 1)?.contiguous()?.reshape((height * width, elements))?;
    if merge == 1 {
        return Ok(x);
    }
    let order: Vec<_> = grid.positions().iter().map(|&[y, x]| y * width as u32 + x).collect();
    x.index_select(&Tensor::from_vec(order, grid.patches(), table.device())?, 0)
}
