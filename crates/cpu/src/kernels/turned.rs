//! Dot products of many rows, which lie in vectors of rows instead of one after the other.
//!
//! A dot product along a vector ends with the sum of its lanes, which for 128 elements costs as much
//! as half the products. Here a lane is a row, and the partial sums that would have been lanes are
//! vectors of their own, added in the order in which [`Lanes::sum`] adds lanes: the results are
//! those of [`super::dot_block`], bit for bit.

use super::{super::lanes::Lanes, Rows, RowsMut};
use std::ops::Range;

/// Rows in vectors of as many as a level has lanes: `[vectors, k, lanes]`. What is missing in the
/// last vector is zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turned {
    pub(crate) ptr: *const f32,
    pub(crate) rows: usize,
}

/// Memory that will be read soon, to be prefetched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Soon {
    pub(crate) ptr: *const u8,
    pub(crate) bytes: usize,
}

impl Soon {
    /// Nothing.
    pub(crate) const NONE: Self = Self { ptr: std::ptr::null(), bytes: 0 };

    /// Prefetches what is read when `part` of `whole` has been done meanwhile.
    #[inline(always)]
    unsafe fn prefetch<L: Lanes>(self, part: Range<usize>, whole: usize) {
        let mut at = (self.bytes * part.start / whole).next_multiple_of(LINE);
        while at < self.bytes * part.end / whole {
            // SAFETY: a hint; the address is not read.
            unsafe { L::prefetch(self.ptr.wrapping_add(at)) };
            at += LINE;
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// Vectors of rows, and keys, whose products are under way together.
const VECTORS: usize = 2;
const KEYS: usize = 4;
/// Keys whose scores are transposed back together: a multiple of every level's lanes.
const BLOCK: usize = MOST_LANES;
const MOST_LANES: usize = 16;

#[inline(always)]
pub(super) unsafe fn turn_rows_body<L: Lanes>(x: Rows, k: usize, out: *mut f32) {
    // SAFETY: `x` has `k` elements a row, and `out` room for whole vectors of rows.
    unsafe {
        let mut row = 0;
        while row < x.rows {
            let rows = L::LANES.min(x.rows - row);
            let (from, to) = (x.ptr.add(row * x.stride), out.add(row * k));
            if rows < L::LANES {
                to.write_bytes(0, k * L::LANES);
            }
            let mut p = 0;
            while p < k {
                let n = L::LANES.min(k - p);
                turn::<L>(from.add(p), x.stride, (rows, n), to.add(p * L::LANES), L::LANES);
                p += n;
            }
            row += rows;
        }
    }
}

#[inline(always)]
pub(super) unsafe fn dot_turned_body<L: Lanes>(
    x: Turned,
    w: Rows,
    k: usize,
    out: RowsMut,
    soon: [Soon; 2],
) {
    // SAFETY: `x` and `w` have `k` elements a row, and `out` an element a row of each.
    unsafe {
        let mut row = 0;
        while row < x.rows {
            let rows = (VECTORS * L::LANES).min(x.rows - row);
            let (ptr, soon) = (x.ptr.add(row * k), if row == 0 { soon } else { [Soon::NONE; 2] });
            let (x, out) =
                (Turned { ptr, rows }, RowsMut { ptr: out.ptr.add(row * out.stride), ..out });
            if rows > L::LANES {
                vectors::<L, VECTORS>(x, w, k, out, soon);
            } else {
                vectors::<L, 1>(x, w, k, out, soon);
            }
            row += rows;
        }
    }
}

/// The scores of `V` vectors of rows, of which `x.rows` are wanted.
#[inline(always)]
unsafe fn vectors<L: Lanes, const V: usize>(
    x: Turned,
    w: Rows,
    k: usize,
    out: RowsMut,
    soon: [Soon; 2],
) {
    let mut scores = [0.0f32; BLOCK * VECTORS * MOST_LANES];
    let (scores, width) = (scores.as_mut_ptr(), V * L::LANES);
    // SAFETY: the caller's shapes; a block's scores fit.
    unsafe {
        let mut key = 0;
        while key < w.rows {
            let keys = BLOCK.min(w.rows - key);
            for soon in soon {
                soon.prefetch::<L>(key..key + keys, w.rows);
            }
            let mut j = 0;
            while j + KEYS <= keys {
                let wj = w.ptr.add((key + j) * w.stride);
                tile::<L, V, KEYS>(x.ptr, wj, w.stride, k, scores.add(j * width));
                j += KEYS;
            }
            while j < keys {
                let wj = w.ptr.add((key + j) * w.stride);
                tile::<L, V, 1>(x.ptr, wj, w.stride, k, scores.add(j * width));
                j += 1;
            }
            for v in 0..V {
                let first = v * L::LANES;
                let rows = L::LANES.min(x.rows - first);
                let mut j = 0;
                while j < keys {
                    let (n, from) = (L::LANES.min(keys - j), scores.add(j * width + first));
                    let to = out.ptr.add(first * out.stride + key + j);
                    turn::<L>(from, width, (n, rows), to, out.stride);
                    j += n;
                }
            }
            key += keys;
        }
    }
}

/// Scores of `V` vectors of rows and `N` keys, `[N, V, lanes]`.
#[inline(always)]
unsafe fn tile<L: Lanes, const V: usize, const N: usize>(
    x: *const f32,
    w: *const f32,
    w_stride: usize,
    k: usize,
    out: *mut f32,
) {
    // SAFETY: `x` has `V` vectors of rows and `w` `N` rows of `k` elements, and `out` room for
    // their products.
    unsafe {
        let zero = [[L::splat(0.0); V]; N];
        // Sums of 1, 2, 4, 8 and 16 lanes; but for the last each waits for another such.
        let mut waiting = [zero; MOST_LANES.ilog2() as usize + 1];
        for i in 0..L::LANES {
            let mut sums = zero;
            let mut p = L::summed(i);
            while p < k {
                let mut xs = [L::splat(0.0); V];
                for (v, x_v) in xs.iter_mut().enumerate() {
                    *x_v = L::load(x.add((v * k + p) * L::LANES));
                }
                for (j, sums) in sums.iter_mut().enumerate() {
                    let wj = L::splat(*w.add(j * w_stride + p));
                    for (sum, &x_v) in sums.iter_mut().zip(&xs) {
                        *sum = x_v.mul_add(wj, *sum);
                    }
                }
                p += L::LANES;
            }
            let ready = i.trailing_ones() as usize;
            for earlier in &waiting[..ready] {
                for (sums, earlier) in sums.iter_mut().zip(earlier) {
                    for (sum, &earlier) in sums.iter_mut().zip(earlier) {
                        *sum = earlier.add(*sum);
                    }
                }
            }
            waiting[ready] = sums;
        }
        for (j, sums) in waiting[L::LANES.ilog2() as usize].iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                sum.store(out.add((j * V + v) * L::LANES));
            }
        }
    }
}

/// `out[j][i] = x[i][j]` of at most as many rows and columns as there are lanes.
#[inline(always)]
unsafe fn turn<L: Lanes>(
    x: *const f32,
    x_stride: usize,
    (rows, cols): (usize, usize),
    out: *mut f32,
    out_stride: usize,
) {
    // SAFETY: the rows have the elements, and `out` room for a vector of rows of each.
    unsafe {
        if rows == L::LANES && cols == L::LANES {
            L::turn(x, x_stride, out, out_stride);
            return;
        }
        for i in 0..rows {
            for j in 0..cols {
                *out.add(j * out_stride + i) = *x.add(i * x_stride + j);
            }
        }
    }
}
