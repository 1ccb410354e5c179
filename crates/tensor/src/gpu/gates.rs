//! Activations and gates, element by element.

use super::{Operand, count, ops::element_wise, params};
use crate::{
    Result,
    ops::{Activation, Xielu},
    tensor::GpuTensor,
};

params!(
    /// Parameters of `activation`.
    ActivationParams { n: u32, kind: u32, gated: u32, a: f32, b: f32, c: f32, d: f32 }
);
params!(
    /// Parameters of `gate_parts`.
    GateParams { n: u32, each: u32, gates: u32, kind: u32 }
);

/// What is made of an element.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Curve {
    Of(Activation),
    /// SwiGLU whose factors are at most this far from zero.
    ClampedSwiglu(f32),
    Xielu(Xielu),
}

impl Curve {
    /// As the kernel numbers it, and its numbers.
    pub(super) fn params(self) -> (u32, [f32; 4]) {
        let none = [0.0; 4];
        match self {
            Self::Of(Activation::Silu) => (1, none),
            Self::Of(Activation::GeluTanh) => (2, none),
            Self::Of(Activation::Gelu) => (3, none),
            Self::Of(Activation::Relu2) => (4, none),
            Self::Of(Activation::SwigluOai) => (5, none),
            Self::ClampedSwiglu(limit) => (6, [limit, 0.0, 0.0, 0.0]),
            Self::Xielu(Xielu { alpha_p, alpha_n, beta, eps }) => {
                (7, [alpha_p, alpha_n, beta, eps])
            }
        }
    }
}

/// `curve(x)`, times `y` if there is one, into `out`, which may be `x`.
pub(crate) fn activation(
    curve: Curve,
    x: &GpuTensor,
    y: Option<&GpuTensor>,
    out: &GpuTensor,
) -> Result<()> {
    let n = count("activation", x.len())?;
    let (kind, [a, b, c, d]) = curve.params();
    let params = ActivationParams { n, kind, gated: u32::from(y.is_some()), a, b, c, d };
    // What is not there is never read.
    let other = y.unwrap_or(x);
    let operands = [x.input(), other.input(), out.output()];
    element_wise(x.gpu(), ("gates", "activation"), n, &operands, &params)
}

/// What an element is multiplied with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gate {
    /// The gate itself.
    Factor,
    Sigmoid,
    Softplus,
}

/// `x` times its gates. Each is that of `each` elements, and after the last the first is next.
pub(crate) fn gate_parts(
    gate: Gate,
    x: &GpuTensor,
    gates: &GpuTensor,
    each: usize,
) -> Result<GpuTensor> {
    let out = GpuTensor::new(x.gpu(), &x.dims)?;
    let n = count("gate_parts", x.len())?;
    let params = GateParams {
        n,
        each: count("gate_parts", each)?,
        gates: count("gate_parts", gates.len())?,
        kind: gate as u32,
    };
    let operands = [x.input(), gates.input(), Operand::Out(&out.buffer, 0)];
    element_wise(x.gpu(), ("gates", "gate_parts"), n, &operands, &params)?;
    Ok(out)
}
