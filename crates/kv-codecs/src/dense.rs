//! Uncompressed caches: f32, f16, bf16.
//!
//! ```text
//! block of one side:  [kv_heads][block_tokens][head_dim] elements, native byte order
//! ```
//! A head's tokens stand together, so that one attention task reads one run of memory. Where a value is the end of
//! its key, pages may have keys only.

use crate::{
    AttnBatch, AttnParams, BlockBytes, BlockReader, KvCodec, KvCodecError, KvGeometry, LayerPages,
    attend::{attend_block_rows, attend_blocks},
    drive,
    side::LARGEST_HALF,
};
use half::bf16;
use taper_base::BlockId;
use taper_tensor::{
    AlignedBytes, DType, Projected, Tensor,
    cpu::{self, Floats, HeadRows},
    ops, pool,
};

/// What is written.
const ROWS: &str = "k and v [slots, kv_heads, head_dim]";

/// Stores rows as plain floats. Lossless in f32; else each element is rounded to nearest.
#[derive(Debug, Clone, Copy)]
pub struct DenseCodec {
    dtype: DType,
}

impl DenseCodec {
    /// A codec of this element type.
    #[must_use]
    pub fn new(dtype: DType) -> Self {
        Self { dtype }
    }

    fn width(self) -> usize {
        self.dtype.size_in_bytes()
    }

    /// Writes a row; what is too large for a half becomes the largest, and `row` is changed so.
    fn write(self, row: &mut [f32], out: &mut [u8]) {
        match self.dtype {
            DType::F16 => {
                row.iter_mut().for_each(|x| *x = x.clamp(-LARGEST_HALF, LARGEST_HALF));
                cpu::f32_to_f16(row, bytemuck::cast_slice_mut(out));
            }
            DType::BF16 => {
                let out = bytemuck::cast_slice_mut::<_, bf16>(out);
                half::slice::HalfFloatSliceExt::convert_from_f32_slice(out, row);
            }
            DType::F32 => out.copy_from_slice(bytemuck::cast_slice(row)),
        }
    }

