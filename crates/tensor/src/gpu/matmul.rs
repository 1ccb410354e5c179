//! Products of many rows: tiles of the matrix units, or a library.

use super::{
    Buffer, Gpu, Launch, Operand,
    backend::MatmulOperands,
    count, ops, params,
    weight::{BIAS, CHUNK, GpuWeight, Product, RESIDUAL},
};
use crate::{Result, RmsNorm, tensor::GpuTensor};
use std::sync::Arc;

params!(
    /// Parameters of `matmul_prepare`.
    PrepareParams { cols: u32, bits: u32, flags: u32, eps: f32 }
);

params!(
    /// Parameters of `matmul_next`.
    NextParams {
        width: u32,
        bits: u32,
        flags: u32,
        gate: u32,
        shares: u32,
        wide: u32,
        tall: u32,
        eps: f32,
    }
);

params!(
    /// Parameters of `matmul_*` and `matmul_tile_*`.
    MatmulParams {
        tokens: u32,
        rows: u32,
        cols: u32,
        group_shift: u32,
        scale_type: u32,
        packed: u32,
        share: u32,
        wide: u32,
        tall: u32,
    }
);

params!(
    /// Parameters of `matmul_finish`.
    FinishParams {
        tokens: u32,
        rows: u32,
        end0: u32,
        end1: u32,
        flags: u32,
        gate: u32,
        shares: u32,
        wide: u32,
        tall: u32,
    }
);

/// Rows of the weights that a threadgroup of `matmul_*` takes.
const TILE_ROWS: usize = 128;
/// Columns that it takes at a time.
pub(super) const TILE_COLS: usize = 64;
const PREPARE_NORM: u32 = 1;
const PREPARE_WIDE: u32 = 2;
/// Columns of a threadgroup of `matmul_prepare`, and of `matmul_next`.
const PREPARE_COLS: u32 = 2048;
const NEXT_COLS: u32 = 4096;
const NEXT_BIAS: u32 = 4;
const NEXT_RESIDUAL: u32 = 8;

/// The order in which tiles take halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    /// Bits of a weight.
    bits: u8,
    /// Four simdgroups multiply together.
    wide: bool,
}

impl Order {
    pub(super) fn of(gpu: &Gpu, bits: u8, tokens: usize) -> Self {
        Self { bits, wide: bits == 4 && gpu.has_wide_tiles() && tokens > 32 }
    }

    pub(super) fn bits(self) -> u32 {
        u32::from(self.bits)
    }

    pub(super) fn flags(self) -> u32 {
        if self.wide { PREPARE_WIDE } else { 0 }
    }
}

/// The product that reads a product's outputs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Next<'a> {
    /// It reads the outputs through this norm, with weights of the same kind.
    Normed(&'a RmsNorm),
    /// It alone reads the outputs, as they are; they are not stored if this order can be.
    Alone(Order),
}

/// Activations as a product takes them.
#[derive(Debug)]
pub(crate) struct Prepared {
    halves: Arc<Buffer>,
    order: Order,
    /// Gains and the small number of the norm that they went through.
    norm: Option<(Arc<Buffer>, f32)>,
}

impl Prepared {
    /// Halves of activations as they are, without a norm.
    pub(super) fn of(halves: Arc<Buffer>, order: Order) -> Self {
        Self { halves, order, norm: None }
    }

    fn is(&self, order: Order, gains: Option<&Arc<Buffer>>, eps: f32) -> bool {
        self.order == order
            && match (&self.norm, gains) {
                (Some((own, own_eps)), Some(gains)) => Arc::ptr_eq(own, gains) && *own_eps == eps,
                (None, None) => true,
                _ => false,
            }
    }
}

/// Shares of a product, each of `tall` times `wide` sums.
struct Sums<'a> {
    buffer: &'a Buffer,
    shares: u32,
    wide: u32,
    tall: u32,
}

/// How a product is cut into threadgroups.
struct Tiling {
    family: &'static str,
    kernel: String,
    /// Tokens and threads of a threadgroup.
    tokens: usize,
    threads: u32,
    /// Threadgroups that keep a large GPU busy.
    enough: usize,
    /// Whether those of the same rows of the weights are launched one after the other, so that these
    /// are read once.
    tokens_first: bool,
}

