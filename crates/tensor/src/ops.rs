//! The fused operations of a transformer on [`Tensor`]s.

use crate::{
    Result, Tensor, TensorError, cpu,
    gpu::{self, Elements},
    host, pool,
    tensor::GpuTensor,
};

pub use crate::cpu::Activation;
use std::ops::Range;

/// `activation(gate) * up`, element by element.
///
/// # Errors
/// The shapes differ, or another type.
pub fn gated(activation: Activation, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    same_shape("gated", gate, up)?;
    if let Some((gate, up)) = both_on_gpu("gated", gate, up)? {
        return Ok(Elements::Gated(activation).of(gate, up)?.into());
    }
    let both = |g: &[f32]| host::read(up, |u| cpu::gated(activation, g, u));
    Tensor::from_vec(host::read(gate, both)??, gate.dims())
}

/// `min(silu(gate), limit) * clamp(up, -limit, limit)`, element by element, on the host (Step 3.5).
///
/// # Errors
/// The shapes differ, another type, or a tensor on a GPU.
pub fn clamped_swiglu(gate: &Tensor, up: &Tensor, limit: f32) -> Result<Tensor> {
    same_shape("clamped_swiglu", gate, up)?;
    on_host("clamped_swiglu", &[gate, up])?;
    let ups = host::read(up, <[f32]>::to_vec)?;
    let mut out = host::read(gate, <[f32]>::to_vec)?;
    for (gate, up) in out.iter_mut().zip(ups) {
        *gate = (*gate / (1.0 + (-*gate).exp())).min(limit) * up.max(-limit).min(limit);
    }
    Tensor::from_vec(out, gate.dims())
}

/// `activation(x)`, element by element, on the host.
///
/// # Errors
/// Another type, or a tensor on a GPU.
pub fn activate(activation: Activation, x: &Tensor) -> Result<Tensor> {
    on_host("activate", &[x])?;
    Tensor::from_vec(host::read(x, |x| cpu::activate(activation, x))?, x.dims())
}

/// Numbers of xIELU (arXiv 2411.13010).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xielu {
    /// Factor of the square of what is positive.
    pub alpha_p: f32,
    /// Factor of the exponential of what is negative.
    pub alpha_n: f32,
    /// Slope of the line through both.
    pub beta: f32,
    /// Exponents are no larger; it is a little below 0.
    pub eps: f32,
}

/// `alpha_p x² + beta x` where `x` is positive, `alpha_n (exp(min(x, eps)) - 1 - x) + beta x` elsewhere, on the host.
///
/// # Errors
/// Another type, or a tensor on a GPU.
pub fn xielu(curve: Xielu, x: &Tensor) -> Result<Tensor> {
    on_host("xielu", &[x])?;
    let Xielu { alpha_p, alpha_n, beta, eps } = curve;
    let mut out = host::read(x, <[f32]>::to_vec)?;
    let mut rows: Vec<_> = out.chunks_mut(XIELU_CHUNK).collect();
    pool::for_each(&mut rows, |_, row| {
        for x in row.iter_mut() {
            let curved = match *x > 0.0 {
                true => alpha_p * *x * *x,
                false => alpha_n * (x.min(eps).exp_m1() - *x),
            };
            *x = curved + beta * *x;
        }
    });
    Tensor::from_vec(out, x.dims())
}

/// Elements a task.
const XIELU_CHUNK: usize = 1024;

/// `x + y`, element by element.
///
/// # Errors
/// The shapes differ, or another type.
pub fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    same_shape("add", x, y)?;
    if let Some((x, y)) = both_on_gpu("add", x, y)? {
        return Ok(Elements::Add.of(x, y)?.into());
    }
    let both = |x: &[f32]| host::read(y, |y| cpu::add(x, y));
    Tensor::from_vec(host::read(x, both)??, x.dims())
}

/// `x * sigmoid(gate)`, on the host: element by element, or with a gate for each of a row's equal parts.
///
/// # Shapes
/// `x [t, n]`, `gate [t, m]` -> `[t, n]`, where `m` divides `n`.
///
/// # Errors
/// The shapes do not fit, another type, or a tensor on a GPU.
pub fn mul_sigmoid(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    multiply_gates("mul_sigmoid", x, gate, |x, gate| x / (1.0 + (-gate).exp()))
}

