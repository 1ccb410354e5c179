//! The same two products over plain floats, for sides of a cache that are not coded.

use crate::cpu::{
    Floats, Level,
    kernels::{self, Rows, RowsMut},
};

/// `out[i][j] = q[i] . k[j]`; the rows of `out` are a stride apart.
///
/// # Shapes
/// `q [rows, d]`, `k [n, d]`, `out`: `[rows, n]` of a stride.
///
/// # Panics
/// When the lengths differ from these.
pub fn dot_rows(q: &[f32], k: Floats<'_>, d: usize, (out, stride): (&mut [f32], usize)) {
    let (rows, n) = (q.len() / d, k.len() / d);
    assert!(q.len() == rows * d && k.len() == n * d, "shapes");
    if rows == 0 || n == 0 {
        return;
    }
    super::check_rows((out.len(), stride), rows, n);
    let level = Level::detect();
    let q = Rows::new(q.as_ptr(), rows, d);
    let out = RowsMut { ptr: out.as_mut_ptr(), stride };
    // SAFETY: the lengths are checked.
    unsafe {
        match k {
            Floats::F32(k) => {
                kernels::dot_block(level, q, Rows::new(k.as_ptr(), n, d), d, out);
            }
            Floats::F16(k) => {
                kernels::dot_block_f16(level, q, Rows::new(k.as_ptr(), n, d), d, out);
            }
            Floats::Bf16(k) => {
                kernels::dot_block_bf16(level, q, Rows::new(k.as_ptr(), n, d), d, out);
            }
        }
    }
}

/// `acc[i] += sum_j p[i][j] * v[j]`; the rows of `p` are a stride apart.
///
/// # Shapes
/// `p`: `[rows, n]` of a stride, `v [n, d]`, `acc [rows, d]`.
///
/// # Panics
/// When the lengths differ from these.
pub fn add_rows((p, stride): (&[f32], usize), v: Floats<'_>, d: usize, acc: &mut [f32]) {
    let (rows, n) = (acc.len() / d, v.len() / d);
    assert!(acc.len() == rows * d && v.len() == n * d, "shapes");
    if rows == 0 || n == 0 {
        return;
    }
    super::check_rows((p.len(), stride), rows, n);
    let level = Level::detect();
    let p = Rows::new(p.as_ptr(), rows, stride);
    let acc = RowsMut { ptr: acc.as_mut_ptr(), stride: d };
    // SAFETY: the lengths are checked.
    unsafe {
        match v {
            Floats::F32(v) => {
                kernels::weighted_rows(level, p, Rows::new(v.as_ptr(), n, d), d, acc);
            }
            Floats::F16(v) => {
                kernels::weighted_rows_f16(level, p, Rows::new(v.as_ptr(), n, d), d, acc);
            }
            Floats::Bf16(v) => {
                kernels::weighted_rows_bf16(level, p, Rows::new(v.as_ptr(), n, d), d, acc);
            }
        }
    }
}
