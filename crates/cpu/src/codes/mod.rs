//! Attention arithmetic over packed table codes, in integers.
//!
//! A row of `d` elements is cut into *rings* of [`RING`] elements (`d` is padded with zeros). A
//! ring holds `bits` bits an element, and an element's table entry is the six-bit *window* of the
//! ring that starts `lead` bits before the element's own bits; it wraps around at the ring's ends.
//! A scalar code has `lead = 0` and a table that repeats every `2^bits` entries; a trellis code has
//! `lead = 6 - bits` and 64 entries of their own. Either way a code is one table lookup, with no
//! dependence on the code before it.
//!
//! Rows stand in *tiles* of [`TILE_ROWS`] rows and one ring:
//!
//! ```text
//! tiles of a block:  [rows / 4][d / 16][4 rows][2 * bits bytes]
//! ```
//! Scalar codes of four bits may stand in an order of their own ([`Windows::nibbles`]); windows of
//! nine bits go from ring to ring ([`WideWindows`]).
//!
//! [`Windows::expand`] expands tiles to bytes, [`dots`] multiplies them with int8 queries, and
//! [`add_weighted`] sums them under u8 weights. Every level gives the same integers, and rounds
//! them to floats in the same order; the portable code is the definition.

mod affine;
#[cfg(target_arch = "x86_64")]
mod affine_avx2;
#[cfg(target_arch = "aarch64")]
mod affine_neon;
#[cfg(target_arch = "x86_64")]
mod affine_vbmi;
#[cfg(target_arch = "x86_64")]
mod avx2;
mod dense;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod scales;
mod trellis;
#[cfg(target_arch = "x86_64")]
mod trellis_lanes;
#[cfg(target_arch = "x86_64")]
mod trellis_search;
#[cfg(target_arch = "x86_64")]
mod vbmi;
#[cfg(target_arch = "x86_64")]
mod vbmi_rings;
#[cfg(target_arch = "x86_64")]
mod vbmi_rows;
#[cfg(target_arch = "x86_64")]
mod vbmi_source;
#[cfg(target_arch = "x86_64")]
mod vbmi_weights;
mod weights;
mod wide;
mod windows;

pub use affine::{Affine, AffineQueries, AffineScales, AffineWeights};
pub use dense::{DenseRows, add_rows, dot_rows};
pub use scales::{OCTAVE, centre_dots, halves, intervals, power, powers, sylvester, unpack_centre};
pub use trellis::{SYMBOLS_PER_RING, Trellis};
pub use weights::weigh;
pub use wide::{WIDE_STATES, WideTrellis, WideWindows};
pub use windows::{Order, Windows};

use super::features::levels;

/// Elements of a ring.
pub const RING: usize = 16;
/// Rows of a tile.
pub const TILE_ROWS: usize = 4;
/// Bytes of an expanded tile.
pub const TILE: usize = RING * TILE_ROWS;

/// Packed tiles, and where those lie that will be read next: blocks are apart, and hardware does
/// not foresee the next one.
#[derive(Debug, Clone, Copy)]
pub struct Codes<'a> {
    /// The tiles.
    pub here: &'a [u8],
    /// As many; they are prefetched while these are read.
    pub next: Option<&'a [u8]>,
}

impl<'a> Codes<'a> {
    /// Tiles after which nothing is known.
    #[must_use]
    pub fn last(here: &'a [u8]) -> Self {
        Self { here, next: None }
    }

    /// Where to prefetch from: what is in the cache already, if there is nothing next.
    #[cfg(target_arch = "x86_64")]
    fn next(self) -> *const u8 {
        self.next.unwrap_or(self.here).as_ptr()
    }
}

/// Brings bytes that will be read soon nearer; a hint.
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, and it reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

levels! {
    /// Instruction sets of the code kernels.
    pub enum CodeLevel {
        /// x86-64 with AVX-512 VBMI and VNNI.
        Vbmi(Avx512Vbmi),
        /// x86-64 with AVX2 and F16C.
        Avx2(Avx2),
        /// aarch64 with dot products.
        Neon(DotProd),
    }
}

/// Query rows rounded to int8: `x = scale * code`, with `code` in -127..=127.
#[derive(Debug, Default, Clone)]
pub struct Int8Queries {
    codes: Vec<i8>,
    /// The codes with each ring's even elements first; for the level that wants it.
    #[cfg(target_arch = "x86_64")]
    parity: Vec<i8>,
    scales: Vec<f32>,
    /// 128 times the sum of a row's codes: what the offset of the bytes adds.
    offsets: Vec<i32>,
}

