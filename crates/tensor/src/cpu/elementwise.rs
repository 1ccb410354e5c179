//! Row-wise and element-wise functions.

use super::{Level, kernels};
use rayon::prelude::*;

/// Elements a task should have at least.
const CHUNK: usize = 1 << 15;

/// `out = x / sqrt(mean(x²) + eps) * w` for each row (Zhang & Sennrich 2019).
///
/// # Shapes
/// `x`, `out`: `[rows, w.len()]`.
///
/// # Panics
/// When the lengths differ from these.
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let (level, n) = (Level::detect(), w.len());
    assert_eq!(x.len(), out.len(), "in and out have one shape");
    assert!(n > 0 && x.len().is_multiple_of(n), "rows of {n}");
    let rows_per_task = (CHUNK / n).max(1) * n;
    let task = |(x, out): (&[f32], &mut [f32])| {
        for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
            // SAFETY: all three have `n` elements.
            unsafe {
                let squares = kernels::sum_squares(level, x.as_ptr(), n);
                let s = 1.0 / (squares / n as f32 + eps).sqrt();
                kernels::scale_mul(level, x.as_ptr(), w.as_ptr(), n, s, out.as_mut_ptr());
            }
        }
    };
    if x.len() <= CHUNK {
        task((x, out));
    } else {
        x.par_chunks(rows_per_task).zip(out.par_chunks_mut(rows_per_task)).for_each(task);
    }
}

/// `gate = silu(gate) * up`.
///
/// # Panics
/// When the lengths differ.
pub fn silu_mul(gate: &mut [f32], up: &[f32]) {
    gated(gate, up, kernels::silu_mul);
}

/// `gate = gelu(gate) * up`, with the tanh approximation (Hendrycks & Gimpel 2016).
///
/// # Panics
/// When the lengths differ.
pub fn gelu_tanh_mul(gate: &mut [f32], up: &[f32]) {
    gated(gate, up, kernels::gelu_tanh_mul);
}

type Gated = unsafe fn(Level, *const f32, *const f32, usize, *mut f32);

fn gated(gate: &mut [f32], up: &[f32], f: Gated) {
    assert_eq!(gate.len(), up.len(), "gate and up have one shape");
    let level = Level::detect();
    let task = |(g, u): (&mut [f32], &[f32])| {
        // SAFETY: both have `g.len()` elements; the kernels allow `out` to be `gate`.
        unsafe { f(level, g.as_ptr(), u.as_ptr(), g.len(), g.as_mut_ptr()) }
    };
    if gate.len() <= CHUNK {
        task((gate, up));
    } else {
        gate.par_chunks_mut(CHUNK).zip(up.par_chunks(CHUNK)).for_each(task);
    }
}

/// `x = cap * tanh(x / cap)`.
pub fn soft_cap(x: &mut [f32], cap: f32) {
    // SAFETY: in place over the slice.
    unsafe { kernels::soft_cap(Level::detect(), x.as_mut_ptr(), x.len(), cap) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.37).sin() * 9.0).collect()
    }

    fn close(got: &[f32], want: impl Iterator<Item = f64>) {
        for (i, (&g, w)) in got.iter().zip(want).enumerate() {
            assert!((f64::from(g) - w).abs() <= 3e-6 * w.abs().max(1.0), "{i}: {g} {w}");
        }
    }

    #[test]
    fn they_equal_their_formulas_in_f64() {
        for n in [1, 15, 16, 17, 100, 40_000] {
            let (x, up) = (ramp(n), ramp(n));
            let f = |v: &f32| f64::from(*v);
            let mut out = x.clone();
            silu_mul(&mut out, &up);
            close(&out, x.iter().map(f).map(|v| v / (1.0 + (-v).exp()) * v));
            let mut out = x.clone();
            gelu_tanh_mul(&mut out, &up);
            close(
                &out,
                x.iter().map(f).map(|v| {
                    let c = (2.0 / std::f64::consts::PI).sqrt();
                    0.5 * v * (1.0 + (c * (v + 0.044_715 * v * v * v)).tanh()) * v
                }),
            );
            let mut out = x.clone();
            soft_cap(&mut out, 5.0);
            close(&out, x.iter().map(f).map(|v| 5.0 * (v / 5.0).tanh()));
        }
    }

    #[test]
    fn rms_norm_normalises_each_row() {
        let (n, rows) = (33, 5);
        let (x, w) = (ramp(n * rows), ramp(n));
        let mut out = vec![0.0; n * rows];
        rms_norm(&x, &w, 1e-6, &mut out);
        for (row, got) in x.chunks(n).zip(out.chunks(n)) {
            let ms = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n as f64;
            let s = 1.0 / (ms + 1e-6).sqrt();
            close(got, row.iter().zip(&w).map(|(&v, &w)| f64::from(v) * s * f64::from(w)));
        }
    }
}