    fn floats(self, bytes: &[u8]) -> Floats<'_> {
        match self.dtype {
            DType::F16 => Floats::F16(bytemuck::cast_slice(bytes)),
            DType::BF16 => Floats::Bf16(bytemuck::cast_slice(bytes)),
            _ => Floats::F32(bytemuck::cast_slice(bytes)),
        }
    }

    /// Offset of a token of a head, in bytes from the start of the side's pages.
    fn offset(self, g: KvGeometry, block: usize, head: usize, token: usize) -> usize {
        ((block * g.kv_heads + head) * g.block_tokens + token) * g.head_dim * self.width()
    }

    /// Writes keys and values into their slots.
    fn write_rows(
        self,
        g: KvGeometry,
        [k, v]: [HeadRows<'_>; 2],
        slots: &[usize],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        for x in [k, v] {
            if x.dims() != [slots.len(), g.kv_heads, g.head_dim] {
                return Err(KvCodecError::Shape { expected: ROWS, got: x.dims().to_vec() });
            }
        }
        let block_bytes = self.side_bytes(g);
        check_slots(g, slots, pages.k.len().min(values(pages).len()) / block_bytes)?;
        let touched = |pages| touched_blocks(slots, g.block_tokens, pages, block_bytes);
        let keys = touched(pages.k.as_mut_slice());
        let values = if pages.v.is_empty() { Vec::new() } else { touched(pages.v.as_mut_slice()) };
        let mut values = values.into_iter();
        let mut blocks: Vec<_> = keys.into_iter().map(|key| (key, values.next())).collect();
        pool::for_each(&mut blocks, |_, (key, value)| {
            let mut row = vec![0.0; g.head_dim];
            self.write_block(g, k, key, &mut row);
            if let Some(value) = value {
                self.write_block(g, v, value, &mut row);
            }
        });
        Ok(())
    }

    /// Writes the rows of one block, each by way of `row`.
    fn write_block(
        self,
        g: KvGeometry,
        x: HeadRows<'_>,
        block: &mut TouchedBlock<'_>,
        row: &mut [f32],
    ) {
        for &(token, offset) in &block.tokens {
            for head in 0..g.kv_heads {
                x.turn(token, head, 1.0, row);
                let at = self.offset(g, 0, head, offset);
                self.write(row, &mut block.bytes[at..at + g.head_dim * self.width()]);
            }
        }
    }

    fn decode_side(
        self,
        g: KvGeometry,
        slots: &[usize],
        pages: &AlignedBytes,
    ) -> Result<Tensor, KvCodecError> {
        check_slots(g, slots, pages.len() / self.side_bytes(g))?;
        let mut out = vec![0.0; slots.len() * g.kv_heads * g.head_dim];
        let bytes = g.head_dim * self.width();
        for (token, &slot) in out.chunks_exact_mut(g.kv_heads * g.head_dim).zip(slots) {
            let (block, offset) = (slot / g.block_tokens, slot % g.block_tokens);
            for (head, row) in token.chunks_exact_mut(g.head_dim).enumerate() {
                let at = self.offset(g, block, head, offset);
                self.floats(&pages.as_slice()[at..at + bytes]).widen(row);
            }
        }
        Ok(Tensor::from_vec(out, &[slots.len(), g.kv_heads, g.head_dim])?)
    }

    /// Reads pages that have the blocks of a batch.
    fn reader<'a>(
        self,
        geometry: KvGeometry,
        pages: &'a LayerPages,
        batch: &AttnBatch<'_>,
    ) -> Result<Reader<'a>, KvCodecError> {
        drive::check_blocks(geometry, batch, pages.k.len() / self.side_bytes(geometry))?;
        Ok(Reader { codec: self, geometry, pages })
    }

    fn side_bytes(self, g: KvGeometry) -> usize {
        g.kv_heads * g.block_tokens * g.head_dim * self.width()
    }
}

/// Where values are: among the keys, whose ends they are, in pages without room for them.
fn values(pages: &LayerPages) -> &AlignedBytes {
    if pages.v.is_empty() { &pages.k } else { &pages.v }
}

/// A block that is written to, and which tokens go where in it.
struct TouchedBlock<'a> {
    bytes: &'a mut [u8],
    tokens: Vec<(usize, usize)>,
}

/// The blocks that slots fall into, each once, so that they can be written in parallel. The slots
/// are inside `pages`.
fn touched_blocks<'a>(
    slots: &[usize],
    block_tokens: usize,
    pages: &'a mut [u8],
    block_bytes: usize,
) -> Vec<TouchedBlock<'a>> {
    let mut order: Vec<usize> = (0..slots.len()).collect();
    order.sort_by_key(|&token| slots[token] / block_tokens);
    let mut touched: Vec<TouchedBlock<'a>> = Vec::new();
    let (mut rest, mut at, mut last) = (pages, 0, None);
    for token in order {
        let (block, offset) = (slots[token] / block_tokens, slots[token] % block_tokens);
        if last != Some(block) {
            let (_, tail) = std::mem::take(&mut rest).split_at_mut((block - at) * block_bytes);
            let (bytes, tail) = tail.split_at_mut(block_bytes);
            touched.push(TouchedBlock { bytes, tokens: Vec::new() });
            (rest, at, last) = (tail, block + 1, Some(block));
        }
        if let Some(block) = touched.last_mut() {
            block.tokens.push((token, offset));
        }
    }
    touched
}

fn check_slots(g: KvGeometry, slots: &[usize], blocks: usize) -> Result<(), KvCodecError> {
    let limit = blocks * g.block_tokens;
    match slots.iter().find(|&&slot| slot >= limit) {
        Some(&slot) => Err(KvCodecError::Slot { slot, slots: limit }),
        None => Ok(()),
    }
}

