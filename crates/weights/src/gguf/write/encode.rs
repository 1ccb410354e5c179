//! Weights as blocks of ggml, with scales of least squared error. The drawings are in ggml's `ggml-quants.c`.

use crate::gguf::blocks::{BlockType, GROUP};
use half::f16;
use taper_tensor::pool;

/// Parts of the range that are tried: outliers are cut off where the rest gains more.
const SHRUNK: [f32; 12] = [1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79, 0.76, 0.73, 0.7, 0.65];
/// Groups of a block of Q4_K.
const GROUPS: usize = 8;

/// Rows of whole blocks; `None` of a type that is not written.
pub(crate) fn encode(kind: BlockType, values: &[f32]) -> Option<Vec<u8>> {
    let one: fn(&[f32], &mut [u8]) = match kind {
        BlockType::Q4_0 => fours,
        BlockType::Q8_0 => eights,
        BlockType::Q4_K => fours_of_256,
        _ => return None,
    };
    let (weights, bytes) = kind.block();
    let mut out = vec![0; values.len() / weights * bytes];
    let mut blocks: Vec<_> =
        values.chunks_exact(weights).zip(out.chunks_exact_mut(bytes)).collect();
    pool::for_each(&mut blocks, |_, (values, out)| one(values, out));
    Some(out)
}

