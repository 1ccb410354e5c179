//! The product over threads: tiles of outputs are shared out.

use super::{
    Int8Level, Int8Rows, PackedWeight,
    pack::TILE,
    portable,
    tiles::{Tiles, share},
};
use crate::shared::SharedOut;
use std::{cell::RefCell, ops::Range};
#[cfg(target_arch = "x86_64")]
use {
    super::{
        amx, avx2_many,
        tiles::in_tile_registers,
        vnni::{self, Bf16, F16, F32},
    },
    crate::{
        DType,
        ahead::{Far, Near, NearAlways, intel, zen5},
    },
};

/// Rows of activations that stay in the second-level cache while tiles go by.
pub(super) const ROWS: usize = 192;
/// Tiles whose outputs are written together, at least: rows of the output are pages apart.
const TOGETHER: usize = 4;

type Block = [f32; TOGETHER * ROWS * TILE];

thread_local! {
    static BLOCKS: RefCell<Box<[Block; 2]>> =
        RefCell::new(Box::new([[0.0; TOGETHER * ROWS * TILE]; 2]));
}

/// A product `x Wᵀ + bias + residual`, and where it goes.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub(crate) weight: &'a PackedWeight,
    /// `[n]`.
    pub(crate) bias: Option<&'a [f32]>,
    /// `[m, n]`.
    pub(crate) residual: Option<&'a [f32]>,
    /// `[m, n]`; every element is written.
    pub(crate) out: SharedOut,
}

/// `out[i][j] = x[i] · w[j] + bias[j]`.
///
/// # Shapes
/// `x` of `m` rows, `out [m, w.rows()]`, `bias [w.rows()]`.
///
/// # Panics
/// When `x` was rounded for rows or groups of another length, or a slice has another length.
pub fn matmul(x: &Int8Rows, w: &PackedWeight, bias: Option<&[f32]>, out: &mut [f32]) {
    let out = SharedOut::new(out);
    products(x, &[Product { weight: w, bias, residual: None, out }]);
}

/// [`matmul`] at a level of one's choice.
///
/// # Panics
/// As [`matmul`].
pub fn matmul_with(
    level: Int8Level,
    x: &Int8Rows,
    w: &PackedWeight,
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let out = SharedOut::new(out);
    products_at(level, x, &[Product { weight: w, bias, residual: None, out }]);
}

