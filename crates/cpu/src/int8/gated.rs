//! A feed-forward's gate: two products, and what becomes of them while they are in the first-level cache.

use super::{
    Int8Level, Int8Rows,
    activations::Int8Out,
    gemm::{Product, ROWS, blocks},
    pack::TILE,
    tiles::{Tiles, share},
};
use crate::{Activation, Level, Rounding, kernels};
use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering::AcqRel},
};

/// `gate(x G) * (x U)`, `[m, n]`, for two weights of one shape, rounded for a product with groups of so many
/// inputs. The gate's `out` has room for what tasks leave each other, and is not all written.
///
/// # Panics
/// When shapes differ, groups are not whole tiles, or rows not whole groups.
pub(crate) fn gated(
    x: &Int8Rows,
    kind: Activation,
    [gate, up]: [Product<'_>; 2],
    group: usize,
    rounding: Rounding,
) -> Int8Rows {
    gate.check(x);
    up.check(x);
    assert_eq!(gate.weight.rows, up.weight.rows, "gate and up have one shape");
    assert!(group.is_multiple_of(TILE), "groups are whole tiles");
    let (level, float, n) = (Int8Level::detect(), Level::detect(), gate.weight.rows);
    Int8Rows::filled((x.len(), n), group, rounding, |out| {
        let left = (0..x.rows.div_ceil(ROWS) * (n / group)).map(|_| AtomicUsize::new(group / TILE));
        let groups = Groups { x, product: &gate, out, left: left.collect() };
        share(level, x, &[gate], |gate, tiles| {
            blocks(x, tiles, |tiles, rows, [a, b]| {
                let each = rows.len() * TILE;
                // One weight after the other: memory is read fastest in one go.
                for (product, block) in [(gate, &mut *a), (&up, &mut *b)] {
                    product.compute(level, x, tiles, rows.clone(), (block, each));
                }
                let n = x.outputs(rows.clone()).len() * TILE;
                for (a, b) in a.chunks_mut(each).zip(b.chunks(each)).take(tiles.len()) {
                    // SAFETY: both hold `n` elements.
                    unsafe { kind.kernel()(float, a.as_ptr(), b.as_ptr(), n, a.as_mut_ptr()) };
                }
                groups.put(tiles, &rows, [a, b], each);
            });
        });
    })
}

/// Groups of outputs that are rounded when all tiles of one are there.
struct Groups<'a> {
    x: &'a Int8Rows,
    product: &'a Product<'a>,
    out: Int8Out,
    /// Tiles that a group lacks, for each block of rows, `[rows / ROWS, groups]`.
    left: Vec<AtomicUsize>,
}

impl Groups<'_> {
    /// Takes the outputs of tiles in the first block, `each` elements a tile; the second is free. Rounds groups that
    /// are whole, and leaves each other group to the task that has the last of its tiles.
    fn put(&self, tiles: Tiles, rows: &Range<usize>, [a, b]: [&mut [f32]; 2], each: usize) {
        let unit = self.out.group() / TILE;
        for (run, tiles) in tiles.ranges().zip(a.chunks_mut(tiles.run * each)) {
            let whole = run.start.next_multiple_of(unit).min(run.end);
            let rest = (run.end / unit * unit).max(whole);
            let (before, tiles) = tiles.split_at_mut((whole - run.start) * each);
            let (tiles, after) = tiles.split_at_mut((rest - whole) * each);
            self.round_whole(whole / unit..rest / unit, rows, (tiles, each), b);
            self.leave(run.start..whole, rows, (before, each));
            self.leave(rest..run.end, rows, (after, each));
        }
    }

    /// Rounds groups from their tiles.
    fn round_whole(
        &self,
        groups: Range<usize>,
        rows: &Range<usize>,
        (tiles, each): (&[f32], usize),
        scratch: &mut [f32],
    ) {
        if groups.is_empty() {
            return;
        }
        let (level, n) = (Level::detect(), tiles.len() / each);
        let line = scratch[..n * TILE].as_mut_ptr();
        for (i, row) in self.x.outputs(rows.clone()).enumerate() {
            // SAFETY: the level was detected; a tile has the row's outputs, and this task all tiles of the groups.
            unsafe {
                kernels::gather(level, tiles.as_ptr().add(i * TILE), each, TILE, n, line);
                self.out.put(level, row, groups.clone(), (line, line));
            }
        }
    }

    /// Stores tiles of a group, and rounds it if they were its last.
    fn leave(&self, own: Range<usize>, rows: &Range<usize>, (tiles, each): (&mut [f32], usize)) {
        if own.is_empty() {
            return;
        }
        let (outputs, n) = (self.x.outputs(rows.clone()), self.product.weight.rows);
        let size = self.out.group();
        let group = own.start * TILE / size;
        self.product.store(Tiles::range(own.clone()), outputs.clone(), tiles, each);
        let left = &self.left[rows.start / ROWS * (n / size) + group];
        if left.fetch_sub(own.len(), AcqRel) > own.len() {
            return;
        }
        for row in outputs {
            let x = self.product.out.at(row * n + group * size);
            // SAFETY: the level was detected; every tile of the group is stored, and who stored them has left
            // the group to this task.
            unsafe { self.out.put(Level::detect(), row, group..group + 1, (x, x)) };
        }
    }
}
