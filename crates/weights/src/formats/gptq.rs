//! GPTQ (arXiv 2210.17323) as its tools write it: words of codes of one output, its inputs one below the
//! other.
//!
//! ```text
//! qweight i32 [in * bits / 32, out]     codes of an output, the low bits first
//! qzeros  i32 [groups, out * bits / 32] zero points, less one but in version 2
//! scales      [groups, out]
//! g_idx   i32 [in]                      the group of an input, where groups are not in order
//! ```

use super::{
    Asked,
    integers::{Groups, Integers},
    transposed,
};
use crate::WeightsError;
use safetensors::Dtype;
use taper_tensor::{AffineFormat, Bytes, Weight, cpu::unpack_affine, pool};

/// Outputs that are gathered together: what a line of the cache has of a word each.
const TOGETHER: usize = 16;
const INTS: (Dtype, &str) = (Dtype::I32, "I32");

pub(super) fn load(asked: Asked<'_>) -> Result<Weight, WeightsError> {
    let (rows, cols) = asked.shape()?;
    let own = asked.weights.quantization().gptq().ok_or_else(|| {
        asked.bad("has qweight, and config.json's quantization_config is not that of GPTQ")
    })?;
    if !rows.is_multiple_of(32) || !cols.is_multiple_of(32) {
        return Err(asked.bad("has no multiple of 32 rows and columns"));
    }
    // Old files have a bias of zeros where the model has none.
    let bias = asked.weights.tensors().get(&asked.name("bias"));
    if bias.is_some_and(|raw| raw.bytes.as_slice().iter().all(|&b| b == 0)) {
        asked.skip(&["bias"]);
    }
    let bits = usize::from(own.bits);
    let group = own.group.unwrap_or(cols).min(cols);
    let groups = match asked.maybe("g_idx") {
        None => Groups::Of(group),
        Some(_) => {
            let list = asked.bytes("g_idx", INTS, &[cols])?;
            let list = list.as_slice().as_chunks().0.iter();
            let list: Vec<_> = list.map(|b| i64::from(i32::from_le_bytes(*b))).collect();
            Groups::listed(&list, cols, group)
                .ok_or_else(|| asked.bad("has a g_idx that names no group"))?
        }
    };
    let count = groups.count(cols);
    let words = asked.bytes("qweight", INTS, &[cols / 32 * bits, rows])?;
    let scales = asked.tensor("scales")?;
    crate::checkpoint::expect_shape(&asked.name("scales"), &scales.shape, &[count, rows])?;
    let (dtype, scales) = asked.values("scales", scales)?;
    let zeros = asked.bytes("qzeros", INTS, &[count, rows / 32 * bits])?;
    let mut unpacked = vec![0.0f32; count * rows];
    let row = AffineFormat { bits: own.bits, group: 32 }.row_bytes(rows);
    for (out, zeros) in unpacked.chunks_exact_mut(rows).zip(zeros.as_slice().chunks_exact(row)) {
        unpack_affine(zeros, own.bits, out);
    }
    unpacked.iter_mut().for_each(|z| *z += own.added);
    let codes = Bytes::from_vec(columns(words.as_slice(), rows));
    words.release();
    let (scales, zeros) = ((dtype, transposed(&scales, rows)), transposed(&unpacked, rows));
    Integers { bits: own.bits, codes, scales, zeros, groups }.weight(asked)
}

/// Words `[n, rows]` as `[rows, n]`.
fn columns(words: &[u8], rows: usize) -> Vec<u8> {
    let (words, _) = words.as_chunks::<4>();
    let n = words.len() / rows;
    let mut out = vec![0; words.len() * 4];
    let mut some: Vec<_> = out.chunks_mut(n * 4 * TOGETHER).collect();
    pool::for_each(&mut some, |i, out| {
        let (out, _) = out.as_chunks_mut::<4>();
        let first = i * TOGETHER;
        for (at, line) in words.chunks_exact(rows).enumerate() {
            for (to, word) in out.iter_mut().skip(at).step_by(n).zip(&line[first..]) {
                *to = *word;
            }
        }
    });
    out
}