impl Int8Queries {
    /// Takes rows of `d` elements, padded to whole rings with zeros.
    ///
    /// # Panics
    /// When `x` is not whole rows.
    pub fn set(&mut self, x: &[f32], d: usize) {
        assert!(d > 0 && x.len().is_multiple_of(d), "whole rows");
        let padded = d.next_multiple_of(RING);
        self.codes.clear();
        self.scales.clear();
        self.offsets.clear();
        self.codes.resize(x.len() / d * padded, 0);
        for (row, codes) in x.chunks_exact(d).zip(self.codes.chunks_exact_mut(padded)) {
            let (scale, sum) = scales::round_row(CodeLevel::detect(), row, codes);
            self.scales.push(scale);
            self.offsets.push(128 * sum);
        }
        #[cfg(target_arch = "x86_64")]
        if let CodeLevel::Vbmi(_) = CodeLevel::detect() {
            self.parity.resize(self.codes.len(), 0);
            // SAFETY: the machine has the level, and rings are whole.
            unsafe { vbmi_rows::by_parity(&self.codes, &mut self.parity) };
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.scales.len()
    }

    /// Elements of a row, whole rings.
    #[must_use]
    pub fn width(&self) -> usize {
        self.codes.len() / self.rows().max(1)
    }
}

/// How sums of integers become scores.
#[derive(Debug, Clone, Copy)]
pub struct Scaling<'a> {
    /// What those of a row are multiplied by.
    pub gamma: &'a [f32],
    /// What is then added to those of a query.
    pub offsets: Option<&'a [f32]>,
}

impl<'a> Scaling<'a> {
    /// Scales without anything to add.
    #[must_use]
    pub fn of(gamma: &'a [f32]) -> Self {
        Self { gamma, offsets: None }
    }

    /// The score of query row `i` and row `j`, of their product.
    #[inline(always)]
    fn score(self, i: usize, j: usize, product: f32) -> f32 {
        let x = product * self.gamma[j];
        self.offsets.map_or(x, |offsets| x + offsets[i])
    }

    /// Refuses query rows without an offset.
    fn check(self, rows: usize) {
        assert!(self.offsets.is_none_or(|o| o.len() == rows), "an offset a query row");
    }
}

/// `out[i][j] = scale_i * (code_i . tile row j) * gamma[j] + offsets[i]`; the rows of `out` are a stride
/// apart.
///
/// # Shapes
/// `tiles`: `[n / 4][padded / 16][64]` as [`Windows::expand`] writes them for [`Order::Rows`], where
/// `n = gamma.len()` is a multiple of 4; `offsets`: `[rows]`; `out`: `[rows, n]` of a stride.
///
/// # Panics
/// When the lengths differ from these.
pub fn dots(
    level: CodeLevel,
    q: &Int8Queries,
    tiles: &[u8],
    scaling: Scaling<'_>,
    out: (&mut [f32], usize),
) {
    let (rows, n) = (q.rows(), scaling.gamma.len());
    if rows == 0 || n == 0 {
        return;
    }
    let padded = q.codes.len() / rows;
    assert!(n.is_multiple_of(TILE_ROWS) && tiles.len() == n * padded, "tiles");
    check_rows((out.0.len(), out.1), rows, n);
    scaling.check(rows);
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level and the lengths are checked.
        CodeLevel::Vbmi(_) => unsafe { vbmi::dots(q, tiles, scaling, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level and the lengths are checked.
        CodeLevel::Avx2(_) => unsafe { avx2::dots(q, tiles, scaling, out) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the machine has the level and the lengths are checked.
        CodeLevel::Neon(_) => unsafe { neon::dots(q, tiles, scaling, out) },
        _ => portable::dots(q, tiles, scaling, out),
    }
}

/// Refuses rows that do not fit.
fn check_rows((len, stride): (usize, usize), rows: usize, n: usize) {
    let needed = rows.checked_sub(1).and_then(|r| r.checked_mul(stride)?.checked_add(n));
    assert!(stride >= n && needed.is_some_and(|needed| len >= needed), "rows of {n}");
}

/// `acc[i][e] += scale[i] * sum_j weights[i][j] * tile row j [e]`.
///
/// # Shapes
/// `tiles`: as for [`dots`], written for [`Order::Elements`]; `weights [rows, n]`, `scale [rows]`,
/// `acc [rows, padded]`.
///
/// # Panics
/// When the lengths differ from these.
pub fn add_weighted(
    level: CodeLevel,
    weights: &[u8],
    scale: &[f32],
    tiles: &[u8],
    acc: &mut [f32],
) {
    let rows = scale.len();
    if rows == 0 || weights.is_empty() {
        return;
    }
    let (n, padded) = (weights.len() / rows, acc.len() / rows);
    assert!(weights.len() == rows * n && n.is_multiple_of(TILE_ROWS), "weights");
    assert!(acc.len() == rows * padded && padded.is_multiple_of(RING), "accumulators");
    assert_eq!(tiles.len(), n * padded, "tiles");
    // 255 * 127 * n must fit 31 bits.
    assert!(n <= 1 << 16, "rows of a block");
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level and the lengths are checked.
        CodeLevel::Vbmi(_) => unsafe { vbmi::add_weighted(weights, scale, tiles, acc) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level and the lengths are checked.
        CodeLevel::Avx2(_) => unsafe { avx2::add_weighted(weights, scale, tiles, acc) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the machine has the level and the lengths are checked.
        CodeLevel::Neon(_) => unsafe { neon::add_weighted(weights, scale, tiles, acc) },
        _ => portable::add_weighted(weights, scale, tiles, acc),
    }
}

#[cfg(test)]
mod tests;
