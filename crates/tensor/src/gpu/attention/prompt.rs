//! Attention of prompts: tiles of many rows, whose sequences are not cut into spans.

use super::{
    AttendParams, AttendTile, KvShape, Plan, SPAN_TOKENS, Scoring, Sequence, attend as attend_few,
};
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

/// The rows of a step that are of some sequences.
pub(super) fn rows_of(
    seqs: &[Sequence<'_>],
    wanted: impl Fn(&Sequence<'_>) -> bool,
) -> Result<Vec<u32>> {
    let (mut rows, mut first) = (Vec::new(), 0);
    for seq in seqs {
        let next = count("attention", first as usize + seq.q_len)?;
        if wanted(seq) {
            rows.extend(first..next);
        }
        first = next;
    }
    Ok(rows)
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
        Some((rows, own)) => {
            let wide = GpuTensor { dims: vec![plan.tokens, heads * shape.head_dim], ..q.clone() };
            let few = ops::take_rows(&wide, rows)?;
            let few = GpuTensor { dims: vec![rows.len(), heads, shape.head_dim], ..few };
            let few = attend_few(shape, &few.into(), pages, own, scoring)?;
            let few = super::on_gpu(&few)?.clone();
            let few = GpuTensor { dims: vec![rows.len(), heads * shape.head_dim], ..few };
            // The other rows are written below.
            GpuTensor { dims: q.dims.clone(), ..ops::put_rows(&wide, rows, &few)? }
        }
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
