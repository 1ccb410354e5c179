//! Weight matrices on a GPU, and products with them.

use super::{
    Buffer, Gpu, LANES, Launch, Operand, Resident, count,
    matmul::{Next, Order, Prepared, TILE_COLS},
    ops, params,
    plain::{Format, Plain},
    shapes::{Taking, take_parts},
};
use crate::{
    Bytes, DType, Result, RmsNorm, TensorError, Weight, ops::Activation, pool, tensor::GpuTensor,
};
use std::sync::Arc;

params!(
    /// Parameters of `matvec_*`.
    MatvecParams {
        tokens: u32,
        rows: u32,
        cols: u32,
        end0: u32,
        end1: u32,
        group_shift: u32,
        scale_type: u32,
        packed: u32,
        flags: u32,
        gate: u32,
        groups: u32,
        eps: f32,
    }
);

params!(
    /// Parameters of `embed_*` and `widen_*`.
    EmbedParams { cols: u32, group_shift: u32, scale_type: u32, packed: u32, first: u32 }
);

const NORM: u32 = 1;
pub(super) const BIAS: u32 = 2;
pub(super) const RESIDUAL: u32 = 4;

/// Parts that a launch tells apart.
pub(crate) const PARTS: usize = 3;
/// Weights that a thread reads at a time.
pub(super) const CHUNK: usize = 32;
/// From this many tokens on, tiles of the matrix units are faster than `matvec_*`: of formats that have
/// their own, and of others.
const TILES_FROM: [usize; 2] = [2, 5];
/// Rows that lie together where weights are packed.
const PACKED_ROWS: usize = 8;
/// Bytes of a row that do: of codes, and of pairs of scale and bias.
const TOGETHER: [usize; 2] = [32, 4];
/// Rows of a tile of `matvec_tile_*`.
const TILE: usize = 16;
/// Threadgroups of it that run at a time on a large GPU; more tiles than these are shared out evenly.
const AT_A_TIME: usize = 264;
/// From this many on, a library is faster than both, where there is one.
const LIBRARY_FROM: usize = 448;

/// A matrix `[rows, cols]` on a GPU in its stored format. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct GpuWeight {
    format: Format,
    pub(super) rows: usize,
    /// Columns as stored, of which those after the inputs are zero.
    pub(super) cols: usize,
    inputs: usize,
    /// Codes or floats, and pairs of scale and bias, or scales; dense weights have the first alone.
    data: [Arc<Buffer>; 2],
    /// Where in each they begin.
    start: [usize; 2],
    /// The first row, for a part of a stack.
    first: usize,
    pub(super) scale_type: u32,
    /// Codes and scales lie as `taper/packed.h` says.
    pub(super) packed: bool,
    /// Products are never rounded to f16.
    exact: bool,
}

/// What a product does beside multiplying.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Product<'a> {
    pub(crate) norm: Option<&'a RmsNorm>,
    pub(crate) bias: Option<&'a Resident>,
    pub(crate) residual: Option<&'a GpuTensor>,
    pub(crate) gate: Option<Activation>,
    /// What the outputs are for, if a product is next.
    pub(crate) next: Option<Next<'a>>,
}

