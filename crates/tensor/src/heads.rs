//! Rows of heads: taken apart, put together, and multiplied with a matrix a head.

use crate::{Linear, Phase, Place, Result, Tensor, TensorError, host, pool};

/// A linear map for each head: what takes queries to the latents of multi-head latent attention, and its
/// results back (DeepSeek-AI, arXiv 2405.04434, 2.1).
#[derive(Debug, Clone)]
pub struct HeadMaps(Vec<Linear>);

impl HeadMaps {
    /// One map a head.
    ///
    /// # Errors
    /// There is none, or their shapes differ.
    pub fn new(maps: Vec<Linear>) -> Result<Self> {
        let shape = |map: &Linear| [map.out_features(), map.in_features()];
        let Some(first) = maps.first().map(shape) else {
            return Err(TensorError::shape("head maps", "a map a head", &[0]));
        };
        match maps.iter().map(shape).find(|&shape| shape != first) {
            Some(other) => Err(TensorError::shape("head maps", format!("{first:?}"), &other)),
            None => Ok(Self(maps)),
        }
    }

    /// The maps where and as they will be computed.
    ///
    /// # Errors
    /// As [`Linear::place`].
    pub fn place(self, place: Place<'_>) -> Result<Self> {
        Ok(Self(self.0.into_iter().map(|map| map.place(place)).collect::<Result<_>>()?))
    }

    /// The maps, head by head.
    #[must_use]
    pub fn maps(&self) -> &[Linear] {
        &self.0
    }

    /// Applies each head's map to its part of every row, on the host.
    ///
    /// # Shapes
    /// `x [t, heads * in]` -> `[t, heads * out]`.
    ///
    /// # Errors
    /// Another shape or type, or a tensor on a GPU.
    pub fn forward(&self, x: &Tensor, phase: Phase) -> Result<Tensor> {
        let (t, width) = on_host("head maps", x)?;
        let (heads, inputs) = (self.0.len(), self.0.first().map_or(0, Linear::in_features));
        if width != heads * inputs {
            let expected = format!("[t, {heads} * {inputs}]");
            return Err(TensorError::shape("head maps", expected, x.dims()));
        }
        let outputs = self.0.first().map_or(0, Linear::out_features);
        // Heads side by side: what a map starts within a task runs there.
        let head = |x: &[f32], head: usize| {
            let own = x.chunks_exact(inputs.max(1)).skip(head).step_by(heads);
            let own = Tensor::from_vec(own.flatten().copied().collect(), &[t, inputs])?;
            self.0[head].forward(&own, phase)?.to_vec()
        };
        let parts = host::read(x, |x| pool::map(heads, |i| head(x, i)))?;
        let mut out = vec![0.0; t * heads * outputs];
        for (head, part) in parts.into_iter().enumerate() {
            let (part, rows) = (part?, out.chunks_exact_mut(outputs.max(1)));
            let rows = rows.skip(head).step_by(heads);
            rows.zip(part.chunks_exact(outputs.max(1))).for_each(|(o, y)| o.copy_from_slice(y));
        }
        Tensor::from_vec(out, &[t, heads * outputs])
    }
}

/// Every head's row in two: its first `n` elements and the others, each with its heads side by side, on the
/// host.
///
/// # Shapes
/// `x [t, heads * head_dim]` -> `[t, heads * n]` and `[t, heads * (head_dim - n)]`.
///
/// # Errors
/// Another shape or type, or a tensor on a GPU.
pub fn split_heads_at(x: &Tensor, head_dim: usize, n: usize) -> Result<[Tensor; 2]> {
    let (t, width) = on_host("split_heads_at", x)?;
    if n > head_dim || head_dim == 0 || !width.is_multiple_of(head_dim) {
        let expected = format!("[t, heads * {head_dim}], with {n} of each first");
        return Err(TensorError::shape("split_heads_at", expected, x.dims()));
    }
    let heads = width / head_dim;
    let part = |range: std::ops::Range<usize>| {
        let dims = [t, heads * range.len()];
        let own =
            |x: &[f32]| x.chunks_exact(head_dim).flat_map(|h| &h[range.clone()]).copied().collect();
        Tensor::from_vec(host::read(x, own)?, &dims)
    };
    Ok([part(0..n)?, part(n..head_dim)?])
}

/// The `n` elements of every row from the one at `first` on, on the host.
///
/// # Shapes
/// `x [t, width]` -> `[t, n]`.
///
/// # Errors
/// Another shape or type, fewer elements, or a tensor on a GPU.
pub fn head_columns(x: &Tensor, first: usize, n: usize) -> Result<Tensor> {
    let (t, width) = on_host("head_columns", x)?;
    let Some(end) = first.checked_add(n).filter(|&end| end <= width && width > 0) else {
        let expected = format!("[t, at least {n} from {first}]");
        return Err(TensorError::shape("head_columns", expected, x.dims()));
    };
    let own = |x: &[f32]| x.chunks_exact(width).flat_map(|row| &row[first..end]).copied().collect();
    Tensor::from_vec(host::read(x, own)?, &[t, n])
}

