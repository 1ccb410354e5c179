//! Choosing tokens where the logits are.

use super::{Buffer, Launch, Operand, count, edits, params};
use crate::{Result, Tensor, TensorError, tensor::GpuTensor};
use taper_base::{DeviceDraw, DeviceLogits};

params!(
    /// Parameters of `argmax`.
    ArgmaxParams { vocab: u32 }
);
params!(
    /// Parameters of `sample`.
    SampleParams { vocab: u32, rows: u32 }
);
params!(
    /// A choice of `sample`.
    SampleRow {
        row: u32,
        edited: u32,
        inv_t: f32,
        min_d: f32,
        top_k: u32,
        top_p: u32,
        typical_p: u32,
        bits_low: u32,
        bits_high: u32,
        listed: u32,
    }
);

/// A token or a copy that is not there.
pub(crate) const NONE: u32 = u32::MAX;
/// Threads of both kernels.
const THREADS: u32 = 1024;
/// Most tokens whose log probabilities `sample` lists.
const LISTED: usize = 20;
/// Words of what it says of a row.
const DETAILS: usize = 5 + 2 * LISTED;

/// A token that a GPU chose, and what its log probabilities are made of, if they were asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// Id of the chosen token.
    pub token: u32,
    /// Logits that were read beside.
    pub logits: Option<DeviceLogits>,
}

fn on_gpu<'a>(op: &'static str, logits: &'a Tensor) -> Result<(&'a GpuTensor, usize, usize)> {
    let (rows, vocab) = crate::host::dims2(op, logits)?;
    let device = || String::from("cpu");
    let x = logits.on_gpu().ok_or_else(|| TensorError::Device { op, device: device() })?;
    Ok((x, rows, vocab))
}

/// The most likely token of each row of logits on a GPU, the first of equals; four bytes a row come
/// back. `u32::MAX` for a row with a NaN or positive infinity, or with nothing finite.
///
/// # Shapes
/// `logits [rows, vocab]` -> `rows` tokens.
///
/// # Errors
/// Another shape, or the logits are not on a GPU.
pub fn argmax(logits: &Tensor) -> Result<Vec<u32>> {
    launch_argmax(logits)?.read(0, logits.dims()[0])
}

/// As [`argmax`], with its result left on the GPU.
pub(crate) fn launch_argmax(logits: &Tensor) -> Result<Buffer> {
    let (x, rows, vocab) = on_gpu("argmax", logits)?;
    let tokens = x.gpu().temporary(4 * rows)?;
    x.gpu().launch(&Launch {
        family: "argmax",
        kernel: "argmax",
        grid: [count("argmax", rows)?, 1, 1],
        threads: THREADS,
        operands: &[x.input(), Operand::Out(&tokens, 0)],
        params: bytemuck::bytes_of(&ArgmaxParams { vocab: count("argmax", vocab)? }),
    })?;
    Ok(tokens)
}

/// Copies of the rows of logits on a GPU that `draws` name, with the edits of each made.
///
/// # Shapes
/// `logits [rows, vocab]`, `n` draws -> `[n, vocab]`.
///
/// # Errors
/// Another shape, a row or token that is not there, or the logits are not on a GPU.
pub fn edit(logits: &Tensor, draws: &[&(usize, DeviceDraw)]) -> Result<Tensor> {
    let (x, rows, vocab) = on_gpu("edit", logits)?;
    if let Some(&&(index, _)) = draws.iter().find(|(row, _)| *row >= rows) {
        return Err(TensorError::Index { op: "edit", index, limit: rows });
    }
    Ok(edits::edited(x, vocab, draws)?.into())
}

