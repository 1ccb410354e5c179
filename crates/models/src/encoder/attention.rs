//! Attention in both directions, over the tokens of one text.

use crate::ModelError;
use taper_tensor::{Tensor, ops, pool};

/// Every token of a text attends to every other.
///
/// # Shapes
/// Queries, keys and values `[t, heads * d]`, where `lengths` are the texts' tokens and their sum is `t` -> as each.
pub(super) fn attend(
    [q, k, v]: [&Tensor; 3],
    lengths: &[usize],
    heads: usize,
) -> Result<Tensor, ModelError> {
    let (dims, width) = (q.dims(), q.dims()[1]);
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
        let d = width / heads;
        for (head, out) in out.chunks_exact_mut(d).enumerate() {
            let at = |row: usize| row * width + head * d..row * width + (head + 1) * d;
            let scores = text.clone().map(|other| dot(&q[at(*row)], &k[at(other)]));
            let weights = softmax(scores.map(|s| s * (d as f32).powf(-0.5)).collect());
            for (other, weight) in text.clone().zip(weights) {
                out.iter_mut().zip(&v[at(other)]).for_each(|(o, v)| *o += weight * v);
            }
        }
    });
    Ok(Tensor::from_vec(out, dims)?)
}

/// A token, and the rows of its text.
struct Row {
    row: usize,
    text: std::ops::Range<usize>,
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
        let y = attend([&q, &k, &v], &[2, 1], 1).unwrap();
        let y = ops::with_host_f32(&y, <[f32]>::to_vec).unwrap();
        assert_eq!(y, [2.0, 20.0, 2.0, 20.0, 7.0, 70.0]);
    }
}
