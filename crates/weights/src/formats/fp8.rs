//! Bytes of E4M3 with a scale for a block, a row, or all of a matrix: DeepSeek's and Qwen's FP8, that of
//! compressed-tensors, and ModelOpt's.
//!
//! ```text
//! weight            f8_e4m3 [out, in]
//! weight_scale_inv  [ceil(out / block), ceil(in / block)]   multiplies, whatever its name says
//! weight_scale      the same, [out], [out, 1] or one number
//! ```
//! Scales are floats, or bytes of E8M0.

use super::{Asked, to_bytes};
use crate::WeightsError;
use safetensors::Dtype;
use std::sync::Arc;
use taper_tensor::{
    DType, TableFormat, TableScales, TableWeight, Weight,
    cpu::{e4m3, e8m0},
};

/// Rows and columns of a block where nothing else is said.
const USUAL: [usize; 2] = [128, 128];

/// The numbers of E4M3 by their bytes.
pub(super) fn numbers() -> Arc<[f32]> {
    (0..=255).map(e4m3).collect()
}

pub(super) fn load(asked: Asked<'_>) -> Result<Weight, WeightsError> {
    let shape @ (rows, cols) = asked.shape()?;
    let whole = [asked.rows, &[cols]].concat();
    let codes = asked.bytes("weight", (Dtype::F8_E4M3, "F8_E4M3"), &whole)?;
    asked.skip(&["input_scale", "activation_scale", "input_activation_scale"]);
    let part = ["weight_scale_inv", "weight_scale"].into_iter().find(|p| asked.maybe(p).is_some());
    let part = part.ok_or_else(|| asked.bad("has weights of 8 bits and no scales"))?;
    let raw = asked.tensor(part)?;
    let scales: Vec<f32> = match raw.dtype {
        Dtype::F8_E8M0 | Dtype::U8 => raw.bytes.as_slice().iter().map(|&b| e8m0(b)).collect(),
        _ => asked.values(part, raw)?.1,
    };
    let (scales, group, name) = match raw.shape[..] {
        _ if scales.len() == 1 => (vec![scales[0]; rows], cols, "fp8"),
        [n] | [n, 1] if n == rows => (scales, cols, "fp8, a scale a row"),
        [down, across] => {
            let [high, wide] = block(asked, down, across)?;
            let of = |r: usize| scales[r / high * across..][..across].iter().copied();
            ((0..rows).flat_map(of).collect(), wide, "fp8, a scale a block")
        }
        _ => return Err(asked.bad("has scales of no shape that is known")),
    };
    let format = TableFormat { name, bits: 8, group };
    let scales = TableScales::Floats(DType::F32, to_bytes(&scales));
    asked.wrap(TableWeight::new(format, shape, codes, numbers(), scales)).map(Weight::Table)
}

/// Rows and columns of a block, of which there are so many down and across.
fn block(asked: Asked<'_>, down: usize, across: usize) -> Result<[usize; 2], WeightsError> {
    let (rows, cols) = asked.shape()?;
    let fits = |&[high, wide]: &[usize; 2]| {
        high > 0 && wide > 0 && [rows.div_ceil(high), cols.div_ceil(wide)] == [down, across]
    };
    let found = match asked.weights.quantization().block() {
        Some(said) => Some(said).filter(fits),
        // Where config.json says nothing, blocks are the usual ones, or divide the matrix evenly.
        None => Some(USUAL).filter(fits).or_else(|| {
            let even = rows.is_multiple_of(down) && cols.is_multiple_of(across);
            even.then(|| [rows / down, cols / across])
        }),
    };
    found.ok_or_else(|| asked.bad("has scales of another shape than its blocks"))
}
