//! Outputs that are written while the next ones are summed.
//!
//! A product of tiles leaves most of the processor idle, and outputs wait for the caches. So a block's
//! outputs stay near until the next block is multiplied, where a part of them is written now and then;
//! and where the next ones go is prefetched meanwhile.

use super::{gemm::Block, pack::PANEL};
use crate::soon;
use std::ops::Range;

/// Outputs written at once: half of a row of a panel.
pub(super) const PIECE: usize = PANEL / 2;
/// Such parts of a row.
const PIECES: usize = PANEL / PIECE;
/// Calls of [`Beside::next`] per 32 inputs of a panel.
pub(super) const TURNS: usize = 2;

/// What goes on beside products.
pub(super) trait Beside {
    /// Does a little.
    fn next(&mut self);
}

impl Beside for () {
    #[inline(always)]
    fn next(&mut self) {}
}

/// Where the outputs of `N` panels go. It holds all pointers that lead there, as what is beside
/// products rarely stays in the first-level cache.
pub(super) trait Place<const N: usize>: Copy {
    /// Prefetches the destination of a part; its first column counts from the panel's.
    fn ask(&self, row: usize, column: usize);
    /// Writes a part of each of the panels.
    fn write(&self, row: usize, column: usize, pieces: [&mut [f32; PIECE]; N]);
}

/// Some rows of a destination.
#[derive(Debug, Clone)]
pub(super) struct Part<P> {
    pub(super) place: P,
    pub(super) rows: Range<usize>,
}

impl<P> Part<P> {
    fn pieces(&self) -> usize {
        self.rows.len() * PIECES
    }

    /// The row and the first column of a part.
    #[inline(always)]
    fn piece(&self, index: usize) -> (usize, usize) {
        (self.rows.start + index / PIECES, index % PIECES * PIECE)
    }
}

/// Outputs on their way, and others that are being summed.
pub(super) struct Writing<'a, P, const N: usize> {
    /// What is written.
    from: Option<(Part<P>, [&'a mut Block; N])>,
    written: usize,
    /// What is prefetched.
    to: Part<P>,
    asked: usize,
    /// Calls from one part to the next, and those that remain.
    every: usize,
    wait: usize,
}

impl<'a, P: Place<N>, const N: usize> Writing<'a, P, N> {
    /// Writes `from` and prefetches `to` within so many calls.
    pub(super) fn new(
        from: Option<(Part<P>, [&'a mut Block; N])>,
        to: Part<P>,
        turns: usize,
    ) -> Self {
        let pieces = from.as_ref().map_or(0, |(part, _)| part.pieces()).max(to.pieces());
        let every = (turns / pieces.max(1)).max(1);
        Self { from, written: 0, to, asked: 0, every, wait: every }
    }

    /// Writes a part, and prefetches the one after it; false when there is none left.
    #[inline(always)]
    fn write(&mut self) -> bool {
        let Some((part, blocks)) = &mut self.from else { return false };
        if self.written == part.pieces() {
            return false;
        }
        let (row, column) = part.piece(self.written);
        let pieces = blocks.each_mut().map(|block| {
            let (pieces, _) = block.as_chunks_mut::<PIECE>();
            let next = pieces[self.written].as_ptr().wrapping_add(PIECE);
            soon::near(next);
            soon::near(next.wrapping_add(PIECE / 2));
            &mut pieces[self.written]
        });
        part.place.write(row, column, pieces);
        self.written += 1;
        true
    }

    /// Writes what is left.
    pub(super) fn finish(mut self) {
        while self.write() {}
    }
}

impl<P: Place<N>, const N: usize> Beside for Writing<'_, P, N> {
    #[inline(always)]
    fn next(&mut self) {
        self.wait -= 1;
        if self.wait > 0 {
            return;
        }
        self.wait = self.every;
        if self.asked < self.to.pieces() {
            let (row, column) = self.to.piece(self.asked);
            self.to.place.ask(row, column);
            self.asked += 1;
        }
        self.write();
    }
}
