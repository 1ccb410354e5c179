//! Attention weights as bytes.

use super::{CodeLevel, scales::ROUND};

/// Weights times the scales of their values, as bytes: `p[j] * gamma[j] = scale * weight[j]`.
/// Returns `scale`; it and all weights are 0 when every `p` is below `threshold`.
///
/// # Panics
/// When the lengths differ.
pub fn weigh(
    level: CodeLevel,
    p: &[f32],
    gamma: &[f32],
    threshold: f32,
    weights: &mut [u8],
) -> f32 {
    assert!(p.len() == gamma.len() && p.len() == weights.len(), "lengths");
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the level, and vectors are whole.
        CodeLevel::Vbmi if p.len().is_multiple_of(16) => unsafe {
            super::vbmi_rows::weigh(p, gamma, threshold, weights)
        },
        _ => weigh_body(p, gamma, threshold, weights),
    }
}

fn weigh_body(p: &[f32], gamma: &[f32], threshold: f32, weights: &mut [u8]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let likely = p.iter().copied().fold(0.0, larger);
    let most = p.iter().zip(gamma).map(|(p, g)| p * g).fold(0.0, larger);
    if likely < threshold || most <= 0.0 {
        weights.fill(0);
        return 0.0;
    }
    let inverse = 255.0 / most;
    for ((w, &p), &g) in weights.iter_mut().zip(p).zip(gamma) {
        *w = (p * g * inverse + ROUND).to_bits() as u8;
    }
    most / 255.0
}
