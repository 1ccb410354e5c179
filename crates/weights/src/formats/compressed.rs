//! Integers as the compressed-tensors library stores them.
//!
//! ```text
//! weight_packed     i32 [out, in * bits / 32]      pack-quantized: codes of a row, the low bits first
//! weight            i8  [out, in]                  int-quantized
//! weight_scale          [out, groups], [out] or one number
//! weight_zero_point i32 [out * bits / 32, groups]  packed as codes are, along outputs; or i8 [out, groups]
//! weight_g_idx      i32 [in]                       the group of an input, where groups are not in order
//! ```
//! Codes are unsigned: signed values with half the range added.

use super::{
    Asked,
    integers::{Groups, Integers},
};
use crate::{WeightsError, checkpoint::expect_shape};
use safetensors::Dtype;
use taper_tensor::{AffineFormat, Bytes, Weight, cpu::unpack_affine};

const INTS: (Dtype, &str) = (Dtype::I32, "I32");

/// `pack-quantized`.
pub(super) fn packed(asked: Asked<'_>) -> Result<Weight, WeightsError> {
    let (_, cols) = asked.shape()?;
    let raw = asked.tensor("weight_packed")?;
    let words = raw.shape.last().copied().unwrap_or(0);
    let bits = words.checked_mul(32).and_then(|n| n.checked_div(cols)).unwrap_or(0);
    let known = AffineFormat::BITS.into_iter().find(|&b| usize::from(b) == bits);
    let bits = known.ok_or_else(|| asked.bad("has codes of none of 2, 3, 4, 5, 6 and 8 bits"))?;
    if !asked.weights.quantization().names_bits(bits) {
        return Err(asked.bad("has codes of bits that no \"num_bits\" of config.json names"));
    }
    if !cols.is_multiple_of(32) {
        return Err(asked.bad("has rows of no multiple of 32 weights"));
    }
    let shape = [asked.rows, &[cols / 32 * usize::from(bits)]].concat();
    let codes = asked.bytes("weight_packed", INTS, &shape)?;
    asked.skip(&["weight_shape", "input_scale", "input_global_scale"]);
    integers(asked, bits, codes)
}

/// `int-quantized`: a signed byte a weight.
pub(super) fn bytes(asked: Asked<'_>) -> Result<Weight, WeightsError> {
    if asked.maybe("SCB").is_some() {
        let method = "bitsandbytes with 8 bits".to_owned();
        return Err(WeightsError::UnsupportedQuantization { method });
    }
    let shape = [asked.rows, &[asked.cols]].concat();
    let signed = asked.bytes("weight", (Dtype::I8, "I8"), &shape)?;
    let codes = signed.as_slice().iter().map(|b| b ^ 0x80).collect();
    asked.skip(&["input_scale", "input_zero_point"]);
    integers(asked, 8, Bytes::from_vec(codes))
}

fn integers(asked: Asked<'_>, bits: u8, codes: Bytes) -> Result<Weight, WeightsError> {
    let (rows, cols) = asked.shape()?;
    let scale = asked.tensor("weight_scale")?;
    let (dtype, mut scales) = asked.values("weight_scale", scale)?;
    let count = match (&*scales, scale.shape.strip_prefix(asked.rows)) {
        (&[one], _) => {
            scales = vec![one; rows];
            1
        }
        (_, Some([])) => 1,
        (_, Some(&[count])) if count > 0 && cols.is_multiple_of(count) => count,
        _ => return Err(asked.bad("has a weight_scale of another shape than its rows and groups")),
    };
    let groups = match asked.maybe("weight_g_idx") {
        None => Groups::Of(cols / count),
        Some(_) => {
            let list = asked.bytes("weight_g_idx", INTS, &[cols])?;
            let list = list.as_slice().as_chunks().0.iter();
            let list: Vec<_> = list.map(|b| i64::from(i32::from_le_bytes(*b))).collect();
            // A list of -1 is one that was never set.
            match list.iter().all(|&g| g == -1) {
                true => Groups::Of(cols / count),
                false => Groups::listed(&list, cols, cols / count)
                    .ok_or_else(|| asked.bad("has a weight_g_idx that names no group"))?,
            }
        }
    };
    let zeros = zeros(asked, bits, (rows, count))?;
    Integers { bits, codes, scales: (dtype, scales), zeros, groups }.weight(asked)
}

/// Zero points, `[rows, groups]`, as unsigned codes have them.
fn zeros(
    asked: Asked<'_>,
    bits: u8,
    (rows, groups): (usize, usize),
) -> Result<Vec<f32>, WeightsError> {
    let half = f32::from(1u8 << (bits - 1));
    let Some(raw) = asked.maybe("weight_zero_point") else {
        return Ok(vec![half; rows * groups]);
    };
    let name = asked.name("weight_zero_point");
    if raw.dtype == Dtype::I8 {
        let signed = raw.bytes.as_slice();
        let all: Vec<f32> = signed.iter().map(|b| f32::from(b.cast_signed()) + half).collect();
        return match all[..] {
            [one] => Ok(vec![one; rows * groups]),
            _ => expect_shape(&name, &raw.shape, &[rows, groups]).map(|()| all),
        };
    }
    if !rows.is_multiple_of(32) {
        return Err(asked.bad("has packed zero points of no multiple of 32 rows"));
    }
    let words = asked.bytes("weight_zero_point", INTS, &[rows / 32 * usize::from(bits), groups])?;
    let (words, _) = words.as_slice().as_chunks::<4>();
    let columns: Vec<u8> = super::transposed(words, groups).into_iter().flatten().collect();
    let mut all = vec![0.0f32; rows * groups];
    let row = AffineFormat { bits, group: 32 }.row_bytes(rows);
    for (out, packed) in all.chunks_exact_mut(rows).zip(columns.chunks_exact(row)) {
        unpack_affine(packed, bits, out);
    }
    Ok(super::transposed(&all, rows))
}
