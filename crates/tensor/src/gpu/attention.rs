//! Attention over a paged cache of floats on a GPU.

use super::{
    Buffer, Gpu, Launch, Operand, count,
    matmul::{Order, Prepared},
    params,
};
use crate::{Projected, Result, RmsNorm, Sinks, Tensor, TensorError, tensor::GpuTensor};
use std::sync::Arc;

pub(super) mod prompt;
mod shape;

pub use shape::KvShape;
use shape::MAX_WIDE;

params!(
    /// Parameters of `kv_write_*`.
    WriteParams { n: u32, kv_heads: u32, head_dim: u32 }
);
params!(
    /// Rows of one sequence that a threadgroup of `attend_*` computes.
    AttendTile { row: u32, count: u32, end: u32, table: u32 }
);
params!(
    /// Parameters of `attend_*`.
    AttendParams {
        q_heads: u32,
        kv_heads: u32,
        head_dim: u32,
        spans: u32,
        window: u32,
        scale: f32,
        soft_cap: f32,
        few: u32,
        q_eps: f32,
        k_eps: f32,
        bits: u32,
        flags: u32,
        value_dim: u32,
        last: u32,
        sinks: u32,
    }
);
params!(
    /// Parameters of `attend_merge` and `attend_merge_sinks`.
    MergeParams { head_dim: u32, spans: u32, q_heads: u32 }
);

/// Tokens of a block of the cache: a lane each.
pub const BLOCK_TOKENS: usize = 32;
/// Tokens of a span, as `attend_*` cuts a sequence.
pub(super) const SPAN_TOKENS: usize = 512;
/// Threadgroups that leave a large GPU's memory idle.
const FEW: u32 = 128;
/// Threadgroups that a large GPU runs at a time without a limit of registers.
const MANY: u32 = 396;
/// Elements of the largest head of a compressed cache, and of one of floats that models mostly have.
pub(super) const MAX_HEAD: usize = 256;

/// One sequence's part of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// Query tokens, the last of its `kv_len` tokens.
    pub q_len: usize,
    /// Its tokens in the cache.
    pub kv_len: usize,
    /// Blocks of the sequence, in order.
    pub blocks: &'a [u32],
}

/// Which rows of a step see which blocks, on the GPU; made once a step and used by every layer.
#[derive(Debug)]
pub struct Plan {
    blocks: Buffer,
    /// Tiles of as many tokens as `rows` rows of the heads of a KV head allow.
    tiles: Buffer,
    n_tiles: u32,
    rows: usize,
    tokens: usize,
    spans: usize,
    group: usize,
    /// Each sequence has one token.
    ones: bool,
    units: Units,
    /// Beside a prompt, the tokens of sequences that have few, and their own plan.
    few: Option<(Vec<u32>, Box<Plan>)>,
}

/// What computes attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Units {
    /// Lanes, a few rows at a time.
    Lanes,
    /// Matrix units, a few rows at a time.
    Tiles,
    /// Matrix units, many rows at a time.
    Prompt,
}

