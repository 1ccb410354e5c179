//! Activations and gates, element by element.

use super::{Activation, both_on_gpu, same_shape};
use crate::{
    Result, Tensor, TensorError, cpu,
    gpu::{self, Curve, Gate},
    host, pool,
    tensor::GpuTensor,
};

/// A curve of a tensor on a GPU, times `y` if there is one.
fn curve(curve: Curve, x: &GpuTensor, y: Option<&GpuTensor>) -> Result<Tensor> {
    let out = GpuTensor::new(x.gpu(), &x.dims)?;
    gpu::activation(curve, x, y, &out)?;
    Ok(out.into())
}

/// `min(silu(gate), limit) * clamp(up, -limit, limit)`, element by element (Step 3.5).
///
/// # Errors
/// The shapes differ, or another type.
pub fn clamped_swiglu(gate: &Tensor, up: &Tensor, limit: f32) -> Result<Tensor> {
    same_shape("clamped_swiglu", gate, up)?;
    if let Some((gate, up)) = both_on_gpu("clamped_swiglu", gate, up)? {
        return curve(Curve::ClampedSwiglu(limit), gate, Some(up));
    }
    let ups = host::read(up, <[f32]>::to_vec)?;
    let mut out = host::read(gate, <[f32]>::to_vec)?;
    for (gate, up) in out.iter_mut().zip(ups) {
        *gate = (*gate / (1.0 + (-*gate).exp())).min(limit) * up.max(-limit).min(limit);
    }
    Tensor::from_vec(out, gate.dims())
}

/// `activation(x)`, element by element.
///
/// # Errors
/// Another type.
pub fn activate(activation: Activation, x: &Tensor) -> Result<Tensor> {
    if let Some(x) = x.on_gpu() {
        return curve(Curve::Of(activation), x, None);
    }
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

/// `alpha_p x² + beta x` where `x` is positive, `alpha_n (exp(min(x, eps)) - 1 - x) + beta x` elsewhere.
///
/// # Errors
/// Another type.
pub fn xielu(numbers: Xielu, x: &Tensor) -> Result<Tensor> {
    if let Some(x) = x.on_gpu() {
        return curve(Curve::Xielu(numbers), x, None);
    }
    let Xielu { alpha_p, alpha_n, beta, eps } = numbers;
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

/// `x * sigmoid(gate)`: element by element, or with a gate for each of a row's equal parts.
///
/// # Shapes
/// `x [t, n]`, `gate [t, m]` -> `[t, n]`, where `m` divides `n`.
///
/// # Errors
/// The shapes do not fit, or another type.
pub fn mul_sigmoid(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    multiply_gates("mul_sigmoid", Gate::Sigmoid, x, gate, |x, gate| x / (1.0 + (-gate).exp()))
}

/// `x * ln(1 + e^gate)`: element by element, or with a gate for each of a row's equal parts.
///
/// # Shapes
/// `x [t, n]`, `gate [t, m]` -> `[t, n]`, where `m` divides `n`.
///
/// # Errors
/// The shapes do not fit, or another type.
pub fn mul_softplus(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    // Without overflow of e^gate, which is all there is of large ones.
    let softplus = |gate: f32| gate.max(0.0) + (-gate.abs()).exp().ln_1p();
    multiply_gates("mul_softplus", Gate::Softplus, x, gate, |x, gate| x * softplus(gate))
}

/// Each row times its factor.
///
/// # Shapes
/// `x [t, n]` and `t` factors -> as `x`.
///
/// # Errors
/// Another number of factors, or another shape or type.
pub fn scale_rows(x: &Tensor, factors: &[f32]) -> Result<Tensor> {
    let factors = Tensor::from_vec(factors.to_vec(), &[factors.len(), 1])?;
    let factors = match x.gpu() {
        Some(gpu) => factors.to_gpu(gpu)?,
        None => factors,
    };
    multiply_gates("scale_rows", Gate::Factor, x, &factors, |x, factor| x * factor)
}

/// Each column times its factor.
///
/// # Shapes
/// `x [t, n]`, `factors [1, n]` -> as `x`.
///
/// # Errors
/// Another number of factors, or another shape or type.
pub fn scale_columns(x: &Tensor, factors: &Tensor) -> Result<Tensor> {
    let op = "scale_columns";
    let (_, n) = host::dims2(op, x)?;
    if *factors.dims() != [1, n] {
        return Err(TensorError::shape(op, format!("[1, {n}]"), factors.dims()));
    }
    if let Some((x, factors)) = both_on_gpu(op, x, factors)? {
        return Ok(gpu::gate_parts(Gate::Factor, x, factors, 1)?.into());
    }
    let mut out = host::read(x, <[f32]>::to_vec)?;
    host::read(factors, |factors| {
        for row in out.chunks_exact_mut(n.max(1)) {
            row.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
        }
    })?;
    Tensor::from_vec(out, x.dims())
}

/// What `f` makes of each element and of its gate.
fn multiply_gates(
    op: &'static str,
    kind: Gate,
    x: &Tensor,
    gate: &Tensor,
    f: impl Fn(f32, f32) -> f32,
) -> Result<Tensor> {
    let ((t, n), (rows, m)) = (host::dims2(op, x)?, host::dims2(op, gate)?);
    if rows != t || m == 0 || !n.is_multiple_of(m) {
        return Err(TensorError::shape(op, format!("[{t}, a divisor of {n}]"), gate.dims()));
    }
    let each = (n / m).max(1);
    if let Some((x, gate)) = both_on_gpu(op, x, gate)? {
        return Ok(gpu::gate_parts(kind, x, gate, each)?.into());
    }
    let gates = host::read(gate, <[f32]>::to_vec)?;
    let mut out = host::read(x, <[f32]>::to_vec)?;
    for (part, gate) in out.chunks_exact_mut(each).zip(gates) {
        part.iter_mut().for_each(|x| *x = f(*x, gate));
    }
    Tensor::from_vec(out, x.dims())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(x: &[f32], dims: &[usize]) -> Tensor {
        Tensor::from_vec(x.to_vec(), dims).unwrap()
    }

    #[test]
    fn gates_multiply_elements_and_parts() {
        let x = tensor(&[2.0, 3.0, 6.0, 7.0], &[1, 4]);
        let got = mul_sigmoid(&x, &tensor(&[0.0; 4], &[1, 4])).unwrap();
        assert_eq!(got.to_vec().unwrap(), [1.0, 1.5, 3.0, 3.5]);
        assert!(mul_sigmoid(&x, &tensor(&[0.0; 3], &[1, 3])).is_err());
        let half = 3.0 * 2f32.ln();
        let got = mul_softplus(&x, &tensor(&[200.0, 0.0], &[1, 2])).unwrap();
        assert_eq!(got.to_vec().unwrap(), [400.0, 600.0, 2.0 * half, 7.0 * 2f32.ln()]);
    }

    #[test]
    fn rows_and_columns_are_scaled() {
        let x = tensor(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
        assert_eq!(scale_rows(&x, &[2.0, -1.0]).unwrap().to_vec().unwrap(), [2.0, 4.0, -3.0, -4.0]);
        let columns = scale_columns(&x, &tensor(&[2.0, -1.0], &[1, 2])).unwrap();
        assert_eq!(columns.to_vec().unwrap(), [2.0, -2.0, 6.0, -4.0]);
        assert!(scale_rows(&x, &[1.0]).is_err());
        assert!(scale_columns(&x, &tensor(&[1.0], &[1, 1])).is_err());
    }
}
