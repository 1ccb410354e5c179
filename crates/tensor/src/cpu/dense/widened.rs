//! Quantized weights times rows of prompts: weights are widened to `bf16`, some panels at a time, and all
//! rows go by them.
//!
//! A weight is `s q + b`, rounded to the nearest `bf16`; an output is one chain over the inputs, as with
//! weights that are stored so.

use super::{
    Bf16Rows, DenseLevel,
    coded::Chunk,
    gemm::{self, Block, Sums},
    pack::{CHUNK, PANEL},
};
use crate::{
    cpu::{Activation, Level, int8::PackedWeight},
    pool,
};
use std::{cell::RefCell, ops::Range};

/// Rows that go by a panel at once: two blocks.
const STEP: usize = 32;
/// Widened panels that stay in the second-level cache while rows go by, in bytes.
const CACHED: usize = 1 << 20;

thread_local! {
    static WIDE: RefCell<Vec<Chunk>> = const { RefCell::new(Vec::new()) };
    static OUTPUTS: RefCell<[Box<Block>; 2]> = RefCell::new([gemm::block(), gemm::block()]);
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
        sweep(level, x, &sets, |set, rows, [block]| {
            let (product, panel) = list[set];
            all[product].1.store(all[product].0.rows(), rows, panel, block);
        });
    });
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
            sweep(level, x, &sets, |set, rows, [a, b]| {
                let columns = (range.start + set) * PANEL..n.min((range.start + set + 1) * PANEL);
                for (bias, block) in [(gate.1, &mut *a), (up.1, &mut *b)] {
                    add_bias(bias.map(|bias| &bias[columns.clone()]), rows.len(), block);
                }
                let elements = rows.len() * PANEL;
                // SAFETY: both blocks hold so many.
                unsafe {
                    activation.kernel()(float, a.as_ptr(), b.as_ptr(), elements, a.as_mut_ptr());
                }
                for (row, values) in rows.zip(a.chunks_exact(PANEL)) {
                    // SAFETY: this task alone has the panel's columns.
                    unsafe { out.put(row, columns.start, &values[..columns.len()]) };
                }
            });
        });
    })
}

fn add_bias(bias: Option<&[f32]>, rows: usize, block: &mut Block) {
    let Some(bias) = bias else { return };
    for row in block.chunks_exact_mut(PANEL).take(rows) {
        row.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
    }
}

/// Calls `each` with the outputs of every set of panels, for all rows: the set's number, the rows, and
/// their outputs of each of its panels.
fn sweep<const N: usize>(
    level: DenseLevel,
    x: &Bf16Rows,
    sets: &[[Panel<'_>; N]],
    mut each: impl FnMut(usize, Range<usize>, &mut [&mut Block; N]),
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the level was detected, or asked for by a test that has checked it.
    let _tiles = unsafe { gemm::configured(level) };
    let chunks = x.cols().div_ceil(CHUNK);
    let together = (CACHED / (N * chunks * size_of::<Chunk>())).max(1);
    WIDE.with_borrow_mut(|wide| {
        wide.resize(wide.len().max(together.min(sets.len()) * N * chunks), Chunk::ZERO);
        OUTPUTS.with_borrow_mut(|[first, second]| {
            for (group, some) in sets.chunks(together).enumerate() {
                let panels = some.iter().flatten().zip(wide.chunks_exact_mut(chunks));
                panels.for_each(|((weight, panel), wide)| weight.widen(*panel, wide));
                for from in (0..x.rows()).step_by(STEP) {
                    let rows = from..(from + STEP).min(x.rows());
                    for (i, wide) in (0..some.len()).zip(wide.chunks_exact(N * chunks)) {
                        let mut blocks = [&mut **first, &mut **second];
                        let blocks =
                            blocks.first_chunk_mut::<N>().unwrap_or_else(|| unreachable!());
                        for (wide, block) in wide.chunks_exact(chunks).zip(blocks.iter_mut()) {
                            let weights = Chunk::weights(wide);
                            let known = gemm::rounded(level, x, rows.clone(), weights, block);
                            assert!(known, "a level that multiplies bf16");
                        }
                        each(group * together + i, rows.clone(), blocks);
                    }
                }
            }
        });
    });
}
