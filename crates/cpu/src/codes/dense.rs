//! Attention's two products over plain floats, for sides of a cache that are not coded.

use crate::{
    Floats, Level,
    flash::stored,
    kernels::{self, Rows, RowsMut},
    unseen::Unseen,
};

/// Rows, and where as many lie that will be read soon: they are prefetched while these are read.
#[derive(Debug, Clone, Copy)]
pub struct DenseRows<'a> {
    /// The rows.
    pub here: Floats<'a>,
    /// Rows that are read next, of the same type.
    pub next: Option<Floats<'a>>,
}

impl<'a> DenseRows<'a> {
    /// Rows after which nothing is known.
    #[must_use]
    pub fn last(here: Floats<'a>) -> Self {
        Self { here, next: None }
    }

    /// What is read next, if it is as much.
    fn next(self) -> Option<Floats<'a>> {
        self.next.filter(|next| next.len() == self.here.len())
    }
}

/// `out[i][j] = q[i] . k[j]`; the rows of `out` are a stride apart.
///
/// # Shapes
/// `q [rows, d]`, `k [n, d]`, `out`: `[rows, n]` of a stride.
///
/// # Panics
/// When the lengths differ from these.
pub fn dot_rows(q: &[f32], k: DenseRows<'_>, d: usize, (out, stride): (&mut [f32], usize)) {
    let (rows, n) = (q.len() / d, k.here.len() / d);
    assert!(q.len() == rows * d && k.here.len() == n * d, "shapes");
    if rows == 0 || n == 0 {
        return;
    }
    super::check_rows((out.len(), stride), rows, n);
    let level = Level::detect();
    let q = Rows::new(q.as_ptr(), rows, d);
    let out = RowsMut { ptr: out.as_mut_ptr(), stride };
    // SAFETY: the lengths are checked.
    unsafe {
        match k.here {
            Floats::F32(k) => {
                kernels::dot_block(level, q, Rows::new(k.as_ptr(), n, d), d, out);
            }
            Floats::F16(here) => {
                let k = stored(here, n, d, [k.next().and_then(Floats::as_f16), None]);
                kernels::dot_block_f16(level, q, k, d, out);
            }
            Floats::Bf16(here) => {
                let k = stored(here, n, d, [k.next().and_then(Floats::as_bf16), None]);
                kernels::dot_block_bf16(level, q, k, d, out);
            }
        }
    }
}

/// `acc[i] += sum_j p[i][j] * v[j]`; the rows of `p` are a stride apart. A value of weight zero adds
/// nothing, whatever it holds.
///
/// # Shapes
/// `p`: `[rows, n]` of a stride, `v [n, d]`, `acc [rows, d]`.
///
/// # Panics
/// When the lengths differ from these.
pub fn add_rows((p, stride): (&[f32], usize), v: DenseRows<'_>, d: usize, acc: &mut [f32]) {
    let (rows, n) = (acc.len() / d, v.here.len() / d);
    assert!(acc.len() == rows * d && v.here.len() == n * d, "shapes");
    if rows == 0 || n == 0 {
        return;
    }
    super::check_rows((p.len(), stride), rows, n);
    let unseen =
        Unseen::find(v.here, d, |token| (0..rows).any(|row| p[row * stride + token] == 0.0));
    let cleared = unseen.as_ref().map(|unseen| unseen.cleared(v.here, d));
    if let Some(unseen) = unseen {
        let weight = |row: usize, token: usize| Some(p[row * stride + token]).filter(|&p| p != 0.0);
        unseen.add(v.here, d, weight, acc);
    }
    let v = cleared.as_deref().map_or(v, |cleared| DenseRows::last(Floats::F32(cleared)));
    let level = Level::detect();
    let p = Rows::new(p.as_ptr(), rows, stride);
    let acc = RowsMut { ptr: acc.as_mut_ptr(), stride: d };
    // SAFETY: the lengths are checked.
    unsafe {
        match v.here {
            Floats::F32(v) => {
                kernels::weighted_rows(level, p, Rows::new(v.as_ptr(), n, d), d, acc);
            }
            Floats::F16(here) => {
                let v = stored(here, n, d, [v.next().and_then(Floats::as_f16), None]);
                kernels::weighted_rows_f16(level, p, v, d, acc);
            }
            Floats::Bf16(here) => {
                let v = stored(here, n, d, [v.next().and_then(Floats::as_bf16), None]);
                kernels::weighted_rows_bf16(level, p, v, d, acc);
            }
        }
    }
}
