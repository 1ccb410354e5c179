//! Blocks built anew on a GPU from rows that stay: `kernels/eviction/compact.metal`.

use super::{
    Buffer, Gpu, Launch, Operand,
    attention::{BLOCK_TOKENS, KvShape},
    coded::{CodedCache, LEVELS, NONE},
    coded_format::{CodedSide, RowFormat},
    count, params,
};
use crate::{DType, Result, TensorError};

params!(
    /// Parameters of `gather_rows`.
    GatherParams { rows: u32, heads: u32, region: u32, layout: u32, width: u32, rings: u32 }
);
params!(
    /// Parameters of `gather_exact`.
    GatherExactParams {
        rows: u32,
        heads: u32,
        head_dim: u32,
        keys: u32,
        format: u32,
        region: u32,
        group: u32,
    }
);

/// Threads of both kernels.
const THREADS: u32 = 256;
/// Elements of a ring of codes.
const RING: usize = 16;
/// As the kernels number layouts.
const ROW_AFTER_ROW: u32 = 0;
const TILED: u32 = 1;
const RINGS: u32 = 2;
const NIBBLE_KEYS: u32 = 3;
const NIBBLE_VALUES: u32 = 4;

/// How the rows of a head of a block lie; lengths are in two bytes.
#[derive(Debug, Clone, Copy)]
struct Layout {
    kind: u32,
    /// What stays together.
    width: usize,
    rings: usize,
    /// Bytes of the head's region.
    region: usize,
}

impl Layout {
    /// Floats of so many bytes: keys are tiled.
    fn floats(bytes: usize, head_dim: usize, keys: bool) -> Self {
        let (kind, elements) = if keys { (TILED, 8) } else { (ROW_AFTER_ROW, head_dim) };
        let region = BLOCK_TOKENS * head_dim * bytes / 2;
        Self { kind, width: elements * bytes / 2, rings: 0, region }
    }

    /// A side of a compressed cache; `None` where rows of a block depend on each other.
    fn coded(side: &CodedSide, head_dim: usize, keys: bool) -> Option<Self> {
        let rings = head_dim.div_ceil(RING);
        let row_after_row = |bytes: usize| (ROW_AFTER_ROW, bytes / 2);
        let (kind, width) = match side.format {
            RowFormat::Halves => row_after_row(2 * head_dim),
            RowFormat::Affine { bits, group } => {
                row_after_row(head_dim * bits / 8 + 4 * head_dim.div_ceil(group))
            }
            RowFormat::Scalar { bits: 4 } if keys => (NIBBLE_KEYS, 4),
            RowFormat::Scalar { bits: 4 } => (NIBBLE_VALUES, 4),
            RowFormat::Scalar { bits } => (RINGS, bits),
            RowFormat::Trellis { .. } | RowFormat::Wide { .. } | RowFormat::Sketched { .. } => {
                return None;
            }
        };
        Some(Self { kind, width, rings, region: side.region / 2 })
    }
}

/// Rows that stay and the blocks that take them, on the GPU.
#[derive(Debug)]
pub struct Moves {
    slots: Buffer,
    into: Buffer,
    /// The numbers from 0: slots, and blocks, in order.
    in_order: Buffer,
    rows: u32,
    blocks: u32,
}

impl Moves {
    /// Row `i` of `slots`, each `block * 32 + offset`, goes to row `i % 32` of block `i / 32` of `into`.
    ///
    /// # Errors
    /// There is no memory, a slot is beyond what kernels count, or the rows do not fill the blocks.
    pub fn new(gpu: &Gpu, slots: &[usize], into: &[u32]) -> Result<Self> {
        let counted: Vec<_> = slots.iter().map(|&s| count("compact", s)).collect::<Result<_>>()?;
        Self::with(gpu, gpu.upload(&counted)?, slots.len(), into)
    }

    fn with(gpu: &Gpu, slots: Buffer, rows: usize, into: &[u32]) -> Result<Self> {
        if rows.div_ceil(BLOCK_TOKENS) != into.len() {
            let expected = format!("{} blocks for {rows} rows", rows.div_ceil(BLOCK_TOKENS));
            return Err(TensorError::shape("compact", expected, &[into.len()]));
        }
        let rows = count("compact", rows)?;
        let in_order: Vec<_> = (0..rows).collect();
        Ok(Self {
            slots,
            into: gpu.upload(into)?,
            in_order: gpu.upload(&in_order)?,
            rows,
            blocks: into.len() as u32,
        })
    }

    /// Memory for the blocks of a side.
    fn room(&self, gpu: &Gpu, heads: usize, layout: Layout) -> Result<Buffer> {
        gpu.temporary(self.blocks as usize * heads * layout.region * 2)
    }

    fn gather(
        &self,
        (from, slots): (&Buffer, &Buffer),
        (to, blocks): (&Buffer, &Buffer),
        heads: usize,
        layout: Layout,
    ) -> Result<()> {
        let params = GatherParams {
            rows: self.rows,
            heads: count("compact", heads)?,
            region: count("compact", layout.region)?,
            layout: layout.kind,
            width: count("compact", layout.width)?,
            rings: count("compact", layout.rings)?,
        };
        from.gpu().launch(&Launch {
            family: "compact",
            kernel: "gather_rows",
            grid: [self.blocks, params.heads, params.region.div_ceil(THREADS)],
            threads: THREADS,
            operands: &[
                Operand::In(from, 0),
                Operand::In(slots, 0),
                Operand::In(blocks, 0),
                Operand::Out(to, 0),
            ],
            params: bytemuck::bytes_of(&params),
        })
    }