impl Plan {
    /// Cuts the query tokens of a step into tiles. `group` is the number of query heads a KV head.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(gpu: &Gpu, shape: KvShape, seqs: &[Sequence<'_>], group: usize) -> Result<Self> {
        let fast = shape.is_typed() && gpu.has_fast_tiles();
        let units = if fast { Units::Tiles } else { Units::Lanes };
        let is_long = |seq: &Sequence<'_>| seq.q_len >= prompt::FROM;
        let long = seqs.iter().filter(|seq| is_long(seq)).count();
        if long == 0 || !gpu.has_prompt_tiles() || !prompt::fits(shape, group) {
            return Self::with(gpu, shape, seqs, group, units);
        }
        let keep = |i: usize| is_long(&seqs[i]);
        let mut plan = Self::of_some(gpu, shape, seqs, keep, group, Units::Prompt)?;
        if long < seqs.len() {
            let short: Vec<_> = seqs.iter().filter(|seq| !is_long(seq)).cloned().collect();
            let own = Self::with(gpu, shape, &short, group, units)?;
            let rows = prompt::rows_of(seqs.iter().map(|seq| (seq.q_len, !is_long(seq))))?;
            plan.few = Some((rows, Box::new(own)));
        }
        Ok(plan)
    }

    /// As [`Self::new`], on these units alone.
    ///
    /// # Errors
    /// There is no memory, or no such kernel: matrix units are for [`KvShape::is_typed`].
    pub fn with(
        gpu: &Gpu,
        shape: KvShape,
        seqs: &[Sequence<'_>],
        group: usize,
        units: Units,
    ) -> Result<Self> {
        Self::of_some(gpu, shape, seqs, |_| true, group, units)
    }

    /// Rows of sequences that are not kept have no tiles: nothing is computed for them.
    pub(super) fn of_some(
        gpu: &Gpu,
        shape: KvShape,
        seqs: &[Sequence<'_>],
        keep: impl Fn(usize) -> bool,
        group: usize,
        units: Units,
    ) -> Result<Self> {
        if units != Units::Lanes && !shape.is_typed() {
            let expected = "f16 heads of 64, 128 or 256";
            return Err(TensorError::shape("attention tiles", expected, &[shape.head_dim]));
        }
        let longest = seqs.iter().map(|s| s.q_len).max().unwrap_or(0);
        let rows = match units {
            Units::Prompt => prompt::ROWS,
            _ if shape.is_typed() && (longest > 1 || group > 4) => 8,
            _ => 4,
        };
        let step = (rows / group).max(1);
        let (mut tiles, mut blocks, mut first) = (Vec::new(), Vec::new(), 0);
        for (i, seq) in seqs.iter().enumerate() {
            let table = count("attention", blocks.len())?;
            for start in (0..seq.q_len).step_by(step).filter(|_| keep(i)) {
                tiles.push(AttendTile {
                    row: count("attention", first + start)?,
                    count: step.min(seq.q_len - start) as u32,
                    end: count("attention", seq.kv_len - seq.q_len + start + 1)?,
                    table,
                });
            }
            if keep(i) {
                blocks.extend_from_slice(seq.blocks);
            }
            first += seq.q_len;
        }
        if units == Units::Prompt {
            // Those that see most begin first, so that none is left alone at the end.
            tiles.sort_by_key(|tile| std::cmp::Reverse(tile.end));
        }
        let longest = seqs.iter().map(|s| s.kv_len).max().unwrap_or(0);
        let n_tiles = count("attention", tiles.len())?;
        let (blocks, tiles) = (gpu.upload(&blocks)?, gpu.upload(&tiles)?);
        let spans = longest.div_ceil(SPAN_TOKENS).max(1);
        let ones = seqs.iter().all(|s| s.q_len == 1);
        let few = None;
        Ok(Self { blocks, tiles, n_tiles, rows, tokens: first, spans, group, ones, units, few })
    }
}

/// What attention computes beside the operands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scoring<'a> {
    /// Factor of `q · k`, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// A token sees itself and the `window - 1` tokens before it.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` before the softmax.
    pub soft_cap: Option<f32>,
    /// Scores without a value that join each head's softmax.
    pub sinks: Option<&'a Sinks>,
    /// Elements of a latent's value; other values are as long as keys.
    pub value_dim: Option<usize>,
}

impl<'a> Scoring<'a> {
    /// The sinks' scores on a GPU, if there are any.
    ///
    /// # Errors
    /// There is not one for each of `heads`, or no memory.
    pub(super) fn sinks_on(&self, gpu: &Gpu, heads: usize) -> Result<Option<Arc<Buffer>>> {
        let Some(sinks) = self.sinks else { return Ok(None) };
        match sinks.scores().len() {
            n if n == heads => sinks.resident().on(gpu).map(Some),
            n => Err(TensorError::shape("attention sinks", format!("[{heads}]"), &[n])),
        }
    }