/// `x * ln(1 + e^gate)`, on the host: element by element, or with a gate for each of a row's equal parts.
///
/// # Shapes
/// `x [t, n]`, `gate [t, m]` -> `[t, n]`, where `m` divides `n`.
///
/// # Errors
/// The shapes do not fit, another type, or a tensor on a GPU.
pub fn mul_softplus(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    // Without overflow of e^gate, which is all there is of large ones.
    let softplus = |gate: f32| gate.max(0.0) + (-gate.abs()).exp().ln_1p();
    multiply_gates("mul_softplus", x, gate, |x, gate| x * softplus(gate))
}

/// What `f` makes of each element and of its gate.
fn multiply_gates(
    op: &'static str,
    x: &Tensor,
    gate: &Tensor,
    f: impl Fn(f32, f32) -> f32,
) -> Result<Tensor> {
    let [(t, n), (rows, m)] = both_dims(op, x, gate)?;
    on_host(op, &[x, gate])?;
    if rows != t || m == 0 || !n.is_multiple_of(m) {
        return Err(TensorError::shape(op, format!("[{t}, a divisor of {n}]"), gate.dims()));
    }
    let gates = host::read(gate, <[f32]>::to_vec)?;
    let mut out = host::read(x, <[f32]>::to_vec)?;
    for (part, gate) in out.chunks_exact_mut((n / m).max(1)).zip(gates) {
        part.iter_mut().for_each(|x| *x = f(*x, gate));
    }
    Tensor::from_vec(out, x.dims())
}

/// Each row times its factor, on the host.
///
/// # Shapes
/// `x [t, n]` and `t` factors -> as `x`.
///
/// # Errors
/// Another number of factors, another shape or type, or a tensor on a GPU.
pub fn scale_rows(x: &Tensor, factors: &[f32]) -> Result<Tensor> {
    let (t, n) = host::dims2("scale_rows", x)?;
    on_host("scale_rows", &[x])?;
    if factors.len() != t {
        return Err(TensorError::shape("scale_rows", format!("{t} factors"), &[factors.len()]));
    }
    let mut out = host::read(x, <[f32]>::to_vec)?;
    for (row, factor) in out.chunks_exact_mut(n.max(1)).zip(factors) {
        row.iter_mut().for_each(|x| *x *= factor);
    }
    Tensor::from_vec(out, x.dims())
}

fn both_dims(op: &'static str, x: &Tensor, y: &Tensor) -> Result<[(usize, usize); 2]> {
    Ok([host::dims2(op, x)?, host::dims2(op, y)?])
}

/// Rows of heads of another size, on the host: the first elements of each, or all and zeros after them.
///
/// # Shapes
/// `x [t, heads * from]` -> `[t, heads * to]`.
///
/// # Errors
/// Another shape or type, or a tensor on a GPU.
pub fn resize_heads(x: &Tensor, from: usize, to: usize) -> Result<Tensor> {
    let (t, n) = host::dims2("resize_heads", x)?;
    on_host("resize_heads", &[x])?;
    if from == 0 || to == 0 || !n.is_multiple_of(from) {
        return Err(TensorError::shape("resize_heads", format!("[{t}, heads * {from}]"), x.dims()));
    }
    let kept = from.min(to);
    let resized = |x: &[f32]| {
        let mut out = vec![0.0; x.len() / from * to];
        for (to, from) in out.chunks_exact_mut(to).zip(x.chunks_exact(from)) {
            to[..kept].copy_from_slice(&from[..kept]);
        }
        out
    };
    Tensor::from_vec(host::read(x, resized)?, &[t, n / from * to])
}

