//! Logits with bias, penalties, bans and masks, on a GPU: `kernels/sampling/edit.metal`, and
//! [`masks`](super::masks) after it.

use super::{Launch, Operand, count, masks, params};
use crate::{Result, TensorError, tensor::GpuTensor};
use taper_base::{DeviceDraw, DeviceEdit};

params!(
    /// Parameters of `edit_logits`.
    EditParams { vocab: u32 }
);
params!(
    /// A row of `edit_logits`.
    EditRow { row: u32, first: u32, edits: u32, repetition: f32, frequency: f32, presence: f32 }
);
params!(
    /// A token of one.
    Edit { token: u32, bias: f32, seen: u32 }
);

/// Logits that a threadgroup copies.
const RANGE: u32 = 4096;
/// What `seen` is of a banned token.
const BANNED: u32 = u32::MAX;

impl From<&DeviceEdit> for Edit {
    fn from(edit: &DeviceEdit) -> Self {
        let seen = edit.seen.map_or(0, |count| count.saturating_add(1).min(BANNED - 1));
        let seen = if edit.banned { BANNED } else { seen };
        Self { token: edit.token, bias: edit.bias, seen }
    }
}

/// Copies of the rows that some draws name, with their edits made.
///
/// # Shapes
/// `logits [rows, vocab]`, `n` draws -> `[n, vocab]`.
///
/// # Errors
/// A token outside the vocabulary.
pub(super) fn edited(
    logits: &GpuTensor,
    vocab: usize,
    draws: &[&(usize, DeviceDraw)],
) -> Result<GpuTensor> {
    let (mut rows, mut edits) = (Vec::with_capacity(draws.len()), Vec::<Edit>::new());
    for (row, draw) in draws {
        let of = &draw.edits;
        rows.push(EditRow {
            row: count("edit", *row)?,
            first: count("edit", edits.len())?,
            edits: count("edit", of.tokens.len())?,
            repetition: of.repetition,
            frequency: of.frequency,
            presence: of.presence,
        });
        edits.extend(of.tokens.iter().map(Edit::from));
    }
    if let Some(edit) = edits.iter().find(|e| e.token as usize >= vocab) {
        let index = edit.token as usize;
        return Err(TensorError::Index { op: "edit", index, limit: vocab });
    }
    let gpu = logits.gpu();
    let out = GpuTensor::new(gpu, &[rows.len(), vocab])?;
    let params = EditParams { vocab: count("edit", vocab)? };
    let (rows_there, edits_there) = (gpu.upload(&rows)?, gpu.upload(&edits)?);
    gpu.launch(&Launch {
        family: "edit",
        kernel: "edit_logits",
        grid: [params.vocab.div_ceil(RANGE), rows.len() as u32, 1],
        threads: 256,
        operands: &[
            logits.input(),
            Operand::In(&rows_there, 0),
            Operand::In(&edits_there, 0),
            Operand::Out(&out.buffer, 0),
        ],
        params: bytemuck::bytes_of(&params),
    })?;
    let masked =
        (0u32..).zip(draws).filter_map(|(i, (_, draw))| Some((i, draw.edits.mask.as_ref()?)));
    masks::apply(&out, vocab, &masked.collect::<Vec<_>>())?;
    Ok(out)
}
