//! Quantized weights times rows of prompts: weights are widened to `bf16`, some panels at a time, and all
//! rows go by them.
//!
//! A weight is `s q + b`, rounded to the nearest `bf16`; an output is one chain over the inputs, as with
//! weights that are stored so.

use super::{
    Bf16Rows, DenseLevel,
    beside::{PIECE, Part, Place, TURNS, Writing},
    coded::Chunk,
    gemm::{self, Block, Sums},
    pack::{CHUNK, PANEL},
    rounded::Bf16Out,
};
use crate::{
    pool,
    {Activation, Level, elementwise::Gated as Kernel, int8::PackedWeight},
};
use std::cell::RefCell;

/// Rows that go by a panel at once: blocks that tiles multiply together.
const STEP: usize = 48;
/// Widened panels that stay in the second-level cache while rows go by, in bytes.
const CACHED: usize = 512 << 10;

thread_local! {
    static WIDE: RefCell<Vec<Chunk>> = const { RefCell::new(Vec::new()) };
    /// Outputs that are summed, and those that are written meanwhile, of two panels at most.
    static OUTPUTS: RefCell<[[Box<Block>; 2]; 2]> =
        RefCell::new([(); 2].map(|()| [(); 2].map(|()| gemm::block())));
}

/// A panel of a quantized matrix.
type Panel<'a> = (&'a PackedWeight, usize);

/// Several products `x Wᵀ + bias + residual` with the same activations.
///
/// # Panics
/// When shapes differ, or the level does not multiply `bf16`.
pub(crate) fn products(level: DenseLevel, x: &Bf16Rows, all: &[(&PackedWeight, Sums<'_>)]) {
    for (weight, sums) in all {
        assert_eq!(weight.cols(), x.cols(), "x is [m, k]");
        sums.check(x.rows(), weight.rows());
    }
    let panels = |w: &PackedWeight| 0..w.rows().div_ceil(PANEL);
    let each = |product: usize| panels(all[product].0).map(move |panel| (product, panel));
    let list: Vec<_> = (0..all.len()).flat_map(each).collect();
    pool::guided(list.len(), 1, |range| {
        let list = &list[range];
        let sets: Vec<_> = list.iter().map(|&(product, panel)| [(all[product].0, panel)]).collect();
        sweep(level, x, &sets, |set| {
            let (product, panel) = list[set];
            let (weight, sums) = &all[product];
            Stored { sums: *sums, width: weight.rows(), column: panel * PANEL }
        });
    });
}

/// Where outputs of a panel of [`products`] go.
#[derive(Clone, Copy)]
struct Stored<'a> {
    sums: Sums<'a>,
    width: usize,
    /// The panel's first.
    column: usize,
}

impl Place<1> for Stored<'_> {
    #[inline(always)]
    fn ask(&self, row: usize, column: usize) {
        self.sums.ask(self.width, (row, self.column + column));
    }

    #[inline(always)]
    fn write(&self, row: usize, column: usize, [piece]: [&mut [f32; PIECE]; 1]) {
        self.sums.put_piece(self.width, (row, self.column + column), piece);
    }
}

/// `activation(x Gᵀ + bias) * (x Uᵀ + bias)` for two matrices of one shape, rounded for the next product.
///
/// # Panics
/// As [`products`].
pub(crate) fn gated(
    level: DenseLevel,
    x: &Bf16Rows,
    activation: Activation,
    [gate, up]: [(&PackedWeight, Option<&[f32]>); 2],
) -> Bf16Rows {
    let (n, shape) = (gate.0.rows(), |w: &PackedWeight| (w.rows(), w.cols()));
    assert!(
        shape(gate.0) == (n, x.cols()) && shape(up.0) == (n, x.cols()),
        "matrices of one shape"
    );
    let biased = |b: Option<&[f32]>| b.is_none_or(|b| b.len() == n);
    assert!(biased(gate.1) && biased(up.1), "bias is [n]");
    let float = Level::detect();
    Bf16Rows::filled(x.rows(), n, |out| {
        pool::guided(n.div_ceil(PANEL), 1, |range| {
            let sets: Vec<_> =
                range.clone().map(|panel| [(gate.0, panel), (up.0, panel)]).collect();
            let biases = [gate.1, up.1];
            sweep(level, x, &sets, |set| {
                let column = (range.start + set) * PANEL;
                Gated { kernel: activation.kernel(), float, biases, n, column, out }
            });
        });
    })
}