impl GpuWeight {
    /// The product in f16 with sums in f32, by tiles.
    pub(super) fn matmul(
        &self,
        x: &GpuTensor,
        product: &Product<'_>,
        parts: &[usize],
        out: &GpuTensor,
    ) -> Result<Option<Prepared>> {
        let gpu = self.gpu();
        let tokens = x.len() / self.cols;
        let (half, tiling, order) = match self.tiles(x) {
            Some((name, bits)) => {
                let order = Order::of(gpu, bits, tokens);
                let tiling = prepared_tiling(name, tokens, order.wide);
                (self.prepare(x, product, order)?, tiling, Some(order))
            }
            None => {
                let normed = product.norm.map(|norm| ops::rms_norm(x, norm)).transpose()?;
                let half = ops::to_half(normed.as_ref().unwrap_or(x))?;
                (Arc::new(half), self.tiling(tokens), None)
            }
        };
        let (blocks_n, blocks_m) = (self.rows.div_ceil(TILE_ROWS), tokens.div_ceil(tiling.tokens));
        // Few tiles are shared out by columns, at least four steps a threadgroup.
        let steps = self.cols.div_ceil(TILE_COLS);
        let wanted = (tiling.enough / (blocks_n * blocks_m)).clamp(1, steps.div_ceil(4));
        let share = steps.div_ceil(wanted) * TILE_COLS;
        let shares = self.cols.div_ceil(share);
        let (wide, tall) = (blocks_n * TILE_ROWS, blocks_m * tiling.tokens);
        let sums = gpu.temporary(4 * shares * wide * tall)?;
        let params = MatmulParams {
            tokens: count("matmul", tokens)?,
            rows: count("matmul", self.rows)?,
            cols: count("matmul", self.cols)?,
            group_shift: self.group_shift(),
            scale_type: self.scale_type,
            packed: u32::from(self.packed),
            share: share as u32,
            wide: count("matmul", wide)?,
            tall: count("matmul", tall)?,
        };
        let [data, scales] = self.operands();
        let (n, m) = (blocks_n as u32, blocks_m as u32);
        let (x, y) = if tiling.tokens_first { (m, n) } else { (n, m) };
        let launch = Launch {
            family: tiling.family,
            kernel: &tiling.kernel,
            grid: [x, y, shares as u32],
            threads: tiling.threads,
            operands: &[data, scales, Operand::In(&half, 0), Operand::Out(&sums, 0)],
            params: bytemuck::bytes_of(&params),
        };
        gpu.launch_work(&launch, tokens * self.rows * self.cols)?;
        let sums =
            Sums { buffer: &sums, shares: shares as u32, wide: params.wide, tall: params.tall };
        let next = match product.next {
            Some(Next::Normed(norm)) => order.map(|order| (Some(norm), order)),
            Some(Next::Alone(order)) => Some((None, order)),
            None => None,
        };
        let width = if product.gate.is_some() { self.rows / 2 } else { self.rows };
        let starts = [out.offset, product.residual.map_or(0, |r| r.offset)];
        let aligned = starts.iter().all(|start| start.is_multiple_of(16));
        match next.filter(|_| aligned && width.is_multiple_of(TILE_COLS)) {
            Some(next) => self.next(&sums, product, next, (tokens, width), out).map(Some),
            None => {
                self.finish(&sums, product, (tokens, width, aligned), parts, out).map(|()| None)
            }
        }
    }

