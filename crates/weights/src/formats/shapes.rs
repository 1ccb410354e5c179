//! Which matrices a checkpoint has in codes, and their shapes: what a conversion must know before it reads them.

use crate::{Checkpoint, WeightsError, shard::RawTensor};
use safetensors::Dtype;
use std::collections::BTreeMap;

/// The shapes of all matrices that are stored in codes, by the names that floats would have.
///
/// # Errors
/// A matrix whose tensors do not tell its shape.
pub(crate) fn coded_shapes(
    weights: &Checkpoint,
) -> Result<BTreeMap<String, Vec<usize>>, WeightsError> {
    let mut shapes = BTreeMap::new();
    for (name, raw) in weights.tensors() {
        let Some((prefix, part)) = name.rsplit_once('.') else { continue };
        let found = match part {
            "weight" => of_weight(weights, prefix, raw)?,
            "qweight" => Some(of_words(weights, prefix, raw)?),
            "weight_packed" => Some(of_packed(weights, prefix, raw)?),
            _ => None,
        };
        if let Some(shape) = found {
            shapes.insert(format!("{prefix}.weight"), shape);
        }
    }
    Ok(shapes)
}

/// The matrix in codes that a tensor is a part of, other than its bias.
pub(crate) fn owner<'a>(shapes: &BTreeMap<String, Vec<usize>>, name: &'a str) -> Option<&'a str> {
    let ends = name.match_indices('.').map(|(at, _)| at);
    let mut prefixes = ends.map(|at| (&name[..at], &name[at + 1..]));
    let own = prefixes
        .find(|(prefix, rest)| *rest != "bias" && shapes.contains_key(&format!("{prefix}.weight")));
    own.map(|(prefix, _)| prefix)
}

fn bad(prefix: &str) -> WeightsError {
    let reason = "has tensors that do not tell its shape";
    WeightsError::BadQuantization { layer: prefix.to_owned(), reason }
}

/// `shape` with another last dimension.
fn with_last(shape: &[usize], cols: Option<usize>) -> Option<Vec<usize>> {
    let (_, rows) = shape.split_last()?;
    Some([rows, &[cols?]].concat())
}

/// Codes under the name of floats.
fn of_weight(
    weights: &Checkpoint,
    prefix: &str,
    raw: &RawTensor,
) -> Result<Option<Vec<usize>>, WeightsError> {
    let side = |part: &str| weights.tensors().get(&format!("{prefix}.{part}"));
    let last = raw.shape.last().copied().unwrap_or(0);
    let shape = match raw.dtype {
        Dtype::F8_E4M3 | Dtype::I8 => Some(raw.shape.clone()),
        Dtype::U32 => match side("scales") {
            None => return Ok(None),
            Some(scales) if scales.dtype == Dtype::U8 => {
                let groups = scales.shape.last().copied().unwrap_or(0);
                // Words of a group: of 16 and of 32 codes of 4 bits, and of 32 of 8.
                let cols = match last.checked_div(groups) {
                    Some(2 | 4) => last.checked_mul(8),
                    Some(8) => last.checked_mul(4),
                    _ => None,
                };
                with_last(&raw.shape, cols)
            }
            Some(_) => {
                let format = weights.quantization().format(prefix);
                let cols = format.and_then(|f| Some(last.checked_mul(32)? / usize::from(f.bits)));
                with_last(&raw.shape, cols)
            }
        },
        Dtype::U8 if side("weight_scale_2").is_some() => with_last(&raw.shape, last.checked_mul(2)),
        Dtype::U8 => super::nf4::shape(weights, prefix),
        _ => return Ok(None),
    };
    shape.map(Some).ok_or_else(|| bad(prefix))
}

/// GPTQ's words are columns of codes, AWQ's are rows.
fn of_words(
    weights: &Checkpoint,
    prefix: &str,
    raw: &RawTensor,
) -> Result<Vec<usize>, WeightsError> {
    let quantization = weights.quantization();
    let shape = match (raw.shape.as_slice(), quantization.gptq()) {
        (&[inputs, words], _) if quantization.is_awq() => {
            words.checked_mul(8).map(|outputs| vec![outputs, inputs])
        }
        (&[words, outputs], Some(own)) => {
            let bits = words.checked_mul(32);
            bits.map(|bits| vec![outputs, bits / usize::from(own.bits)])
        }
        _ => None,
    };
    shape.ok_or_else(|| bad(prefix))
}

/// compressed-tensors: halves of bytes, or words beside a tensor with the shape.
fn of_packed(
    weights: &Checkpoint,
    prefix: &str,
    raw: &RawTensor,
) -> Result<Vec<usize>, WeightsError> {
    if raw.dtype == Dtype::U8 {
        let last = raw.shape.last().copied().unwrap_or(0);
        return with_last(&raw.shape, last.checked_mul(2)).ok_or_else(|| bad(prefix));
    }
    let said =
        weights.tensors().get(&format!("{prefix}.weight_shape")).ok_or_else(|| bad(prefix))?;
    let bytes = said.bytes.as_slice();
    let sizes: Option<Vec<usize>> = match said.dtype {
        Dtype::I64 => {
            let all = bytes.as_chunks().0.iter();
            all.map(|b| usize::try_from(i64::from_le_bytes(*b)).ok()).collect()
        }
        Dtype::I32 => {
            let all = bytes.as_chunks().0.iter();
            all.map(|b| usize::try_from(i32::from_le_bytes(*b)).ok()).collect()
        }
        _ => None,
    };
    sizes.filter(|sizes| sizes.len() >= 2).ok_or_else(|| bad(prefix))
}
