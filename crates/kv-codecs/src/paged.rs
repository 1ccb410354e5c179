//! A codec of two sides: blocks of head regions.
//!
//! ```text
//! block of one side:  [kv_heads] head regions (each format draws its own)
//! ```

use crate::{
    AttnBatch, AttnParams, BlockBytes, KeptBlock, KeptRow, KvCodec, KvCodecError, KvGeometry,
    LayerPages, Scheme, SideFormat,
    compact::{self, SidePages},
    exact,
    fused::{self, Pages},
    rows::HalfSide,
    side::{Precision, Side},
};
use std::sync::{Arc, PoisonError, RwLock};
use taper_tensor::{
    AlignedBytes, Tensor,
    cpu::codes::{CodeLevel, Order},
    ops, pool,
};

/// The sides of one geometry.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) k: Box<dyn Side>,
    pub(crate) v: Box<dyn Side>,
    /// Layout of the exact blocks.
    pub(crate) halves: HalfSide,
}

/// Keys and values in formats of their own, attended to as they lie.
#[derive(Debug)]
pub struct PagedCodec {
    name: String,
    scheme: Scheme,
    precision: Precision,
    /// Tables and rotations, by geometry: there is one in a running cache.
    plans: RwLock<Vec<(KvGeometry, Arc<Plan>)>>,
}

/// Rows of a block that come together: the block, and (row of the tensor, offset in the block).
type BlockRows = (usize, Vec<(usize, usize)>);

impl PagedCodec {
    /// Weights below this part of a query's largest skip their values, a block at a time.
    pub const SPARSE_V: f32 = 1e-6;

    /// The codec of a scheme. `name` is what [`KvCodec::name`] says.
    #[must_use]
    pub fn new(name: &str, scheme: Scheme) -> Self {
        let precision = Precision { level: CodeLevel::detect(), sparse_v: Self::SPARSE_V };
        Self { name: name.to_owned(), scheme, precision, plans: RwLock::default() }
    }

    /// Replaces the threshold [`Self::SPARSE_V`]; 0 skips nothing.
    #[must_use]
    pub fn with_sparse_v(mut self, threshold: f32) -> Self {
        self.precision.sparse_v = threshold;
        self
    }

    /// Uses `level` instead of the best instructions of this machine.
    #[must_use]
    pub fn with_level(mut self, level: CodeLevel) -> Self {
        self.precision.level = level;
        self
    }

    /// The formats of keys and values.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    fn plan(&self, g: KvGeometry) -> Result<Arc<Plan>, KvCodecError> {
        let find = |plans: &[(KvGeometry, Arc<Plan>)]| {
            plans.iter().find(|(of, _)| *of == g).map(|(_, plan)| Arc::clone(plan))
        };
        let known = find(&self.plans.read().unwrap_or_else(PoisonError::into_inner));
        if let Some(plan) = known {
            return Ok(plan);
        }
        let plan = Arc::new(Plan {
            k: self.scheme.k.side(g, Order::Rows)?,
            v: self.scheme.v.side(g, Order::Elements)?,
            halves: HalfSide::new(g),
        });
        let mut plans = self.plans.write().unwrap_or_else(PoisonError::into_inner);
        plans.push((g, Arc::clone(&plan)));
        Ok(plan)
    }
}

/// Rows that have a slot, grouped by the block they go to, in ascending order of blocks.
fn by_block(
    g: KvGeometry,
    slots: impl Iterator<Item = Option<usize>>,
    limit: usize,
) -> Result<Vec<BlockRows>, KvCodecError> {
    let slots = slots.enumerate().filter_map(|(row, slot)| Some((slot?, row)));
    let mut order: Vec<_> = slots.collect();
    if let Some(&(slot, _)) = order.iter().find(|(slot, _)| *slot >= limit) {
        return Err(KvCodecError::Slot { slot, slots: limit });
    }
    order.sort_by_key(|(slot, _)| slot / g.block_tokens);
    let mut blocks: Vec<BlockRows> = Vec::new();
    for (slot, row) in order {
        let (block, offset) = (slot / g.block_tokens, slot % g.block_tokens);
        match blocks.last_mut() {
            Some((last, rows)) if *last == block => rows.push((row, offset)),
            _ => blocks.push((block, vec![(row, offset)])),
        }
    }
    Ok(blocks)
}

/// Writes rows at their offsets in a head region.
type Write<'a> = dyn Fn(&mut [u8], &[(usize, &[f32])]) + Sync + 'a;

/// Rows of one side, and the head regions of `bytes` bytes that they go to.
struct Rows<'a> {
    x: &'a Tensor,
    pages: &'a mut AlignedBytes,
    bytes: usize,
    write: &'a Write<'a>,
}

/// A head region, and what is written there.
struct Task<'a> {
    region: &'a mut [u8],
    head: usize,
    rows: &'a [(usize, usize)],
    x: &'a [f32],
    write: &'a Write<'a>,
}

