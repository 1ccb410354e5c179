//! Quantizing as `mx.quantize` does on the CPU, bit for bit, or with scales that are searched for.

use super::{AffineFormat, search};
use crate::{DType, Result, TensorError, pool};
use half::{bf16, f16};

/// A quantized matrix in the bytes that a checkpoint stores, little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AffineParts {
    /// Packed codes: u32 `[rows, cols * bits / 32]`.
    pub codes: Vec<u8>,
    /// Scales: `[rows, cols / group]` of the dtype asked for.
    pub scales: Vec<u8>,
    /// Biases, in the type and layout of `scales`.
    pub biases: Vec<u8>,
}

/// How the scale and the bias of a group are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ScaleMethod {
    /// From the least and the largest of its weights, as `mx.quantize` does: round to nearest.
    #[default]
    Range,
    /// By a search for the least squared error of its weights.
    LeastSquares,
}

/// [`quantize_by`] with the scales of `mx.quantize`.
///
/// # Shapes
/// As [`quantize_by`].
///
/// # Errors
/// As [`quantize_by`].
pub fn quantize(
    values: &[f32],
    cols: usize,
    format: AffineFormat,
    dtype: DType,
) -> Result<AffineParts> {
    quantize_by(ScaleMethod::Range, values, cols, format, dtype)
}

/// Quantizes a matrix, rows in parallel.
///
/// With [`ScaleMethod::Range`] the codes come from the `f32` scale and bias, which are rounded to `dtype` only
/// when stored.
/// Values that are not finite give codes without meaning, and never a panic.
///
/// # Shapes
/// `values`: `[rows, cols]`, row-major. `dtype` is what the checkpoint's weights had: `f32`, `f16`
/// or `bf16`.
///
/// # Errors
/// The format does not exist or does not divide `cols`, `values` are no whole rows, or `dtype` is
/// no float.
pub fn quantize_by(
    method: ScaleMethod,
    values: &[f32],
    cols: usize,
    format: AffineFormat,
    dtype: DType,
) -> Result<AffineParts> {
    format.check(cols)?;
    if !values.len().is_multiple_of(cols) {
        let (got, what) = (values.len() * 4, "values to quantize");
        return Err(TensorError::Bytes { what, expected: got.next_multiple_of(cols * 4), got });
    }
    let rows = values.len() / cols;
    let (row, groups) = (format.row_bytes(cols), cols / format.group * dtype.size_in_bytes());
    let mut parts = AffineParts {
        codes: vec![0; rows * row],
        scales: vec![0; rows * groups],
        biases: vec![0; rows * groups],
    };
    let out = parts.codes.chunks_exact_mut(row);
    let out = out.zip(parts.scales.chunks_exact_mut(groups));
    let out = out.zip(parts.biases.chunks_exact_mut(groups));
    let mut rows: Vec<_> = values.chunks_exact(cols).zip(out).collect();
    pool::for_each(&mut rows, |_, (values, ((c, s), b))| {
        quantize_groups(method, values, format, dtype, (c, s, b));
    });
    Ok(parts)
}

/// Quantizes one row into the given slices.
///
/// # Shapes
/// `values`: `[cols]`; the outputs as a row of [`AffineParts`].
///
/// # Errors
/// As [`quantize`], or an output has another length.
pub fn quantize_row(
    values: &[f32],
    format: AffineFormat,
    dtype: DType,
    (codes, scales, biases): (&mut [u8], &mut [u8], &mut [u8]),
) -> Result<()> {
    format.check(values.len())?;
    let groups = values.len() / format.group * dtype.size_in_bytes();
    let wanted = [
        ("codes of a row", format.row_bytes(values.len()), codes.len()),
        ("scales of a row", groups, scales.len()),
        ("biases of a row", groups, biases.len()),
    ];
    if let Some((what, expected, got)) = wanted.into_iter().find(|(_, a, b)| a != b) {
        return Err(TensorError::Bytes { what, expected, got });
    }
    quantize_groups(ScaleMethod::Range, values, format, dtype, (codes, scales, biases));
    Ok(())
}

/// Errors of all weights of a group count the same.
const EQUAL: [f32; 128] = [1.0; 128];

/// One row, group by group. Lengths are right.
fn quantize_groups(
    method: ScaleMethod,
    values: &[f32],
    format: AffineFormat,
    dtype: DType,
    (codes, scales, biases): (&mut [u8], &mut [u8], &mut [u8]),
) {
    let (AffineFormat { bits, group }, store) = (format, storing(dtype));
    let groups = values.len() / group;
    let (size, bytes) = (scales.len() / groups, codes.len() / groups);
    let steps = f32::from((1u16 << bits) - 1);
    let outputs = codes.chunks_exact_mut(bytes);
    let outputs = outputs.zip(scales.chunks_exact_mut(size)).zip(biases.chunks_exact_mut(size));
    for (values, ((codes, s), b)) in values.chunks_exact(group).zip(outputs) {
        let (scale, bias) = match method {
            ScaleMethod::Range => scale_and_bias(values, steps),
            ScaleMethod::LeastSquares => search::fitted(values, &EQUAL[..group], steps, dtype),
        };
        store(scale, s);
        store(bias, b);
        pack(codes, bits, values.iter().map(|v| code(*v, scale, bias, steps)));
    }
}

/// The end of larger magnitude is represented exactly, and so is zero: the range is shifted until
/// `edge / scale` is whole.
pub(super) fn scale_and_bias(values: &[f32], steps: f32) -> (f32, f32) {
    let lo = values.iter().copied().fold(f32::INFINITY, f32::min);
    let hi = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let below = lo.abs() > hi.abs();
    let scale = ((hi - lo) / steps).max(1e-7);
    // A positive edge counts down from it.
    let (edge, scale) = if below { (lo, scale) } else { (hi, -scale) };
    let zero = (edge / scale).round_ties_even();
    if zero == 0.0 { (scale, 0.0) } else { (edge / zero, edge) }
}

/// A division, not the product with a reciprocal: the last bit decides codes.
pub(super) fn code(value: f32, scale: f32, bias: f32, steps: f32) -> u8 {
    ((value - bias) / scale).round_ties_even().clamp(0.0, steps) as u8
}

/// Writes codes as a little-endian bit stream; they fill `out` exactly.
pub(super) fn pack(out: &mut [u8], bits: u8, codes: impl Iterator<Item = u8>) {
    let (mut word, mut held, mut out) = (0u32, 0u8, out.iter_mut());
    for code in codes {
        word |= u32::from(code) << held;
        held += bits;
        while held >= 8 {
            if let Some(byte) = out.next() {
                *byte = word as u8;
            }
            word >>= 8;
            held -= 8;
        }
    }
}

pub(super) fn storing(dtype: DType) -> fn(f32, &mut [u8]) {
    match dtype {
        DType::F16 => |x, out| out.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        DType::BF16 => |x, out| out.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
        DType::F32 => |x, out| out.copy_from_slice(&x.to_le_bytes()),
    }
}

/// Rounds to a float type and widens again.
pub(super) fn rounding(dtype: DType) -> fn(f32) -> f32 {
    match dtype {
        DType::F16 => |x| f16::from_f32(x).to_f32(),
        DType::BF16 => |x| bf16::from_f32(x).to_f32(),
        DType::F32 => |x| x,
    }
}
