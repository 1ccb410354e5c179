//! Row-wise and element-wise functions.

use super::{
    Level, kernels,
    shared::{SharedOut, Unwritten},
};
use crate::pool;

/// Elements a task should have at least.
pub(super) const CHUNK: usize = 1 << 13;

/// The gate of a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// The tanh approximation of GELU (Hendrycks & Gimpel 2016).
    GeluTanh,
    /// GELU itself: `x / 2 * (1 + erf(x / sqrt(2)))`.
    Gelu,
    /// `max(x, 0)²` (So et al., arXiv 2109.08668).
    Relu2,
    /// `g * sigmoid(1.702 g) * (u + 1)` of a gate `g` of at most 7 and of `u` from -7 to 7 (gpt-oss, arXiv
    /// 2508.10925).
    SwigluOai,
}

pub(super) type Gated = unsafe fn(Level, *const f32, *const f32, usize, *mut f32);

impl Activation {
    pub(super) fn kernel(self) -> Gated {
        match self {
            Self::Silu => kernels::silu_mul,
            Self::GeluTanh => kernels::gelu_tanh_mul,
            Self::Gelu => gelu_mul,
            Self::Relu2 => relu2_mul,
            Self::SwigluOai => kernels::swiglu_oai,
        }
    }
}

/// `out[i] = gelu(gate[i]) * up[i]`; `out` may be `gate`.
///
/// # Safety
/// All three have `n` elements.
unsafe fn gelu_mul(_: Level, gate: *const f32, up: *const f32, n: usize, out: *mut f32) {
    let gelu = |x: f32| 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2));
    for i in 0..n {
        // SAFETY: the caller promises `n` elements.
        unsafe { *out.add(i) = gelu(*gate.add(i)) * *up.add(i) };
    }
}

/// `out[i] = max(gate[i], 0)² * up[i]`; `out` may be `gate`.
///
/// # Safety
/// All three have `n` elements.
unsafe fn relu2_mul(_: Level, gate: *const f32, up: *const f32, n: usize, out: *mut f32) {
    for i in 0..n {
        // SAFETY: the caller promises `n` elements.
        unsafe {
            let x = *gate.add(i);
            // What is not a number stays so.
            let positive = if x < 0.0 { 0.0 } else { x };
            *out.add(i) = positive * positive * *up.add(i);
        }
    }
}

/// `x / sqrt(mean(x²) + eps) * w` for each row (Zhang & Sennrich 2019).
///
/// # Shapes
/// `x [rows, w.len()]` -> the same.
///
/// # Panics
/// When `x` is not whole rows.
#[must_use]
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32) -> Vec<f32> {
    let (level, n) = (Level::detect(), w.len());
    assert!(n > 0 && x.len().is_multiple_of(n), "rows of {n}");
    fill(x.len(), (CHUNK / n).max(1) * n, |out, range| {
        for at in range.step_by(n) {
            // SAFETY: a whole row of each.
            unsafe { norm_row(level, x[at..].as_ptr(), w, eps, out.at(at)) };
        }
    })
}

/// One row of [`rms_norm`].
///
/// # Safety
/// `x` and `out` have as many elements as `w`.
pub(super) unsafe fn norm_row(level: Level, x: *const f32, w: &[f32], eps: f32, out: *mut f32) {
    let n = w.len();
    // SAFETY: the caller promises that `x` and `out` have as many elements as `w`.
    unsafe {
        let squares = kernels::sum_squares(level, x, n);
        let s = 1.0 / (squares / n as f32 + eps).sqrt();
        kernels::scale_mul(level, x, w.as_ptr(), n, s, out);
    }
}

/// `activation(gate) * up`.
///
/// # Panics
/// When the lengths differ.
#[must_use]
pub fn gated(activation: Activation, gate: &[f32], up: &[f32]) -> Vec<f32> {
    assert_eq!(gate.len(), up.len(), "gate and up have one shape");
    let (level, kernel) = (Level::detect(), activation.kernel());
    fill(gate.len(), CHUNK, |out, range| {
        let (at, n) = (range.start, range.len());
        // SAFETY: `n` elements of each from `at` on.
        unsafe { kernel(level, gate[at..].as_ptr(), up[at..].as_ptr(), n, out.at(at)) };
    })
}

