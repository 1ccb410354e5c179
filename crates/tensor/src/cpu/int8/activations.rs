//! Activations as integers.

use rayon::prelude::*;

/// Rows of activations, rounded group by group to 8 bits: `x = scale * code`.
#[derive(Debug, Default)]
pub struct Int8Rows {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) group: usize,
    /// `[rows, cols]`.
    pub(super) codes: Vec<i8>,
    /// `[rows, cols / group]`.
    pub(super) scales: Vec<f32>,
    /// Scale times the sum of the group's codes, `[rows, cols / group]`.
    pub(super) sums: Vec<f32>,
}

/// Elements a task should have at least.
const CHUNK: usize = 1 << 15;

impl Int8Rows {
    /// Rounds rows of `cols` elements, each group to the nearest multiple of its largest magnitude
    /// over 127. A group with an element that is not finite becomes not a number, so that it shows
    /// in the logits.
    ///
    /// # Panics
    /// When `x` is not whole rows, or a row not whole groups.
    #[must_use]
    pub fn new(x: &[f32], cols: usize, group: usize) -> Self {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "whole rows");
        assert!(group > 0 && cols.is_multiple_of(group), "whole groups");
        let groups = x.len() / group;
        let mut new = Self {
            rows: x.len() / cols,
            cols,
            group,
            codes: vec![0; x.len()],
            scales: vec![0.0; groups],
            sums: vec![0.0; groups],
        };
        let one = |x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [f32]| {
            for (i, (x, codes)) in x.chunks(group).zip(codes.chunks_mut(group)).enumerate() {
                (scales[i], sums[i]) = round_group(x, codes);
            }
        };
        if x.len() <= CHUNK {
            one(x, &mut new.codes, &mut new.scales, &mut new.sums);
        } else {
            let task = CHUNK / group * group;
            x.par_chunks(task)
                .zip(new.codes.par_chunks_mut(task))
                .zip(new.scales.par_chunks_mut(task / group))
                .zip(new.sums.par_chunks_mut(task / group))
                .for_each(|(((x, c), s), t)| one(x, c, s, t));
        }
        new
    }

    /// Elements that share a scale.
    #[must_use]
    pub fn group(&self) -> usize {
        self.group
    }
}

fn round_group(x: &[f32], codes: &mut [i8]) -> (f32, f32) {
    // As bits, so that the maximum vectorises and what is not a number counts as the largest.
    let bits = x.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(bits);
    if largest == 0.0 {
        codes.fill(0);
        return (0.0, 0.0);
    }
    let (scale, inverse) = (largest / 127.0, 127.0 / largest);
    if !inverse.is_normal() || !largest.is_finite() {
        // Too small to matter, or not finite.
        codes.fill(0);
        let scale = if largest.is_finite() { 0.0 } else { f32::NAN };
        return (scale, scale);
    }
    let mut sum = 0;
    for (code, v) in codes.iter_mut().zip(x) {
        // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
        let shifted = v * inverse + 12_582_912.0;
        let rounded = shifted.to_bits() as i32 - 12_582_912.0f32.to_bits() as i32;
        sum += rounded;
        *code = rounded as i8;
    }
    (scale, scale * sum as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_nearest_and_sums_are_theirs() {
        let x: Vec<f32> = (0..128).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.37).collect();
        let q = Int8Rows::new(&x, 64, 32);
        for (g, x) in x.chunks(32).enumerate() {
            let largest = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            assert_eq!(q.scales[g], largest / 127.0);
            let codes = &q.codes[g * 32..][..32];
            for (c, v) in codes.iter().zip(x) {
                assert!((f32::from(*c) * q.scales[g] - v).abs() <= q.scales[g] * 0.5001);
            }
            let sum: i32 = codes.iter().map(|&c| i32::from(c)).sum();
            assert_eq!(q.sums[g], q.scales[g] * sum as f32);
        }
    }

    #[test]
    fn what_is_not_finite_is_not_hidden() {
        let mut x = vec![1.0f32; 64];
        x[3] = f32::INFINITY;
        let q = Int8Rows::new(&x, 64, 32);
        assert!(q.scales[0].is_nan() && !q.scales[1].is_nan());
        x[3] = f32::NAN;
        assert!(Int8Rows::new(&x, 64, 32).scales[0].is_nan());
        let q = Int8Rows::new(&[1e-44; 32], 32, 32);
        assert_eq!((q.scales[0], q.codes[0]), (0.0, 0));
    }
}
