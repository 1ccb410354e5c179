//! Passes over a whole row: maxima by chunk, and the k best without sorting the row.

use crate::{SamplerError, kept::Cut, threads::by_parts};
use multiversion::multiversion;
use std::cmp::Ordering;
use taper_base::{Threads, TokenId};

/// Logits summarised by one maximum.
pub(crate) const CHUNK: usize = 64;

/// Likelier first; of equals, the lower id first.
#[inline(always)]
pub(crate) fn by_rank(a: (f32, TokenId), b: (f32, TokenId)) -> Ordering {
    // `-0.0 == 0.0` must tie, so not `total_cmp`; there is no NaN once a row is scanned.
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}

/// A row without NaN and positive infinity, with at least one finite logit.
#[derive(Debug)]
pub(crate) struct Scanned<'a> {
    pub(crate) logits: &'a [f32],
    /// The largest of each [`CHUNK`] logits.
    pub(crate) chunk_max: Vec<f32>,
    pub(crate) max: f32,
}

/// A whole number for a logit: 0 for negative infinity, more for more, most for positive infinity and what is not a
/// number. Largest whole numbers are found by vectors, largest floats are not.
#[inline(always)]
pub(crate) fn key(x: f32) -> u32 {
    ordered(x.to_bits()).wrapping_sub(LEAST)
}

/// The logit of a key; of both zeros the positive one has the larger key.
pub(crate) fn logit(key: u32) -> f32 {
    f32::from_bits(ordered(key.wrapping_add(LEAST)))
}

/// Bits of floats in the order of signed numbers, and back.
#[inline(always)]
const fn ordered(bits: u32) -> u32 {
    bits ^ ((bits as i32 >> 31) as u32 >> 1)
}

const LEAST: u32 = ordered(f32::NEG_INFINITY.to_bits());

/// Chunks that a thread looks at, at least.
const LEAST_CHUNKS: usize = 128;

/// The largest key of each [`CHUNK`] logits.
#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn chunk_keys(logits: &[f32], keys: &mut [u32]) {
    for (chunk, of_chunk) in logits.chunks(CHUNK).zip(keys) {
        let mut largest = 0;
        for &x in chunk {
            largest = key(x).max(largest);
        }
        *of_chunk = largest;
    }
}

impl<'a> Scanned<'a> {
    pub(crate) fn new(logits: &'a [f32], threads: &impl Threads) -> Result<Self, SamplerError> {
        let mut keys = vec![0; logits.len().div_ceil(CHUNK)];
        by_parts(threads, &mut keys, LEAST_CHUNKS, |first, keys| {
            chunk_keys(&logits[first * CHUNK..], keys);
        });
        let largest = keys.iter().copied().max().unwrap_or(0);
        if largest >= key(f32::INFINITY) {
            let first = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY);
            return Err(SamplerError::NotANumber { token: first.unwrap_or(0) as TokenId });
        }
        let (chunk_max, max) = (keys.into_iter().map(logit).collect(), logit(largest));
        if max == f32::NEG_INFINITY {
            return Err(SamplerError::NoCandidate);
        }
        Ok(Self { logits, chunk_max, max })
    }

    /// The likeliest token, the lowest id of equals.
    pub(crate) fn argmax(&self) -> TokenId {
        let chunk = self.chunk_max.iter().position(|&m| m == self.max).unwrap_or(0) * CHUNK;
        let within = self.logits[chunk..].iter().position(|&x| x == self.max).unwrap_or(0);
        (chunk + within) as TokenId
    }

    /// Calls `f` for every token whose logit is at least `cut`, by ascending id. Chunks without
    /// one cost a comparison.
    pub(crate) fn for_each_at_least(&self, cut: f32, mut f: impl FnMut(TokenId, f32)) {
        for (c, _) in self.chunk_max.iter().enumerate().filter(|(_, m)| **m >= cut) {
            let first = c * CHUNK;
            let end = (first + CHUNK).min(self.logits.len());
            // Nobody could guess which tokens these are: they are listed without a branch.
            let (mut these, mut n) = ([0; CHUNK], 0);
            for (i, &x) in self.logits[first..end].iter().enumerate() {
                these[n] = i;
                n += usize::from(x >= cut);
            }
            for &i in &these[..n] {
                f((first + i) as TokenId, self.logits[first + i]);
            }
        }
    }

    /// A logit such that at least `k` tokens reach it and, mostly, few more: the k-th largest
    /// chunk maximum. `None` with fewer than `k` chunks.
    fn loose_cut(&self, k: usize) -> Option<f32> {
        if k == 0 || k > self.chunk_max.len() {
            return None;
        }
        let mut maxima = self.chunk_max.clone();
        let (_, kth, _) = maxima.select_nth_unstable_by(k - 1, |a, b| by_rank((*a, 0), (*b, 0)));
        Some(*kth)
    }

    /// The `k`th likeliest token; `None` where so many are all, or there are not as many.
    pub(crate) fn kth(&self, k: usize) -> Option<Cut> {
        if k == 0 || k >= self.logits.len() {
            return None;
        }
        let top = self.top(k);
        top.get(k - 1).map(|&(logit, id)| Cut { logit, end: id + 1 })
    }

    /// The `k` likeliest tokens of finite logit, likeliest first.
    pub(crate) fn top(&self, k: usize) -> Vec<(f32, TokenId)> {
        let cut = self.loose_cut(k).unwrap_or(f32::MIN).max(f32::MIN);
        let mut best = Vec::with_capacity(k.min(self.logits.len()));
        if k == 0 {
            return best;
        }
        self.for_each_at_least(cut, |id, x| best.push((x, id)));
        if best.len() > k {
            best.select_nth_unstable_by(k - 1, |a, b| by_rank(*a, *b));
            best.truncate(k);
        }
        best.sort_unstable_by(|a, b| by_rank(*a, *b));
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_base::Alone;

    #[test]
    fn refuses_what_is_no_logit() {
        for len in [1, 63, 64, 65, 300] {
            for bad in [f32::NAN, f32::INFINITY, -f32::NAN] {
                let mut row = vec![0.5; len];
                row[len - 1] = bad;
                let want = SamplerError::NotANumber { token: len as TokenId - 1 };
                assert_eq!(Scanned::new(&row, &Alone).err(), Some(want));
            }
            let row = vec![f32::NEG_INFINITY; len];
            assert_eq!(Scanned::new(&row, &Alone).err(), Some(SamplerError::NoCandidate));
        }
        assert_eq!(Scanned::new(&[], &Alone).err(), Some(SamplerError::NoCandidate));
    }

    #[test]
    fn equals_go_by_id() {
        let mut row = vec![1.0; 400];
        row[7] = -0.0;
        row[200] = 3.0;
        row[100] = 3.0;
        let s = Scanned::new(&row, &Alone).unwrap();
        assert_eq!(s.argmax(), 100);
        assert_eq!(s.top(4), [(3.0, 100), (3.0, 200), (1.0, 0), (1.0, 1)]);
        assert_eq!(s.top(1000).len(), 400);
        assert_eq!(s.top(0), []);
    }
}
