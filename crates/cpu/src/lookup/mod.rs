//! Table codes times activations, in `f32`: nothing is rounded but sums.
//!
//! For each group of a weight row, products of even and of odd inputs are summed apart, each by
//! `acc = fma(table[code], x, acc)` in order; then `total = fma(even + odd, scale, total)`. Every level and
//! every batch size does so, and agrees to the bit; `portable` is the definition.
//!
//! For many rows of activations the entries of a tile are looked up once.
//!
//! Sixteen entries are a register, and looking a code up is one instruction. Bytes of E4M3 have no table: moved
//! by a bit they are halves, 256 times too small.

#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod portable;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod rows;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use pack::PackedTable;

use crate::{Level, dense::Sums, pool, shared::SharedOut};
use pack::TILE;

/// Rows of activations for which a tile's codes are looked up together.
const TOGETHER: usize = 64;
/// Below this many multiply-adds, waking other threads costs more than it gains.
const PARALLEL_FROM: usize = 1 << 16;

/// The outputs of a tile for some rows of activations.
type Block = [[f32; TILE]; TOGETHER];

/// `x Wᵀ + bias + residual`.
///
/// # Shapes
/// `x [m, w.cols()]`, `out` and `residual [m, w.rows()]`, `bias [w.rows()]`.
///
/// # Panics
/// When a slice has another length.
pub(crate) fn product(level: Level, x: &[f32], w: &PackedTable, to: Sums<'_>) {
    let (n, k) = (w.rows(), w.cols());
    let m = x.len() / k.max(1);
    assert!(x.len() == m * k && to.out.len() == m * n, "x is [m, {k}], out is [m, {n}]");
    assert!(to.bias.is_none_or(|b| b.len() == n), "bias is [{n}]");
    assert!(to.residual.is_none_or(|r| r.len() == m * n), "residual is [m, {n}]");
    let some = |tiles: std::ops::Range<usize>| {
        for tile in tiles {
            for (i, x) in x.chunks(TOGETHER * k).enumerate() {
                let mut block = [[0.0; TILE]; TOGETHER];
                one_tile(level, w, tile, x, &mut block);
                store(&block[..x.len() / k], (i * TOGETHER, tile), n, to);
            }
        }
    };
    match m * n * k < PARALLEL_FROM {
        true => some(0..w.tiles()),
        false => pool::guided(w.tiles(), 1, some),
    }
}

/// The products of a tile with at most [`TOGETHER`] rows.
fn one_tile(level: Level, w: &PackedTable, tile: usize, x: &[f32], out: &mut Block) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, and the rows are those of `w`.
        Level::Avx512(_) => unsafe { x86::tile_avx512(w, tile, x, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, and the rows are those of `w`.
        Level::Avx2(_) => unsafe { x86::tile_avx2(w, tile, x, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the machine has the level, and the rows are those of `w`.
        Level::Neon(_) => unsafe { neon::tile_neon(w, tile, x, out) },
        _ => portable::tile(w, tile, x, out),
    }
}

/// Writes a tile's outputs for the rows from `first` on.
fn store(block: &[[f32; TILE]], (first, tile): (usize, usize), n: usize, to: Sums<'_>) {
    let width = TILE.min(n - tile * TILE);
    for (i, values) in block.iter().enumerate() {
        let at = (first + i) * n + tile * TILE;
        let mut values = *values;
        for (j, value) in values.iter_mut().enumerate().take(width) {
            if let Some(bias) = to.bias {
                *value += bias[tile * TILE + j];
            }
            if let Some(residual) = to.residual {
                *value += residual[at + j];
            }
        }
        // SAFETY: this task alone writes the columns of its tile, and the caller keeps the memory.
        unsafe { SharedOut::write(to.out, at, &values[..width]) };
    }
}