/// Where outputs of a panel of [`gated`] go.
#[derive(Clone, Copy)]
struct Gated<'a> {
    kernel: Kernel,
    float: Level,
    biases: [Option<&'a [f32]>; 2],
    n: usize,
    /// The panel's first.
    column: usize,
    out: Bf16Out,
}

impl Place<2> for Gated<'_> {
    #[inline(always)]
    fn ask(&self, row: usize, column: usize) {
        self.out.ask(row, self.column + column);
    }

    #[inline(always)]
    fn write(&self, row: usize, column: usize, [a, b]: [&mut [f32; PIECE]; 2]) {
        let column = self.column + column;
        let n = self.n.saturating_sub(column).min(PIECE);
        if n == 0 {
            return;
        }
        for (bias, values) in self.biases.iter().zip([&mut *a, &mut *b]) {
            if let Some(bias) = bias {
                values.iter_mut().zip(&bias[column..column + n]).for_each(|(v, b)| *v += b);
            }
        }
        // SAFETY: both hold so many; this task alone has the panel's columns.
        unsafe {
            (self.kernel)(self.float, a.as_ptr(), b.as_ptr(), PIECE, a.as_mut_ptr());
            self.out.put_all(row, column, &a[..n]);
        }
    }
}

/// Multiplies every set of panels with all rows; `place` says where a set's outputs go.
fn sweep<P: Place<N>, const N: usize>(
    level: DenseLevel,
    x: &Bf16Rows,
    sets: &[[Panel<'_>; N]],
    place: impl Fn(usize) -> P,
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the level was detected, or asked for by a test that has checked it.
    let _tiles = unsafe { gemm::configured(level) };
    let chunks = x.cols().div_ceil(CHUNK);
    let together = (CACHED / (N * chunks * size_of::<Chunk>())).max(1);
    WIDE.with_borrow_mut(|wide| {
        wide.resize(wide.len().max(together.min(sets.len()) * N * chunks), Chunk::ZERO);
        OUTPUTS.with_borrow_mut(|[sums, written]| {
            let (mut sums, mut written) = (sums, written);
            let mut last = None;
            for (group, some) in sets.chunks(together).enumerate() {
                let panels = some.iter().flatten().zip(wide.chunks_exact_mut(chunks));
                panels.for_each(|((weight, panel), wide)| weight.widen(*panel, wide));
                for from in (0..x.rows()).step_by(STEP) {
                    let rows = from..(from + STEP).min(x.rows());
                    for (i, wide) in (0..some.len()).zip(wide.chunks_exact(N * chunks)) {
                        let place = place(group * together + i);
                        let part = Part { place, rows: rows.clone() };
                        let blocks = last.take().map(|last| (last, first::<N>(written)));
                        let turns = N * chunks * TURNS;
                        let mut beside = Writing::new(blocks, part.clone(), turns);
                        let panels = wide.chunks_exact(chunks).zip(first::<N>(sums));
                        for (wide, block) in panels {
                            let (rows, weights) = (rows.clone(), Chunk::weights(wide));
                            let known = gemm::rounded(level, x, rows, weights, block, &mut beside);
                            assert!(known, "a level that multiplies bf16");
                        }
                        beside.finish();
                        last = Some(part);
                        std::mem::swap(&mut sums, &mut written);
                    }
                }
            }
            if let Some(last) = last {
                let blocks = Some((last.clone(), first::<N>(written)));
                Writing::new(blocks, last, 1).finish();
            }
        });
    });
}

/// The blocks of `N` panels.
fn first<const N: usize>(blocks: &mut [Box<Block>; 2]) -> [&mut Block; N] {
    let mut blocks = blocks.iter_mut();
    std::array::from_fn(|_| &mut **blocks.next().unwrap_or_else(|| unreachable!("two at most")))
}
