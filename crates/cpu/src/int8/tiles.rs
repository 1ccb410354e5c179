//! How tiles of weights are shared out among threads.

use super::{Int8Level, Int8Rows, gemm::Product};
use crate::{next, shared::sections};
use std::ops::Range;
#[cfg(target_arch = "x86_64")]
use {
    super::{amx, vnni},
    crate::ahead::intel,
};

/// Below this many multiply-adds, waking other threads costs more than it gains.
const PARALLEL_FROM: usize = 1 << 16;

/// Some tiles of a weight: runs of neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiles {
    /// First tile of the first run.
    pub(super) first: usize,
    /// Tiles of a run.
    pub(super) run: usize,
    /// From the start of a run to that of the next.
    pub(super) step: usize,
    pub(super) runs: usize,
}

impl Tiles {
    pub(super) fn range(range: Range<usize>) -> Self {
        Self { first: range.start, run: range.len(), step: 0, runs: 1 }
    }

    pub(super) fn len(self) -> usize {
        self.run * self.runs
    }

    /// The runs.
    pub(super) fn ranges(self) -> impl Iterator<Item = Range<usize>> {
        let first = move |r| self.first + r * self.step;
        (0..self.runs).map(move |r| first(r)..first(r) + self.run)
    }

    /// The first of each run, at most `most` together, and the others.
    pub(super) fn split(self, most: usize) -> (Self, Self) {
        let run = self.run.min(most / self.runs);
        let rest = Self { first: self.first + run, run: self.run - run, ..self };
        (Self { run, ..self }, rest)
    }
}

/// Calls `task` for all tiles of all weights, some at a time, every thread going through neighbours: memory is
/// read fastest in order.
pub(super) fn share<'a>(
    level: Int8Level,
    x: &Int8Rows,
    all: &'a [Product<'a>],
    task: impl Fn(&'a Product<'a>, Tiles) + Sync,
) {
    let streams = streams(level, x);
    let runs = |p: &Product<'_>| Runs::new(p.weight.tiles(), streams);
    let parts = || all.iter().map(|p| runs(p).parts());
    let pieces = |range| {
        sections(parts(), range)
            .flat_map(|(i, own)| runs(&all[i]).tiles(own).into_iter().map(move |t| (&all[i], t)))
            .filter(|(_, tiles)| tiles.run > 0)
    };
    let some = |range| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected.
        let _tiles = in_tile_registers(level, x).then(|| unsafe { amx::configure(x) });
        pieces(range).for_each(|(product, tiles)| task(product, tiles));
    };
    let work: usize = all.iter().map(|p| p.weight.rows * x.rows * p.weight.cols).sum();
    let total = parts().sum();
    if work < PARALLEL_FROM {
        return some(0..total);
    }
    let first = |range| {
        let (product, tiles) = pieces(range).next()?;
        let run = move |r| product.weight.run(tiles.first + r * tiles.step, tiles.run);
        Some((0..tiles.runs).map(run))
    };
    let key = all.first().map_or(0, |p| p.weight.data.as_slice().as_ptr().addr());
    next::lanes(key, total, |range| first(range).into_iter().flatten(), some);
}

/// A weight's tiles as few rows read them: as many runs as are read at a time, and what is left of them. A
/// part is a tile of each run, or one of those left.
#[derive(Debug, Clone, Copy)]
struct Runs {
    runs: usize,
    /// Tiles of a run.
    run: usize,
    left: usize,
}

impl Runs {
    fn new(tiles: usize, runs: usize) -> Self {
        Self { runs, run: tiles / runs, left: tiles % runs }
    }

    fn parts(self) -> usize {
        self.run + self.left
    }

    /// The tiles of some parts, of either kind.
    fn tiles(self, parts: Range<usize>) -> [Tiles; 2] {
        let Self { runs, run, .. } = self;
        let (start, end) = (parts.start.min(run), parts.end.min(run));
        let left = |part: usize| part.max(run) - run + run * runs;
        [
            Tiles { first: start, run: end - start, step: run, runs },
            Tiles::range(left(parts.start)..left(parts.end)),
        ]
    }
}

/// Runs of tiles that these rows read at a time. AMD's processors read one faster, in order.
fn streams(level: Int8Level, x: &Int8Rows) -> usize {
    #[cfg(target_arch = "x86_64")]
    if matches!(level, Int8Level::Amx(_) | Int8Level::Vnni(_))
        && intel()
        && !in_tile_registers(level, x)
    {
        return vnni::streams(x.rows);
    }
    let _ = (level, x);
    1
}

/// Whether a level multiplies these rows in tile registers.
#[cfg(target_arch = "x86_64")]
pub(super) fn in_tile_registers(level: Int8Level, x: &Int8Rows) -> bool {
    matches!(level, Int8Level::Amx(_)) && x.rows >= amx::FROM
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_is_in_one_part() {
        for (tiles, runs) in [(16, 4), (19, 4), (3, 4), (7, 2), (5, 1)] {
            let all = Runs::new(tiles, runs);
            for cut in 0..=all.parts() {
                let pieces = [0..cut, cut..all.parts()].map(|parts| all.tiles(parts));
                let mut seen: Vec<_> =
                    pieces.into_iter().flatten().flat_map(Tiles::ranges).flatten().collect();
                seen.sort_unstable();
                assert_eq!(seen, Vec::from_iter(0..tiles), "{tiles} in {runs}, cut at {cut}");
            }
        }
    }

    #[test]
    fn runs_are_split_together() {
        let all = Tiles { first: 2, run: 5, step: 8, runs: 2 };
        let (first, rest) = all.split(7);
        assert_eq!(Vec::from_iter(first.ranges()), [2..5, 10..13]);
        assert_eq!(Vec::from_iter(rest.ranges()), [5..7, 13..15]);
        assert_eq!(all.len(), first.len() + rest.len());
    }
}
