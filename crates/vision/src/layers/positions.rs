//! Where patches are in an image.

use candle_core::{Device, Result, Tensor};

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

/// A table of `side * side` rows, resampled to a grid by bilinear interpolation whose corners are the table's.
pub(crate) fn interpolated(
    table: &Tensor,
    side: usize,
    grid: Grid,
    device: &Device,
) -> Result<Tensor> {
    let tap = |at: u32, size: usize| {
        let source = at as f32 * (side - 1) as f32 / (size.max(2) - 1) as f32;
        let floor = source.floor();
        let first = floor as usize;
        [(first.min(side - 1), 1.0 - (source - floor)), ((first + 1).min(side - 1), source - floor)]
    };
    let taps: Vec<_> =
        grid.positions().iter().map(|&[y, x]| (tap(y, grid.height), tap(x, grid.width))).collect();
    let mut sum: Option<Tensor> = None;
    for (i, j) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let rows: Vec<_> = taps.iter().map(|(y, x)| (y[i].0 * side + x[j].0) as u32).collect();
        let shares: Vec<_> = taps.iter().map(|(y, x)| y[i].1 * x[j].1).collect();
        let n = taps.len();
        let rows = table.index_select(&Tensor::from_vec(rows, n, device)?, 0)?;
        let part = rows.broadcast_mul(&Tensor::from_vec(shares, (n, 1), device)?)?;
        sum = Some(match sum {
            Some(sum) => (sum + part)?,
            None => part,
        });
    }
    sum.ok_or_else(|| candle_core::Error::Msg("no taps".to_owned()))
}
