//! A paged cache of compressed rows on a GPU: writing into it, and attention over it as it lies.
//!
//! What the codes mean is said by the codec that makes a [`CodedCache`]; here are the launches of
//! `coded.metal`, `coded_more.metal` and `encode.metal` in `kernels/attention`.

pub use super::coded_format::{CodedSide, RowFormat, Signs};
pub use super::coded_new::NewTokens;
pub use super::coded_plan::{CodedPlan, CodedSequence, ExactSlots, ExactTokens, Writes};
use super::{
    Buffer, Gpu, Launch, Operand,
    attention::{MAX_HEAD, Scoring, on_gpu, prompt, work},
    coded_format::refused,
    coded_plan::Tiles,
    count,
    key_scores::{CodedKeyScoreParams, Task},
    params,
};
use crate::{KeyScorer, Result, Tensor, TensorError, tensor::GpuTensor};

params!(
    /// Consecutive rows that go to consecutive slots of one block.
    EncodeRun { block: u32, offset: u32, row: u32, count: u32 }
);
params!(
    /// Parameters of `encode_*`, but `encode_exact`.
    EncodeParams {
        kv_heads: u32,
        head_dim: u32,
        order: u32,
        k_format: u32,
        k_region: u32,
        k_group: u32,
        k_rounds: u32,
        young: u32,
        v_format: u32,
        v_region: u32,
        v_group: u32,
        v_rounds: u32,
    }
);
params!(
    /// Parameters of `encode_exact`.
    ExactParams { rows: u32, kv_heads: u32, head_dim: u32, order: u32, k_rounds: u32, v_rounds: u32 }
);
params!(
    /// Rows of one sequence that a threadgroup of `attend_coded_*` computes.
    CodedTile { row: u32, count: u32, end: u32, table: u32, recent: u32, sinks: u32 }
);
params!(
    /// Parameters of `attend_coded_*`.
    CodedParams {
        q_heads: u32,
        kv_heads: u32,
        head_dim: u32,
        spans: u32,
        window: u32,
        scale: f32,
        soft_cap: f32,
        k_format: u32,
        k_region: u32,
        k_group: u32,
        k_rounds: u32,
        v_format: u32,
        v_region: u32,
        v_group: u32,
        order: u32,
        k_step: f32,
        v_step: f32,
        span_blocks: u32,
        turned: u32,
    }
);
params!(
    /// Parameters of `coded_merge` and `coded_merge_sinks`.
    CodedMergeParams { head_dim: u32, spans: u32, rounds: u32, order: u32, q_heads: u32 }
);

/// A block that has no exact rows.
pub(super) const NONE: u32 = u32::MAX;
/// Levels of a side's codes, and thresholds between them.
pub(super) const LEVELS: usize = 64;
const THRESHOLDS: usize = 32;
/// Rows of queries that a threadgroup of `attend_coded_*` takes.
pub(super) const TILE_ROWS: usize = 4;

/// Formats of keys and values that have an `attend_coded_*` of their own.
const OWN_KERNEL: [(u32, u32); 9] =
    [(2, 2), (3, 3), (3, 14), (13, 13), (14, 14), (23, 23), (24, 24), (43, 13), (44, 14)];
/// Wide trellis codes have one for each size of heads: they are attended to by no other.
const WIDE: (u32, u32) = (33, 33);

/// Pages of a layer: keys, values, and the exact rows of both.
#[derive(Debug, Clone, Copy)]
pub struct CodedPages<'a> {
    /// Codes of keys and of values.
    pub coded: (&'a Buffer, &'a Buffer),
    /// Exact pages of both, where there are any.
    pub exact: Option<(&'a Buffer, &'a Buffer)>,
}

/// The shape of a compressed cache, and its tables on a GPU.
#[derive(Debug)]
pub struct CodedCache {
    pub(super) gpu: Gpu,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) k: CodedSide,
    pub(super) v: CodedSide,
    pub(super) rounds: u32,
    pub(super) order: u32,
    pub(super) constants: Buffer,
    thresholds: Buffer,
}