    /// Elements of a value in a cache of this shape.
    fn values(&self, shape: KvShape) -> Result<usize> {
        let n =
            if shape.latent { self.value_dim.unwrap_or(shape.head_dim) } else { shape.head_dim };
        if n == 0 || n > shape.head_dim.min(MAX_WIDE) || !n.is_multiple_of(8) {
            let expected = format!("values of a multiple of 8 up to {MAX_WIDE}, within keys");
            return Err(TensorError::shape("attention", expected, &[n]));
        }
        Ok(n)
    }
}

/// Writes the rows of a step into the pages of a layer.
///
/// # Shapes
/// `k`, `v` `[t, kv_heads, head_dim]`; `slots`: `t` u32, `block * 32 + offset`.
///
/// # Errors
/// The rows have another shape or are not on a GPU.
pub fn write(
    shape: KvShape,
    k: &Tensor,
    v: &Tensor,
    slots: &Buffer,
    (k_pages, v_pages): (&Buffer, &Buffer),
) -> Result<()> {
    shape.check()?;
    let (k, v) = (on_gpu(k)?, on_gpu(v)?);
    let expected = [slots.len() / 4, shape.kv_heads, shape.head_dim];
    for side in [k, v] {
        if side.dims != expected {
            return Err(TensorError::shape("kv write", format!("{expected:?}"), &side.dims));
        }
    }
    let params = WriteParams {
        n: count("kv write", k.len())?,
        kv_heads: shape.kv_heads as u32,
        head_dim: shape.head_dim as u32,
    };
    let (keys, values) = (k.input(), v.input());
    let (slots, k_pages, v_pages) =
        (Operand::In(slots, 0), Operand::Out(k_pages, 0), Operand::Out(v_pages, 0));
    let (family, kernel, operands): (_, _, &[_]) = match shape.latent {
        true => ("attend_more", "kv_write_keys", &[keys, slots, k_pages]),
        false => ("attend", "kv_write", &[keys, values, slots, k_pages, v_pages]),
    };
    k.gpu().launch(&Launch {
        family,
        kernel: &format!("{kernel}_{}", shape.name()),
        grid: [params.n.div_ceil(256), 1, 1],
        threads: 256,
        operands,
        params: bytemuck::bytes_of(&params),
    })
}

/// Causal attention of a step's rows over the pages of a layer.
///
/// # Shapes
/// `q [t, heads, head_dim]` -> the same, or `[t, heads, value_dim]` of latents.
///
/// # Errors
/// `q` has another shape than the plan's, or is not on a GPU; values or sinks do not fit.
pub fn attend(
    shape: KvShape,
    q: &Tensor,
    (k_pages, v_pages): (&Buffer, &Buffer),
    plan: &Plan,
    scoring: &Scoring<'_>,
) -> Result<Tensor> {
    let q = on_gpu(q)?;
    let (family, kernel) = match plan.units {
        Units::Prompt => return prompt::attend(shape, q, (k_pages, v_pages), plan, scoring),
        Units::Tiles => ("attend_tile", format!("attend_tile_d{}_r{}", shape.head_dim, plan.rows)),
        Units::Lanes => (shape.family(), format!("attend_{}_r{}", shape.kernel(), plan.rows)),
    };
    let operands = [q.input(), Operand::In(k_pages, 0), Operand::In(v_pages, 0)];
    plan.run(shape, q, (family, &kernel), &operands, scoring, None)
}