/// A token for each of `draws`, which name a row of logits on a GPU: the same that
/// `taper_sampler::Sampler` chooses. Four bytes a token come back, and 180 more where log
/// probabilities are wanted, which are those of the row before it is edited. `None` where the host has to
/// look at the row: it has a NaN, positive infinity or nothing finite, or more than a thousand equal logits
/// where `top_k` ends, or `top_p` before `typical_p`.
///
/// # Shapes
/// `logits [rows, vocab]`, `n` draws -> `n` tokens.
///
/// # Errors
/// Another shape, a row that is not there, more than 20 tokens to be listed, an edit of no token, or the
/// logits are not on a GPU.
pub fn sample(logits: &Tensor, draws: &[(usize, DeviceDraw)]) -> Result<Vec<Option<Sampled>>> {
    let (x, rows, vocab) = on_gpu("sample", logits)?;
    if let Some(&(index, _)) = draws.iter().find(|(row, _)| *row >= rows) {
        return Err(TensorError::Index { op: "sample", index, limit: rows });
    }
    let listed = draws.iter().filter_map(|(_, draw)| draw.logprobs).map(usize::from);
    if let Some(index) = listed.clone().find(|n| *n > LISTED) {
        return Err(TensorError::Index { op: "sample: log probabilities", index, limit: LISTED });
    }
    let edited: Vec<_> = draws.iter().filter(|(_, draw)| is_edited(draw)).collect();
    let in_order = draws.iter().map(|(row, _)| *row).eq(0..rows);
    if edited.is_empty() && in_order && draws.iter().all(|(_, draw)| draw.is_argmax()) {
        let known = |token| (token != NONE).then_some(Sampled { token, logits: None });
        return Ok(argmax(logits)?.into_iter().map(known).collect());
    }
    let copies = match edited.is_empty() {
        true => None,
        false => Some(edits::edited(x, vocab, &edited)?),
    };
    let wanted = listed.count() > 0;
    let words = launch(x, copies.as_ref(), vocab, draws, wanted)?;
    let (tokens, details) = words.split_at(draws.len());
    let one = |i: usize| {
        let token = (tokens[i] != NONE).then_some(tokens[i])?;
        let wanted = draws[i].1.logprobs.is_some();
        let record = details.get(i * DETAILS..(i + 1) * DETAILS).filter(|_| wanted);
        Some(Sampled { token, logits: record.map(details_of) })
    };
    Ok((0..draws.len()).map(one).collect())
}

/// Whether a draw is from a copy of its row.
fn is_edited(draw: &DeviceDraw) -> bool {
    !draw.edits.is_empty()
}

/// Chooses from rows, or from the copies of those that are edited, in their order.
fn launch(
    x: &GpuTensor,
    copies: Option<&GpuTensor>,
    vocab: usize,
    draws: &[(usize, DeviceDraw)],
    details: bool,
) -> Result<Vec<u32>> {
    let mut copies_before = 0;
    let mut copy = |draw: &DeviceDraw| {
        copies_before += u32::from(is_edited(draw));
        if is_edited(draw) { copies_before - 1 } else { NONE }
    };
    let one = |(row, draw): &(usize, DeviceDraw)| SampleRow {
        row: *row as u32,
        edited: copy(draw),
        inv_t: draw.inv_t,
        min_d: draw.min_d,
        top_k: draw.top_k,
        top_p: draw.top_p,
        typical_p: draw.typical_p,
        bits_low: draw.bits as u32,
        bits_high: (draw.bits >> 32) as u32,
        listed: draw.logprobs.map_or(0, |n| u32::from(n) + 1),
    };
    let gpu = x.gpu();
    let rows = gpu.upload(&draws.iter().map(one).collect::<Vec<_>>())?;
    let n = draws.len();
    let words = n + if details { n * DETAILS } else { 0 };
    let out = gpu.temporary(4 * words)?;
    let params = SampleParams { vocab: count("sample", vocab)?, rows: count("sample", n)? };
    let copies = copies.unwrap_or(x);
    gpu.launch(&Launch {
        family: "sample",
        kernel: "sample",
        grid: [params.rows, 1, 1],
        threads: THREADS,
        operands: &[x.input(), copies.input(), Operand::In(&rows, 0), Operand::Out(&out, 0)],
        params: bytemuck::bytes_of(&params),
    })?;
    out.read(0, words)
}

fn details_of(record: &[u32]) -> DeviceLogits {
    let listed = (record[4] as usize).min(LISTED);
    let (pairs, _) = record[5..].as_chunks::<2>();
    DeviceLogits {
        logit: f32::from_bits(record[0]),
        max: f32::from_bits(record[1]),
        mass: u64::from(record[3]) << 32 | u64::from(record[2]),
        top: pairs[..listed].iter().map(|&[id, bits]| (f32::from_bits(bits), id)).collect(),
    }
}
