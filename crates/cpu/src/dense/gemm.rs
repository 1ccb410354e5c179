//! The product over threads: panels of outputs are shared out.

#[cfg(any(test, target_arch = "x86_64"))]
use super::tiles;
use super::{
    Bf16Rows, DenseLevel, PackedDense,
    beside::{Beside, PIECE},
    coded::Chunk,
    fma,
    pack::{CHUNK, PANEL, Panel},
};
use crate::{
    pool,
    {
        Floats, Level,
        kernels::{Rows, RowsMut},
        next,
        shared::{SharedOut, sections},
        soon,
    },
};
use half::bf16;
use std::{cell::RefCell, ops::Range};
#[cfg(target_arch = "x86_64")]
use {
    super::{amx, coded::avx2, dot, rounded::ROWS as BLOCK},
    crate::tiles::Configured,
};

/// A multiple of the rows that the kernels take at a time.
const STEP: usize = 48;
/// Most rows that go by a panel at once.
const ROWS: usize = 2 * STEP;
/// Rows of activations that stay in the second-level cache while a task's panels go by, in bytes.
const CACHED: usize = 512 << 10;
/// Most rows that unpack a panel as they go, two at a time; more have it unpacked first.
#[cfg(target_arch = "x86_64")]
const FEW: usize = 4;
/// Most rows whose products wait for memory, which is read fastest in order.
const IN_ORDER: usize = 8;
/// Below this many multiply-adds, waking other threads costs more than it gains.
const PARALLEL_FROM: usize = 1 << 16;

pub(super) type Block = [f32; ROWS * PANEL];

pub(super) fn block() -> Box<Block> {
    Box::new([0.0; ROWS * PANEL])
}

thread_local! {
    static OUTPUTS: RefCell<Box<Block>> = RefCell::new(block());
    /// A panel that was unpacked, and room for a larger one.
    static UNPACKED: RefCell<Vec<Chunk>> = const { RefCell::new(Vec::new()) };
}

/// Rows of activations, in the forms that a level reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DenseRows<'a> {
    /// `[rows, cols]`.
    pub(crate) x: &'a [f32],
    pub(crate) cols: usize,
    /// Where [`DenseLevel::rounds`] says so for some product.
    pub(crate) rounded: Option<&'a Bf16Rows>,
}

/// A product `x Wᵀ + bias + residual`, and where it goes.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) weight: &'a PackedDense,
    pub(crate) to: Sums<'a>,
}

/// What is added to products, and where the sums go.
#[derive(Clone, Copy)]
pub(crate) struct Sums<'a> {
    /// `[n]`.
    pub(crate) bias: Option<&'a [f32]>,
    /// `[m, n]`.
    pub(crate) residual: Option<&'a [f32]>,
    /// `[m, n]`; every element is written.
    pub(crate) out: SharedOut,
}

/// Several products with the same activations, shared out together.
///
/// # Panics
/// When a slice has another length than the shapes say, or rows are not rounded that must be.
pub(crate) fn products(level: DenseLevel, x: DenseRows<'_>, all: &[Product<'_>]) {
    let rows = x.x.len() / x.cols.max(1);
    all.iter().for_each(|p| p.check(level, x, rows));
    let panels = || all.iter().map(|p| p.weight.panels());
    let total = panels().sum();
    let step = (CACHED / (4 * x.cols.max(1))).clamp(STEP, ROWS) / STEP * STEP;
    // What is unpacked first, is unpacked once for all rows.
    let unpacked = all.iter().any(|p| p.weight.is_unpacked_for(level));
    let together = if unpacked { rows.max(1) } else { step };
    let share = |range: Range<usize>| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected, or asked for by a test that has checked it.
        let _tiles = unsafe { configured(level) };
        for from in (0..rows).step_by(together) {
            let rows = (from..(from + together).min(rows), step);
            for (i, panels) in sections(panels(), range.clone()) {
                panels.for_each(|panel| all[i].panel(level, x, rows.clone(), panel));
            }
        }
    };
    if rows * x.cols * total * PANEL < PARALLEL_FROM {
        share(0..total);
    } else if rows <= IN_ORDER {
        let stream = |range| {
            sections(panels(), range).map(|(i, panels)| all[i].weight.memory(panels.start)).take(1)
        };
        let first = all.first().map_or(&[][..], |p| p.weight.memory(0));
        next::lanes(first.as_ptr().addr(), total, stream, share);
    } else {
        pool::guided(total, 2, share);
    }
}

