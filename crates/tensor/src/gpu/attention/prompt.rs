//! Attention of prompts: tiles of many rows, whose sequences are not cut into spans.

use super::{AttendParams, AttendTile, KvShape, Plan, SPAN_TOKENS, Scoring, attend as attend_few};
use crate::{
    Result, Tensor,
    gpu::{Buffer, Launch, Operand, count, ops},
    tensor::GpuTensor,
};

/// Rows of a tile.
pub(super) const ROWS: usize = 128;
/// Tokens of a sequence from which on its rows fill a good part of one.
pub(in crate::gpu) const FROM: usize = 16;
/// Elements of a head.
const HEAD: usize = 128;
/// Query heads of a KV head, at most.
const MAX_GROUP: usize = 64;

/// Whether there are kernels for it.
pub(in crate::gpu) fn fits(shape: KvShape, group: usize) -> bool {
    shape.is_typed() && shape.head_dim == HEAD && group <= MAX_GROUP
}

/// The rows of a step that are of some sequences, of which the query tokens are given, and whether they are wanted.
pub(in crate::gpu) fn rows_of(seqs: impl Iterator<Item = (usize, bool)>) -> Result<Vec<u32>> {
    let (mut rows, mut first) = (Vec::new(), 0);
    for (q_len, wanted) in seqs {
        let next = count("attention", first as usize + q_len)?;
        if wanted {
            rows.extend(first..next);
        }
        first = next;
    }
    Ok(rows)
}

/// `base [t, heads, head_dim]` with other attention's results in these rows of `q`.
pub(in crate::gpu) fn with_rows(
    base: &GpuTensor,
    q: &GpuTensor,
    rows: &[u32],
    attend: impl FnOnce(GpuTensor) -> Result<GpuTensor>,
) -> Result<GpuTensor> {
    let width = q.dims[1] * q.dims[2];
    let flat = |x: &GpuTensor, n| GpuTensor { dims: vec![n, width], ..x.clone() };
    let own = ops::take_rows(&flat(q, q.dims[0]), rows)?;
    let own = attend(GpuTensor { dims: vec![rows.len(), q.dims[1], q.dims[2]], ..own })?;
    let all = ops::put_rows(&flat(base, q.dims[0]), rows, &flat(&own, rows.len()))?;
    Ok(GpuTensor { dims: q.dims.clone(), ..all })
}

/// [`super::attend`] with a plan for prompts.
pub(super) fn attend(
    shape: KvShape,
    q: &GpuTensor,
    pages: (&Buffer, &Buffer),
    plan: &Plan,
    scoring: &Scoring<'_>,
) -> Result<Tensor> {
    shape.check()?;
    let (heads, gpu) = (plan.heads(shape, q)?, q.gpu());
    let out = match &plan.few {
        None => GpuTensor::new(gpu, &q.dims)?,
        // The other rows are written below.
        Some((rows, own)) => with_rows(q, q, rows, |few| {
            let few = attend_few(shape, &few.into(), pages, own, scoring)?;
            super::on_gpu(&few).cloned()
        })?,
    };
    let sinks = scoring.sinks_on(gpu, heads)?;
    let params = AttendParams {
        q_heads: heads as u32,
        kv_heads: shape.kv_heads as u32,
        head_dim: shape.head_dim as u32,
        window: scoring.window.map_or(0, |w| u32::try_from(w).unwrap_or(0)),
        scale: scoring.scale,
        soft_cap: scoring.soft_cap.unwrap_or(0.0),
        sinks: sinks.is_some().into(),
        ..AttendParams::default()
    };
    let q_in = q.input();
    let launch = Launch {
        family: "attend_prompt",
        kernel: &format!("attend_prompt_d{}_r{}", shape.head_dim, plan.rows),
        grid: [plan.n_tiles, params.kv_heads, 1],
        threads: 2 * plan.rows as u32,
        operands: &[
            q_in,
            Operand::In(pages.0, 0),
            Operand::In(pages.1, 0),
            Operand::In(&plan.blocks, 0),
            Operand::In(&plan.tiles, 0),
            // What is not there is never read.
            sinks.as_deref().map_or(q_in, |sinks| Operand::In(sinks, 0)),
            out.output(),
        ],
        params: bytemuck::bytes_of(&params),
    };
    // Multiply-adds of all rows, as if each saw the longest sequence.
    let work = 2 * plan.tokens * heads * plan.spans * SPAN_TOKENS * shape.head_dim;
    launch.over_tiles(gpu, (4, size_of::<AttendTile>()), work)?;
    Ok(out.into())
}