impl CodedCache {
    /// Checks that there are kernels for it, and uploads its tables. `sketch` is the second
    /// rotation of keys that have one.
    ///
    /// # Errors
    /// There are no kernels for heads of this size or for these sides, or there is no memory.
    pub fn new(
        gpu: &Gpu,
        (kv_heads, head_dim): (usize, usize),
        (k, v): (CodedSide, CodedSide),
        rotation: &Signs,
        sketch: &Signs,
    ) -> Result<Self> {
        if head_dim == 0 || head_dim > MAX_HEAD || !head_dim.is_multiple_of(8) {
            let expected = format!("heads of a multiple of 8 up to {MAX_HEAD}");
            return Err(TensorError::shape("gpu kv cache", expected, &[head_dim]));
        }
        if let Some(op) = refused(k.format, v.format) {
            return Err(TensorError::Device { op, device: gpu.name() });
        }
        let padded = |x: &[f32], n: usize| -> Vec<f32> {
            let rest = std::iter::repeat(f32::INFINITY);
            x.iter().copied().chain(rest).take(n).collect()
        };
        let levels = |side: &CodedSide| padded(&side.levels, LEVELS);
        let mut constants = levels(&k);
        constants.extend(levels(&v));
        for rotation in [rotation, sketch] {
            constants.extend(rotation.rounds.iter().flatten());
            constants.extend(&rotation.paley);
        }
        if let RowFormat::Wide { .. } = k.format {
            constants.extend(&k.levels);
        }
        let mut thresholds = padded(&k.thresholds, THRESHOLDS);
        thresholds.extend(padded(&v.thresholds, THRESHOLDS));
        Ok(Self {
            gpu: gpu.clone(),
            kv_heads,
            head_dim,
            k,
            v,
            rounds: rotation.rounds.len() as u32,
            order: rotation.order.max(1) as u32,
            constants: gpu.upload(&constants)?,
            thresholds: gpu.upload(&thresholds)?,
        })
    }

    pub(super) fn rounds_of(&self, side: &CodedSide) -> u32 {
        if side.format.is_rotated() { self.rounds } else { 0 }
    }

    /// There are kernels for some pairs of formats, one for all keys with a sketch, and one for all others;
    /// those of the formats that few take have a file of their own.
    fn attend_kernel(&self) -> (&'static str, String) {
        let rings = if self.head_dim > 128 { 16 } else { 8 };
        let (k, v) = (self.k.format.number(), self.v.format.number());
        let sketched = if self.is_sketched() { "sketched_" } else { "" };
        let own = rings == 8 && OWN_KERNEL.contains(&(k, v)) || (k, v) == WIDE;
        let pair = if own { format!("_of_{k}_{v}") } else { String::new() };
        let family = if self.is_sketched() || (k, v) == WIDE { "coded_more" } else { "coded" };
        (family, format!("attend_coded_{sketched}{rings}{pair}"))
    }