/// `activation(x)`.
#[must_use]
pub fn activate(activation: Activation, x: &[f32]) -> Vec<f32> {
    const ONES: [f32; 256] = [1.0; 256];
    let (level, kernel) = (Level::detect(), activation.kernel());
    fill(x.len(), CHUNK, |out, range| {
        for at in range.clone().step_by(ONES.len()) {
            let n = ONES.len().min(range.end - at);
            // SAFETY: `n` elements of each from `at` on.
            unsafe { kernel(level, x[at..].as_ptr(), ONES.as_ptr(), n, out.at(at)) };
        }
    })
}

/// `out = silu(gate) * up` of one row, on the calling thread.
///
/// # Panics
/// When the lengths differ.
pub fn silu_mul_row(gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert!(gate.len() == up.len() && up.len() == out.len(), "rows of one length");
    // SAFETY: all three have so many elements.
    unsafe {
        kernels::silu_mul(
            Level::detect(),
            gate.as_ptr(),
            up.as_ptr(),
            gate.len(),
            out.as_mut_ptr(),
        );
    }
}

/// `acc += b y`.
///
/// # Panics
/// When the lengths differ.
pub fn add_scaled(acc: &mut [f32], b: f32, y: &[f32]) {
    assert_eq!(acc.len(), y.len(), "as long");
    // SAFETY: both have so many elements.
    unsafe { kernels::blend(Level::detect(), acc.as_mut_ptr(), 1.0, y.as_ptr(), b, y.len()) };
}

/// `x + y`.
///
/// # Panics
/// When the lengths differ.
#[must_use]
pub fn add(x: &[f32], y: &[f32]) -> Vec<f32> {
    assert_eq!(x.len(), y.len(), "x and y have one shape");
    let level = Level::detect();
    fill(x.len(), CHUNK, |out, range| {
        let (at, n) = (range.start, range.len());
        // SAFETY: `n` elements of each from `at` on.
        unsafe { kernels::add(level, x[at..].as_ptr(), y[at..].as_ptr(), n, out.at(at)) };
    })
}

/// A new buffer of `len` elements, all of which `task` writes, range by range.
pub(super) fn fill(
    len: usize,
    least: usize,
    task: impl Fn(SharedOut, std::ops::Range<usize>) + Sync,
) -> Vec<f32> {
    let mut out = Unwritten::new(len);
    let shared = out.shared();
    pool::ranges(len, least, |range| task(shared, range));
    // SAFETY: the ranges cover the buffer.
    unsafe { out.written() }
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
            let out = gated(Activation::Silu, &x, &up);
            close(&out, x.iter().map(f).map(|v| v / (1.0 + (-v).exp()) * v));
            let out = gated(Activation::GeluTanh, &x, &up);
            close(
                &out,
                x.iter().map(f).map(|v| {
                    let c = (2.0 / std::f64::consts::PI).sqrt();
                    0.5 * v * (1.0 + (c * (v + 0.044_715 * v * v * v)).tanh()) * v
                }),
            );
            let out = gated(Activation::SwigluOai, &x, &up);
            close(
                &out,
                x.iter().map(f).map(|v| {
                    let (g, u) = (v.min(7.0), v.clamp(-7.0, 7.0));
                    g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
                }),
            );
            let mut out = x.clone();
            soft_cap(&mut out, 5.0);
            close(&out, x.iter().map(f).map(|v| 5.0 * (v / 5.0).tanh()));
        }
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::SwigluOai] {
            let (x, bad) = ([1.0; 3], [1.0, f32::NAN, 1.0]);
            for out in [gated(activation, &x, &bad), gated(activation, &bad, &x)] {
                assert!(out[1].is_nan() && out[0].is_finite(), "{activation:?}: {out:?}");
            }
        }
    }

    #[test]
    fn rms_norm_normalises_each_row() {
        let (n, rows) = (33, 5);
        let (x, w) = (ramp(n * rows), ramp(n));
        let out = rms_norm(&x, &w, 1e-6);
        for (row, got) in x.chunks(n).zip(out.chunks(n)) {
            let ms = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n as f64;
            let s = 1.0 / (ms + 1e-6).sqrt();
            close(got, row.iter().zip(&w).map(|(&v, &w)| f64::from(v) * s * f64::from(w)));
        }
    }
}
