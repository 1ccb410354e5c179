//! `x · wᵀ` for any weight format: rows of `w` are widened to `f32` a panel at a time and shared by
//! all rows of `x`.

use super::{
    Floats, Level,
    kernels::{self, Rows, RowsMut},
    shared::SharedOut,
};
use crate::pool;
use std::cell::RefCell;

/// A matrix whose rows can be read as `f32`.
pub trait RowSource: Sync {
    /// Number of rows: outputs of the linear map.
    fn rows(&self) -> usize;
    /// Elements of a row: inputs.
    fn cols(&self) -> usize;
    /// Writes rows `first..first + out.len() / cols` to `out`, one after the other.
    fn read_rows(&self, first: usize, out: &mut [f32]);
    /// The whole matrix, where it is stored as floats.
    fn floats(&self) -> Option<Floats<'_>> {
        None
    }
}

/// A panel of widened weights stays in the second-level cache.
const PANEL_BYTES: usize = 256 << 10;
/// Below this many multiply-adds, waking other threads costs more than it gains.
const PARALLEL_FROM: usize = 1 << 16;

/// From so many rows of `x` on, halves are widened once instead of by every pass over them. The sums
/// are the same.
const WIDEN_FROM: usize = 8;

thread_local! {
    static PANEL: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// `out[i][j] = x[i] · w[j] + bias[j]`.
///
/// # Shapes
/// `x [m, w.cols()]`, `out [m, w.rows()]`, `bias [w.rows()]`, all contiguous.
///
/// # Panics
/// When a slice has another length than the shapes say.
pub fn matmul(x: &[f32], w: &dyn RowSource, bias: Option<&[f32]>, out: &mut [f32]) {
    matmul_to(Level::detect(), x, w, bias, SharedOut::new(out));
}

/// As [`matmul`]; every element of `out` is written.
pub(crate) fn matmul_to(
    level: Level,
    x: &[f32],
    w: &dyn RowSource,
    bias: Option<&[f32]>,
    shared: SharedOut,
) {
    let (n, k) = (w.rows(), w.cols());
    let m = x.len().checked_div(k).unwrap_or(0);
    assert_eq!(x.len(), m * k, "x is [m, {k}]");
    assert_eq!(Some(shared.len()), m.checked_mul(n), "out is [{m}, {n}]");
    assert!(bias.is_none_or(|b| b.len() == n), "bias is [{n}]");
    if m == 0 || n == 0 {
        return;
    }
    let panel_rows = (PANEL_BYTES / 4 / k.max(1)).clamp(4, 64) & !3;
    let panel = |index: usize| {
        let first = index * panel_rows;
        let rows = panel_rows.min(n - first);
        let x = Rows::new(x.as_ptr(), m, k);
        let o = RowsMut { ptr: shared.at(first), stride: n };
        let stored = w.floats().map(|all| all.slice(first * k..(first + rows) * k));
        // SAFETY: lengths were checked above; this panel owns columns first..first + rows.
        unsafe {
            match stored {
                Some(Floats::F32(w)) => {
                    kernels::dot_block(level, x, Rows::new(w.as_ptr(), rows, k), k, o);
                }
                Some(Floats::F16(w)) if m < WIDEN_FROM => {
                    let w = Rows::new(w.as_ptr(), rows, k);
                    kernels::dot_block_f16(level, x, w, k, o);
                }
                Some(Floats::Bf16(w)) if m < WIDEN_FROM => {
                    let w = Rows::new(w.as_ptr(), rows, k);
                    kernels::dot_block_bf16(level, x, w, k, o);
                }
                _ => PANEL.with_borrow_mut(|buffer| {
                    buffer.resize((rows * k).max(buffer.len()), 0.0);
                    let panel = &mut buffer[..rows * k];
                    w.read_rows(first, panel);
                    let w = Rows::new(panel.as_ptr(), rows, k);
                    kernels::dot_block(level, x, w, k, o);
                }),
            }
        }
    };
    let panels = n.div_ceil(panel_rows);
    if m * n * k < PARALLEL_FROM {
        (0..panels).for_each(panel);
    } else {
        pool::run(panels, panel);
    }
    if let Some(bias) = bias {
        for i in 0..m {
            // SAFETY: the product has written all of it, and nobody else writes now.
            let row = unsafe { shared.slice(i * n, n) };
            row.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Matrix {
        data: Vec<f32>,
        cols: usize,
        mapped: bool,
    }
    impl RowSource for Matrix {
        fn rows(&self) -> usize {
            self.data.len() / self.cols
        }
        fn cols(&self) -> usize {
            self.cols
        }
        fn read_rows(&self, first: usize, out: &mut [f32]) {
            out.copy_from_slice(&self.data[first * self.cols..][..out.len()]);
        }
        fn floats(&self) -> Option<Floats<'_>> {
            self.mapped.then_some(Floats::F32(&self.data))
        }
    }

    fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut s = seed;
        let mut next = || {
            s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (s >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn every_level_agrees_with_f64_and_rows_do_not_depend_on_the_batch() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (6, 70, 33), (9, 131, 260), (2, 64, 1030)] {
            let (x, bias) = (noise(m * k, 1), noise(n, 2));
            let w = Matrix { data: noise(n * k, 3), cols: k, mapped: m % 2 == 0 };
            for level in Level::available() {
                let mut out = vec![0.0; m * n];
                matmul_to(level, &x, &w, Some(&bias), SharedOut::new(&mut out));
                for i in 0..m {
                    let mut alone = vec![0.0; n];
                    let one = SharedOut::new(&mut alone);
                    matmul_to(level, &x[i * k..][..k], &w, Some(&bias), one);
                    assert_eq!(alone, out[i * n..][..n], "{level:?} {m}x{n}x{k}");
                    for j in 0..n {
                        let want: f64 = (0..k)
                            .map(|p| f64::from(x[i * k + p]) * f64::from(w.data[j * k + p]))
                            .sum::<f64>()
                            + f64::from(bias[j]);
                        let got = f64::from(out[i * n + j]);
                        assert!((got - want).abs() < 1e-5, "{level:?} {got} {want}");
                    }
                }
            }
        }
    }

    #[test]
    fn empty_batches_do_nothing() {
        let w = Matrix { data: noise(12, 3), cols: 4, mapped: false };
        matmul(&[], &w, None, &mut []);
    }
}
