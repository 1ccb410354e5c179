//! The product over threads: panels of outputs are shared out.

use super::{
    DenseLevel, PackedDense, SplitRows, fma,
    pack::{CHUNK, PANEL},
    split,
};
use crate::{
    cpu::{
        Floats, Level,
        kernels::{Rows, RowsMut},
        shared::SharedOut,
    },
    pool,
};
use std::{cell::RefCell, ops::Range};
#[cfg(target_arch = "x86_64")]
use {super::amx, crate::cpu::tiles::Configured};

/// Rows of activations whose outputs wait for their bias and residual in the first-level cache.
/// A multiple of what AMX and multiply-adds take at a time.
const ROWS: usize = 48;
/// Below this many multiply-adds, waking other threads costs more than it gains.
const PARALLEL_FROM: usize = 1 << 16;

type Block = [f32; ROWS * PANEL];

thread_local! {
    static OUTPUTS: RefCell<Box<Block>> = RefCell::new(Box::new([0.0; ROWS * PANEL]));
}

/// Rows of activations, in the forms that a level reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DenseRows<'a> {
    /// `[rows, cols]`.
    pub(crate) x: &'a [f32],
    pub(crate) cols: usize,
    /// Where [`DenseLevel::splits`] says so for some product.
    pub(crate) split: Option<&'a SplitRows>,
}

/// A product `x Wᵀ + bias + residual`, and where it goes.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) weight: &'a PackedDense,
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
/// When a slice has another length than the shapes say, or rows are not split that must be.
pub(crate) fn products(level: DenseLevel, x: DenseRows<'_>, all: &[Product<'_>]) {
    let rows = x.x.len() / x.cols.max(1);
    all.iter().for_each(|p| p.check(level, x, rows));
    let total = all.iter().map(|p| p.weight.panels()).sum();
    let share = |range: Range<usize>| {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected, or asked for by a test that has checked it.
        let _tiles = (level == DenseLevel::Amx).then(|| unsafe { Configured::new(&amx::layout()) });
        let mut first = 0;
        for product in all {
            let panels = product.weight.panels();
            let own = range.start.max(first)..range.end.min(first + panels);
            for panel in own {
                product.panel(level, x, rows, panel - first);
            }
            first += panels;
        }
    };
    if rows * x.cols * total * PANEL < PARALLEL_FROM {
        share(0..total);
    } else {
        pool::ranges(total, 1, share);
    }
}

impl Product<'_> {
    fn check(&self, level: DenseLevel, x: DenseRows<'_>, rows: usize) {
        let w = self.weight;
        assert!(x.cols == w.cols() && x.x.len() == rows * x.cols, "x is [m, {}]", w.cols());
        let split = || x.split.is_some_and(|s| s.cols() == x.cols);
        assert!(!level.splits(w.dtype()) || split(), "activations in two parts");
        assert_eq!(self.out.len(), rows * w.rows(), "out is [m, n]");
        assert!(self.bias.is_none_or(|b| b.len() == w.rows()), "bias is [n]");
        assert!(self.residual.is_none_or(|r| r.len() == rows * w.rows()), "residual is [m, n]");
    }

    fn panel(&self, level: DenseLevel, x: DenseRows<'_>, rows: usize, panel: usize) {
        OUTPUTS.with_borrow_mut(|block| {
            for first in (0..rows).step_by(ROWS) {
                let rows = first..(first + ROWS).min(rows);
                self.compute(level, x, rows.clone(), panel, block);
                self.store(rows, panel, block);
            }
        });
    }

    /// The sums of a panel's outputs.
    fn compute(
        &self,
        level: DenseLevel,
        x: DenseRows<'_>,
        rows: Range<usize>,
        panel: usize,
        out: &mut Block,
    ) {
        let weights = self.weight.panel(panel);
        let float = match (level, weights, x.split) {
            #[cfg(target_arch = "x86_64")]
            (DenseLevel::Amx, Floats::Bf16(w), Some(x)) => {
                let x = x.blocks(rows.start / split::ROWS, rows.len().div_ceil(split::ROWS));
                // SAFETY: `products_at` has laid out the registers, and `out` has room for whole blocks, and `w` for as many inputs as the rows have.
                return unsafe { amx::panel::<amx::Registers>(x, w, out) };
            }
            #[cfg(all(test, target_arch = "x86_64"))]
            (DenseLevel::Emulated, Floats::Bf16(w), Some(x)) => {
                let x = x.blocks(rows.start / split::ROWS, rows.len().div_ceil(split::ROWS));
                // SAFETY: as above.
                return unsafe { amx::panel::<super::tests::Emulated>(x, w, out) };
            }
            (DenseLevel::Fma(float), ..) => float,
            _ => Level::detect(),
        };
        let k = x.cols;
        debug_assert!(weights.len() == PANEL * k.next_multiple_of(CHUNK));
        let x = Rows::new(x.x[rows.start * k..].as_ptr(), rows.len(), k);
        let out = RowsMut { ptr: out.as_mut_ptr(), stride: PANEL };
        // SAFETY: the lengths were checked, and `out` has room for `ROWS` rows of a panel.
        unsafe {
            match weights {
                Floats::F32(w) => fma::panel_f32(float, x, w.as_ptr(), k, out),
                Floats::F16(w) => fma::panel_f16(float, x, w.as_ptr(), k, out),
                Floats::Bf16(w) => fma::panel_bf16(float, x, w.as_ptr(), k, out),
            }
        }
    }

    /// Writes a panel's outputs, with what is added to them.
    fn store(&self, rows: Range<usize>, panel: usize, block: &mut Block) {
        let (width, column) = (self.weight.rows(), panel * PANEL);
        let n = PANEL.min(width - column);
        for (i, values) in rows.zip(block.chunks_exact_mut(PANEL)) {
            let (values, at) = (&mut values[..n], i * width + column);
            let (bias, residual) =
                (self.bias.map(|b| &b[column..]), self.residual.map(|r| &r[at..]));
            for added in bias.into_iter().chain(residual) {
                values.iter_mut().zip(added).for_each(|(v, a)| *v += a);
            }
            // SAFETY: this task alone owns the columns of its panels.
            unsafe { self.out.write(at, values) };
        }
    }
}
