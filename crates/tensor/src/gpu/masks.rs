//! Logits of which only some tokens may be chosen, on a GPU: `kernels/sampling/mask.metal`.

use super::{Launch, Operand, count, params};
use crate::{Result, tensor::GpuTensor};
use taper_base::TokenMask;

params!(
    /// Parameters of `mask_logits`.
    MaskParams { vocab: u32, words: u32 }
);

/// Logits that a threadgroup masks.
const RANGE: u32 = 4096;

/// Leaves, in the rows named, the tokens of their masks.
///
/// # Shapes
/// `logits [rows, vocab]`, changed in place; each row is named once.
pub(super) fn apply(logits: &GpuTensor, vocab: usize, masks: &[(u32, &TokenMask)]) -> Result<()> {
    if masks.is_empty() {
        return Ok(());
    }
    let words = vocab.div_ceil(32);
    let (mut rows, mut bits) = (Vec::with_capacity(masks.len()), Vec::new());
    for (row, mask) in masks {
        let known = &mask.words()[..mask.words().len().min(words)];
        rows.push(*row);
        bits.extend_from_slice(known);
        bits.resize(rows.len() * words, 0);
    }
    let params = MaskParams { vocab: count("mask", vocab)?, words: count("mask", words)? };
    let gpu = logits.gpu();
    let (rows_there, bits_there) = (gpu.upload(&rows)?, gpu.upload(&bits)?);
    gpu.launch(&Launch {
        family: "mask",
        kernel: "mask_logits",
        grid: [params.vocab.div_ceil(RANGE), count("mask", rows.len())?, 1],
        threads: 256,
        operands: &[
            Operand::In(&rows_there, 0),
            Operand::In(&bits_there, 0),
            Operand::Out(&logits.buffer, logits.offset),
        ],
        params: bytemuck::bytes_of(&params),
    })
}