fn rounded(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// The multiple of a scale that is nearest, within bounds; zero of no scale.
fn nearest(value: f32, scale: f32, low: f32, high: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { (value / scale).round_ties_even().clamp(low, high) }
}

/// The low halves of 16 bytes, and then the high ones.
fn put_halves(codes: &[u8], out: &mut [u8]) {
    let (low, high) = codes.split_at(codes.len() / 2);
    let both = low.iter().zip(high);
    out.iter_mut().zip(both).for_each(|(byte, (low, high))| *byte = low | high << 4);
}

/// Q4_0: `d (q - 8)`.
fn fours(values: &[f32], out: &mut [u8]) {
    let largest =
        values.iter().fold(0.0f32, |most, v| if v.abs() > most.abs() { *v } else { most });
    let error = |d: f32| -> f32 {
        values.iter().map(|v| (v - d * nearest(*v, d, -8.0, 7.0)).powi(2)).sum()
    };
    // The end of larger magnitude has one code more.
    let tried = SHRUNK.iter().flat_map(|s| [largest * s / -8.0, largest * s / 7.0]).map(rounded);
    let best = tried.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(0.0);
    let mut codes = [0u8; GROUP];
    for (code, v) in codes.iter_mut().zip(values) {
        *code = (nearest(*v, best, -8.0, 7.0) + 8.0) as u8;
    }
    out[..2].copy_from_slice(&f16::from_f32(best).to_le_bytes());
    put_halves(&codes, &mut out[2..]);
}

/// Q8_0: `d q`.
fn eights(values: &[f32], out: &mut [u8]) {
    let largest = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    let d = rounded(largest / 127.0);
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (byte, v) in out[2..].iter_mut().zip(values) {
        *byte = (nearest(*v, d, -127.0, 127.0) as i8).cast_unsigned();
    }
}

/// A scale and what is taken away, neither below zero.
type Fit = (f32, f32);

fn code(v: f32, (scale, less): Fit) -> f32 {
    nearest(v + less, scale, 0.0, 15.0)
}

/// What is best for 32 weights as `scale q - less`.
fn fit(values: &[f32]) -> Fit {
    let low = values.iter().copied().fold(0.0f32, f32::min);
    let high = values.iter().copied().fold(low, f32::max);
    let error = |fit: Fit| -> f32 {
        values.iter().map(|v| (fit.0 * code(*v, fit) - fit.1 - v).powi(2)).sum()
    };
    let tried = SHRUNK.iter().flat_map(|s| {
        let first = ((high - low) * s / 15.0, -low * s);
        [first, regression(values, first).unwrap_or(first)]
    });
    tried.min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or_default()
}

/// The scale and the difference of least squared error for the codes of a fit.
fn regression(values: &[f32], fit: Fit) -> Option<Fit> {
    let n = values.len() as f32;
    let (mut q1, mut q2, mut v1, mut qv) = (0.0f32, 0.0, 0.0, 0.0);
    for &v in values {
        let q = code(v, fit);
        (q1, q2, v1, qv) = (q1 + q, q2 + q * q, v1 + v, qv + q * v);
    }
    let scale = (n * qv - q1 * v1) / (n * q2 - q1 * q1);
    let less = (scale * q1 - v1) / n;
    (scale.is_finite() && scale > 0.0 && less >= 0.0).then_some((scale, less))
}

/// Q4_K: `d scale[j] q - dmin min[j]`, where scales and mins have six bits.
fn fours_of_256(values: &[f32], out: &mut [u8]) {
    let fits: Vec<Fit> = values.chunks_exact(GROUP).map(fit).collect();
    let most = |of: fn(&Fit) -> f32| fits.iter().map(of).fold(0.0, f32::max);
    let (d, dmin) = (rounded(most(|f| f.0) / 63.0), rounded(most(|f| f.1) / 63.0));
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    out[2..4].copy_from_slice(&f16::from_f32(dmin).to_le_bytes());
    let (mut scales, mut mins) = ([0u8; GROUPS], [0u8; GROUPS]);
    let mut codes = [0u8; 256];
    for (j, (fit, values)) in fits.iter().zip(values.chunks_exact(GROUP)).enumerate() {
        scales[j] = nearest(fit.0, d, 0.0, 63.0) as u8;
        mins[j] = nearest(fit.1, dmin, 0.0, 63.0) as u8;
        let own = (d * f32::from(scales[j]), dmin * f32::from(mins[j]));
        let out = &mut codes[GROUP * j..][..GROUP];
        out.iter_mut().zip(values).for_each(|(q, v)| *q = code(*v, own) as u8);
    }
    for j in 0..4 {
        out[4 + j] = scales[j] | scales[j + 4] >> 4 << 6;
        out[8 + j] = mins[j] | mins[j + 4] >> 4 << 6;
        out[12 + j] = scales[j + 4] & 15 | (mins[j + 4] & 15) << 4;
    }
    for (codes, out) in codes.chunks_exact(2 * GROUP).zip(out[16..].chunks_exact_mut(GROUP)) {
        put_halves(codes, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(kind: BlockType, values: &[f32]) -> f32 {
        let blocks = encode(kind, values).unwrap();
        let mut out = vec![0.0; values.len()];
        kind.decode(&blocks, &mut out);
        let sum = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>();
        sum(&mut out.iter().zip(values).map(|(a, b)| a - b)) / sum(&mut values.iter().copied())
    }

    #[test]
    fn blocks_are_near_the_weights() {
        let mut state = 5u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let values: Vec<f32> = (0..1024).map(|_| noise() + noise() + noise()).collect();
        for (kind, most) in
            [(BlockType::Q4_0, 0.008), (BlockType::Q4_K, 0.006), (BlockType::Q8_0, 4e-5)]
        {
            let error = errors(kind, &values);
            assert!(error < most, "{kind:?}: {error}");
            let positive: Vec<f32> = values.iter().map(|v| v.abs() + 1.0).collect();
            assert!(errors(kind, &positive) < 0.003, "{kind:?} of positive weights");
        }
        assert!(encode(BlockType::Q6_K, &values).is_none());
    }

    #[test]
    fn zeros_stay_zeros() {
        for kind in [BlockType::Q4_0, BlockType::Q4_K, BlockType::Q8_0] {
            let mut out = [1.0; 256];
            kind.decode(&encode(kind, &[0.0; 256]).unwrap(), &mut out);
            assert_eq!(out, [0.0; 256], "{kind:?}");
        }
    }
}