/// Two halves of every head's row, each with its heads side by side, on the host.
///
/// # Shapes
/// `x [t, heads * 2 * head_dim]` -> twice `[t, heads * head_dim]`.
///
/// # Errors
/// Another shape or type, or a tensor on a GPU.
pub fn split_heads(x: &Tensor, head_dim: usize) -> Result<[Tensor; 2]> {
    let (t, n) = host::dims2("split_heads", x)?;
    on_host("split_heads", &[x])?;
    if head_dim == 0 || !n.is_multiple_of(2 * head_dim) {
        let expected = format!("[t, heads * 2 * {head_dim}]");
        return Err(TensorError::shape("split_heads", expected, x.dims()));
    }
    let half = |first| {
        host::read(x, |x| {
            let heads = x.chunks_exact(head_dim).skip(first).step_by(2);
            heads.flatten().copied().collect::<Vec<f32>>()
        })
    };
    Ok([Tensor::from_vec(half(0)?, &[t, n / 2])?, Tensor::from_vec(half(1)?, &[t, n / 2])?])
}

/// `x * s`.
///
/// # Errors
/// Another type.
pub fn scale(x: &Tensor, s: f32) -> Result<Tensor> {
    if let Some(x) = x.on_gpu() {
        return Ok(Elements::Scale(s).of(x, x)?.into());
    }
    let out = host::read(x, |x| x.iter().map(|v| v * s).collect())?;
    Tensor::from_vec(out, x.dims())
}

/// `cap * tanh(x / cap)` (Gemma 2's logit cap).
///
/// # Errors
/// Another type.
pub fn soft_cap(x: &Tensor, cap: f32) -> Result<Tensor> {
    if let Some(x) = x.on_gpu() {
        return Ok(Elements::SoftCap(cap).of(x, x)?.into());
    }
    let mut out = host::read(x, <[f32]>::to_vec)?;
    cpu::soft_cap(&mut out, cap);
    Tensor::from_vec(out, x.dims())
}

/// Some columns of a matrix, on the host.
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
    let rows = |x: &[f32]| {
        let rows = x.chunks_exact(n.max(1));
        rows.flat_map(|row| &row[columns.clone()]).copied().collect::<Vec<_>>()
    };
    Tensor::from_vec(host::read(x, rows)?, &[t, columns.len()])
}

/// Matrices side by side, on the host.
///
/// # Shapes
/// `[t, n_i]` each -> `[t, Σ n_i]`.
///
/// # Errors
/// They differ in their rows, or another shape or type.
pub fn join_columns(parts: &[&Tensor]) -> Result<Tensor> {
    let op = "join_columns";
    let dims = parts.iter().map(|x| host::dims2(op, x)).collect::<Result<Vec<_>>>()?;
    let t = dims.first().map_or(0, |&(t, _)| t);
    if let Some((x, _)) = parts.iter().zip(&dims).find(|(_, dims)| dims.0 != t) {
        return Err(TensorError::shape(op, format!("[{t}, n]"), x.dims()));
    }
    let width: usize = dims.iter().map(|&(_, n)| n).sum();
    let mut out = vec![0.0; t * width];
    let mut first = 0;
    for (x, &(_, n)) in parts.iter().zip(&dims) {
        host::read(x, |x| {
            let rows = out.chunks_exact_mut(width.max(1)).zip(x.chunks_exact(n.max(1)));
            rows.for_each(|(row, x)| row[first..first + n].copy_from_slice(x));
        })?;
        first += n;
    }
    Tensor::from_vec(out, &[t, width])
}

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

/// Reads a tensor's elements as f32 on the host, for kernels of other crates. From a GPU they are
/// copied, once it has computed them.
///
/// # Errors
/// Another type or device.
pub fn with_host_f32<R>(x: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    host::read(x, f)
}

/// Two operands on one GPU; `None` when both are on the host.
fn both_on_gpu<'a>(
    op: &'static str,
    x: &'a Tensor,
    y: &'a Tensor,
) -> Result<Option<(&'a GpuTensor, &'a GpuTensor)>> {
    match (x.on_gpu(), y.on_gpu()) {
        (None, None) => Ok(None),
        (Some(x), Some(y)) => Ok(Some((x, y))),
        _ => Err(TensorError::Device { op, device: "another than the other operand's".into() }),
    }
}

