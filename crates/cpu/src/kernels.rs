//! The vector kernels, each written once over [`Lanes`] and instantiated for every level.
//!
//! Each output element has one accumulator that runs along its inputs in order; how many outputs
//! share a pass (the tile) changes speed, never a bit of the result.

use super::{
    Level,
    lanes::{Element, Lanes, Portable},
};
use half::{bf16, f16};
use rowwise::*;
pub(super) use turned::{Soon, Turned};
use turned::{dot_turned_body, turn_rows_body};

mod rowwise;
mod turned;

/// A matrix in memory: rows `stride` elements apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<E = f32> {
    pub(super) ptr: *const E,
    pub(super) rows: usize,
    pub(super) stride: usize,
    /// Where as many rows lie that will be read next, and those after them; null for nowhere. They are
    /// prefetched while these are read: all at once would only wait for memory.
    pub(super) next: [*const E; 2],
    /// Whether rows that are read a little later are brought from the second-level cache, too.
    pub(super) near: bool,
    /// Whether what comes next is brought into the first-level cache at once.
    pub(super) nearest: bool,
}

/// How many rows ahead lines are brought near.
const NEAR: usize = 4;

impl<E> Rows<E> {
    pub(super) fn new(ptr: *const E, rows: usize, stride: usize) -> Self {
        Self { ptr, rows, stride, next: [std::ptr::null(); 2], near: false, nearest: false }
    }

    /// The rows from one on.
    #[inline(always)]
    unsafe fn from(self, row: usize) -> Self {
        let at = row * self.stride;
        // SAFETY: the caller has so many rows.
        let ptr = unsafe { self.ptr.add(at) };
        Self { ptr, rows: self.rows - row, next: self.next_from(at), ..self }
    }

    /// What comes next, from an element on.
    #[inline(always)]
    fn next_from(&self, at: usize) -> [*const E; 2] {
        self.next.map(|next| if next.is_null() { next } else { next.wrapping_add(at) })
    }

    /// Prefetches elements `from..from + n` of what comes next.
    #[inline(always)]
    unsafe fn prefetch<L: Lanes>(&self, from: usize, n: usize) {
        for next in self.next {
            if next.is_null() {
                continue;
            }
            for line in 0..n.div_ceil(Self::LINE) {
                let line = next.wrapping_add(from + line * Self::LINE);
                // SAFETY: a hint; the address is not read.
                unsafe { if self.nearest { L::prefetch_near(line) } else { L::prefetch(line) } }
            }
        }
    }

    /// Brings near, of the row that is [`NEAR`] after `row`, elements `from..from + n`; these may be of
    /// several rows.
    #[inline(always)]
    unsafe fn prefetch_near<L: Lanes>(&self, row: usize, from: usize, n: usize) {
        if self.near && row + NEAR < self.rows {
            let ptr = self.ptr.wrapping_add((row + NEAR) * self.stride + from);
            for line in 0..n.div_ceil(Self::LINE) {
                // SAFETY: a hint; the address is not read.
                unsafe { L::prefetch_near(ptr.wrapping_add(line * Self::LINE)) };
            }
        }
    }

    /// Elements of a cache line.
    const LINE: usize = 64 / size_of::<E>();
}

/// A matrix of `f32`, to write.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowsMut {
    pub(super) ptr: *mut f32,
    pub(super) stride: usize,
}

