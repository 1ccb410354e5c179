//! Attention over the tokens of whole texts.

use crate::ModelError;
use std::ops::Range;
use taper_tensor::{Tensor, ops, pool};

/// Heads of a layer's attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    /// Of queries.
    pub(super) heads: usize,
    /// Of keys and values.
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

/// Which tokens of its text one attends to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    /// Those after it too.
    pub(super) both: bool,
    /// Those less than so many away.
    pub(super) window: Option<usize>,
}

impl Reach {
    /// To all.
    pub(super) const ALL: Self = Self { both: true, window: None };

    fn of(self, row: usize, text: &Range<usize>) -> Range<usize> {
        let window = self.window.unwrap_or(usize::MAX);
        let first = text.start.max((row + 1).saturating_sub(window));
        let end = if self.both { row.saturating_add(window).min(text.end) } else { row + 1 };
        first..end
    }
}

/// Every token attends to those of its text that are in reach. Scores are multiplied with the scale, and capped.
///
/// # Shapes
/// Queries `[t, heads * head_dim]`, keys and values `[t, kv_heads * head_dim]`, where `lengths` are the texts' tokens
/// and their sum is `t` -> as the queries.
pub(super) fn attend(
    [q, k, v]: [&Tensor; 3],
    lengths: &[usize],
    Heads { heads, kv_heads, head_dim: d }: Heads,
    reach: Reach,
    (scale, cap): (f32, Option<f32>),
) -> Result<Tensor, ModelError> {
    let (dims, width, kv_width) = ([q.dims()[0], heads * d], heads * d, kv_heads * d);
    let shared = heads / kv_heads.max(1);
    let read = |x: &Tensor| ops::with_host_f32(x, <[f32]>::to_vec);
    let (q, k, v) = (read(q)?, read(k)?, read(v)?);
    let mut texts = Vec::new();
    let mut first = 0;
    for &n in lengths {
        texts.extend((first..first + n).map(|row| Row { row, text: first..first + n }));
        first += n;
    }
    let mut out = vec![0.0; q.len()];
    let mut rows: Vec<_> = out.chunks_exact_mut(width).zip(texts).collect();
    pool::for_each(&mut rows, |_, (out, Row { row, text })| {
        let others = reach.of(*row, text);
        for (head, out) in out.chunks_exact_mut(d).enumerate() {
            let query = &q[*row * width + head * d..][..d];
            let at = |other: usize| other * kv_width + head / shared * d;
            let scores = others.clone().map(|other| scale * dot(query, &k[at(other)..][..d]));
            let scores = scores.map(|s| cap.map_or(s, |cap| cap * (s / cap).tanh()));
            for (other, weight) in others.clone().zip(softmax(scores.collect())) {
                out.iter_mut().zip(&v[at(other)..][..d]).for_each(|(o, v)| *o += weight * v);
            }
        }
    });
    Ok(Tensor::from_vec(out, &dims)?)
}

/// A token, and the rows of its text.
struct Row {
    row: usize,
    text: Range<usize>,
}

/// In 8 sums, so that it can be computed in vectors.
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    for (x, y) in x.chunks(8).zip(y.chunks(8)) {
        for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
            *sum += x * y;
        }
    }
    sums.iter().sum()
}

fn softmax(mut x: Vec<f32>) -> Vec<f32> {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|x| *x = (*x - max).exp());
    let total: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= total);
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_sees_itself_only_and_both_ways() {
        let x = |data: &[f32]| Tensor::from_vec(data.to_vec(), &[3, 2]).unwrap();
        let (q, k) = (x(&[0.0; 6]), x(&[1.0; 6]));
        let v = x(&[1.0, 10.0, 3.0, 30.0, 7.0, 70.0]);
        let heads = Heads { heads: 1, kv_heads: 1, head_dim: 2 };
        let y = attend([&q, &k, &v], &[2, 1], heads, Reach::ALL, (1.0, None)).unwrap();
        let y = ops::with_host_f32(&y, <[f32]>::to_vec).unwrap();
        assert_eq!(y, [2.0, 20.0, 2.0, 20.0, 7.0, 70.0]);
    }

    #[test]
    fn a_token_reaches_so_far() {
        let of = |both, window, row| Reach { both, window }.of(row, &(2..9));
        assert_eq!([of(true, None, 4), of(false, None, 4)], [2..9, 2..5]);
        assert_eq!([of(true, Some(2), 4), of(false, Some(2), 4)], [3..6, 3..5]);
        assert_eq!([of(true, Some(9), 2), of(false, Some(1), 8)], [2..9, 8..9]);
    }

    #[test]
    fn heads_of_queries_share_keys_and_values() {
        let x = |data: &[f32], n| Tensor::from_vec(data.to_vec(), &[2, n]).unwrap();
        let q = x(&[0.0; 4], 2);
        let (k, v) = (x(&[1.0, 1.0], 1), x(&[1.0, 3.0], 1));
        let heads = Heads { heads: 2, kv_heads: 1, head_dim: 1 };
        let causal = Reach { both: false, window: None };
        let y = attend([&q, &k, &v], &[2], heads, causal, (1.0, Some(5.0))).unwrap();
        assert_eq!(y.to_vec().unwrap(), [1.0, 1.0, 2.0, 2.0]);
    }
}