/// Rows of heads, each with what it has in `x` before what it has in `y`, on the host.
///
/// # Shapes
/// `x [t, heads * n]`, `y [t, heads * m]` -> `[t, heads * (n + m)]`.
///
/// # Errors
/// Another shape or type, or a tensor on a GPU.
pub fn join_heads(x: &Tensor, y: &Tensor, heads: usize) -> Result<Tensor> {
    let ((t, n), (rows, m)) = (on_host("join_heads", x)?, on_host("join_heads", y)?);
    if heads == 0 || rows != t || !n.is_multiple_of(heads) || !m.is_multiple_of(heads) {
        let expected = format!("[{t}, {heads} heads]");
        return Err(TensorError::shape("join_heads", expected, y.dims()));
    }
    let join = |x: &[f32], y: &[f32]| {
        let mut out = Vec::with_capacity(x.len() + y.len());
        for head in 0..t * heads {
            out.extend_from_slice(&x[head * (n / heads)..][..n / heads]);
            out.extend_from_slice(&y[head * (m / heads)..][..m / heads]);
        }
        out
    };
    let joined = host::read(x, |x| host::read(y, |y| join(x, y)))??;
    Tensor::from_vec(joined, &[t, n + m])
}

/// The two dimensions of a tensor on the host.
fn on_host(op: &'static str, x: &Tensor) -> Result<(usize, usize)> {
    match x.gpu() {
        Some(gpu) => Err(TensorError::Device { op, device: gpu.name() }),
        None => host::dims2(op, x),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, DType, DenseWeight, Weight};

    fn tensor(x: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_vec(x.to_vec(), dims).unwrap()
    }

    fn linear(rows: usize, x: &[f32]) -> Linear {
        let bytes = Bytes::from_vec(x.iter().flat_map(|x| x.to_le_bytes()).collect());
        let weight = DenseWeight::new((rows, x.len() / rows), DType::F32, bytes).unwrap();
        Linear::new(Weight::Dense(weight))
    }

    #[test]
    fn heads_are_taken_apart_and_put_together() {
        let x: Vec<f32> = (0..12).map(|x| x as f32).collect();
        let x = tensor(&x, &[2, 6]);
        let [first, others] = split_heads_at(&x, 3, 1).unwrap();
        assert_eq!(first.to_vec().unwrap(), [0.0, 3.0, 6.0, 9.0]);
        assert_eq!(others.to_vec().unwrap(), [1.0, 2.0, 4.0, 5.0, 7.0, 8.0, 10.0, 11.0]);
        let back = join_heads(&first, &others, 2).unwrap();
        assert_eq!((back.dims(), back.to_vec().unwrap()), (x.dims(), x.to_vec().unwrap()));
        let [none, all] = split_heads_at(&x, 6, 0).unwrap();
        assert_eq!((none.dims(), all.dims()), (&[2, 0][..], &[2, 6][..]));
        let columns = head_columns(&x, 4, 2).unwrap();
        assert_eq!(
            (columns.dims(), columns.to_vec().unwrap()),
            (&[2, 2][..], vec![4.0, 5.0, 10.0, 11.0])
        );
        assert!(head_columns(&x, 5, 2).is_err() && head_columns(&x, usize::MAX, 2).is_err());
        assert!(split_heads_at(&x, 4, 1).is_err() && split_heads_at(&x, 3, 4).is_err());
        assert!(join_heads(&x, &first, 4).is_err() && join_heads(&x, &first, 0).is_err());
    }

    #[test]
    fn each_head_has_its_map() {
        let maps = vec![linear(1, &[1.0, 2.0]), linear(1, &[10.0, 0.0])];
        let maps = HeadMaps::new(maps).unwrap();
        let x = tensor(&[1.0, 1.0, 2.0, 5.0, 0.0, 3.0, -1.0, 0.0], &[2, 4]);
        let y = maps.forward(&x, Phase::Decode).unwrap();
        assert_eq!((y.dims(), y.to_vec().unwrap()), (&[2, 2][..], vec![3.0, 20.0, 6.0, -10.0]));
        assert!(maps.forward(&tensor(&[0.0; 6], &[1, 6]), Phase::Decode).is_err());
        assert!(HeadMaps::new(vec![]).is_err());
        assert!(HeadMaps::new(vec![linear(1, &[1.0]), linear(1, &[1.0, 2.0])]).is_err());
    }
}