impl GpuWeight {
    /// Brings matrices of one format and width to a GPU, one below the other: codes or floats that lie
    /// so in a file's map are read there, if the device can, and all else is copied, with zeros after rows that are
    /// no multiple of 32. `None` when they
    /// differ in format.
    ///
    /// # Errors
    /// There is no room, or no kernel for rows of this length.
    pub(crate) fn stack(gpu: &Gpu, weights: &[&Weight], exact: bool) -> Result<Option<Self>> {
        let alone = weights.len() == 1;
        let plain = weights.iter().map(|w| Plain::new(w, exact, alone));
        let plain = plain.collect::<Result<Vec<_>>>()?;
        let Some(first) = plain.first() else { return Ok(None) };
        let (format, scale_type, inputs) = (first.format(), first.scale_type(), first.cols());
        let same =
            |w: &&Plain| w.format() == format && w.scale_type() == scale_type && w.cols() == inputs;
        if plain.iter().filter(same).count() != plain.len() {
            return Ok(None);
        }
        let weights = plain.into_iter().map(Plain::in_chunks).collect::<Result<Vec<_>>>()?;
        let cols = inputs.next_multiple_of(CHUNK);
        let packed = !exact
            && gpu.has_fast_tiles()
            && tile_name(format, scale_type).is_some()
            && cols.is_multiple_of(TILE_COLS)
            && weights.iter().all(|w| w.rows().is_multiple_of(PACKED_ROWS));
        let side = |i: usize| -> Result<(Arc<Buffer>, usize)> {
            let parts: Vec<_> = weights.iter().filter_map(|w| w.stored()[i].clone()).collect();
            let joined = Bytes::joined(&parts).filter(|_| !packed);
            let adopted = joined.map(|bytes| gpu.adopt(&bytes)).transpose()?;
            if let Some((buffer, start)) = adopted.flatten() {
                return Ok((Arc::new(buffer), start));
            }
            let buffer = gpu.allocate(parts.iter().map(Bytes::len).sum())?;
            let mut at = 0;
            for (part, weight) in parts.iter().zip(&weights) {
                if packed {
                    buffer.write(at, &together(part.as_slice(), weight.rows(), TOGETHER[i]))?;
                } else {
                    buffer.write(at, part.as_slice())?;
                }
                at += part.len();
            }
            Ok((Arc::new(buffer), 0))
        };
        let ((codes, start), (scales, scales_start)) = (side(0)?, side(1)?);
        let (data, start) = ([codes, scales], [start, scales_start]);
        let rows = weights.iter().map(|w| w.rows()).sum();
        let first = 0;
        Ok(Some(Self { format, rows, cols, inputs, data, start, first, scale_type, packed, exact }))
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    #[expect(clippy::misnamed_getters, reason = "zeros after the inputs are nobody else's matter")]
    pub(crate) fn cols(&self) -> usize {
        self.inputs
    }

    /// Columns as stored.
    pub(super) fn stored_cols(&self) -> usize {
        self.cols
    }

    /// Whether its rows are stored without zeros after them.
    pub(super) fn is_whole(&self) -> bool {
        self.inputs == self.cols
    }

    pub(crate) fn gpu(&self) -> &Gpu {
        self.data[0].gpu()
    }

    pub(crate) fn bytes(&self) -> u64 {
        let row: usize = (0..2).map(|side| self.row_bytes(side)).sum();
        (row * self.rows) as u64
    }

    /// Rows `first..first + rows`, over the same memory.
    pub(crate) fn part(&self, first: usize, rows: usize) -> Self {
        Self { first: self.first + first, rows, ..self.clone() }
    }

    fn row_bytes(&self, side: usize) -> usize {
        match (self.format, side) {
            (Format::Dense(dtype), 0) => self.cols * dtype.size_in_bytes(),
            (Format::Dense(_), _) => 0,
            (Format::Affine(f), 0) => f.row_bytes(self.cols),
            (Format::Affine(f), _) => {
                self.cols / f.group * if self.scale_type == 0 { 8 } else { 4 }
            }
            (Format::Mxfp4, 0) => self.cols / 2,
            (Format::Mxfp4, _) => self.cols / CHUNK,
        }
    }

    pub(super) fn operands(&self) -> [Operand<'_>; 2] {
        [0, 1].map(|side| {
            Operand::In(&self.data[side], self.start[side] + self.first * self.row_bytes(side))
        })
    }

    /// The suffix of kernels for this format, and rows that a threadgroup of `matvec_*` computes.
    pub(super) fn kernel(&self) -> (&'static str, u32) {
        match self.format {
            Format::Dense(DType::F32) => ("f32", 2),
            Format::Dense(DType::F16) => ("f16", 2),
            Format::Dense(DType::BF16) => ("bf16", 2),
            Format::Mxfp4 => ("mxfp4", 8),
            Format::Affine(f) => match f.bits {
                2 => ("q2", 8),
                3 => ("q3", 8),
                4 => ("q4", 8),
                5 => ("q5", 4),
                6 => ("q6", 4),
                _ => ("q8", 4),
            },
        }
    }

    /// The format's name in kernels for matrix units that are faster than all else, and bits of a weight.
    fn tile_kernel(&self) -> Option<(&'static str, u8)> {
        tile_name(self.format, self.scale_type).filter(|_| self.gpu().has_fast_tiles())
    }

    /// [`Self::tile_kernel`], if the product with `x` consists of whole tiles.
    pub(super) fn tiles(&self, x: &GpuTensor) -> Option<(&'static str, u8)> {
        let whole = self.cols.is_multiple_of(TILE_COLS) && x.offset.is_multiple_of(16);
        self.tile_kernel().filter(|_| whole)
    }

    /// [`Self::tile_kernel`], if products with halves of rows as they are stored consist of whole tiles.
    pub(super) fn own_tiles(&self) -> Option<(&'static str, u8)> {
        let whole = self.is_whole() && self.cols.is_multiple_of(TILE_COLS);
        self.tile_kernel().filter(|_| whole)
    }

    pub(super) fn group_shift(&self) -> u32 {
        match self.format {
            Format::Dense(_) | Format::Mxfp4 => 0,
            Format::Affine(f) => (f.group / CHUNK).trailing_zeros(),
        }
    }

    /// The rows `ids`, as f32. The ids are below [`Self::rows`].
    pub(crate) fn rows_of(&self, ids: &[u32]) -> Result<GpuTensor> {
        let out = GpuTensor::new(self.gpu(), &[ids.len(), self.cols])?;
        let ids_there = self.gpu().upload(ids)?;
        let (name, _) = self.kernel();
        let [data, scales] = self.operands();
        self.gpu().launch(&Launch {
            family: "embed",
            kernel: &format!("embed_{name}"),
            grid: [count("embedding", (self.cols / CHUNK).div_ceil(128))?, ids.len() as u32, 1],
            threads: 128,
            operands: &[data, scales, Operand::In(&ids_there, 0), Operand::Out(&out.buffer, 0)],
            params: bytemuck::bytes_of(&self.embed_params(0)),
        })?;
        self.without_zeros(out)
    }

    /// Rows of the stored width as wide as they are.
    fn without_zeros(&self, x: GpuTensor) -> Result<GpuTensor> {
        let rows = x.dims[0];
        match self.is_whole() {
            true => Ok(x),
            false => {
                let taking = Taking { from: self.cols, first: 0, to: self.inputs };
                take_parts(&x, taking, &[rows, self.inputs])
            }
        }
    }

    pub(super) fn embed_params(&self, first: u32) -> EmbedParams {
        EmbedParams {
            cols: self.cols as u32,
            group_shift: self.group_shift(),
            scale_type: self.scale_type,
            packed: u32::from(self.packed),
            first,
        }
    }

    /// `x Wᵀ` and what `product` adds to it. With several parts (ends of their rows), each part's
    /// output stands on its own.
    ///
    /// # Shapes
    /// `x [tokens, cols]` -> one `[tokens, rows of the part]` a part, or `[tokens, rows / 2]` with a
    /// gate.
    pub(crate) fn multiply<const N: usize>(
        &self,
        x: &GpuTensor,
        product: Product<'_>,
        parts: [usize; N],
    ) -> Result<[GpuTensor; N]> {
        if !self.is_whole() {
            let normed = product.norm.map(|norm| ops::rms_norm(x, norm)).transpose()?;
            let taking = Taking { from: self.inputs, first: 0, to: self.cols };
            let x = normed.as_ref().unwrap_or(x);
            let x = take_parts(x, taking, &[x.len() / self.inputs, self.cols])?;
            let wide = Self { inputs: self.cols, ..self.clone() };
            return wide.multiply(&x, Product { norm: None, ..product }, parts);
        }
        let tokens = x.len() / self.cols;
        let mut outs = self.outputs(tokens, parts, product.gate.is_some())?;
        // One token's outputs lie one after the other, whatever they are parts of.
        if N > PARTS && tokens > 1 {
            self.multiply_in_turn(x, product, &parts, &outs)?;
            return Ok(outs);
        }
        let prepared = self.multiply_to(x, product, &parts, &outs)?;
        if let [out] = &mut outs[..] {
            out.prepared = prepared.map(Arc::new);
        }
        Ok(outs)
    }

    /// More parts than a launch tells apart, without a bias.
    fn multiply_in_turn(
        &self,
        x: &GpuTensor,
        product: Product<'_>,
        ends: &[usize],
        outs: &[GpuTensor],
    ) -> Result<()> {
        let mut first = 0;
        for (ends, outs) in ends.chunks(PARTS).zip(outs.chunks(PARTS)) {
            let own: Vec<_> = ends.iter().map(|end| end - first).collect();
            let rows = own.last().copied().unwrap_or(0);
            self.part(first, rows).multiply_to(x, product, &own, outs)?;
            first += rows;
        }
        Ok(())
    }

    /// Multiplies into tensors that lie one after the other. Returns the input of the next product, if it was
    /// made at once.
    pub(crate) fn multiply_to(
        &self,
        x: &GpuTensor,
        product: Product<'_>,
        parts: &[usize],
        outs: &[GpuTensor],
    ) -> Result<Option<Prepared>> {
        let tokens = x.len() / self.cols;
        if tokens == 0 {
            Ok(None)
        } else if self.exact || tokens < TILES_FROM[usize::from(self.tiles(x).is_none())] {
            self.matvec(x, &product, parts, &outs[0]).map(|()| None)
        } else if tokens < LIBRARY_FROM || !self.gpu().has_matmul() {
            self.matmul(x, &product, parts, &outs[0])
        } else {
            self.library(x, &product, outs).map(|()| None)
        }
    }

    /// The order in which a product of so many rows of activations takes them as halves, if it does.
    pub(crate) fn order(&self, tokens: usize) -> Option<Order> {
        // Halves would be made of the inputs alone, without the zeros.
        let tiles = self.own_tiles().filter(|_| !self.exact);
        let many = tokens >= LIBRARY_FROM && self.gpu().has_matmul();
        let (_, bits) = tiles.filter(|_| tokens >= TILES_FROM[0] && !many)?;
        Some(Order::of(self.gpu(), bits, tokens))
    }

    fn outputs<const N: usize>(
        &self,
        tokens: usize,
        parts: [usize; N],
        gated: bool,
    ) -> Result<[GpuTensor; N]> {
        let width = if gated { self.rows / 2 } else { self.rows };
        let whole = GpuTensor::new(self.gpu(), &[tokens, width])?;
        let mut start = 0;
        Ok(parts.map(|end| {
            let part = GpuTensor {
                offset: 4 * tokens * start,
                dims: vec![tokens, if gated { width } else { end - start }],
                ..whole.clone()
            };
            start = end;
            part
        }))
    }

    fn matvec(
        &self,
        x: &GpuTensor,
        product: &Product<'_>,
        parts: &[usize],
        out: &GpuTensor,
    ) -> Result<()> {
        if !x.offset.is_multiple_of(16) {
            let expected = "an input that starts at a multiple of four elements";
            return Err(TensorError::shape("matvec", expected, &[x.offset / 4]));
        }
        let tokens = x.len() / self.cols;
        let (name, rows) = self.kernel();
        let tiles = self.tile_kernel().filter(|_| !self.exact && tokens == 1);
        let of = self.rows.div_ceil(TILE);
        let groups = of.div_ceil(of.div_ceil(AT_A_TIME).max(1));
        let gains = product.norm.map(|n| n.resident().on(self.gpu())).transpose()?;
        let bias = product.bias.map(|b| b.on(self.gpu())).transpose()?;
        let flag = |there: bool, flag: u32| if there { flag } else { 0 };
        let end = |i: usize| parts.get(i).map_or(self.rows, |&end| end) as u32;
        let params = MatvecParams {
            tokens: count("linear", tokens)?,
            rows: count("linear", self.rows)?,
            cols: count("linear", self.cols)?,
            end0: end(0),
            end1: end(1),
            group_shift: self.group_shift(),
            scale_type: self.scale_type,
            packed: u32::from(self.packed),
            flags: flag(gains.is_some(), NORM)
                | flag(bias.is_some(), BIAS)
                | flag(product.residual.is_some(), RESIDUAL),
            gate: ops::gate(product.gate)?,
            groups: groups as u32,
            eps: product.norm.map_or(0.0, RmsNorm::eps),
        };
        let [data, scales] = self.operands();
        // What a flag says is not there is never read; any buffer will do.
        let x_in = x.input();
        let operands = [
            data,
            scales,
            x_in,
            gains.as_deref().map_or(x_in, |b| Operand::In(b, 0)),
            bias.as_deref().map_or(x_in, |b| Operand::In(b, 0)),
            product.residual.map_or(x_in, |r| r.input()),
            out.output(),
        ];
        let few = if tokens == 1 { 1 } else { 4 };
        let blocks = |of: u32| params.rows.div_ceil(of);
        let (family, kernel, blocks, threads, m) = match tiles {
            Some((name, _)) => {
                ("matvec_tile", format!("matvec_tile_{name}_m1"), params.groups, 256, 1)
            }
            None if self.gpu().has_fast_tiles() => {
                ("matvec", format!("matvec_{name}_m{few}"), blocks(rows), 4 * LANES, few)
            }
            None => {
                let m = if tokens == 2 { 2 } else { few };
                ("matvec_rows", format!("matvec_rows_{name}_m{m}"), blocks(8), 2 * LANES, m)
            }
        };
        let launch = Launch {
            family,
            kernel: &kernel,
            grid: [blocks, params.tokens.div_ceil(m), 1],
            threads,
            operands: &operands,
            params: bytemuck::bytes_of(&params),
        };
        self.gpu().launch_work(&launch, x.len() * self.rows)
    }
}

/// A format's name in kernels for matrix units, and bits of a weight.
fn tile_name(format: Format, scale_type: u32) -> Option<(&'static str, u8)> {
    let Format::Affine(f) = format else { return None };
    let name = match (f.bits, f.group) {
        _ if scale_type == 0 => return None,
        (4, 32) => "q4_g32",
        (4, 64) => "q4_g64",
        (4, 128) => "q4_g128",
        (8, 32) => "q8_g32",
        (8, 64) => "q8_g64",
        (8, 128) => "q8_g128",
        _ => return None,
    };
    Some((name, f.bits))
}

/// Rows in the order of `taper/packed.h`: `unit` bytes of each of [`PACKED_ROWS`] lie together.
fn together(data: &[u8], rows: usize, unit: usize) -> Vec<u8> {
    let row = data.len() / rows;
    let mut out = vec![0; data.len()];
    let mut groups: Vec<_> =
        out.chunks_mut(PACKED_ROWS * row).zip(data.chunks(PACKED_ROWS * row)).collect();
    pool::for_each(&mut groups, |_, (to, from)| {
        for (i, to) in to.chunks_exact_mut(unit).enumerate() {
            let at = i % PACKED_ROWS * row + i / PACKED_ROWS * unit;
            to.copy_from_slice(&from[at..at + unit]);
        }
    });
    out
}
