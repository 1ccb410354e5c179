//! Attention within squares of merged patches.

use crate::layers::Grid;

/// Which layers attend to all, and how large windows are for the others.
#[derive(Debug)]
pub(super) struct Windows {
    /// Merged patches along a side.
    pub(super) side: usize,
    /// Numbers of layers that attend to all patches.
    pub(super) full: Vec<usize>,
}

impl Windows {
    /// Numbers of merged patches, window by window, and the ends of windows in patches.
    pub(super) fn order(&self, grid: Grid) -> (Vec<u32>, Vec<usize>) {
        let (rows, cols) = (grid.height / grid.merge, grid.width / grid.merge);
        let (mut order, mut ends) = (Vec::with_capacity(rows * cols), Vec::new());
        for top in (0..rows).step_by(self.side) {
            for left in (0..cols).step_by(self.side) {
                for y in top..(top + self.side).min(rows) {
                    let xs = left..(left + self.side).min(cols);
                    order.extend(xs.map(|x| (y * cols + x) as u32));
                }
                ends.push(order.len() * grid.merge * grid.merge);
            }
        }
        (order, ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_at_the_edge_are_smaller() {
        let windows = Windows { side: 2, full: vec![] };
        let (order, ends) = windows.order(Grid { height: 6, width: 6, merge: 2 });
        assert_eq!(order, [0, 1, 3, 4, 2, 5, 6, 7, 8]);
        assert_eq!(ends, [16, 24, 32, 36]);
    }
}
