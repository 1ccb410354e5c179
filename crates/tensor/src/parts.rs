//! Rows taken apart, put together and mixed: heads, columns, and streams side by side.

use crate::{
    Result, Tensor, TensorError,
    gpu::{self, Taking},
    host,
    ops::both_on_gpu,
};
use std::ops::Range;

/// What is taken of every part of a tensor that is whole parts, in this shape.
fn take(x: &Tensor, taking: Taking, dims: &[usize]) -> Result<Tensor> {
    if let Some(x) = x.on_gpu() {
        return Ok(gpu::take_parts(x, taking, dims)?.into());
    }
    let Taking { from, first, to } = taking;
    let kept = to.min(from.saturating_sub(first));
    let taken = |x: &[f32]| {
        let mut out = vec![0.0; dims.iter().product()];
        for (to, from) in out.chunks_exact_mut(to.max(1)).zip(x.chunks_exact(from.max(1))) {
            to[..kept].copy_from_slice(&from[first..first + kept]);
        }
        out
    };
    Tensor::from_vec(host::read(x, taken)?, dims)
}

/// Rows of heads of another size: the first elements of each, or all and zeros after them.
///
/// # Shapes
/// `x [t, heads * from]` -> `[t, heads * to]`.
///
/// # Errors
/// Another shape or type.
pub fn resize_heads(x: &Tensor, from: usize, to: usize) -> Result<Tensor> {
    let (t, n) = host::dims2("resize_heads", x)?;
    if from == 0 || to == 0 || !n.is_multiple_of(from) {
        return Err(TensorError::shape("resize_heads", format!("[{t}, heads * {from}]"), x.dims()));
    }
    take(x, Taking { from, first: 0, to }, &[t, n / from * to])
}

/// Two halves of every head's row, each with its heads side by side.
///
/// # Shapes
/// `x [t, heads * 2 * head_dim]` -> twice `[t, heads * head_dim]`.
///
/// # Errors
/// Another shape or type.
pub fn split_heads(x: &Tensor, head_dim: usize) -> Result<[Tensor; 2]> {
    split_heads_at(x, 2 * head_dim, head_dim)
}

/// Every head's row in two: its first `n` elements and the others, each with its heads side by side.
///
/// # Shapes
/// `x [t, heads * head_dim]` -> `[t, heads * n]` and `[t, heads * (head_dim - n)]`.
///
/// # Errors
/// Another shape or type.
pub fn split_heads_at(x: &Tensor, head_dim: usize, n: usize) -> Result<[Tensor; 2]> {
    let (t, width) = host::dims2("split_heads_at", x)?;
    if n > head_dim || head_dim == 0 || !width.is_multiple_of(head_dim) {
        let expected = format!("[t, heads * {head_dim}], with {n} of each first");
        return Err(TensorError::shape("split_heads_at", expected, x.dims()));
    }
    let part =
        |first, to| take(x, Taking { from: head_dim, first, to }, &[t, width / head_dim * to]);
    Ok([part(0, n)?, part(n, head_dim - n)?])
}

/// Rows of heads, each with what it has in `x` before what it has in `y`.
///
/// # Shapes
/// `x [t, heads * n]`, `y [t, heads * m]` -> `[t, heads * (n + m)]`.
///
/// # Errors
/// Another shape or type.
pub fn join_heads(x: &Tensor, y: &Tensor, heads: usize) -> Result<Tensor> {
    let ((t, n), (rows, m)) = (host::dims2("join_heads", x)?, host::dims2("join_heads", y)?);
    if heads == 0 || rows != t || !n.is_multiple_of(heads) || !m.is_multiple_of(heads) {
        let expected = format!("[{t}, {heads} heads]");
        return Err(TensorError::shape("join_heads", expected, y.dims()));
    }
    let (left, right) = (n / heads, m / heads);
    if let Some((x, y)) = both_on_gpu("join_heads", x, y)? {
        return Ok(gpu::join_parts((x, left), (y, right), &[t, n + m])?.into());
    }
    let join = |x: &[f32], y: &[f32]| {
        let mut out = Vec::with_capacity(x.len() + y.len());
        for head in 0..t * heads {
            out.extend_from_slice(&x[head * left..][..left]);
            out.extend_from_slice(&y[head * right..][..right]);
        }
        out
    };
    let joined = host::read(x, |x| host::read(y, |y| join(x, y)))??;
    Tensor::from_vec(joined, &[t, n + m])
}

/// Some columns of a matrix.
///
/// # Shapes
/// `x [t, n]` -> `[t, columns.len()]`.
///
/// # Errors
/// The columns are not all there, or another shape or type.
pub fn columns(x: &Tensor, columns: Range<usize>) -> Result<Tensor> {
    let (t, n) = host::dims2("columns", x)?;
    if columns.start > columns.end || columns.end > n {
        return Err(TensorError::Index { op: "columns", index: columns.end, limit: n });
    }
    take(x, Taking { from: n, first: columns.start, to: columns.len() }, &[t, columns.len()])
}

