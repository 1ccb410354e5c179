//! Attention weights as bytes.

use super::{
    CodeLevel,
    scales::{ROUND, compiled, largest},
};

/// Weights times the scales of their values, as bytes: `p[i][j] * gamma[j] = scales[i] * weights[i][j]`.
/// Where `p` is 0 the scale may be anything.
/// A row's scale and weights are 0 when all its `p` are below `threshold`. The rows of `p` are a stride
/// apart.
///
/// # Panics
/// When the lengths differ.
pub fn weigh(
    level: CodeLevel,
    (p, stride): (&[f32], usize),
    gamma: &[f32],
    threshold: f32,
    weights: &mut [u8],
    scales: &mut [f32],
) {
    let n = gamma.len();
    if n == 0 || scales.is_empty() {
        return;
    }
    super::check_rows((p.len(), stride), scales.len(), n);
    assert_eq!(weights.len(), scales.len() * n, "weights");
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, lengths are checked, and vectors are whole.
        CodeLevel::Vbmi(_) if n.is_multiple_of(16) => unsafe {
            super::vbmi_weights::weigh((p, stride), gamma, threshold, weights, scales);
        },
        _ => weigh_plainly(level, (p, stride), gamma, threshold, weights, scales),
    }
}

compiled! {
    weigh_plainly = weigh_rows(
        p: (&[f32], usize), gamma: &[f32], threshold: f32, weights: &mut [u8], scales: &mut [f32]
    )
}

#[inline(always)]
fn weigh_rows(
    (p, stride): (&[f32], usize),
    gamma: &[f32],
    threshold: f32,
    weights: &mut [u8],
    scales: &mut [f32],
) {
    let n = gamma.len();
    let rows = p.chunks(stride).zip(weights.chunks_exact_mut(n)).zip(scales);
    rows.for_each(|((p, w), s)| *s = weigh_body(&p[..n], gamma, threshold, w));
}

#[inline(always)]
fn weigh_body(p: &[f32], gamma: &[f32], threshold: f32, weights: &mut [u8]) -> f32 {
    let likely = largest(p.iter().copied());
    // What has no weight may be anything.
    let product = |(&p, &g): (&f32, &f32)| if p > 0.0 { p * g } else { 0.0 };
    let most = largest(p.iter().zip(gamma).map(product));
    if likely < threshold || most <= 0.0 {
        weights.fill(0);
        return 0.0;
    }
    let inverse = 255.0 / most;
    for (w, pg) in weights.iter_mut().zip(p.iter().zip(gamma)) {
        *w = (product(pg) * inverse + ROUND).to_bits() as u8;
    }
    most / 255.0
}
