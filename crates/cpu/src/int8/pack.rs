//! The layout that integer kernels stream.
//!
//! ```text
//! weight    [tile: 16 rows][group of inputs] records, one after the other
//! record    codes, then 16 scales, then 16 biases
//! codes     4 bits: [8 inputs][16 rows][4 bytes]   byte i of row r: inputs i (low) and 4 + i (high)
//!           8 bits: [4 inputs][16 rows][4 bytes]
//! scales    bf16, f16 or f32, as they came
//! ```
//! A vector register of 64 bytes holds four inputs of sixteen rows, which is what a dot-product
//! instruction takes, and a group of 64 inputs at 8 bits is one AMX tile. Widths of 2 and 3 bits
//! are stored as 4, and 5 and 6 as 8. Rows are padded to whole tiles with zeros.

use crate::{AffineWeight, AlignedBytes, Bytes, DType, RowSource, maps::MatrixLayout, pool};
use half::{bf16, f16};

/// Rows of a tile.
pub(crate) const TILE: usize = 16;

/// A quantized matrix in the layout of the kernels.
#[derive(Debug)]
pub struct PackedWeight {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) group: usize,
    /// Two codes a byte.
    pub(super) nibbles: bool,
    pub(super) scale_type: DType,
    pub(super) data: Bytes,
}

impl PackedWeight {
    /// Repacks a matrix. The original is not kept.
    #[must_use]
    pub fn new(weight: &AffineWeight) -> Self {
        Self::new_in(weight, AlignedBytes::for_weights)
    }

    /// As [`Self::new`], in memory that `allocate` gives, of zeros.
    pub(crate) fn new_in(weight: &AffineWeight, allocate: fn(usize) -> AlignedBytes) -> Self {
        let format = weight.format();
        let mut packed = Self {
            rows: weight.rows(),
            cols: weight.cols(),
            group: format.group,
            nibbles: format.bits <= 4,
            scale_type: weight.scale_type(),
            data: Bytes::from_vec(Vec::new()),
        };
        let tile_bytes = packed.tile_bytes();
        let mut data = allocate(packed.tiles() * tile_bytes);
        let floats = weight.parts().map(|part| part.bytes_as(packed.scale_type));
        let floats = [&*floats[0], &*floats[1]];
        let mut tiles: Vec<_> = data.as_mut_slice().chunks_exact_mut(tile_bytes).collect();
        pool::for_each(&mut tiles, |tile, records| match packed.scale_type {
            DType::F32 => packed.fill_tile::<4>(weight, floats, tile, records),
            _ => packed.fill_tile::<2>(weight, floats, tile, records),
        });
        packed.data = data.into();
        packed
    }

    /// A matrix that lies in `data`, of as many bytes as [`Self::bytes_of`] says.
    pub(crate) fn of(
        (rows, cols): (usize, usize),
        group: usize,
        nibbles: bool,
        scale_type: DType,
        data: Bytes,
    ) -> Self {
        Self { rows, cols, group, nibbles, scale_type, data }
    }

    /// Bytes of a matrix.
    pub(crate) fn bytes_of(
        (rows, cols): (usize, usize),
        group: usize,
        nibbles: bool,
        scale_type: DType,
    ) -> usize {
        let shape = Self::of((rows, cols), group, nibbles, scale_type, Bytes::from_vec(Vec::new()));
        shape.tiles() * shape.tile_bytes()
    }

    /// What its memory is.
    pub(crate) fn layout(&self, ordered: bool) -> MatrixLayout {
        let Self { rows, cols, group, nibbles, scale_type: scales, .. } = *self;
        MatrixLayout::Affine { rows, cols, group, nibbles, scales, ordered }
    }

    /// All records.
    pub(crate) fn memory(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// Number of outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Inputs that share a scale.
    #[must_use]
    pub fn group(&self) -> usize {
        self.group
    }

    /// Bytes in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    pub(super) fn groups(&self) -> usize {
        self.cols / self.group
    }

    pub(super) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    pub(super) fn code_bytes(&self) -> usize {
        if self.nibbles { self.group * TILE / 2 } else { self.group * TILE }
    }

    pub(super) fn record_bytes(&self) -> usize {
        self.code_bytes() + 2 * TILE * self.scale_type.size_in_bytes()
    }

