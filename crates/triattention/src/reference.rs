//! The score in f64, as its definition has it, and in two other forms that equal it.
//!
//! ```text
//! S_trig = mean over offsets of  sum_f s^2 |E q_f| |k_f| cos(omega_f (now - p + offset) + phi_f),
//!          phi_f = arg E q_f - arg k_f
//! S_norm = sum_f s^2 (E|q_f| - |E q_f|) |k_f|
//! S      = S_trig + S_norm
//! ```
//! with `k_f` the key of position `p` before its rotation and `s` the scale of the embedding, for a head
//! whose queries have the statistics `E q_f` and `E|q_f|`. `S_trig` is the mean logit that such queries
//! will have with the key (times the square root of `head_dim`); `S_norm` is what queries away from
//! their centre may add.
//!
//! A cached key is already `s k_f e^(i omega_f p)`: one of the two factors `s`, and no more, is in it.

use crate::{Complex, HeadStatistics, OFFSETS, Rope, TriAttentionError};

/// The definition: from a key before its rotation and its position.
///
/// # Errors
/// Statistics or key of another length than the embedding's.
pub fn score_unrotated(
    rope: &Rope,
    head: &HeadStatistics,
    key: &[f64],
    position: f64,
    now: f64,
) -> Result<f64, TriAttentionError> {
    head.check(rope.bands())?;
    let key = rope.complex(key)?;
    let square = rope.scale() * rope.scale();
    let at = |offset: u32| {
        let bands = head.mean.iter().zip(&key).zip(rope.frequencies());
        let band = |((q, k), w): ((&Complex, &Complex), &f64)| {
            let angle = w * (now - position + f64::from(offset)) + q.arg() - k.arg();
            square * q.abs() * k.abs() * angle.cos()
        };
        bands.map(band).sum::<f64>()
    };
    let trig = OFFSETS.iter().map(|&o| at(o)).sum::<f64>() / OFFSETS.len() as f64;
    Ok(trig + square * norm(head, &key))
}

/// From a cached key, with no need of its position: `A_f = Re(E q_f conj k_f)` and `B_f = Im(...)`
/// rotate with the present alone.
///
/// # Errors
/// As [`score_unrotated`].
pub fn score_cached(
    rope: &Rope,
    head: &HeadStatistics,
    key: &[f64],
    now: f64,
) -> Result<f64, TriAttentionError> {
    head.check(rope.bands())?;
    let key = rope.complex(key)?;
    let at = |offset: u32| {
        let bands = head.mean.iter().zip(&key).zip(rope.frequencies());
        let band = |((&q, k), w): ((&Complex, &Complex), &f64)| {
            let (product, angle) = (q * k.conj(), w * (now + f64::from(offset)));
            product.re * angle.cos() - product.im * angle.sin()
        };
        bands.map(band).sum::<f64>()
    };
    let trig = OFFSETS.iter().map(|&o| at(o)).sum::<f64>() / OFFSETS.len() as f64;
    Ok(rope.scale() * (trig + norm(head, &key)))
}

/// A query whose product with a cached key is `S_trig`: only rotations depend on the offset, so
/// their mean is one factor a band ([`Rope::ahead`]).
///
/// # Shapes
/// `[head_dim]`.
///
/// # Errors
/// Statistics of another length than the embedding's.
pub fn synthetic_query(
    rope: &Rope,
    head: &HeadStatistics,
    now: f64,
) -> Result<Vec<f64>, TriAttentionError> {
    head.check(rope.bands())?;
    let ahead = rope.ahead();
    let bands = head.mean.iter().zip(&ahead).zip(rope.frequencies());
    let turned: Vec<_> =
        bands.map(|((&q, &g), w)| q * g * Complex::turn(w * now) * rope.scale()).collect();
    Ok(turned.iter().map(|x| x.re).chain(turned.iter().map(|x| x.im)).collect())
}

/// The weights of the moduli of a cached key in `S_norm`: `s (E|q_f| - |E q_f|)`.
///
/// # Shapes
/// `[head_dim / 2]`.
///
/// # Errors
/// Statistics of another length than the embedding's.
pub fn norm_weights(rope: &Rope, head: &HeadStatistics) -> Result<Vec<f64>, TriAttentionError> {
    head.check(rope.bands())?;
    Ok(excess(head).map(|x| rope.scale() * x).collect())
}

/// `E|q_f| - |E q_f|`, which is never negative but for rounding.
fn excess(head: &HeadStatistics) -> impl Iterator<Item = f64> {
    head.mean.iter().zip(&head.modulus).map(|(mean, all)| (all - mean.abs()).max(0.0))
}

fn norm(head: &HeadStatistics, key: &[Complex]) -> f64 {
    excess(head).zip(key).map(|(x, k)| x * k.abs()).sum()
}