    /// Adds the shares of a product, and what else it has.
    fn finish(
        &self,
        sums: &Sums<'_>,
        product: &Product<'_>,
        (tokens, width, aligned): (usize, usize, bool),
        parts: &[usize],
        out: &GpuTensor,
    ) -> Result<()> {
        let gpu = self.gpu();
        let bias = product.bias.map(|b| b.on(gpu)).transpose()?;
        let flag = |there: bool, flag: u32| if there { flag } else { 0 };
        let end = |i: usize| parts.get(i).map_or(self.rows, |&end| end) as u32;
        let finish = FinishParams {
            tokens: count("matmul", tokens)?,
            rows: count("matmul", self.rows)?,
            end0: end(0),
            end1: end(1),
            flags: flag(bias.is_some(), BIAS) | flag(product.residual.is_some(), RESIDUAL),
            gate: ops::gate(product.gate)?,
            shares: sums.shares,
            wide: sums.wide,
            tall: sums.tall,
        };
        let sums_in = Operand::In(sums.buffer, 0);
        let by_four =
            aligned && [width, self.rows].iter().chain(parts).all(|n| n.is_multiple_of(4));
        let (kernel, each) = if by_four { ("matmul_finish_4", 4) } else { ("matmul_finish", 1) };
        gpu.launch(&Launch {
            family: "matmul",
            kernel,
            grid: [count("matmul", (tokens * width).div_ceil(256 * each))?, 1, 1],
            threads: 256,
            operands: &[
                sums_in,
                bias.as_deref().map_or(sums_in, |b| Operand::In(b, 0)),
                product.residual.map_or(sums_in, |r| r.input()),
                out.output(),
            ],
            params: bytemuck::bytes_of(&finish),
        })
    }