/// Writes rows of keys and values, all head regions at the same time.
fn encode(
    g: KvGeometry,
    slots: impl ExactSizeIterator<Item = Option<usize>> + Clone,
    [k, v]: [Rows<'_>; 2],
) -> Result<(), KvCodecError> {
    for side in [&k, &v] {
        if *side.x.dims() != [slots.len(), g.kv_heads, g.head_dim] {
            let expected = "k and v [slots, kv_heads, head_dim]";
            return Err(KvCodecError::Shape { expected, got: side.x.dims().to_vec() });
        }
    }
    let limit = |side: &Rows<'_>| side.pages.len() / (side.bytes * g.kv_heads) * g.block_tokens;
    let blocks = by_block(g, slots, limit(&k).min(limit(&v)))?;
    let done = ops::with_host_f32(k.x, |k_rows| {
        ops::with_host_f32(v.x, |v_rows| {
            let mut all = tasks(g, &blocks, (k.pages, k.bytes), k_rows, k.write);
            all.extend(tasks(g, &blocks, (v.pages, v.bytes), v_rows, v.write));
            pool::for_each(&mut all, |_, task| task.run(g));
        })
    })?;
    Ok(done?)
}

/// One task for each head region that some rows go to.
fn tasks<'a>(
    g: KvGeometry,
    blocks: &'a [BlockRows],
    (pages, bytes): (&'a mut AlignedBytes, usize),
    x: &'a [f32],
    write: &'a Write<'a>,
) -> Vec<Task<'a>> {
    let mut tasks = Vec::with_capacity(2 * blocks.len() * g.kv_heads);
    let (mut rest, mut first) = (pages.as_mut_slice(), 0);
    for (block, rows) in blocks {
        let (_, from) = rest.split_at_mut((block * g.kv_heads - first) * bytes);
        let (regions, after) = from.split_at_mut(g.kv_heads * bytes);
        let heads = regions.chunks_exact_mut(bytes).enumerate();
        tasks.extend(heads.map(|(head, region)| Task { region, head, rows, x, write }));
        (rest, first) = (after, (block + 1) * g.kv_heads);
    }
    tasks
}

impl Task<'_> {
    fn run(&mut self, g: KvGeometry) {
        let own = |&(row, offset): &(usize, usize)| {
            let at = (row * g.kv_heads + self.head) * g.head_dim;
            (offset, &self.x[at..at + g.head_dim])
        };
        let rows: Vec<_> = self.rows.iter().map(own).collect();
        (self.write)(self.region, &rows);
    }
}

/// Reads rows of head regions of `bytes` bytes: `read(region, offset, row)`.
fn decode_side(
    g: KvGeometry,
    slots: &[usize],
    (pages, bytes): (&AlignedBytes, usize),
    read: impl Fn(&[u8], usize, &mut [f32]),
) -> Result<Tensor, KvCodecError> {
    let limit = pages.len() / (bytes * g.kv_heads) * g.block_tokens;
    by_block(g, slots.iter().copied().map(Some), limit)?;
    let mut out = vec![0.0; slots.len() * g.kv_heads * g.head_dim];
    for (rows, &slot) in out.chunks_exact_mut(g.kv_heads * g.head_dim).zip(slots) {
        let (block, offset) = (slot / g.block_tokens, slot % g.block_tokens);
        for (head, row) in rows.chunks_exact_mut(g.head_dim).enumerate() {
            let region = &pages.as_slice()[(block * g.kv_heads + head) * bytes..][..bytes];
            read(region, offset, row);
        }
    }
    Ok(Tensor::from_vec(out, &[slots.len(), g.kv_heads, g.head_dim])?)
}

impl KvCodec for PagedCodec {
    fn name(&self) -> &str {
        &self.name
    }

    fn check(&self, g: KvGeometry) -> Result<(), KvCodecError> {
        self.plan(g).map(|_| ())
    }

    fn block_bytes(&self, g: KvGeometry) -> BlockBytes {
        let side = |format: SideFormat| g.kv_heads * format.head_bytes(g);
        BlockBytes { k: side(self.scheme.k), v: side(self.scheme.v) }
    }

    fn encode(
        &self,
        g: KvGeometry,
        k: &Tensor,
        v: &Tensor,
        slots: &[usize],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let plan = self.plan(g)?;
        let (kb, vb) = (self.scheme.k.head_bytes(g), self.scheme.v.head_bytes(g));
        let write_k = |region: &mut [u8], rows: &[(usize, &[f32])]| plan.k.write(region, rows);
        let write_v = |region: &mut [u8], rows: &[(usize, &[f32])]| plan.v.write(region, rows);
        let k = Rows { x: k, pages: &mut pages.k, bytes: kb, write: &write_k };
        let v = Rows { x: v, pages: &mut pages.v, bytes: vb, write: &write_v };
        encode(g, slots.iter().copied().map(Some), [k, v])
    }

