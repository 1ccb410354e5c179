//! One side of a paged cache: how rows of keys or of values lie in a block, and the two products
//! that attention needs of them.

use crate::KvGeometry;
use half::f16;
use std::fmt;
use taper_tensor::{
    AlignedBytes,
    cpu::{
        Attended,
        codes::{
            AffineQueries, AffineScales, AffineWeights, CodeLevel, Codes, Int8Queries, TILE_ROWS,
            prefetch,
        },
        f32_to_f16,
    },
};

/// Query rows as a side wants them.
#[derive(Debug, Default)]
pub(crate) struct Queries {
    /// `[rows, d]`, scaled and in the side's space.
    pub(crate) floats: Vec<f32>,
    /// The rows of `floats` rounded to int8.
    pub(crate) int8: Int8Queries,
    pub(crate) affine: AffineQueries,
}

/// The query rows of a KV head, and their attention so far.
#[derive(Debug, Default)]
pub(crate) struct CodedHead {
    pub(crate) q: Queries,
    pub(crate) state: Attended,
    /// `[rows, padded tokens]` of a step.
    pub(crate) scores: Vec<f32>,
}

/// What attention over coded blocks works in.
#[derive(Debug, Default)]
pub(crate) struct CodedScratch {
    pub(crate) products: Products,
}

/// What the products of one block may overwrite.
#[derive(Debug, Default)]
pub(crate) struct Products {
    pub(crate) floats: Vec<f32>,
    /// Scores or weights of one block, without a stride.
    pub(crate) dense: Vec<f32>,
    pub(crate) tiles: Tiles,
    pub(crate) gamma: Vec<f32>,
    pub(crate) weights: Vec<u8>,
    pub(crate) scales: Vec<f32>,
    pub(crate) affine: AffineScratch,
}

/// Buffers that attention over affine codes reuses.
#[derive(Debug, Default)]
pub(crate) struct AffineScratch {
    pub(crate) scales: AffineScales,
    pub(crate) weights: AffineWeights,
}

/// Room for expanded tiles, at addresses that vector stores like.
#[derive(Debug, Default)]
pub(crate) struct Tiles(Option<AlignedBytes>);

impl Tiles {
    /// `len` bytes of any contents.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        if self.0.as_ref().is_none_or(|bytes| bytes.len() < len) {
            self.0 = None;
        }
        &mut self.0.get_or_insert_with(|| AlignedBytes::zeroed(len)).as_mut_slice()[..len]
    }
}

/// A head region, and one that is read some time after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Region<'a> {
    pub(crate) here: &'a [u8],
    pub(crate) next: Option<&'a [u8]>,
}

impl<'a> Region<'a> {
    /// The codes that the region begins with. What follows them in the later region is prefetched
    /// at once.
    pub(crate) fn codes(self, len: usize, all: usize) -> Codes<'a> {
        if let Some(rest) = self.next.and_then(|next| next.get(all..)) {
            prefetch(rest);
        }
        Codes { here: &self.here[..len], next: self.next }
    }
}

/// A row that is kept when others are evicted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stays<'a> {
    pub(crate) region: &'a [u8],
    pub(crate) offset: usize,
    /// The row as halves in the side's space, where an exact block has it.
    pub(crate) exact: Option<&'a [u8]>,
}

/// How attention treats what it need not compute exactly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Precision {
    pub(crate) level: CodeLevel,
    /// A row skips the values of a block in which none of its weights reaches this part of its
    /// largest.
    pub(crate) sparse_v: f32,
}

/// A side's rows of one head of one block: its *head region*.
///
/// Rows are written in the order of their offsets; a write at offset 0 starts the block anew.
/// Regions begin zeroed or with an earlier block's bytes.
pub(crate) trait Side: Send + Sync + fmt::Debug {
    /// Writes rows at their offsets.
    fn write(&self, region: &mut [u8], rows: &[(usize, &[f32])]);

    /// Reads a row in the side's space.
    fn read_rotated(&self, region: &[u8], offset: usize, out: &mut [f32]);

    /// Reads a row back.
    fn read(&self, region: &[u8], offset: usize, out: &mut [f32]) {
        self.read_rotated(region, offset, out);
        self.restore(out);
    }

    /// Brings stored rows into a zeroed region, one after the other.
    fn gather(&self, rows: &[Stays<'_>], out: &mut [u8]);

    /// Brings query rows into the side's space, in place.
    fn rotate(&self, _rows: &mut [f32]) {}

    /// Brings a sum of rows back from it.
    fn restore(&self, _row: &mut [f32]) {}

    /// Rounds queries in the side's space to what [`Self::scores`] reads of them.
    fn round(&self, _q: &mut Queries) {}

    /// Elements of a row in the side's space, at least the head's.
    fn width(&self) -> usize;

    /// `out[i][j] = q_i . row_j` for the first `n` rows, a multiple of [`TILE_ROWS`]; rows that
    /// were not written give anything. The rows of `out` are a stride apart.
    fn scores(
        &self,
        region: Region<'_>,
        q: &Queries,
        n: usize,
        precision: Precision,
        scratch: &mut Products,
        out: (&mut [f32], usize),
    );

    /// `acc[i] += sum_j p[i][j] row_j` over the first `n` rows. `p` is 0 for rows that were not
    /// written.
    ///
    /// `p`: `[rows, n]` of a stride, `acc [rows, width]`.
    fn add(
        &self,
        region: Region<'_>,
        p: (&[f32], usize),
        n: usize,
        precision: Precision,
        scratch: &mut Products,
        acc: &mut [f32],
    );
}

/// Rows of a block, rounded up to whole tiles.
pub(crate) fn padded_tokens(g: KvGeometry) -> usize {
    g.block_tokens.next_multiple_of(TILE_ROWS)
}

/// Reads a half at a byte offset.
pub(crate) fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The largest half.
pub(crate) const LARGEST_HALF: f32 = 65_504.0;

/// Writes a half at a byte offset; what is too large becomes the largest.
pub(crate) fn put_half(bytes: &mut [u8], at: usize, x: f32) {
    let x = f16::from_f32(x.clamp(-LARGEST_HALF, LARGEST_HALF));
    bytes[at..at + 2].copy_from_slice(&x.to_le_bytes());
}

/// Writes halves one after the other; what is too large becomes the largest.
pub(crate) fn put_halves(bytes: &mut [u8], row: &[f32]) {
    const SOME: usize = 64;
    for (bytes, row) in bytes.chunks_mut(2 * SOME).zip(row.chunks(SOME)) {
        let (mut floats, mut halves) = ([0.0; SOME], [f16::ZERO; SOME]);
        floats.iter_mut().zip(row).for_each(|(f, x)| *f = x.clamp(-LARGEST_HALF, LARGEST_HALF));
        f32_to_f16(&floats, &mut halves);
        for (bytes, half) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(&halves[..row.len()]) {
            *bytes = half.to_le_bytes();
        }
    }
}