/// Matrices side by side.
///
/// # Shapes
/// `[t, n_i]` each -> `[t, Σ n_i]`.
///
/// # Errors
/// They differ in their rows, there is none, or another shape or type.
pub fn join_columns(parts: &[&Tensor]) -> Result<Tensor> {
    let [first, others @ ..] = parts else {
        return Err(TensorError::shape("join_columns", "a matrix", &[0]));
    };
    others.iter().try_fold((*first).clone(), |all, part| join_heads(&all, part, 1))
}

/// Streams of `x`, each with the streams of `y` added: `x_o + Σ_i (coefs_oi + plus) y_i`.
///
/// # Shapes
/// `x [t, outs * width]`, `y [t, ins * width]`, `coefs [t, outs * ins]`, or `[1, outs * ins]` for all rows -> as `x`.
///
/// # Errors
/// The shapes do not fit, or another type.
pub fn mix_streams(
    x: &Tensor,
    y: &Tensor,
    coefs: &Tensor,
    plus: f32,
    width: usize,
) -> Result<Tensor> {
    let op = "mix_streams";
    let ((t, n), (rows, m), (of, k)) =
        (host::dims2(op, x)?, host::dims2(op, y)?, host::dims2(op, coefs)?);
    let (outs, ins) = (n / width.max(1), m / width.max(1));
    let whole = width > 0 && outs * width == n && ins * width == m;
    if !whole || rows != t || (of != t && of != 1) || k != outs * ins {
        let expected =
            format!("[{t}, streams of {width}] twice, and coefficients [{t}, {outs} * {ins}]");
        return Err(TensorError::shape(op, expected, coefs.dims()));
    }
    if let (Some((x, y)), Some(coefs)) = (both_on_gpu(op, x, y)?, coefs.on_gpu()) {
        return Ok(gpu::mix_streams(x, y, (coefs, plus), [outs, ins, width])?.into());
    }
    both_on_gpu(op, x, coefs)?;
    let mut out = host::read(x, <[f32]>::to_vec)?;
    let mut mix = |y: &[f32], coefs: &[f32]| {
        for (at, out) in out.chunks_exact_mut(width).enumerate() {
            let coefs = &coefs[at % (coefs.len() / ins.max(1)).max(1) * ins..][..ins];
            for (i, coef) in coefs.iter().enumerate() {
                let y = &y[(at / outs * ins + i) * width..][..width];
                out.iter_mut().zip(y).for_each(|(out, y)| *out += (coef + plus) * y);
            }
        }
    };
    host::read(y, |y| host::read(coefs, |coefs| mix(y, coefs)))??;
    Tensor::from_vec(out, x.dims())
}

/// What elements of each row are beyond so many standard deviations above the row's mean, and 0 where they are not
/// (Gemma 3n).
///
/// # Shapes
/// `x [t, n]` -> as `x`.
///
/// # Errors
/// Another shape or type.
pub fn sparse_gates(x: &Tensor, deviations: f32) -> Result<Tensor> {
    let (_, n) = host::dims2("sparse_gates", x)?;
    if let Some(x) = x.on_gpu() {
        return Ok(gpu::sparse_gates(x, deviations)?.into());
    }
    let mut gates = host::read(x, <[f32]>::to_vec)?;
    for row in gates.chunks_exact_mut(n.max(1)) {
        let n = row.len() as f32;
        let mean = row.iter().sum::<f32>() / n;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n;
        let least = mean + variance.sqrt() * deviations;
        row.iter_mut().for_each(|x| *x = (*x - least).max(0.0));
    }
    Tensor::from_vec(gates, x.dims())
}