    fn rewrites(&self) -> bool {
        // Their scales share a base, and their keys a centre.
        let shares = |side: SideFormat| matches!(side, SideFormat::Taper { .. });
        !shares(self.scheme.k) && !shares(self.scheme.v)
    }

    fn exact_block_bytes(&self, g: KvGeometry) -> Option<BlockBytes> {
        let side = g.kv_heads * exact::head_bytes(g);
        Some(BlockBytes { k: side, v: side })
    }

    fn encode_exact(
        &self,
        g: KvGeometry,
        k: &Tensor,
        v: &Tensor,
        slots: &[Option<usize>],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let plan = self.plan(g)?;
        let bytes = exact::head_bytes(g);
        let halves = &plan.halves;
        let write_k = |region: &mut [u8], rows: &[(usize, &[f32])]| {
            exact::write(&*plan.k, halves, region, rows);
        };
        let write_v = |region: &mut [u8], rows: &[(usize, &[f32])]| {
            exact::write(&*plan.v, halves, region, rows);
        };
        let k = Rows { x: k, pages: &mut pages.exact_k, bytes, write: &write_k };
        let v = Rows { x: v, pages: &mut pages.exact_v, bytes, write: &write_v };
        encode(g, slots.iter().copied(), [k, v])
    }

    fn decode(
        &self,
        g: KvGeometry,
        slots: &[usize],
        pages: &LayerPages,
    ) -> Result<(Tensor, Tensor), KvCodecError> {
        let plan = self.plan(g)?;
        let (k, v) = (&*plan.k, &*plan.v);
        let of_k = (&pages.k, self.scheme.k.head_bytes(g));
        let of_v = (&pages.v, self.scheme.v.head_bytes(g));
        let k = decode_side(g, slots, of_k, |region, at, row| k.read(region, at, row))?;
        let v = decode_side(g, slots, of_v, |region, at, row| v.read(region, at, row))?;
        Ok((k, v))
    }

    fn decode_keys(
        &self,
        g: KvGeometry,
        slots: &[usize],
        pages: &LayerPages,
    ) -> Result<Tensor, KvCodecError> {
        let (plan, bytes) = (self.plan(g)?, self.scheme.k.head_bytes(g));
        decode_side(g, slots, (&pages.k, bytes), |region, at, row| plan.k.read(region, at, row))
    }

    fn decode_exact(
        &self,
        g: KvGeometry,
        slots: &[usize],
        pages: &LayerPages,
    ) -> Result<(Tensor, Tensor), KvCodecError> {
        let (plan, bytes) = (self.plan(g)?, exact::head_bytes(g));
        let side = |pages, side: &dyn Side| {
            decode_side(g, slots, (pages, bytes), |region, at, row| {
                plan.halves.read(region, at, row);
                side.restore(row);
            })
        };
        Ok((side(&pages.exact_k, &*plan.k)?, side(&pages.exact_v, &*plan.v)?))
    }

    fn compact(
        &self,
        g: KvGeometry,
        rows: &[KeptRow],
        into: &[KeptBlock],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let plan = self.plan(g)?;
        let (kb, vb) = (self.scheme.k.head_bytes(g), self.scheme.v.head_bytes(g));
        let exact_bytes = exact::head_bytes(g);
        let room = |a: &AlignedBytes, b: &AlignedBytes, (x, y): (usize, usize)| {
            (a.len() / (x * g.kv_heads)).min(b.len() / (y * g.kv_heads))
        };
        let blocks = room(&pages.k, &pages.v, (kb, vb));
        let exact_blocks = room(&pages.exact_k, &pages.exact_v, (exact_bytes, exact_bytes));
        compact::check(g, rows, into, (blocks, exact_blocks))?;
        let LayerPages { k, v, exact_k, exact_v, .. } = pages;
        let sides = [(&*plan.k, (k, kb), exact_k), (&*plan.v, (v, vb), exact_v)];
        for (side, coded, exact) in sides {
            let halves = &plan.halves;
            SidePages { side, halves, coded, exact: (exact, exact_bytes) }.compact(g, rows, into);
        }
        Ok(())
    }

    fn attend(
        &self,
        g: KvGeometry,
        q: &Tensor,
        pages: &LayerPages,
        batch: &AttnBatch<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCodecError> {
        let plan = self.plan(g)?;
        let pages = Pages {
            plan: &plan,
            geometry: g,
            k: (pages.k.as_slice(), self.scheme.k.head_bytes(g)),
            v: (pages.v.as_slice(), self.scheme.v.head_bytes(g)),
            exact_k: (pages.exact_k.as_slice(), exact::head_bytes(g)),
            exact_v: (pages.exact_v.as_slice(), exact::head_bytes(g)),
            precision: self.precision,
        };
        fused::attend(&pages, q, batch, params)
    }
}