impl Product<'_> {
    fn check(&self, level: DenseLevel, x: DenseRows<'_>, rows: usize) {
        let w = self.weight;
        assert!(x.cols == w.cols() && x.x.len() == rows * x.cols, "x is [m, {}]", w.cols());
        let rounded = || x.rounded.is_some_and(|r| r.cols() == x.cols);
        assert!(!level.rounds(w.dtype()) || rounded(), "activations in bf16");
        self.to.check(rows, w.rows());
    }

    /// A panel's outputs for some rows, so many at a time.
    fn panel(
        &self,
        level: DenseLevel,
        x: DenseRows<'_>,
        rows: (Range<usize>, usize),
        panel: usize,
    ) {
        match (self.weight.panel(panel), x.rounded) {
            (Panel::Plain(weights), _) => {
                self.blocks(rows, panel, |rows, out| multiply(level, x, rows, weights, out));
            }
            #[cfg(target_arch = "x86_64")]
            (Panel::Coded(w), Some(x)) if matches!(level, DenseLevel::Avx512Bf16(_)) => {
                self.blocks(rows, panel, |rows, out| {
                    // SAFETY: the level was detected, or asked for by a test that has checked it.
                    unsafe { dot::panel(x.blocks(rows.clone()), rows.len(), w, out) }
                });
            }
            #[cfg(target_arch = "x86_64")]
            (Panel::Coded(w), Some(x))
                if matches!(level, DenseLevel::Amx(_)) && rows.0.len() <= BLOCK =>
            {
                self.blocks(rows, panel, |rows, out| {
                    // SAFETY: the level was detected, and the caller has laid out the tile
                    // registers.
                    unsafe { amx::coded(x.blocks(rows), w, out) }
                });
            }
            #[cfg(target_arch = "x86_64")]
            (Panel::Coded(w), None) if level.unpacks() && rows.0.len() <= FEW => {
                self.blocks(rows, panel, |rows, out| {
                    let (x, out) = floats(x, rows, out);
                    // SAFETY: the level was detected, or asked for by a test that has checked it; there are
                    // as many inputs, and room for the outputs.
                    unsafe { avx2::products(x, w, out) }
                });
            }
            (Panel::Coded(coded), _) => UNPACKED.with_borrow_mut(|chunks| {
                chunks.resize(chunks.len().max(coded.chunks()), Chunk::ZERO);
                let chunks = &mut chunks[..coded.chunks()];
                coded.decode(chunks);
                let weights = Floats::Bf16(Chunk::weights(chunks));
                self.blocks(rows, panel, |rows, out| multiply(level, x, rows, weights, out));
            }),
        }
    }

    fn blocks(
        &self,
        (rows, step): (Range<usize>, usize),
        panel: usize,
        sums: impl Fn(Range<usize>, &mut Block),
    ) {
        OUTPUTS.with_borrow_mut(|block| {
            for from in rows.clone().step_by(step) {
                let some = from..(from + step).min(rows.end);
                sums(some.clone(), block);
                self.to.store(self.weight.rows(), some, panel, block);
            }
        });
    }
}

impl Sums<'_> {
    pub(super) fn check(&self, rows: usize, width: usize) {
        assert_eq!(self.out.len(), rows * width, "out is [m, n]");
        assert!(self.bias.is_none_or(|b| b.len() == width), "bias is [n]");
        assert!(self.residual.is_none_or(|r| r.len() == rows * width), "residual is [m, n]");
    }

    /// Writes a panel's outputs, with what is added to them, where a row has `width`.
    fn store(&self, width: usize, rows: Range<usize>, panel: usize, block: &mut Block) {
        for (row, values) in rows.zip(block.chunks_exact_mut(PANEL)) {
            self.put(width, (row, panel * PANEL), values);
        }
    }

    /// Writes outputs of a row of `width` from a column on, with what is added to them; what is past the
    /// row's end is left out.
    fn put(&self, width: usize, (row, column): (usize, usize), values: &mut [f32]) {
        let n = values.len().min(width.saturating_sub(column));
        if n == 0 {
            return;
        }
        let (values, at) = (&mut values[..n], row * width + column);
        let (bias, residual) = (self.bias.map(|b| &b[column..]), self.residual.map(|r| &r[at..]));
        for added in bias.into_iter().chain(residual) {
            values.iter_mut().zip(added).for_each(|(v, a)| *v += a);
        }
        // SAFETY: this task alone owns the columns of its panels.
        unsafe { self.out.write(at, values) };
    }

    /// Like [`Self::put`] for one part of a panel's row, compiled for the instructions of the
    /// caller.
    #[inline(always)]
    pub(super) fn put_piece(
        &self,
        width: usize,
        (row, column): (usize, usize),
        piece: &mut [f32; PIECE],
    ) {
        if column + PIECE > width {
            return self.put(width, (row, column), piece);
        }
        let at = row * width + column;
        let (bias, residual) = (self.bias.map(|b| &b[column..]), self.residual.map(|r| &r[at..]));
        for added in [bias, residual].into_iter().flatten() {
            let added = &added[..PIECE];
            piece.iter_mut().zip(added).for_each(|(v, a)| *v += a);
        }
        // SAFETY: this task alone owns the columns of its panels.
        unsafe { self.out.write_array(at, piece) };
    }

    /// Prefetches the destination of a part of a row, and what is added to it.
    #[inline(always)]
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "asked beside tiles, which x86-64 alone has")
    )]
    pub(super) fn ask(&self, width: usize, (row, column): (usize, usize)) {
        /// Outputs of a cache line.
        const LINE: usize = 16;
        let at = row * width + column;
        for line in 0..PIECE / LINE {
            soon::near(self.out.at(0).wrapping_add(at + line * LINE));
            if let Some(residual) = self.residual {
                soon::near(residual.as_ptr().wrapping_add(at + line * LINE));
            }
        }
    }
}