/// Rows of `x` with the root of the mean square of those of `like`; their own mean square counts as `least` at least.
///
/// # Shapes
/// `x [t, n]`, `like [t, n]` -> as `x`.
///
/// # Errors
/// The shapes differ, or another shape or type.
pub fn match_rows(x: &Tensor, like: &Tensor, least: f32) -> Result<Tensor> {
    let (_, n) = host::dims2("match_rows", x)?;
    if x.dims() != like.dims() {
        return Err(TensorError::shape("match_rows", format!("{:?}", x.dims()), like.dims()));
    }
    if let Some((x, like)) = both_on_gpu("match_rows", x, like)? {
        return Ok(gpu::match_rows(x, like, least)?.into());
    }
    let mean = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
    let mut out = host::read(x, <[f32]>::to_vec)?;
    host::read(like, |like| {
        for (row, like) in out.chunks_exact_mut(n.max(1)).zip(like.chunks_exact(n.max(1))) {
            let (target, own) = (mean(like).sqrt(), mean(row).max(least).sqrt());
            row.iter_mut().for_each(|x| *x = *x * target / own);
        }
    })?;
    Tensor::from_vec(out, x.dims())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(x: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_vec(x.to_vec(), dims).unwrap()
    }

    fn counted(dims: &[usize]) -> Tensor {
        let n: usize = dims.iter().product();
        tensor(&(0..n).map(|x| x as f32).collect::<Vec<_>>(), dims)
    }

    #[test]
    fn heads_are_taken_apart_and_put_together() {
        let x = counted(&[2, 6]);
        let [first, others] = split_heads_at(&x, 3, 1).unwrap();
        assert_eq!(first.to_vec().unwrap(), [0.0, 3.0, 6.0, 9.0]);
        assert_eq!(others.to_vec().unwrap(), [1.0, 2.0, 4.0, 5.0, 7.0, 8.0, 10.0, 11.0]);
        let back = join_heads(&first, &others, 2).unwrap();
        assert_eq!((back.dims(), back.to_vec().unwrap()), (x.dims(), x.to_vec().unwrap()));
        let [none, all] = split_heads_at(&x, 6, 0).unwrap();
        assert_eq!((none.dims(), all.dims()), (&[2, 0][..], &[2, 6][..]));
        assert!(split_heads_at(&x, 4, 1).is_err() && split_heads_at(&x, 3, 4).is_err());
        assert!(join_heads(&x, &first, 4).is_err() && join_heads(&x, &first, 0).is_err());
    }

    #[test]
    fn heads_split_in_halves_and_change_their_size() {
        let x = counted(&[1, 8]);
        let [left, right] = split_heads(&x, 2).unwrap();
        assert_eq!(left.to_vec().unwrap(), [0.0, 1.0, 4.0, 5.0]);
        assert_eq!(right.to_vec().unwrap(), [2.0, 3.0, 6.0, 7.0]);
        assert!(split_heads(&x, 3).is_err());
        let wide = resize_heads(&right, 2, 3).unwrap();
        assert_eq!(wide.to_vec().unwrap(), [2.0, 3.0, 0.0, 6.0, 7.0, 0.0]);
        assert_eq!(resize_heads(&wide, 3, 1).unwrap().to_vec().unwrap(), [2.0, 6.0]);
        assert!(resize_heads(&x, 3, 1).is_err());
    }

    #[test]
    fn columns_part_and_join() {
        let x = counted(&[2, 3]);
        let (left, right) = (columns(&x, 0..1).unwrap(), columns(&x, 1..3).unwrap());
        assert_eq!(right.to_vec2().unwrap(), [[1.0, 2.0], [4.0, 5.0]]);
        let swapped = join_columns(&[&right, &left]).unwrap();
        assert_eq!(swapped.to_vec2().unwrap(), [[1.0, 2.0, 0.0], [4.0, 5.0, 3.0]]);
        assert!(matches!(columns(&x, 2..4), Err(TensorError::Index { index: 4, limit: 3, .. })));
        let other = tensor(&[0.0; 3], &[1, 3]);
        assert!(matches!(join_columns(&[&x, &other]), Err(TensorError::Shape { .. })));
        assert!(join_columns(&[]).is_err());
    }

    #[test]
    fn streams_are_mixed_by_their_coefficients() {
        let (x, y) = (tensor(&[1.0; 8], &[2, 4]), counted(&[2, 4]));
        let coefs = tensor(&[0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 1.0, 1.0], &[2, 4]);
        let mixed = mix_streams(&x, &y, &coefs, 0.0, 2).unwrap();
        assert_eq!(mixed.to_vec2().unwrap(), [[3.0, 4.0, 1.0, 3.0], [1.0, 1.0, 11.0, 13.0]]);
        // The same for all rows, of one stream.
        let one = columns(&y, 0..2).unwrap();
        let mixed = mix_streams(&x, &one, &tensor(&[-1.0, 0.0], &[1, 2]), 1.0, 2).unwrap();
        assert_eq!(mixed.to_vec2().unwrap(), [[1.0, 1.0, 1.0, 2.0], [1.0, 1.0, 5.0, 6.0]]);
        assert!(mix_streams(&x, &y, &coefs, 0.0, 3).is_err());
        assert!(mix_streams(&x, &y, &columns(&coefs, 0..3).unwrap(), 0.0, 2).is_err());
    }

    #[test]
    fn gates_below_the_spread_close_and_rows_take_a_size() {
        let x = tensor(&[0.0, 0.0, 0.0, 4.0], &[1, 4]);
        let gates = sparse_gates(&x, 1.0).unwrap().to_vec().unwrap();
        assert_eq!(gates, [0.0, 0.0, 0.0, 4.0 - (1.0 + 3f32.sqrt())]);
        let like = tensor(&[2.0; 4], &[1, 4]);
        assert_eq!(match_rows(&x, &like, 1e-5).unwrap().to_vec().unwrap(), [0.0, 0.0, 0.0, 4.0]);
        let zero = tensor(&[0.0; 4], &[1, 4]);
        assert_eq!(match_rows(&zero, &like, 1e-5).unwrap().to_vec().unwrap(), [0.0; 4]);
        assert!(match_rows(&x, &tensor(&[0.0; 3], &[1, 3]), 1e-5).is_err());
    }
}
