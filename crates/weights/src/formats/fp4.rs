//! Numbers of four bits (E2M1) with scales of a byte: MXFP4, a power of two for 32 weights, and NVFP4, E4M3
//! for 16; and MLX's MXFP8.
//!
//! All have the low half of a byte first. Where there is a scale for the whole tensor, ModelOpt multiplies
//! with it, compressed-tensors divides by it, and MLX has the tensor's largest weight there.

use super::{Asked, fp8};
use crate::WeightsError;
use safetensors::Dtype;
use std::sync::Arc;
use taper_tensor::{
    Bytes, TableFormat, TableScales, TableWeight, Weight,
    cpu::{E2M1, e4m3, e8m0},
};

pub(super) const MXFP4: TableFormat = TableFormat { name: "mxfp4", bits: 4, group: 32 };
const NVFP4: TableFormat = TableFormat { name: "nvfp4", bits: 4, group: 16 };
const MXFP8: TableFormat = TableFormat { name: "mxfp8", bits: 8, group: 32 };
const WORDS: (Dtype, &str) = (Dtype::U32, "U32");
const BYTES: (Dtype, &str) = (Dtype::U8, "U8");

/// The scales of MX formats by their bytes.
pub(super) fn powers() -> Arc<[f32; 256]> {
    Arc::new(std::array::from_fn(|b| e8m0(b as u8)))
}

/// What makes a scale of a byte of NVFP4.
fn small(of: impl Fn(f32) -> f32) -> Arc<[f32; 256]> {
    Arc::new(std::array::from_fn(|b| of(e4m3(b as u8))))
}

/// MLX's modes `mxfp4`, `nvfp4` and `mxfp8`: words of codes, and `scales` of bytes. Each has groups of its
/// own length, or, of the same, codes of its own.
pub(super) fn mlx(asked: Asked<'_>) -> Result<Weight, WeightsError> {
    let cols = asked.cols;
    let last = |part| Ok::<_, WeightsError>(asked.tensor(part)?.shape.last().copied().unwrap_or(0));
    let (words, groups) = (last("weight")?, last("scales")?);
    let format = match (words.checked_mul(32), groups.checked_mul(32)) {
        (Some(bits), Some(n)) if bits / 4 == cols && n == cols => MXFP4,
        (Some(bits), Some(n)) if bits / 4 == cols && n / 2 == cols => NVFP4,
        (Some(bits), Some(n)) if bits / 8 == cols && n == cols => MXFP8,
        _ => return Err(asked.bad("has codes and scales of no mode that is known")),
    };
    let values = match format == NVFP4 {
        true => {
            let whole = asked.maybe("global_scale").map(|_| asked.number("global_scale"));
            // The largest weight of the tensor, where its largest code and scale are these.
            let whole = whole.transpose()?.map_or(1.0, |largest| largest / (6.0 * 448.0));
            small(|scale| scale * whole)
        }
        false => powers(),
    };
    let codes = asked.bytes("weight", WORDS, &[asked.rows, &[words]].concat())?;
    let scales = asked.bytes("scales", BYTES, &[asked.rows, &[groups]].concat())?;
    table(asked, format, codes, TableScales::Named(scales, values))
}

/// ModelOpt's NVFP4.
pub(super) fn model_opt(asked: Asked<'_>) -> Result<Weight, WeightsError> {
    let whole = asked.number("weight_scale_2")?;
    asked.skip(&["input_scale"]);
    let (codes, scales) = (halves(asked, "weight")?, scales(asked, NVFP4, Dtype::F8_E4M3)?);
    let values = small(|scale| scale * whole);
    table(asked, NVFP4, codes, TableScales::Named(scales, values))
}

/// `nvfp4-pack-quantized` and `mxfp4-pack-quantized` of compressed-tensors.
pub(super) fn compressed(asked: Asked<'_>) -> Result<Weight, WeightsError> {
    let codes = halves(asked, "weight_packed")?;
    asked.skip(&["input_global_scale", "input_scale"]);
    if asked.maybe("weight_zero_point").is_some() {
        return Err(asked.bad("has zero points of numbers with a sign"));
    }
    if asked.maybe("weight_global_scale").is_none() {
        let scales = scales(asked, MXFP4, Dtype::U8)?;
        return table(asked, MXFP4, codes, TableScales::Named(scales, powers()));
    }
    let whole = asked.number("weight_global_scale")?;
    if whole == 0.0 {
        return Err(asked.bad("has a weight_global_scale of 0"));
    }
    let scales = scales(asked, NVFP4, Dtype::F8_E4M3)?;
    table(asked, NVFP4, codes, TableScales::Named(scales, small(|scale| scale / whole)))
}

fn halves(asked: Asked<'_>, part: &str) -> Result<Bytes, WeightsError> {
    if !asked.cols.is_multiple_of(2) {
        return Err(asked.bad("has rows of an odd number of weights"));
    }
    asked.bytes(part, BYTES, &[asked.rows, &[asked.cols / 2]].concat())
}

fn scales(asked: Asked<'_>, format: TableFormat, dtype: Dtype) -> Result<Bytes, WeightsError> {
    let expected = if dtype == Dtype::U8 { "U8" } else { "F8_E4M3" };
    let shape = [asked.rows, &[asked.cols / format.group]].concat();
    asked.bytes("weight_scale", (dtype, expected), &shape)
}

fn table(
    asked: Asked<'_>,
    format: TableFormat,
    codes: Bytes,
    scales: TableScales,
) -> Result<Weight, WeightsError> {
    let numbers = if format.bits == 8 { fp8::numbers() } else { E2M1.into() };
    let weight = TableWeight::new(format, asked.shape()?, codes, numbers, scales);
    asked.wrap(weight).map(Weight::Table)
}