    fn encode_kernel(&self) -> &'static str {
        match self.k.format {
            RowFormat::Sketched { .. } => "encode_sketched",
            RowFormat::Wide { .. } => "encode_wide",
            _ => "encode_coded",
        }
    }

    pub(super) fn is_sketched(&self) -> bool {
        matches!(self.k.format, RowFormat::Sketched { .. })
    }

    /// Whether its rows become halves that plain attention can take: keys with a sketch do not.
    pub(super) fn expands(&self) -> bool {
        !self.is_sketched()
    }

    fn rows<'a>(&self, x: &'a Tensor) -> Result<&'a GpuTensor> {
        let x = on_gpu(x)?;
        match *x.dims {
            [_, heads, d] if (heads, d) == (self.kv_heads, self.head_dim) => Ok(x),
            _ => {
                let expected = format!("[t, {}, {}]", self.kv_heads, self.head_dim);
                Err(TensorError::shape("kv write", expected, &x.dims))
            }
        }
    }

    /// Writes rows into the codes of a layer.
    ///
    /// # Shapes
    /// `k`, `v` `[t, kv_heads, head_dim]`; the slots of `writes` are inside the pages.
    ///
    /// # Errors
    /// The rows have another shape or are not on a GPU.
    pub fn encode(
        &self,
        k: &Tensor,
        v: &Tensor,
        writes: &Writes,
        pages: CodedPages<'_>,
    ) -> Result<()> {
        let (k, v) = (self.rows(k)?, self.rows(v)?);
        self.encode_rows((k.input(), v.input()), writes, pages.coded, Gpu::launch)
    }

    /// [`Self::encode`] of rows of the right shape, in whichever way of launching.
    pub(super) fn encode_rows(
        &self,
        (k, v): (Operand<'_>, Operand<'_>),
        writes: &Writes,
        coded: (&Buffer, &Buffer),
        launch: impl Fn(&Gpu, &Launch<'_>) -> Result<()>,
    ) -> Result<()> {
        let params = EncodeParams {
            kv_heads: self.kv_heads as u32,
            head_dim: self.head_dim as u32,
            order: self.order,
            k_format: self.k.format.number(),
            k_region: count("kv write", self.k.region)?,
            k_group: self.k.format.group(),
            k_rounds: self.rounds_of(&self.k),
            young: self.k.format.young(),
            v_format: self.v.format.number(),
            v_region: count("kv write", self.v.region)?,
            v_group: self.v.format.group(),
            v_rounds: self.rounds_of(&self.v),
        };
        for (runs, n) in &writes.waves {
            let operands = [
                k,
                v,
                Operand::In(runs, 0),
                Operand::In(&self.constants, 0),
                Operand::In(&self.thresholds, 0),
                Operand::Out(coded.0, 0),
                Operand::Out(coded.1, 0),
            ];
            let run = Launch {
                family: "encode",
                kernel: self.encode_kernel(),
                grid: [*n, self.kv_heads as u32, 2],
                threads: 256,
                operands: &operands,
                params: bytemuck::bytes_of(&params),
            };
            launch(&self.gpu, &run)?;
        }
        Ok(())
    }

    /// Writes rows into the exact pages of a layer, those that have a slot there.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_exact(
        &self,
        k: &Tensor,
        v: &Tensor,
        slots: &ExactSlots,
        pages: (&Buffer, &Buffer),
    ) -> Result<()> {
        let (k, v) = (self.rows(k)?, self.rows(v)?);
        let params = ExactParams {
            rows: slots.rows,
            kv_heads: self.kv_heads as u32,
            head_dim: self.head_dim as u32,
            order: self.order,
            k_rounds: self.rounds_of(&self.k),
            v_rounds: self.rounds_of(&self.v),
        };
        self.gpu.launch(&Launch {
            family: "encode",
            kernel: "encode_exact",
            grid: [(slots.rows * params.kv_heads).div_ceil(4), 1, 2],
            threads: 128,
            operands: &[
                k.input(),
                v.input(),
                Operand::In(&slots.pairs, 0),
                Operand::In(&self.constants, 0),
                Operand::Out(pages.0, 0),
                Operand::Out(pages.1, 0),
            ],
            params: bytemuck::bytes_of(&params),
        })
    }

    /// Scores of the keys of a sequence's tokens, as their codes have them.
    ///
    /// # Shapes
    /// `blocks` are the sequence's, of 32 tokens each -> `[heads, tokens]`.
    ///
    /// # Errors
    /// The scorer is for other heads, or there are fewer blocks than tokens.
    pub fn key_scores(
        &self,
        k_pages: &Buffer,
        blocks: &[u32],
        tokens: usize,
        scorer: &KeyScorer,
    ) -> Result<Vec<f32>> {
        let shape = (self.kv_heads, self.head_dim);
        let task = Task::new(&self.gpu, scorer, shape, blocks, tokens)?;
        let params = CodedKeyScoreParams {
            heads: task.shape.heads,
            kv_heads: task.shape.kv_heads,
            head_dim: task.shape.head_dim,
            tokens: task.shape.tokens,
            format: self.k.format.number(),
            region: count("key scores", self.k.region)?,
            group: self.k.format.group(),
            rounds: self.rounds_of(&self.k),
            order: self.order,
        };
        let operands = (k_pages, Some(&self.constants));
        task.run(&self.gpu, "coded_key_scores", 1, operands, bytemuck::bytes_of(&params))
    }

    /// Causal attention of a step's rows over the pages of a layer.
    ///
    /// # Shapes
    /// `q [t, heads, head_dim]` -> the same.
    ///
    /// # Errors
    /// `q` has another shape than the plan's, or is not on a GPU; or there are other sinks than heads.
    pub fn attend(
        &self,
        q: &Tensor,
        pages: CodedPages<'_>,
        plan: &CodedPlan,
        scoring: &Scoring<'_>,
    ) -> Result<Tensor> {
        let (q, heads) = (on_gpu(q)?, plan.group * self.kv_heads);
        if q.dims != [plan.tokens, heads, self.head_dim] {
            let expected = format!("[{}, {heads}, {}]", plan.tokens, self.head_dim);
            return Err(TensorError::shape("attention", expected, &q.dims));
        }
        let few = |q: &GpuTensor, own| self.attend_few(q, pages, (own, heads), scoring, false);
        let out = match (&plan.many, &plan.few) {
            (None, None) => q.clone(),
            (None, Some(own)) => few(q, own)?,
            (Some(many), None) => many.attend(self, q, pages, scoring)?,
            (Some(many), Some(own)) => {
                let out = many.attend(self, q, pages, scoring)?;
                prompt::with_rows(&out, q, &own.rows, |q| few(&q, own))?
            }
        };
        Ok(out.into())
    }

    /// Attention over blocks as they lie, of queries that may be in the codes' space.
    pub(super) fn attend_few(
        &self,
        q: &GpuTensor,
        pages: CodedPages<'_>,
        (plan, heads): (&Tiles, usize),
        scoring: &Scoring<'_>,
        turned: bool,
    ) -> Result<GpuTensor> {
        let group = heads / self.kv_heads;
        let sinks = scoring.sinks_on(&self.gpu, heads)?;
        let rows = plan.tokens * heads;
        let wide = self.head_dim.next_multiple_of(16);
        let sums = self.gpu.temporary(4 * rows * plan.spans * wide)?;
        let weights = self.gpu.temporary(8 * rows * plan.spans)?;
        let params = CodedParams {
            q_heads: heads as u32,
            kv_heads: self.kv_heads as u32,
            head_dim: self.head_dim as u32,
            spans: plan.spans as u32,
            window: scoring.window.map_or(0, |w| u32::try_from(w).unwrap_or(0)),
            scale: scoring.scale,
            soft_cap: scoring.soft_cap.unwrap_or(0.0),
            k_format: self.k.format.number(),
            k_region: self.k.region as u32,
            k_group: self.k.format.group(),
            k_rounds: self.rounds_of(&self.k),
            v_format: self.v.format.number(),
            v_region: self.v.region as u32,
            v_group: self.v.format.group(),
            order: self.order,
            k_step: self.k.step,
            v_step: self.v.step,
            span_blocks: plan.span_blocks as u32,
            turned: turned.into(),
        };
        let (family, kernel) = self.attend_kernel();
        let parts = group.div_ceil(TILE_ROWS);
        let exact = pages.exact.unwrap_or(pages.coded);
        let launch = Launch {
            family,
            kernel: &kernel,
            grid: [plan.n_tiles, (self.kv_heads * parts) as u32, plan.spans as u32],
            threads: 128,
            operands: &[
                q.input(),
                Operand::In(pages.coded.0, 0),
                Operand::In(pages.coded.1, 0),
                Operand::In(exact.0, 0),
                Operand::In(exact.1, 0),
                Operand::In(&plan.blocks, 0),
                Operand::In(&plan.tiles, 0),
                Operand::In(&self.constants, 0),
                Operand::Out(&sums, 0),
                Operand::Out(&weights, 0),
            ],
            params: bytemuck::bytes_of(&params),
        };
        let tile = (6, size_of::<CodedTile>());
        launch.over_tiles(&self.gpu, tile, work(rows, plan.spans, self.head_dim))?;
        let out = GpuTensor::new(&self.gpu, &q.dims)?;
        let params = CodedMergeParams {
            head_dim: self.head_dim as u32,
            spans: plan.spans as u32,
            rounds: self.rounds_of(&self.v),
            order: self.order,
            q_heads: heads as u32,
        };
        let mut operands =
            vec![Operand::In(&sums, 0), Operand::In(&weights, 0), Operand::In(&self.constants, 0)];
        operands.extend(sinks.as_deref().map(|sinks| Operand::In(sinks, 0)));
        operands.push(Operand::Out(&out.buffer, 0));
        self.gpu.launch(&Launch {
            family: "coded",
            kernel: if sinks.is_some() { "coded_merge_sinks" } else { "coded_merge" },
            grid: [count("attention", rows)?, 1, 1],
            threads: 256,
            operands: &operands,
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(out)
    }
}