struct Reader<'a> {
    codec: DenseCodec,
    geometry: KvGeometry,
    pages: &'a LayerPages,
}

impl Reader<'_> {
    fn side<'a>(
        &self,
        side: &'a AlignedBytes,
        block: BlockId,
        head: usize,
        tokens: usize,
    ) -> Floats<'a> {
        let at = self.codec.offset(self.geometry, block.0 as usize, head, 0);
        let bytes = tokens * self.geometry.head_dim * self.codec.width();
        self.codec.floats(&side.as_slice()[at..at + bytes])
    }
}

impl BlockReader for Reader<'_> {
    fn k<'a>(
        &'a self,
        block: BlockId,
        head: usize,
        tokens: usize,
        _: &'a mut Vec<f32>,
    ) -> Floats<'a> {
        self.side(&self.pages.k, block, head, tokens)
    }

    fn v<'a>(
        &'a self,
        block: BlockId,
        head: usize,
        tokens: usize,
        _: &'a mut Vec<f32>,
    ) -> Floats<'a> {
        self.side(values(self.pages), block, head, tokens)
    }

    fn in_place(&self, block: BlockId, head: usize) -> Option<(Floats<'_>, Floats<'_>)> {
        let side = |pages| self.side(pages, block, head, self.geometry.block_tokens);
        Some((side(&self.pages.k), side(values(self.pages))))
    }
}

impl KvCodec for DenseCodec {
    fn name(&self) -> &str {
        self.dtype.as_str()
    }

    fn reads_values_in_keys(&self) -> bool {
        true
    }

    fn block_bytes(&self, geometry: KvGeometry) -> BlockBytes {
        let side = self.side_bytes(geometry);
        BlockBytes { k: side, v: side }
    }

    fn encode(
        &self,
        geometry: KvGeometry,
        k: &Tensor,
        v: &Tensor,
        slots: &[usize],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let shape = |x: &Tensor| match *x.dims() {
            [_, heads, d] => Ok((heads, d)),
            _ => Err(KvCodecError::Shape { expected: ROWS, got: x.dims().to_vec() }),
        };
        let (of_k, of_v) = (shape(k)?, shape(v)?);
        ops::with_host_f32(k, |k| {
            let k = HeadRows::plain(k, of_k.0, of_k.1);
            ops::with_host_f32(v, |v| {
                self.write_rows(geometry, [k, HeadRows::plain(v, of_v.0, of_v.1)], slots, pages)
            })
        })??
    }

    fn attend_new(
        &self,
        geometry: KvGeometry,
        rows: &Projected<'_>,
        slots: &[usize],
        pages: &mut LayerPages,
        batch: &AttnBatch<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Option<Tensor>, KvCodecError> {
        rows.with_host(|[q, k, v]| {
            self.write_rows(geometry, [k, v], slots, pages)?;
            let reader = self.reader(geometry, pages, batch)?;
            attend_block_rows(geometry, q, &reader, batch, params).map(Some)
        })?
    }

    fn decode(
        &self,
        geometry: KvGeometry,
        slots: &[usize],
        pages: &LayerPages,
    ) -> Result<(Tensor, Tensor), KvCodecError> {
        let side = |pages| self.decode_side(geometry, slots, pages);
        Ok((side(&pages.k)?, side(values(pages))?))
    }

    fn decode_keys(
        &self,
        geometry: KvGeometry,
        slots: &[usize],
        pages: &LayerPages,
    ) -> Result<Tensor, KvCodecError> {
        self.decode_side(geometry, slots, &pages.k)
    }

    fn attend(
        &self,
        geometry: KvGeometry,
        q: &Tensor,
        pages: &LayerPages,
        batch: &AttnBatch<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCodecError> {
        let reader = self.reader(geometry, pages, batch)?;
        attend_blocks(geometry, q, &reader, batch, params)
    }
}
