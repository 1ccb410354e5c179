//! Rows of a matrix: some of them, others in their places, and sums of them.

use super::both_on_gpu;
use crate::{Result, Tensor, TensorError, cpu, gpu, host, pool};

/// The rows `ids` of `x`, in that order.
///
/// # Shapes
/// `x [t, n]` -> `[ids.len(), n]`.
///
/// # Errors
/// An id is not below `t`, or another shape or type.
pub fn take_rows(x: &Tensor, ids: &[u32]) -> Result<Tensor> {
    let (t, n) = host::dims2("take_rows", x)?;
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= t) {
        return Err(TensorError::Index { op: "take_rows", index: id as usize, limit: t });
    }
    if let Some(x) = x.on_gpu() {
        return Ok(gpu::take_rows(x, ids)?.into());
    }
    let mut out = Vec::with_capacity(ids.len() * n);
    host::read(x, |x| {
        ids.iter().for_each(|&id| out.extend_from_slice(&x[id as usize * n..][..n]));
    })?;
    Tensor::from_vec(out, &[ids.len(), n])
}

/// `x` with other rows in the places `ids`, which differ.
///
/// # Shapes
/// `x [t, n]`, `rows [ids.len(), n]` -> `[t, n]`.
///
/// # Errors
/// An id is not below `t`, or another shape or type.
pub fn put_rows(x: Tensor, ids: &[u32], rows: &Tensor) -> Result<Tensor> {
    let (t, n) = host::dims2("put_rows", &x)?;
    if *rows.dims() != [ids.len(), n] {
        let expected = format!("[{}, {n}]", ids.len());
        return Err(TensorError::shape("put_rows", expected, rows.dims()));
    }
    if let Some(&id) = ids.iter().find(|&&id| id as usize >= t) {
        return Err(TensorError::Index { op: "put_rows", index: id as usize, limit: t });
    }
    if let Some((x, rows)) = both_on_gpu("put_rows", &x, rows)? {
        return Ok(gpu::put_rows(x, ids, rows)?.into());
    }
    let mut out = x.into_vec()?;
    host::read(rows, |rows| {
        for (&id, row) in ids.iter().zip(rows.chunks_exact(n.max(1))) {
            out[id as usize * n..][..n].copy_from_slice(row);
        }
    })?;
    Tensor::from_vec(out, &[t, n])
}

/// Rows that are added to others.
#[derive(Debug)]
pub struct WeightedRows {
    /// Rows to add, `[rows.len(), n]`.
    pub x: Tensor,
    /// Indices of the rows that these are added to.
    pub rows: Vec<u32>,
    /// What they are multiplied with.
    pub weights: Vec<f32>,
}

/// `base` plus the weighted sum of the parts' rows. A row's parts are added in the order of `parts`,
/// and their sum to `base`.
///
/// # Shapes
/// `base [t, n]` -> `[t, n]`.
///
/// # Errors
/// A row is not below `t`, another shape or type, or a tensor on a GPU.
pub fn add_weighted_rows(base: &Tensor, parts: &[WeightedRows]) -> Result<Tensor> {
    let (t, n) = host::dims2("add_weighted_rows", base)?;
    let mut of_row = vec![Vec::new(); t];
    let mut values = Vec::with_capacity(parts.len());
    for (i, part) in parts.iter().enumerate() {
        let m = part.rows.len();
        if *part.x.dims() != [m, n] || part.weights.len() != m {
            let expected = format!("[{m}, {n}] and as many weights");
            return Err(TensorError::shape("add_weighted_rows", expected, part.x.dims()));
        }
        for (j, (&row, &weight)) in part.rows.iter().zip(&part.weights).enumerate() {
            let index = row as usize;
            let missing = TensorError::Index { op: "add_weighted_rows", index, limit: t };
            of_row.get_mut(index).ok_or(missing)?.push((i, j, weight));
        }
        values.push(host::read(&part.x, <[f32]>::to_vec)?);
    }
    let mut out = host::read(base, <[f32]>::to_vec)?;
    let mut rows: Vec<_> = out.chunks_exact_mut(n.max(1)).collect();
    pool::for_each(&mut rows, |row, out| {
        let mut sum = vec![0.0; n];
        for &(part, at, weight) in &of_row[row] {
            cpu::add_scaled(&mut sum, weight, &values[part][at * n..][..n]);
        }
        cpu::add_scaled(out, 1.0, &sum);
    });
    Tensor::from_vec(out, &[t, n])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{scale, with_host_f32};

    #[test]
    fn weighted_rows_are_added_where_they_belong() {
        let base = Tensor::from_vec(vec![1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
        let x = |data: &[f32]| Tensor::from_vec(data.to_vec(), &[data.len() / 2, 2]).unwrap();
        let part = |data, rows, weights| WeightedRows { x: x(data), rows, weights };
        let parts = [
            part(&[10.0, 20.0, 30.0, 40.0], vec![1, 0], vec![0.5, 2.0]),
            part(&[1.0, 1.0], vec![1], vec![-1.0]),
        ];
        let out = add_weighted_rows(&base, &parts).unwrap();
        assert_eq!(with_host_f32(&out, <[f32]>::to_vec).unwrap(), [61.0, 82.0, 7.0, 13.0]);
        let outside = [part(&[0.0, 0.0], vec![2], vec![1.0])];
        assert!(matches!(
            add_weighted_rows(&base, &outside),
            Err(TensorError::Index { index: 2, limit: 2, .. })
        ));
        let short = [part(&[0.0, 0.0], vec![0], vec![])];
        assert!(matches!(add_weighted_rows(&base, &short), Err(TensorError::Shape { .. })));
    }

    #[test]
    fn rows_and_views() {
        let x = Tensor::from_vec((0..6).map(|v| v as f32).collect(), &[2, 3]).unwrap();
        let r = take_rows(&x, &[1, 0, 1]).unwrap().to_vec2().unwrap();
        assert_eq!(r, [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]);
        assert!(matches!(take_rows(&x, &[2]), Err(TensorError::Index { index: 2, .. })));
        let second = scale(&x.entries(1..2).unwrap(), 2.0).unwrap().to_vec2().unwrap();
        assert_eq!(second, [[6.0, 8.0, 10.0]]);
        assert!(x.entries(1..3).is_err());
    }

    #[test]
    fn rows_are_put_in_their_places() {
        let x = Tensor::from_vec((0..6).map(|v| v as f32).collect(), &[3, 2]).unwrap();
        let rows = Tensor::from_vec(vec![7.0, 8.0, 9.0, 10.0], &[2, 2]).unwrap();
        let put = put_rows(x.clone(), &[2, 0], &rows).unwrap();
        assert_eq!(put.to_vec2().unwrap(), [[9.0, 10.0], [2.0, 3.0], [7.0, 8.0]]);
        assert_eq!(x.to_vec2().unwrap()[0], [0.0, 1.0], "others keep theirs");
        let beyond = put_rows(x.clone(), &[3, 0], &rows);
        assert!(matches!(beyond, Err(TensorError::Index { index: 3, limit: 3, .. })));
        assert!(matches!(put_rows(x, &[0], &rows), Err(TensorError::Shape { .. })));
    }
}
