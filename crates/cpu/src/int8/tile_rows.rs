//! Activations as tile registers want them.

use super::activations::Line;
use bytemuck::Zeroable;

/// Rows of a tile register.
pub(super) const BLOCK: usize = 16;

/// Scales and sums of a group of sixteen rows.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Side {
    pub(super) scales: [f32; BLOCK],
    pub(super) sums: [f32; BLOCK],
}

/// Rows in blocks of sixteen; those that the last block lacks are zeros.
///
/// What a register loads lies together: lines a row apart would all want the same few sets of the
/// first-level cache.
#[derive(Debug, Default)]
pub(super) struct TileRows {
    /// `[rows / 16, cols / part, 16, part]`: a part is what a register holds of a row.
    codes: Vec<Line>,
    /// `[rows / 16, cols / group]`
    sides: Vec<Side>,
}

/// Inputs of a row that a register holds: its 64 bytes, or a group that is smaller.
pub(super) fn part(group: usize) -> usize {
    group.min(64)
}

impl TileRows {
    /// Turns `codes`, `[rows, cols]`, and their scales and sums, `[rows, cols / group]`.
    pub(super) fn new(
        (cols, group): (usize, usize),
        codes: &[i8],
        scales: &[f32],
        sums: &[f32],
    ) -> Self {
        let (groups, part, rows) = (cols / group, part(group), codes.len() / cols);
        let blocks = rows.div_ceil(BLOCK);
        let mut turned = vec![Line::zeroed(); blocks * BLOCK * cols / 64];
        let to: &mut [i8] = bytemuck::cast_slice_mut(&mut turned);
        for (row, codes) in codes.chunks_exact(cols).enumerate() {
            let block = &mut to[row / BLOCK * BLOCK * cols..][..BLOCK * cols];
            for (to, from) in block.chunks_exact_mut(BLOCK * part).zip(codes.chunks_exact(part)) {
                to[row % BLOCK * part..][..part].copy_from_slice(from);
            }
        }
        let zero = Side { scales: [0.0; BLOCK], sums: [0.0; BLOCK] };
        let mut sides = vec![zero; blocks * groups];
        for row in 0..rows {
            let own = scales[row * groups..].iter().zip(&sums[row * groups..]);
            for (side, (scale, sum)) in sides[row / BLOCK * groups..][..groups].iter_mut().zip(own)
            {
                (side.scales[row % BLOCK], side.sums[row % BLOCK]) = (*scale, *sum);
            }
        }
        Self { codes: turned, sides }
    }

    /// A block's codes and sides, if there are so many blocks.
    pub(super) fn block(&self, block: usize, cols: usize, group: usize) -> (&[i8], &[Side]) {
        let (codes, groups) = (bytemuck::cast_slice(&self.codes), cols / group);
        (&codes[block * BLOCK * cols..][..BLOCK * cols], &self.sides[block * groups..][..groups])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_where_a_register_reads_it() {
        for (group, part) in [(32, 32), (64, 64), (128, 64)] {
            let (rows, cols) = (19, group * 3);
            let codes: Vec<i8> = (0..rows * cols).map(|i| (i * 7 % 255) as i8).collect();
            let scales: Vec<f32> = (0..rows * 3).map(|i| i as f32).collect();
            let sums: Vec<f32> = scales.iter().map(|s| s + 0.5).collect();
            let turned = TileRows::new((cols, group), &codes, &scales, &sums);
            for row in 0..32 {
                let (own, sides) = turned.block(row / BLOCK, cols, group);
                for k in 0..cols {
                    let at = k / part * BLOCK * part + row % BLOCK * part + k % part;
                    let want = codes.get(row * cols + k).copied().unwrap_or(0);
                    assert_eq!(own[at], want, "{group}: row {row}, input {k}");
                }
                for (g, side) in sides.iter().enumerate() {
                    let want = if row < rows { scales[row * 3 + g] } else { 0.0 };
                    assert_eq!(side.scales[row % BLOCK], want);
                    assert_eq!(side.sums[row % BLOCK], if row < rows { want + 0.5 } else { 0.0 });
                }
            }
        }
    }
}