/// Checks that no operand is on a GPU.
fn on_host(op: &'static str, operands: &[&Tensor]) -> Result<()> {
    match operands.iter().any(|x| x.on_gpu().is_some()) {
        true => Err(TensorError::Device { op, device: "a GPU".into() }),
        false => Ok(()),
    }
}

fn same_shape(op: &'static str, x: &Tensor, y: &Tensor) -> Result<()> {
    if x.dims() == y.dims() {
        return Ok(());
    }
    Err(TensorError::shape(op, format!("{:?}", x.dims()), y.dims()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_checked() {
        let x = Tensor::from_vec(vec![1.0; 6], &[2, 3]).unwrap();
        let y = Tensor::from_vec(vec![1.0; 6], &[3, 2]).unwrap();
        assert!(add(&x, &y).is_err());
        assert!(gated(Activation::Silu, &x, &y).is_err());
        assert!(crate::RmsNorm::new(vec![1.0; 2], 0.0).forward(&x).is_err());
        assert!(matches!(take_rows(&x, &[2]), Err(TensorError::Index { index: 2, .. })));
    }

    #[test]
    fn heads_split_and_gates_multiply() {
        let x = Tensor::from_vec((0..8).map(|v| v as f32).collect(), &[1, 8]).unwrap();
        let [left, right] = split_heads(&x, 2).unwrap();
        let read = |x: &Tensor| with_host_f32(x, <[f32]>::to_vec).unwrap();
        assert_eq!(read(&left), [0.0, 1.0, 4.0, 5.0]);
        assert_eq!(read(&right), [2.0, 3.0, 6.0, 7.0]);
        assert!(split_heads(&x, 3).is_err());
        let wide = resize_heads(&right, 2, 3).unwrap();
        assert_eq!(read(&wide), [2.0, 3.0, 0.0, 6.0, 7.0, 0.0]);
        assert_eq!(read(&resize_heads(&wide, 3, 1).unwrap()), [2.0, 6.0]);
        assert!(resize_heads(&x, 3, 1).is_err());
        let zero = Tensor::from_vec(vec![0.0; 4], &[1, 4]).unwrap();
        assert_eq!(read(&mul_sigmoid(&right, &zero).unwrap()), [1.0, 1.5, 3.0, 3.5]);
        let three = Tensor::from_vec(vec![0.0; 3], &[1, 3]).unwrap();
        assert!(mul_sigmoid(&x, &three).is_err());
        let gates = Tensor::from_vec(vec![200.0, 0.0], &[1, 2]).unwrap();
        let half = 3.0 * 2f32.ln();
        assert_eq!(
            read(&mul_softplus(&right, &gates).unwrap()),
            [400.0, 600.0, 2.0 * half, 7.0 * 2f32.ln()]
        );
    }

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
    fn columns_part_and_join() {
        let x = Tensor::from_vec((0..6).map(|v| v as f32).collect(), &[2, 3]).unwrap();
        let (left, right) = (columns(&x, 0..1).unwrap(), columns(&x, 1..3).unwrap());
        assert_eq!(right.to_vec2().unwrap(), [[1.0, 2.0], [4.0, 5.0]]);
        let swapped = join_columns(&[&right, &left]).unwrap();
        assert_eq!(swapped.to_vec2().unwrap(), [[1.0, 2.0, 0.0], [4.0, 5.0, 3.0]]);
        assert!(matches!(columns(&x, 2..4), Err(TensorError::Index { index: 4, limit: 3, .. })));
        let other = Tensor::from_vec(vec![0.0; 3], &[1, 3]).unwrap();
        assert!(matches!(join_columns(&[&x, &other]), Err(TensorError::Shape { .. })));
    }

    #[test]
    fn rows_and_views() {
        let x = Tensor::from_vec((0..6).map(|v| v as f32).collect(), &[2, 3]).unwrap();
        let r = take_rows(&x, &[1, 0, 1]).unwrap().to_vec2().unwrap();
        assert_eq!(r, [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]);
        let second = scale(&x.entries(1..2).unwrap(), 2.0).unwrap().to_vec2().unwrap();
        assert_eq!(second, [[6.0, 8.0, 10.0]]);
        assert!(x.entries(1..3).is_err());
    }
}