    pub(super) fn tile_bytes(&self) -> usize {
        self.groups() * self.record_bytes()
    }

    /// The records of a tile.
    pub(super) fn tile(&self, tile: usize) -> &[u8] {
        self.run(tile, 1)
    }

    /// The records of tiles that follow each other.
    pub(super) fn run(&self, first: usize, tiles: usize) -> &[u8] {
        let bytes = self.tile_bytes();
        &self.data.as_slice()[first * bytes..][..tiles * bytes]
    }

    /// Where input `k` of a group stands among the codes of row `r`: byte, and shift within it.
    fn place(&self, r: usize, k: usize) -> (usize, u32) {
        if self.nibbles {
            (k / 8 * 64 + r * 4 + k % 4, if k % 8 < 4 { 0 } else { 4 })
        } else {
            (k / 4 * 64 + r * 4 + k % 4, 0)
        }
    }

    /// Writes the records of a tile of `weight`; `floats` are all scales and all biases, of `WIDTH`
    /// bytes each.
    fn fill_tile<const WIDTH: usize>(
        &self,
        weight: &AffineWeight,
        floats: [&[u8]; 2],
        tile: usize,
        records: &mut [u8],
    ) {
        let first = tile * TILE;
        let mut codes = vec![0; self.cols];
        for r in 0..TILE.min(self.rows - first) {
            crate::unpack_affine(weight.row_codes(first + r), weight.format().bits, &mut codes);
            let records = records.chunks_exact_mut(self.record_bytes());
            for (g, (record, codes)) in records.zip(codes.chunks_exact(self.group)).enumerate() {
                let (to, sides) = record.split_at_mut(self.code_bytes());
                if self.nibbles {
                    put_nibbles(codes, r, to);
                } else {
                    put_bytes(codes, r, to);
                }
                let from = (first + r) * self.groups() + g;
                for (side, to) in floats.iter().zip(sides.chunks_exact_mut(TILE * WIDTH)) {
                    to.as_chunks_mut::<WIDTH>().0[r] = side.as_chunks::<WIDTH>().0[from];
                }
            }
        }
    }

    /// A row as f32, `s q + b`: what a token's embedding is.
    ///
    /// # Panics
    /// When `row` is not below [`Self::rows`] or `out` is not one row long.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "one row");
        let (tile, r) = (self.tile(row / TILE), row % TILE);
        let records = tile.chunks_exact(self.record_bytes());
        for (out, record) in out.chunks_exact_mut(self.group).zip(records) {
            let (scale, bias) = (self.float(record, r), self.float(record, TILE + r));
            for (k, o) in out.iter_mut().enumerate() {
                *o = f32::from(self.code(record, r, k)) * scale + bias;
            }
        }
    }

    /// The code of input `k` of row `r` of a record.
    pub(super) fn code(&self, record: &[u8], r: usize, k: usize) -> u8 {
        let (byte, shift) = self.place(r, k);
        let mask = if self.nibbles { 15 } else { 255 };
        (record[byte] >> shift) & mask
    }

    /// Scale `i`, or bias `i - 16`, of a record.
    pub(super) fn float(&self, record: &[u8], i: usize) -> f32 {
        let width = self.scale_type.size_in_bytes();
        let at = self.code_bytes() + i * width;
        get_float(self.scale_type, &record[at..at + width])
    }
}

/// The codes of row `r` of a group, two a byte.
fn put_nibbles(codes: &[u8], r: usize, out: &mut [u8]) {
    for (codes, line) in codes.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<64>().0) {
        let codes = u64::from_le_bytes(*codes);
        // Bytes 4 to 7 come to stand in the upper halves of bytes 0 to 3.
        let pairs = (codes | codes >> 28) as u32;
        line[r * 4..r * 4 + 4].copy_from_slice(&pairs.to_le_bytes());
    }
}

/// The codes of row `r` of a group, one a byte.
fn put_bytes(codes: &[u8], r: usize, out: &mut [u8]) {
    for (codes, line) in codes.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<64>().0) {
        line[r * 4..r * 4 + 4].copy_from_slice(codes);
    }
}

fn get_float(dtype: DType, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (DType::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        _ => f32::NAN,
    }
}