/// Lays out this thread's tile registers, where a level has them, until the result is dropped.
///
/// # Safety
/// The machine has the level.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn configured(level: DenseLevel) -> Option<Configured> {
    // SAFETY: the caller promises that the machine has the level.
    matches!(level, DenseLevel::Amx(_)).then(|| unsafe { Configured::new(&amx::layout()) })
}

/// The sums of a panel's `bf16` outputs for rows in `bf16`; false where the level does not multiply
/// those. With tile registers, `beside` runs meanwhile.
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(unused_variables, unreachable_code, reason = "x86-64 alone multiplies them")
)]
pub(super) fn rounded(
    level: DenseLevel,
    x: &Bf16Rows,
    rows: Range<usize>,
    w: &[bf16],
    out: &mut Block,
    beside: &mut impl Beside,
) -> bool {
    match level {
        #[cfg(target_arch = "x86_64")]
        DenseLevel::Amx(_) => {
            // SAFETY: the caller has laid out the registers.
            unsafe { tiles::panel::<amx::Registers>(x.blocks(rows), w, out, beside) };
        }
        #[cfg(target_arch = "x86_64")]
        DenseLevel::Avx512Bf16(_) => {
            // SAFETY: the level was detected, or asked for by a test that has checked it.
            unsafe { dot::panel(x.blocks(rows.clone()), rows.len(), w, out) };
        }
        #[cfg(test)]
        DenseLevel::Emulated => {
            // SAFETY: any machine has it.
            unsafe { tiles::panel::<super::tests::Emulated>(x.blocks(rows), w, out, beside) };
        }
        _ => return false,
    }
    true
}

/// Some rows as they are, and where their outputs of a panel go: there is room for `ROWS`.
fn floats(x: DenseRows<'_>, rows: Range<usize>, out: &mut Block) -> (Rows, RowsMut) {
    let from = &x.x[rows.start * x.cols..rows.end * x.cols];
    let out = RowsMut { ptr: out.as_mut_ptr(), stride: PANEL };
    (Rows::new(from.as_ptr(), rows.len(), x.cols), out)
}

/// The sums of a panel's outputs from its plain layout.
fn multiply(
    level: DenseLevel,
    x: DenseRows<'_>,
    rows: Range<usize>,
    weights: Floats<'_>,
    out: &mut Block,
) {
    if let (Floats::Bf16(w), Some(x)) = (weights, x.rounded)
        && rounded(level, x, rows.clone(), w, out, &mut ())
    {
        return;
    }
    let float = match level {
        DenseLevel::Fma(float) => float,
        _ => Level::detect(),
    };
    let k = x.cols;
    debug_assert!(weights.len() == PANEL * k.next_multiple_of(CHUNK));
    let (x, out) = floats(x, rows, out);
    // SAFETY: the lengths were checked, and `out` has room for `ROWS` rows of a panel.
    unsafe {
        match weights {
            Floats::F32(w) => fma::panel_f32(float, x, w.as_ptr(), k, out),
            Floats::F16(w) => fma::panel_f16(float, x, w.as_ptr(), k, out),
            Floats::Bf16(w) => fma::panel_bf16(float, x, w.as_ptr(), k, out),
        }
    }
}
