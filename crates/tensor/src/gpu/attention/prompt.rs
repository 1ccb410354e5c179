//! Attention of prompts: tiles of many rows. Where these are few, as of a short piece of a long prompt, each shares
//! out what it sees among threadgroups.

use super::{
    AttendParams, AttendTile, KvShape, Plan, SPAN_TOKENS, Scoring, attend as attend_few, merge,
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
/// Threadgroups that keep a large GPU busy: one of these has a multiprocessor to itself.
const ENOUGH: usize = 132;

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
    let out = GpuTensor::new(gpu, &q.dims)?;
    let sinks = scoring.sinks_on(gpu, heads)?;
    let spans = spans(plan, shape);
    let cut = spans > 1;
    let rows = if cut { plan.tokens * heads } else { 0 };
    let sums = gpu.temporary(4 * rows * spans * shape.head_dim)?;
    let weights = gpu.temporary(8 * rows * spans)?;
    let params = AttendParams {
        q_heads: heads as u32,
        kv_heads: shape.kv_heads as u32,
        head_dim: shape.head_dim as u32,
        window: scoring.window.map_or(0, |w| u32::try_from(w).unwrap_or(0)),
        scale: scoring.scale,
        soft_cap: scoring.soft_cap.unwrap_or(0.0),
        spans: count("attention", spans)?,
        // Spans leave them to whoever adds them up.
        sinks: u32::from(sinks.is_some() && !cut),
        ..AttendParams::default()
    };
    let q_in = q.input();
    let launch = Launch {
        family: "attend_prompt",
        kernel: &format!("attend_prompt_d{}_r{}", shape.head_dim, plan.rows),
        grid: [plan.n_tiles, params.kv_heads, params.spans],
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
            Operand::Out(&sums, 0),
            Operand::Out(&weights, 0),
        ],
        params: bytemuck::bytes_of(&params),
    };
    // Multiply-adds of all rows, as if each saw the longest sequence.
    let work = 2 * plan.tokens * heads * plan.spans * SPAN_TOKENS * shape.head_dim;
    launch.over_tiles(gpu, (4, size_of::<AttendTile>()), work)?;
    if cut {
        merge(gpu, (&sums, &weights), (spans, rows), sinks.as_deref(), &out)?;
    }
    let Some((rows, own)) = &plan.few else { return Ok(out.into()) };
    // These rows of `out` are nobody's so far.
    let all = with_rows(&out, q, rows, |few| {
        let few = attend_few(shape, &few.into(), pages, own, scoring)?;
        super::on_gpu(&few).cloned()
    })?;
    Ok(all.into())
}

/// Spans of each tile.
fn spans(plan: &Plan, shape: KvShape) -> usize {
    let tiles = plan.n_tiles as usize * shape.kv_heads;
    (ENOUGH / tiles.max(1)).clamp(1, plan.spans)
}