/// Attention of one token a sequence from the output of the projections; also writes the tokens' keys and
/// values into the pages. Where a product is next and takes halves, nothing but these is in the result. `None`
/// where there is no kernel for it: what [`Projected::turned`] gives is to be written then, and attended to.
///
/// # Shapes
/// As [`Projected`]'s -> `[t, heads, head_dim]`.
///
/// # Errors
/// The rows have other shapes than the plan's and the cache's, or are not on one GPU.
pub fn attend_new(
    shape: KvShape,
    rows: &Projected<'_>,
    (k_pages, v_pages): (&Buffer, &Buffer),
    plan: &Plan,
    scoring: &Scoring<'_>,
) -> Result<Option<Tensor>> {
    let Some(angles) = rows.rope.filter(|rope| 2 * rope.pairs == shape.head_dim) else {
        return Ok(None);
    };
    if plan.units != Units::Tiles || !plan.ones || plan.group > plan.rows {
        return Ok(None);
    }
    rows.check()?;
    let [q, k, v] = [on_gpu(rows.q)?, on_gpu(rows.k)?, on_gpu(rows.v)?];
    let heads = q.dims[1] / rows.head_dim;
    let q = &GpuTensor { dims: vec![q.dims[0], heads, rows.head_dim], ..q.clone() };
    let expected = [plan.tokens, shape.kv_heads * shape.head_dim];
    if let Some(other) = [k, v].into_iter().find(|x| x.dims != expected) {
        return Err(TensorError::shape("attention", format!("{expected:?}"), &other.dims));
    }
    let gpu = q.gpu();
    let norms = [rows.norms.map(|(q, _)| q), rows.norms.map(|(_, k)| k)];
    let gains = norms.map(|norm| norm.map(|n| n.resident().on(gpu)).transpose());
    let [q_gains, k_gains] = gains;
    let (q_gains, k_gains) = (q_gains?, k_gains?);
    let (cos, sin) = (angles.cos.on(gpu)?, angles.sin.on(gpu)?);
    // Gains that are not there are never read.
    let q_in = q.input();
    let operands = [
        q_in,
        k.input(),
        v.input(),
        q_gains.as_deref().map_or(q_in, |b| Operand::In(b, 0)),
        k_gains.as_deref().map_or(q_in, |b| Operand::In(b, 0)),
        Operand::In(&cos, 0),
        Operand::In(&sin, 0),
        Operand::Out(k_pages, 0),
        Operand::Out(v_pages, 0),
    ];
    let groups: u32 = plan.grid(shape).iter().product();
    let many = (shape.head_dim, plan.rows, plan.spans) == (128, 4, 1) && groups > MANY;
    let many = if many { "_many" } else { "" };
    let kernel = format!("attend_new_d{}_r{}{many}", shape.head_dim, plan.rows);
    let eps = norms.map(|norm| norm.map_or(-1.0, RmsNorm::eps));
    let order =
        rows.next.filter(|_| plan.is_last(scoring)).and_then(|next| next.order(plan.tokens));
    let new = Some(NewRows { eps, order });
    plan.run(shape, q, ("attend_tile", &kernel), &operands, scoring, new).map(Some)
}

/// What kernels of new rows have beside others.
#[derive(Clone, Copy)]
struct NewRows {
    /// The norms' small numbers; negative where there is none.
    eps: [f32; 2],
    /// In which the next product takes the result.
    order: Option<Order>,
}

impl Plan {
    /// Threadgroups.
    fn grid(&self, shape: KvShape) -> [u32; 3] {
        let parts = self.group.div_ceil(self.rows);
        [self.n_tiles, (shape.kv_heads * parts) as u32, self.spans as u32]
    }

    /// Heads of queries, of rows that are the plan's.
    fn heads(&self, shape: KvShape, q: &GpuTensor) -> Result<usize> {
        let heads = self.group * shape.kv_heads;
        match q.dims == [self.tokens, heads, shape.head_dim] {
            true => Ok(heads),
            false => {
                let expected = format!("[{}, {heads}, {}]", self.tokens, shape.head_dim);
                Err(TensorError::shape("attention", expected, &q.dims))
            }
        }
    }

    /// Whether a kernel's sums are the result: there is one span, and no sink joins it.
    fn is_last(&self, scoring: &Scoring<'_>) -> bool {
        self.spans == 1 && scoring.sinks.is_none()
    }