    /// Adds the shares of a product, and prepares the input of the next product.
    fn next(
        &self,
        sums: &Sums<'_>,
        product: &Product<'_>,
        (norm, order): (Option<&RmsNorm>, Order),
        (tokens, width): (usize, usize),
        out: &GpuTensor,
    ) -> Result<Prepared> {
        let gpu = self.gpu();
        let halves = Arc::new(gpu.temporary(2 * tokens * width)?);
        let bias = product.bias.map(|b| b.on(gpu)).transpose()?;
        let gains = norm.map(|norm| norm.resident().on(gpu)).transpose()?;
        let flag = |there: bool, flag: u32| if there { flag } else { 0 };
        let params = NextParams {
            width: count("matmul", width)?,
            bits: order.bits(),
            flags: order.flags()
                | flag(norm.is_some(), PREPARE_NORM)
                | flag(bias.is_some(), NEXT_BIAS)
                | flag(product.residual.is_some(), NEXT_RESIDUAL),
            gate: ops::gate(product.gate)?,
            shares: sums.shares,
            wide: sums.wide,
            tall: sums.tall,
            eps: norm.map_or(0.0, RmsNorm::eps),
        };
        // What is not there is never read.
        let sums_in = Operand::In(sums.buffer, 0);
        let blocks = if norm.is_some() { 1 } else { params.width.div_ceil(NEXT_COLS) };
        gpu.launch(&Launch {
            family: "matmul_tile",
            kernel: "matmul_next",
            grid: [count("matmul", tokens)?, blocks, 1],
            threads: 512,
            operands: &[
                sums_in,
                bias.as_deref().map_or(sums_in, |b| Operand::In(b, 0)),
                product.residual.map_or(sums_in, |r| r.input()),
                gains.as_deref().map_or(sums_in, |b| Operand::In(b, 0)),
                out.output(),
                Operand::Out(&halves, 0),
            ],
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(Prepared { halves, order, norm: gains.map(|gains| (gains, params.eps)) })
    }

    /// Any format's tiles.
    fn tiling(&self, tokens: usize) -> Tiling {
        let tile = if tokens <= 16 { 16 } else { 64 };
        Tiling {
            family: "matmul",
            kernel: format!("matmul_{}_t{tile}", self.kernel().0),
            tokens: tile,
            threads: 256,
            enough: self.gpu().threadgroups(),
            tokens_first: false,
        }
    }

    /// `x`, normed if the product is, as halves in the order of `matmul_tile_*`, or of `matmul_wide_*`.
    fn prepare(&self, x: &GpuTensor, product: &Product<'_>, order: Order) -> Result<Arc<Buffer>> {
        let gpu = self.gpu();
        let gains = product.norm.map(|norm| norm.resident().on(gpu)).transpose()?;
        let eps = product.norm.map_or(0.0, RmsNorm::eps);
        if let Some(prepared) = x.prepared.as_ref().filter(|p| p.is(order, gains.as_ref(), eps)) {
            return Ok(Arc::clone(&prepared.halves));
        }
        let out = Arc::new(gpu.temporary(2 * x.len())?);
        let params = PrepareParams {
            cols: count("matmul", self.cols)?,
            bits: order.bits(),
            flags: order.flags() | if gains.is_some() { PREPARE_NORM } else { 0 },
            eps,
        };
        // Gains that are not there are never read.
        let x_in = x.input();
        gpu.launch(&Launch {
            family: "matmul_tile",
            kernel: "matmul_prepare",
            grid: [count("matmul", x.len() / self.cols)?, params.cols.div_ceil(PREPARE_COLS), 1],
            threads: 256,
            operands: &[
                x_in,
                gains.as_deref().map_or(x_in, |b| Operand::In(b, 0)),
                Operand::Out(&out, 0),
            ],
            params: bytemuck::bytes_of(&params),
        })?;
        Ok(out)
    }

    /// The product by the backend's library, from weights widened to f16.
    pub(super) fn library(
        &self,
        x: &GpuTensor,
        product: &Product<'_>,
        outs: &[GpuTensor],
    ) -> Result<()> {
        let (gpu, k) = (self.gpu(), self.cols);
        let m = x.len() / k;
        let normed = product.norm.map(|norm| ops::rms_norm(x, norm)).transpose()?;
        let half = ops::to_half(normed.as_ref().unwrap_or(x))?;
        let weights = self.widen()?;
        let mut first = 0;
        let mut multiply = |out: &GpuTensor| {
            let n = out.dims[1];
            let (x, w) = ((&half, 0), (&weights, 2 * first * k));
            first += n;
            gpu.matmul(MatmulOperands { x, w, out: (&out.buffer, out.offset), m, n, k })
        };
        if let (Some(activation), [out]) = (product.gate, outs) {
            let [gate, up] = [(); 2].map(|()| GpuTensor::new(gpu, &out.dims));
            let (gate, up) = (gate?, up?);
            multiply(&gate)?;
            multiply(&up)?;
            if let Some(bias) = product.bias {
                let bias = bias.on(gpu)?;
                ops::add_bias(&gate, &bias, 0, &gate)?;
                ops::add_bias(&up, &bias, out.dims[1], &up)?;
            }
            return ops::Elements::Gated(activation).to(&gate, &up, out);
        }
        outs.iter().try_for_each(multiply)?;
        if let Some(bias) = product.bias {
            let (bias, mut first) = (bias.on(gpu)?, 0);
            for out in outs {
                ops::add_bias(out, &bias, first, out)?;
                first += out.dims[1];
            }
        }
        if let (Some(residual), [out]) = (product.residual, outs) {
            ops::Elements::Add.to(out, residual, out)?;
        }
        Ok(())
    }

    /// All rows as f16.
    fn widen(&self) -> Result<Buffer> {
        let out = self.gpu().temporary(2 * self.rows * self.cols)?;
        let (name, _) = self.kernel();
        let blocks = count("widen", (self.cols / CHUNK).div_ceil(128))?;
        let [data, scales] = self.operands();
        // A grid has at most 65535 threadgroups in y.
        for first in (0..self.rows).step_by(1 << 15) {
            let rows = (self.rows - first).min(1 << 15);
            self.gpu().launch(&Launch {
                family: "embed",
                kernel: &format!("widen_{name}"),
                grid: [blocks, rows as u32, 1],
                threads: 128,
                operands: &[data, scales, Operand::Out(&out, 2 * first * self.cols)],
                params: bytemuck::bytes_of(&self.embed_params(count("widen", first)?)),
            })?;
        }
        Ok(out)
    }
}

/// Tiles of weights that `matmul_tile_*` and `matmul_wide_*` take. The fewer its tokens, the more threadgroups
/// run at a time.
fn prepared_tiling(name: &str, tokens: usize, wide: bool) -> Tiling {
    let (tile, enough) = match tokens {
        0..=8 => (8, 768),
        9..=16 => (16, 640),
        17..=32 => (32, 512),
        _ => (64, 396),
    };
    let (family, kernel) = match wide {
        true => ("matmul_wide", format!("matmul_wide_{name}")),
        false => ("matmul_tile", format!("matmul_tile_{name}_t{tile}")),
    };
    Tiling { family, kernel, tokens: tile, threads: 128, enough, tokens_first: true }
}