    /// Builds the blocks of one side. All rows are read before one is written.
    fn build(&self, pages: &Buffer, heads: usize, layout: Layout) -> Result<()> {
        let built = self.room(pages.gpu(), heads, layout)?;
        self.gather((pages, &self.slots), (&built, &self.in_order), heads, layout)?;
        self.bring(&built, pages, heads, layout)
    }

    /// Brings blocks that were built, and stand in order, into pages.
    fn bring(&self, built: &Buffer, pages: &Buffer, heads: usize, layout: Layout) -> Result<()> {
        self.gather((built, &self.in_order), (pages, &self.into), heads, layout)
    }
}

/// Builds blocks of plain floats anew. Slots and blocks are inside the pages.
///
/// # Errors
/// There are no kernels for the shape, or there is no memory.
pub fn compact(shape: KvShape, (k, v): (&Buffer, &Buffer), moves: &Moves) -> Result<()> {
    shape.check()?;
    let bytes = if shape.dtype == DType::F32 { 4 } else { 2 };
    for (pages, keys) in [(k, true), (v, false)].into_iter().take(2 - usize::from(shape.latent)) {
        moves.build(pages, shape.kv_heads, Layout::floats(bytes, shape.head_dim, keys))?;
    }
    Ok(())
}

/// Like [`Moves`], for exact blocks beside codes, on the GPU.
#[derive(Debug)]
pub struct ExactMoves(Moves);

impl ExactMoves {
    /// As [`Moves::new`], with the slot of each row's codes and its exact slot, if it has one.
    ///
    /// # Errors
    /// As [`Moves::new`].
    pub fn new(gpu: &Gpu, slots: &[(usize, Option<usize>)], into: &[u32]) -> Result<Self> {
        let mut pairs = Vec::with_capacity(2 * slots.len());
        for &(slot, exact) in slots {
            pairs.push(count("compact", slot)?);
            pairs.push(exact.map_or(Ok(NONE), |slot| count("compact", slot))?);
        }
        Ok(Self(Moves::with(gpu, gpu.upload(&pairs)?, slots.len(), into)?))
    }
}

impl CodedCache {
    /// Whether there are kernels that move its rows: not those of a trellis, whose scales, and keys, are
    /// relative to their block's, nor those with a sketch.
    #[must_use]
    pub fn moves_rows(&self) -> bool {
        self.layouts().is_some()
    }

    fn layouts(&self) -> Option<[Layout; 2]> {
        let [k, v] = [(&self.k, true), (&self.v, false)];
        let of = |(side, keys)| Layout::coded(side, self.head_dim, keys);
        Some([of(k)?, of(v)?])
    }

    fn moved(&self) -> Result<[Layout; 2]> {
        self.layouts().ok_or_else(|| TensorError::Device {
            op: "compaction of trellis codes or sketches",
            device: self.gpu.name(),
        })
    }

    /// Builds blocks anew, rows as they are encoded. Slots and blocks are inside the pages.
    ///
    /// # Errors
    /// The cache does not [move rows](Self::moves_rows), or there is no memory.
    pub fn compact(&self, (k, v): (&Buffer, &Buffer), moves: &Moves) -> Result<()> {
        let [of_k, of_v] = self.moved()?;
        moves.build(k, self.kv_heads, of_k)?;
        moves.build(v, self.kv_heads, of_v)
    }

    /// Builds exact blocks anew, from what codes say where there is no exact row.
    ///
    /// # Errors
    /// As [`Self::compact`].
    pub fn compact_exact(
        &self,
        coded: (&Buffer, &Buffer),
        exact: (&Buffer, &Buffer),
        ExactMoves(moves): &ExactMoves,
    ) -> Result<()> {
        self.moved()?;
        let sides = [(&self.k, coded.0, exact.0, true), (&self.v, coded.1, exact.1, false)];
        for (side, coded, exact, keys) in sides {
            let layout = Layout::floats(2, self.head_dim, keys);
            let built = moves.room(&self.gpu, self.kv_heads, layout)?;
            let params = GatherExactParams {
                rows: moves.rows,
                heads: count("compact", self.kv_heads)?,
                head_dim: count("compact", self.head_dim)?,
                keys: keys.into(),
                format: side.format.number(),
                region: count("compact", side.region)?,
                group: side.format.group(),
            };
            self.gpu.launch(&Launch {
                family: "compact",
                kernel: "gather_exact",
                grid: [moves.blocks, params.heads, (layout.region as u32).div_ceil(THREADS)],
                threads: THREADS,
                operands: &[
                    Operand::In(exact, 0),
                    Operand::In(coded, 0),
                    Operand::In(&moves.slots, 0),
                    Operand::In(&self.constants, if keys { 0 } else { 4 * LEVELS }),
                    Operand::Out(&built, 0),
                ],
                params: bytemuck::bytes_of(&params),
            })?;
            moves.bring(&built, exact, self.kv_heads, layout)?;
        }
        Ok(())
    }
}