/// Makes `name(level, args…)` that runs the generic `body` compiled for `level`.
macro_rules! kernel {
    ($(#[$doc:meta])*
     $name:ident = $body:ident $([$e:ty])? ($($arg:ident : $ty:ty),*) $(-> $ret:ty)?) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// `level` is one of [`Level::available`], and pointers are valid for the stated shapes.
        pub(super) unsafe fn $name(level: Level, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
            unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: compiled for the level; pointers are valid for the shapes of `$name`.
                unsafe { $body::<$crate::x86::Avx512 $(, $e)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: compiled for the level; pointers are valid for the shapes of `$name`.
                unsafe { $body::<$crate::x86::Avx2 $(, $e)?>($($arg),*) }
            }
            // SAFETY: `level` was detected; pointers are valid for the shapes of `$name`, by its
            // contract.
            unsafe {
                match level {
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512(_) => avx512($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2(_) => avx2($($arg),*),
                    #[cfg(target_arch = "aarch64")]
                    Level::Neon(_) => $body::<$crate::neon::Neon $(, $e)?>($($arg),*),
                    _ => $body::<Portable $(, $e)?>($($arg),*),
                }
            }
        }
    };
}
pub(super) use kernel;

kernel! {
    /// `out[i][j] = x[i] . w[j]` over `k` elements.
    dot_block = dot_block_body[f32](x: Rows, w: Rows, k: usize, out: RowsMut)
}
kernel! {
    /// `dot_block` over `f16`.
    dot_block_f16 = dot_block_body[f16](x: Rows, w: Rows<f16>, k: usize, out: RowsMut)
}
kernel! {
    /// `dot_block` over `bf16`.
    dot_block_bf16 = dot_block_body[bf16](x: Rows, w: Rows<bf16>, k: usize, out: RowsMut)
}
kernel! {
    /// Writes `x` of `k` elements a row as [`Turned`] has it: whole vectors of rows.
    turn_rows = turn_rows_body(x: Rows, k: usize, out: *mut f32)
}
kernel! {
    /// As [`dot_block`], to the bit, of rows that [`turn_rows`] has written for the same level.
    dot_turned = dot_turned_body(x: Turned, w: Rows, k: usize, out: RowsMut, soon: [Soon; 2])
}
kernel! {
    /// `acc[i] += sum_j p[i][j] * v[j]` over rows of `d` elements.
    weighted_rows = weighted_rows_body[f32](p: Rows, v: Rows, d: usize, acc: RowsMut)
}
kernel! {
    /// `weighted_rows` over `f16`.
    weighted_rows_f16 = weighted_rows_body[f16](p: Rows, v: Rows<f16>, d: usize, acc: RowsMut)
}
kernel! {
    /// `weighted_rows` over `bf16`.
    weighted_rows_bf16 = weighted_rows_body[bf16](p: Rows, v: Rows<bf16>, d: usize, acc: RowsMut)
}
kernel! {
    /// `out[i] = x[i]`.
    widen_f16 = widen_body[f16](x: *const f16, n: usize, out: *mut f32)
}
kernel! {
    /// `out[i] = x[i]`, rounded.
    narrow_f16 = narrow_f16_body(x: *const f32, n: usize, out: *mut f16)
}
kernel! {
    /// The largest of `n` elements, at least one.
    row_max = row_max_body(x: *const f32, n: usize) -> f32
}
kernel! {
    /// `x[i] = e^(x[i] - shift)`; returns their sum.
    exp_shift = exp_shift_body(x: *mut f32, n: usize, shift: f32) -> f32
}
kernel! {
    /// `x[i] *= s`.
    scale = scale_body(x: *mut f32, n: usize, s: f32)
}
kernel! {
    /// `x[i] = a * x[i] + b * y[i]`.
    blend = blend_body(x: *mut f32, a: f32, y: *const f32, b: f32, n: usize)
}
kernel! {
    /// `sum x[i]^2`.
    sum_squares = sum_squares_body(x: *const f32, n: usize) -> f32
}
kernel! {
    /// `out[i] = x[i] * s * w[i]`.
    scale_mul = scale_mul_body(x: *const f32, w: *const f32, n: usize, s: f32, out: *mut f32)
}
kernel! {
    /// `out[i] = silu(gate[i]) * up[i]`; `out` may be `gate`.
    silu_mul = silu_mul_body(gate: *const f32, up: *const f32, n: usize, out: *mut f32)
}
kernel! {
    /// `out[i] = gelu_tanh(gate[i]) * up[i]`; `out` may be `gate`.
    gelu_tanh_mul = gelu_tanh_mul_body(gate: *const f32, up: *const f32, n: usize, out: *mut f32)
}
kernel! {
    /// [`Activation::SwigluOai`](super::Activation::SwigluOai); `out` may be `gate`.
    swiglu_oai = swiglu_oai_body(gate: *const f32, up: *const f32, n: usize, out: *mut f32)
}
kernel! {
    /// `out[i] = x[i] + y[i]`.
    add = add_body(x: *const f32, y: *const f32, n: usize, out: *mut f32)
}
kernel! {
    /// `x[i] = cap * tanh(x[i] / cap)`.
    soft_cap = soft_cap_body(x: *mut f32, n: usize, cap: f32)
}

kernel! {
    /// Copies `n` parts of `size` elements, a multiple of 16, that are `stride` apart, one behind
    /// the other: in vectors, as those are read at once from what was just written in such.
    gather = gather_body(x: *const f32, stride: usize, size: usize, n: usize, out: *mut f32)
}
kernel! {
    /// Rounds `n` elements, a multiple of `group`, to 8 bits a group: `x = scale * code`. Writes `n`
    /// codes, and a scale and its product with the sum of the codes for each group.
    round_row = round_row_body(
        x: *const f32, n: usize, group: usize, codes: *mut i8, scales: *mut f32, sums: *mut f32)
}
kernel! {
    /// `rest[i] = x[i] - scale * code[i]` for what [`round_row`] has written; `rest` may be `x`.
    round_rest = round_rest_body(
        x: *const f32, n: usize, group: usize, codes: *const i8, scales: *const f32, rest: *mut f32)
}
kernel! {
    /// Rotates pairs `(x[i], x[i + n])` by the angles of these cosines and sines.
    rotate = rotate_body(x: *mut f32, n: usize, cos: *const f32, sin: *const f32)
}

#[inline(always)]
unsafe fn dot_tile<L: Lanes, E: Element, const M: usize, const N: usize>(
    x: *const f32,
    x_stride: usize,
    w: Rows<E>,
    k: usize,
    out: *mut f32,
    out_stride: usize,
) {
    // SAFETY: the caller's rows hold `k` elements and `out` M x N.
    unsafe {
        let mut acc = [[L::splat(0.0); N]; M];
        let mut p = 0;
        while p + L::LANES <= k {
            // As many lines as are read here: all at once would stand before what is read next.
            w.prefetch::<L>(N * p, N * L::LANES);
            w.prefetch_near::<L>(0, N * p, N * L::LANES);
            let mut ws = [L::splat(0.0); N];
            for (j, wj) in ws.iter_mut().enumerate() {
                *wj = E::load(w.ptr.add(j * w.stride + p));
            }
            for (i, row) in acc.iter_mut().enumerate() {
                let xi = L::load(x.add(i * x_stride + p));
                for (a, &wj) in row.iter_mut().zip(&ws) {
                    *a = xi.mul_add(wj, *a);
                }
            }
            p += L::LANES;
        }
        if p < k {
            for (i, row) in acc.iter_mut().enumerate() {
                let xi = L::load_part(x.add(i * x_stride + p), k - p);
                for (j, a) in row.iter_mut().enumerate() {
                    *a = xi.mul_add(E::load_part(w.ptr.add(j * w.stride + p), k - p), *a);
                }
            }
        }
        for (i, row) in acc.iter().enumerate() {
            let out = out.add(i * out_stride);
            if let &[a, b, c, d] = row.as_slice() {
                L::sum4([a, b, c, d], out);
            } else {
                for (j, a) in row.iter().enumerate() {
                    *out.add(j) = a.sum();
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn dot_rows<L: Lanes, E: Element, const M: usize>(
    x: *const f32,
    x_stride: usize,
    w: Rows<E>,
    k: usize,
    out: *mut f32,
    out_stride: usize,
) {
    // SAFETY: as `dot_tile`, over all rows of `w`.
    unsafe {
        let mut j = 0;
        while j + 4 <= w.rows {
            dot_tile::<L, E, M, 4>(x, x_stride, w.from(j), k, out.add(j), out_stride);
            j += 4;
        }
        while j < w.rows {
            dot_tile::<L, E, M, 1>(x, x_stride, w.from(j), k, out.add(j), out_stride);
            j += 1;
        }
    }
}

#[inline(always)]
unsafe fn dot_block_body<L: Lanes, E: Element>(x: Rows, w: Rows<E>, k: usize, out: RowsMut) {
    // SAFETY: `x` and `w` have `k` elements a row, and `out` an element a row of each.
    unsafe {
        let at = |i: usize| (x.ptr.add(i * x.stride), out.ptr.add(i * out.stride));
        let mut i = 0;
        if L::WIDE {
            while i + 4 <= x.rows {
                let (xi, oi) = at(i);
                dot_rows::<L, E, 4>(xi, x.stride, w, k, oi, out.stride);
                i += 4;
            }
        }
        while i + 2 <= x.rows {
            let (xi, oi) = at(i);
            dot_rows::<L, E, 2>(xi, x.stride, w, k, oi, out.stride);
            i += 2;
        }
        if i < x.rows {
            let (xi, oi) = at(i);
            dot_rows::<L, E, 1>(xi, x.stride, w, k, oi, out.stride);
        }
    }
}

#[inline(always)]
unsafe fn weighted_tile<L: Lanes, E: Element, const M: usize, const N: usize>(
    p: *const f32,
    p_stride: usize,
    v: Rows<E>,
    acc: *mut f32,
    acc_stride: usize,
) {
    // SAFETY: the caller's rows hold N vectors of lanes.
    unsafe {
        let mut sums = [[L::splat(0.0); N]; M];
        for (i, row) in sums.iter_mut().enumerate() {
            for (c, s) in row.iter_mut().enumerate() {
                *s = L::load(acc.add(i * acc_stride + c * L::LANES));
            }
        }
        for j in 0..v.rows {
            v.prefetch::<L>(j * N * L::LANES, N * L::LANES);
            v.prefetch_near::<L>(j, 0, N * L::LANES);
            let mut vs = [L::splat(0.0); N];
            for (c, vc) in vs.iter_mut().enumerate() {
                *vc = E::load(v.ptr.add(j * v.stride + c * L::LANES));
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let pij = L::splat(*p.add(i * p_stride + j));
                for (s, &vc) in row.iter_mut().zip(&vs) {
                    *s = pij.mul_add(vc, *s);
                }
            }
        }
        for (i, row) in sums.iter().enumerate() {
            for (c, s) in row.iter().enumerate() {
                s.store(acc.add(i * acc_stride + c * L::LANES));
            }
        }
    }
}

#[inline(always)]
unsafe fn weighted_cols<L: Lanes, E: Element, const N: usize>(
    p: Rows,
    v: Rows<E>,
    acc: RowsMut,
    from: usize,
) {
    // SAFETY: `p` has a weight a row of `v`, and rows of `v` and `acc` have `N` vectors from `from`
    // on.
    unsafe {
        // What comes next is prefetched in the order in which it lies, whatever part of each row is
        // read here: then the processor itself looks further ahead.
        let v = Rows { ptr: v.ptr.add(from), next: v.next_from(from * v.rows), ..v };
        let mut i = 0;
        if L::WIDE {
            while i + 4 <= p.rows {
                let (pi, ai) = (p.ptr.add(i * p.stride), acc.ptr.add(i * acc.stride + from));
                weighted_tile::<L, E, 4, N>(pi, p.stride, v, ai, acc.stride);
                i += 4;
            }
        }
        while i + 2 <= p.rows {
            let (pi, ai) = (p.ptr.add(i * p.stride), acc.ptr.add(i * acc.stride + from));
            weighted_tile::<L, E, 2, N>(pi, p.stride, v, ai, acc.stride);
            i += 2;
        }
        if i < p.rows {
            let (pi, ai) = (p.ptr.add(i * p.stride), acc.ptr.add(i * acc.stride + from));
            weighted_tile::<L, E, 1, N>(pi, p.stride, v, ai, acc.stride);
        }
    }
}

#[inline(always)]
unsafe fn weighted_rows_body<L: Lanes, E: Element>(p: Rows, v: Rows<E>, d: usize, acc: RowsMut) {
    // SAFETY: `p` has a weight a row of `v`, and rows of `v` and `acc` have `d` elements.
    unsafe {
        let mut from = 0;
        // Whole rows where registers hold the sums of so many.
        while L::WIDE && p.rows <= 2 && from + 8 * L::LANES <= d {
            weighted_cols::<L, E, 8>(p, v, acc, from);
            from += 8 * L::LANES;
        }
        while from + 4 * L::LANES <= d {
            weighted_cols::<L, E, 4>(p, v, acc, from);
            from += 4 * L::LANES;
        }
        while from + L::LANES <= d {
            weighted_cols::<L, E, 1>(p, v, acc, from);
            from += L::LANES;
        }
        if from < d {
            let n = d - from;
            for i in 0..p.rows {
                let out = acc.ptr.add(i * acc.stride + from);
                let mut s = L::load_part(out, n);
                for j in 0..v.rows {
                    let pij = L::splat(*p.ptr.add(i * p.stride + j));
                    s = pij.mul_add(E::load_part(v.ptr.add(j * v.stride + from), n), s);
                }
                s.store_part(out, n);
            }
        }
    }
}