/// Several products with the same activations, shared out together.
pub(crate) fn products(x: &Int8Rows, all: &[Product<'_>]) {
    products_at(Int8Level::detect(), x, all);
}

fn products_at(level: Int8Level, x: &Int8Rows, all: &[Product<'_>]) {
    all.iter().for_each(|p| p.check(x));
    share(level, x, all, |product, tiles| product.tiles(level, x, tiles));
}

/// Calls `some` for all tiles of the range and all rows of codes, as many tiles at a time as a block
/// has room for.
pub(super) fn blocks(
    x: &Int8Rows,
    tiles: Tiles,
    mut some: impl FnMut(Tiles, Range<usize>, &mut [Block; 2]),
) {
    BLOCKS.with_borrow_mut(|scratch| {
        for first in (0..x.rows).step_by(ROWS) {
            let rows = first..(first + ROWS).min(x.rows);
            let room = (ROWS / rows.len()).max(TOGETHER);
            let mut rest = tiles;
            while rest.run > 0 {
                let (now, later) = rest.split(room);
                some(now, rows.clone(), scratch);
                rest = later;
            }
        }
    });
}

impl Product<'_> {
    pub(super) fn check(&self, x: &Int8Rows) {
        let w = self.weight;
        assert!(x.cols == w.cols && x.group == w.group, "activations rounded for this weight");
        assert_eq!(self.out.len(), x.len() * w.rows, "out is [m, n]");
        assert!(self.bias.is_none_or(|b| b.len() == w.rows), "bias is [n]");
        assert!(self.residual.is_none_or(|r| r.len() == x.len() * w.rows), "residual is [m, n]");
    }

    fn tiles(&self, level: Int8Level, x: &Int8Rows, tiles: Tiles) {
        blocks(x, tiles, |tiles, rows, [block, _]| {
            let each = rows.len() * TILE;
            self.compute(level, x, tiles, rows.clone(), (&mut *block, each));
            self.store(tiles, x.outputs(rows), block, each);
        });
    }

    /// Outputs of tiles with their bias, for some rows of codes; each tile has `each` elements.
    pub(super) fn compute(
        &self,
        level: Int8Level,
        x: &Int8Rows,
        tiles: Tiles,
        rows: Range<usize>,
        (block, each): (&mut [f32], usize),
    ) {
        let outputs = x.outputs(rows.clone()).len();
        some_tiles(level, self.weight, tiles, x, rows, (&mut *block, each));
        for (tile, block) in tiles.ranges().flatten().zip(block.chunks_mut(each)) {
            if x.rounding.parts() > 1 {
                add_pairs(&mut block[..2 * outputs * TILE]);
            }
            if let Some(bias) = self.bias {
                for values in block.chunks_exact_mut(TILE).take(outputs) {
                    values.iter_mut().zip(&bias[tile * TILE..]).for_each(|(v, b)| *v += b);
                }
            }
        }
    }

    /// Writes the outputs of tiles, each `each` elements of the block, with what is added to them.
    pub(super) fn store(&self, tiles: Tiles, rows: Range<usize>, block: &mut [f32], each: usize) {
        for (run, block) in tiles.ranges().zip(block.chunks_mut(tiles.run * each)) {
            self.store_run(run, rows.clone(), block, each);
        }
    }

    fn store_run(&self, run: Range<usize>, rows: Range<usize>, block: &mut [f32], each: usize) {
        let width = self.weight.rows;
        for (i, row) in rows.enumerate() {
            for (tile, block) in run.clone().zip(block.chunks_mut(each)) {
                let at = row * width + tile * TILE;
                let n = TILE.min(width - tile * TILE);
                let (outputs, _) = block.as_chunks_mut::<TILE>();
                let values = &mut outputs[i];
                if let Some(residual) = self.residual {
                    let residual = residual[at..at + n].iter();
                    values.iter_mut().zip(residual).for_each(|(v, r)| *v += r);
                }
                // SAFETY: this task alone owns the columns of its tiles.
                unsafe {
                    match n {
                        TILE => self.out.write_array(at, values),
                        _ => self.out.write(at, &values[..n]),
                    }
                }
            }
        }
    }
}

/// The sums of neighbouring rows, one after the other from the start.
fn add_pairs(block: &mut [f32]) {
    let (rows, _) = block.as_chunks_mut::<TILE>();
    for i in 0..rows.len() / 2 {
        let (first, second) = (rows[2 * i], rows[2 * i + 1]);
        rows[i] = std::array::from_fn(|j| first[j] + second[j]);
    }
}

/// The outputs of several tiles for some rows of `x`; each has `each` elements of `out`.
fn some_tiles(
    level: Int8Level,
    w: &PackedWeight,
    tiles: Tiles,
    x: &Int8Rows,
    rows: Range<usize>,
    (out, each): (&mut [f32], usize),
) {
    #[cfg(target_arch = "x86_64")]
    if in_tile_registers(level, x) {
        let tiles = tiles.first..tiles.first + tiles.run;
        // SAFETY: the level was detected, and `share` has laid out the registers.
        return unsafe {
            match w.scale_type {
                DType::BF16 => amx::tiles::<Bf16>(w, tiles, x, rows, (out, each)),
                DType::F16 => amx::tiles::<F16>(w, tiles, x, rows, (out, each)),
                _ => amx::tiles::<F32>(w, tiles, x, rows, (out, each)),
            }
        };
    }
    #[cfg(target_arch = "x86_64")]
    if tiles.runs > 1 {
        // SAFETY: the level was detected, and `streams` gave the number of runs for these rows.
        return unsafe {
            match tiles.runs {
                2 => vnni::abreast::<2>(w, tiles, x, rows, (out, each)),
                _ => vnni::abreast::<4>(w, tiles, x, rows, (out, each)),
            }
        };
    }
    for (tile, out) in tiles.ranges().flatten().zip(out.chunks_mut(each)) {
        one_tile(level, w, tile, x, rows.clone(), out);
    }
}

/// A tile's sixteen outputs for some rows of `x`; `out` rows are `TILE` long.
pub(super) fn one_tile(
    level: Int8Level,
    w: &PackedWeight,
    tile: usize,
    x: &Int8Rows,
    rows: Range<usize>,
    out: &mut [f32],
) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected; shapes were checked by the caller.
        Int8Level::Amx(_) | Int8Level::Vnni(_) if intel() => unsafe {
            vnni::tile::<Far>(w, tile, x, rows, out);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected; shapes were checked by the caller.
        Int8Level::Amx(_) | Int8Level::Vnni(_) if zen5() => unsafe {
            vnni::tile::<NearAlways>(w, tile, x, rows, out);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected; shapes were checked by the caller.
        Int8Level::Amx(_) | Int8Level::Vnni(_) => unsafe {
            vnni::tile::<Near>(w, tile, x, rows, out);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected; shapes were checked by the caller.
        Int8Level::AvxVnni(_) => unsafe { super::avx2::tile_vnni(w, tile, x, rows, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected; shapes were checked by the caller.
        Int8Level::Avx2(_) if avx2_many::takes(w, x) => unsafe {
            avx2_many::tile(w, tile, x, rows, out);
        },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was detected; shapes were checked by the caller.
        Int8Level::Avx2(_) => unsafe { super::avx2::tile(w, tile, x, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the level was detected; shapes were checked by the caller.
        Int8Level::I8mm(_) => unsafe { super::neon::tile_i8mm(w, tile, x, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the level was detected; shapes were checked by the caller.
        Int8Level::DotProd(_) => unsafe { super::neon::tile_dotprod(w, tile, x, rows, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the level was detected; shapes were checked by the caller.
        Int8Level::Neon(_) => unsafe { super::neon::tile(w, tile, x, rows, out) },
        _ => portable::tile(w, tile, x, rows, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AffineFormat, AffineWeight, Bytes, DType, Rounding, RowSource};
    use half::{bf16, f16};

    fn noise(n: usize, seed: u64) -> impl Iterator<Item = f32> {
        let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..n).map(move |_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 40) as f32 / (1 << 24) as f32 - 0.5
        })
    }

    fn floats(dtype: DType, n: usize, seed: u64) -> (DType, Bytes) {
        let x = noise(n, seed);
        let bytes = match dtype {
            DType::F16 => x.flat_map(|v| f16::from_f32(v).to_le_bytes()).collect(),
            DType::BF16 => x.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect(),
            _ => x.flat_map(f32::to_le_bytes).collect(),
        };
        (dtype, Bytes::from_vec(bytes))
    }

    fn weight(bits: u8, group: usize, dtype: DType, rows: usize, cols: usize) -> AffineWeight {
        let format = AffineFormat { bits, group };
        let n = rows * format.row_bytes(cols);
        let codes = noise(n, 3).map(|v| ((v + 0.5) * 255.0) as u8).collect();
        let groups = rows * cols / group;
        let scales = floats(dtype, groups, 5);
        let biases = floats(dtype, groups, 6);
        AffineWeight::new(format, (rows, cols), Bytes::from_vec(codes), scales, biases).unwrap()
    }

    #[test]
    fn all_levels_and_batches_agree_to_the_bit_and_with_f64() {
        for (bits, group, dtype) in [
            (4, 64, DType::BF16),
            (4, 32, DType::F16),
            (8, 64, DType::F32),
            (2, 128, DType::BF16),
            (3, 64, DType::F32),
            (5, 32, DType::BF16),
            (6, 64, DType::F16),
        ] {
            let (rows, cols, m) = (101, 256, 39);
            let affine = weight(bits, group, dtype, rows, cols);
            let packed = PackedWeight::new(&affine);
            let x: Vec<f32> = noise(m * cols, 9).collect();
            let bias: Vec<f32> = noise(rows, 10).collect();
            let q = Int8Rows::new(&x, cols, group, Rounding::Int8);
            let mut want = vec![0.0; m * rows];
            matmul_with(Int8Level::Portable, &q, &packed, Some(&bias), &mut want);
            let mut row = vec![0.0; cols];
            let mut read = vec![0.0; cols];
            for j in 0..rows {
                affine.read_rows(j, &mut row);
                packed.read_row(j, &mut read);
                assert_eq!(row, read, "{bits} bits, row {j}");
                for i in 0..m {
                    let x = (0..cols).map(|k| {
                        f64::from(q.codes()[i * cols + k])
                            * f64::from(q.scales[(i * cols + k) / group])
                    });
                    let dot: f64 = x.zip(&row).map(|(x, &w)| x * f64::from(w)).sum();
                    let got = f64::from(want[i * rows + j]);
                    let error = (got - dot - f64::from(bias[j])).abs();
                    assert!(error < 2e-3, "{bits} bits: {got} {dot}");
                }
            }
            for level in Int8Level::available() {
                let mut got = vec![0.0; m * rows];
                matmul_with(level, &q, &packed, Some(&bias), &mut got);
                assert_eq!(got, want, "{level:?}, {bits} bits");
                for (i, batch) in (0..m).map(|i| (i, 1)).chain([(3, 2), (5, 3), (1, 4), (2, 8)]) {
                    let some = &x[i * cols..][..batch * cols];
                    let some = Int8Rows::new(some, cols, group, Rounding::Int8);
                    let mut got = vec![0.0; batch * rows];
                    matmul_with(level, &some, &packed, Some(&bias), &mut got);
                    assert_eq!(got, want[i * rows..][..batch * rows], "{level:?} {batch} at {i}");
                }
            }
        }
    }

    #[test]
    fn two_parts_are_nearer_whatever_the_batch() {
        let (rows, cols, m, group) = (53, 256, 39, 64);
        let affine = weight(4, group, DType::BF16, rows, cols);
        let packed = PackedWeight::new(&affine);
        let x: Vec<f32> = noise(m * cols, 9).collect();
        let bias: Vec<f32> = noise(rows, 10).collect();
        let product = |x: &[f32], rounding| {
            let mut out = vec![0.0; x.len() / cols * rows];
            let x = Int8Rows::new(x, cols, group, rounding);
            matmul(&x, &packed, Some(&bias), &mut out);
            out
        };
        let (eight, sixteen) = (product(&x, Rounding::Int8), product(&x, Rounding::Int16));
        let (mut row, mut worst) = (vec![0.0; cols], [0.0f64; 2]);
        for (i, x) in x.chunks(cols).enumerate() {
            assert_eq!(product(x, Rounding::Int16), sixteen[i * rows..][..rows], "row {i} alone");
            for j in 0..rows {
                affine.read_rows(j, &mut row);
                let dot: f64 = x.iter().zip(&row).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                for (worst, out) in worst.iter_mut().zip([&eight, &sixteen]) {
                    let error = f64::from(out[i * rows + j]) - dot - f64::from(bias[j]);
                    *worst = worst.max(error.abs());
                }
            }
        }
        assert!(worst[1] < worst[0] / 100.0, "{worst:?}");
    }
}
