//! The products of attention over floats of any stored type.

use crate::{
    Floats, Level, intel,
    kernels::{self, Rows, RowsMut, Soon},
    zen5,
};

pub(super) fn soon(x: Floats<'_>) -> Soon {
    let bytes = x.as_bytes();
    Soon { ptr: bytes.as_ptr(), bytes: bytes.len() }
}

/// Scores of `rows` queries against `n` keys.
pub(super) fn dots(
    level: Level,
    q: &[f32],
    rows: usize,
    k: Floats<'_>,
    n: usize,
    next: [Option<Floats<'_>>; 2],
    out: RowsMut,
) {
    let dk = q.len() / rows;
    let q = Rows::new(q.as_ptr(), rows, dk);
    // SAFETY: `FlashTile::step` has checked the lengths; `out` is rows x n.
    unsafe {
        match k {
            Floats::F32(k) => kernels::dot_block(level, q, stored(k, n, dk, [None; 2]), dk, out),
            Floats::F16(k) => {
                let next = next.map(|x| x.and_then(Floats::as_f16));
                kernels::dot_block_f16(level, q, stored(k, n, dk, next), dk, out);
            }
            Floats::Bf16(k) => {
                let next = next.map(|x| x.and_then(Floats::as_bf16));
                kernels::dot_block_bf16(level, q, stored(k, n, dk, next), dk, out);
            }
        }
    }
}

/// Adds `n` values, weighted by each row's scores.
pub(super) fn add_weighted(
    level: Level,
    p: Rows,
    v: Floats<'_>,
    n: usize,
    next: [Option<Floats<'_>>; 2],
    acc: RowsMut,
) {
    let d = v.len() / n;
    // SAFETY: `FlashTile::step` has checked the lengths; `p` is rows x n, `acc` rows x d.
    unsafe {
        match v {
            Floats::F32(v) => kernels::weighted_rows(level, p, stored(v, n, d, [None; 2]), d, acc),
            Floats::F16(v) => {
                let next = next.map(|x| x.and_then(Floats::as_f16));
                kernels::weighted_rows_f16(level, p, stored(v, n, d, next), d, acc);
            }
            Floats::Bf16(v) => {
                let next = next.map(|x| x.and_then(Floats::as_bf16));
                kernels::weighted_rows_bf16(level, p, stored(v, n, d, next), d, acc);
            }
        }
    }
}

/// Rows where they lie, and as many that will be read next, twice.
pub(crate) fn stored<E>(x: &[E], rows: usize, stride: usize, next: [Option<&[E]>; 2]) -> Rows<E> {
    // A core of Intel's loses hints when too many are under way: it is told twice of each line, and once
    // more when that is in the second-level cache.
    let intel = intel();
    let [next, later] = next.map(|x| x.map_or(std::ptr::null(), <[E]>::as_ptr));
    Rows {
        next: [next, if intel { later } else { std::ptr::null() }],
        near: intel && !next.is_null(),
        nearest: zen5(),
        ..Rows::new(x.as_ptr(), rows, stride)
    }
}