    /// Runs a kernel that takes `operands` before those that all kernels of attention have, and adds its
    /// spans.
    fn run(
        &self,
        shape: KvShape,
        q: &GpuTensor,
        (family, kernel): (&'static str, &str),
        operands: &[Operand<'_>],
        scoring: &Scoring<'_>,
        new: Option<NewRows>,
    ) -> Result<Tensor> {
        shape.check()?;
        let value_dim = scoring.values(shape)?;
        let heads = self.heads(shape, q)?;
        let gpu = q.gpu();
        let sinks = scoring.sinks_on(gpu, heads)?;
        let mut out = GpuTensor::new(gpu, &[self.tokens, heads, value_dim])?;
        let order = new.and_then(|new| new.order);
        let halves = order.map(|_| gpu.temporary(2 * q.len()).map(Arc::new)).transpose()?;
        let [q_eps, k_eps] = new.map_or([-1.0; 2], |new| new.eps);
        let rows = self.tokens * heads;
        let last = self.is_last(scoring);
        let spans = if last { 0 } else { self.spans };
        let sums = gpu.temporary(4 * rows * spans * value_dim)?;
        let weights = gpu.temporary(8 * rows * spans)?;
        let grid = self.grid(shape);
        let params = AttendParams {
            q_heads: heads as u32,
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.head_dim as u32,
            spans: self.spans as u32,
            window: scoring.window.map_or(0, |w| u32::try_from(w).unwrap_or(0)),
            scale: scoring.scale,
            soft_cap: scoring.soft_cap.unwrap_or(0.0),
            few: u32::from(grid.iter().product::<u32>() < FEW),
            q_eps,
            k_eps,
            bits: order.map_or(0, Order::bits),
            flags: order.map_or(0, Order::flags),
            value_dim: value_dim as u32,
            last: last.into(),
            sinks: 0,
        };
        let mut operands = operands.to_vec();
        let tiles = operands.len() + 1;
        operands.extend([
            Operand::In(&self.blocks, 0),
            Operand::In(&self.tiles, 0),
            Operand::Out(&out.buffer, 0),
            Operand::Out(&sums, 0),
            Operand::Out(&weights, 0),
        ]);
        if new.is_some() {
            operands.push(Operand::Out(halves.as_ref().unwrap_or(&out.buffer), 0));
        }
        let launch = Launch {
            family,
            kernel,
            grid,
            threads: 128,
            operands: &operands,
            params: bytemuck::bytes_of(&params),
        };
        let tile = (tiles, size_of::<AttendTile>());
        launch.over_tiles(gpu, tile, work(rows, self.spans, shape.head_dim))?;
        if !last {
            merge(gpu, (&sums, &weights), (self.spans, rows), sinks.as_deref(), &out)?;
        }
        out.prepared = halves.zip(order).map(|(halves, order)| Prepared::of(halves, order).into());
        Ok(out.into())
    }
}

/// Adds up what spans left of each of `rows` rows: sums `[rows, spans, value_dim]`, and of each span the largest
/// score and the weight of all. `out [tokens, heads, value_dim]`.
fn merge(
    gpu: &Gpu,
    (sums, weights): (&Buffer, &Buffer),
    (spans, rows): (usize, usize),
    sinks: Option<&Buffer>,
    out: &GpuTensor,
) -> Result<()> {
    let params = MergeParams {
        head_dim: out.dims[2] as u32,
        spans: spans as u32,
        q_heads: out.dims[1] as u32,
    };
    let mut operands = vec![Operand::In(sums, 0), Operand::In(weights, 0)];
    operands.extend(sinks.map(|sinks| Operand::In(sinks, 0)));
    operands.push(Operand::Out(&out.buffer, 0));
    gpu.launch(&Launch {
        family: "attend",
        kernel: if sinks.is_some() { "attend_merge_sinks" } else { "attend_merge" },
        grid: [count("attention", rows)?, 1, 1],
        threads: 512,
        operands: &operands,
        params: bytemuck::bytes_of(&params),
    })
}

/// Multiply-adds, at most, of so many rows of queries.
pub(super) fn work(rows: usize, spans: usize, head_dim: usize) -> usize {
    2 * rows * spans * SPAN_TOKENS * head_dim
}

pub(super) fn on_gpu(x: &Tensor) -> Result<&GpuTensor> {
    let device = || String::from("cpu");
    x.on_gpu().ok_or_else(|| TensorError::Device { op: "attention", device: device() })
}
