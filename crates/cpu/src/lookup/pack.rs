//! The layout that the kernels stream.
//!
//! ```text
//! weight  [tile: 16 rows][group of inputs] records, one after the other
//! record  codes, then 16 scales
//! codes   4 bits: [2 inputs][16 rows] bytes, the first input low
//!         8 bits: [1 input][16 rows] bytes
//! scales  bytes that name them, or f32
//! ```
//! The last group of a row may be shorter. Rows are padded to whole tiles with zeros.

use crate::{AlignedBytes, Bytes, RowSource, TableWeight, e4m3, maps::MatrixLayout, pool};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Rows of a tile.
pub(super) const TILE: usize = 16;
/// What halves make of bytes of E4M3, too small by this.
const SMALLER: f32 = 256.0;

/// A matrix of table codes in the layout of the kernels.
#[derive(Debug)]
pub struct PackedTable {
    rows: usize,
    cols: usize,
    group: usize,
    pub(super) kind: Kind,
    /// What bytes of scales name.
    pub(super) names: Option<Arc<[f32; 256]>>,
    data: Bytes,
}

/// What codes stand for.
#[derive(Debug)]
pub(super) enum Kind {
    /// Two codes a byte.
    Halves([f32; 16]),
    /// E4M3 over [`SMALLER`], which the scales make up for.
    Bytes(Box<[f32; 256]>),
}

impl PackedTable {
    /// Repacks a matrix; `None` where the kernels have no such codes.
    pub(crate) fn new(weight: &TableWeight) -> Option<Self> {
        Self::new_in(weight, AlignedBytes::for_weights)
    }

    /// As [`Self::new`], in memory that `allocate` gives, of zeros.
    pub(crate) fn new_in(
        weight: &TableWeight,
        allocate: fn(usize) -> AlignedBytes,
    ) -> Option<Self> {
        let (table, group) = (weight.table(), weight.format().group.min(weight.cols()));
        let odd = |n: usize| !n.is_multiple_of(2);
        let kind = match <[f32; 16]>::try_from(table) {
            Ok(_) if odd(group) || odd(weight.cols()) => return None,
            Ok(table) => Kind::Halves(table),
            Err(_) => Kind::Bytes(small_floats(weight)?),
        };
        let more = if matches!(kind, Kind::Bytes(_)) { SMALLER } else { 1.0 };
        let names = weight.scale_names().map(|names| Arc::new(names.map(|s| s * more)));
        let data = Bytes::from_vec(Vec::new());
        let mut packed =
            Self { rows: weight.rows(), cols: weight.cols(), group, kind, names, data };
        let tile_bytes = packed.tile_bytes();
        let mut data = allocate(packed.tiles() * tile_bytes);
        let mut tiles: Vec<_> = data.as_mut_slice().chunks_exact_mut(tile_bytes.max(1)).collect();
        pool::for_each(&mut tiles, |tile, records| packed.fill(weight, tile, more, records));
        packed.data = data.into();
        Some(packed)
    }

    /// A matrix that lies in `data`, of as many bytes as [`Self::bytes_of`] says; `None` with other tables than
    /// [`Self::tables`] gives.
    pub(crate) fn of(
        (rows, cols): (usize, usize),
        group: usize,
        nibbles: bool,
        named: bool,
        tables: &[f32],
        data: Bytes,
    ) -> Option<Self> {
        let (entries, names) = tables.split_at_checked(if nibbles { 16 } else { 256 })?;
        let kind = match nibbles {
            true => Kind::Halves(entries.try_into().ok()?),
            false => Kind::Bytes(Box::new(entries.try_into().ok()?)),
        };
        let names = match named {
            true => Some(Arc::new(names.try_into().ok()?)),
            false => None,
        };
        Some(Self { rows, cols, group, kind, names, data })
    }

    /// Bytes of a matrix.
    pub(crate) fn bytes_of(
        (rows, cols): (usize, usize),
        group: usize,
        nibbles: bool,
        named: bool,
    ) -> usize {
        let tables = vec![0.0; if nibbles { 16 } else { 256 } + if named { 256 } else { 0 }];
        let data = Bytes::from_vec(Vec::new());
        let shape = Self::of((rows, cols), group, nibbles, named, &tables, data);
        shape.map_or(0, |shape| shape.tiles() * shape.tile_bytes())
    }

    /// What its memory is.
    pub(crate) fn layout(&self) -> MatrixLayout {
        let Self { rows, cols, group, .. } = *self;
        let (nibbles, named) = (matches!(self.kind, Kind::Halves(_)), self.names.is_some());
        MatrixLayout::Table { rows, cols, group, nibbles, named }
    }

    /// All records.
    pub(crate) fn memory(&self) -> &[u8] {
        self.data.as_slice()
    }

    /// What codes stand for, and then what bytes of scales do.
    pub(crate) fn tables(&self) -> impl Iterator<Item = f32> {
        let entries: &[f32] = match &self.kind {
            Kind::Halves(table) => table,
            Kind::Bytes(table) => &**table,
        };
        let names = self.names.iter().flat_map(|names| names.iter());
        entries.iter().chain(names).copied()
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

    /// Bytes in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    pub(super) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    fn groups(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    fn side_bytes(&self) -> usize {
        TILE * if self.names.is_some() { 1 } else { size_of::<f32>() }
    }

    /// Bytes of the codes of so many inputs.
    fn code_bytes(&self, inputs: usize) -> usize {
        inputs * TILE / if matches!(self.kind, Kind::Halves(_)) { 2 } else { 1 }
    }

    fn tile_bytes(&self) -> usize {
        self.code_bytes(self.cols) + self.groups() * self.side_bytes()
    }

    /// The first input of each record of a tile, its codes and its scales.
    pub(super) fn records(&self, tile: usize) -> impl Iterator<Item = (usize, &[u8], &[u8])> {
        let all = &self.data.as_slice()[tile * self.tile_bytes()..][..self.tile_bytes()];
        let whole = self.code_bytes(self.group) + self.side_bytes();
        all.chunks(whole).enumerate().map(move |(g, record)| {
            let (codes, sides) = record.split_at(record.len() - self.side_bytes());
            (g * self.group, codes, sides)
        })
    }

    fn fill(&self, weight: &TableWeight, tile: usize, more: f32, records: &mut [u8]) {
        let (groups, sides) = (self.groups(), self.side_bytes());
        let whole = self.code_bytes(self.group) + sides;
        let mut scales = vec![0.0; groups];
        for r in 0..TILE.min(self.rows - tile * TILE) {
            let row = tile * TILE + r;
            let own = self.code_bytes(self.group) / TILE;
            let codes = weight.row_codes(row).chunks(own);
            let names = weight.row_names(row);
            if names.is_none() {
                weight.read_scales(row, &mut scales);
            }
            for (g, (record, codes)) in records.chunks_mut(whole).zip(codes).enumerate() {
                let (to, side) = record.split_at_mut(record.len() - sides);
                to[r..].iter_mut().step_by(TILE).zip(codes).for_each(|(to, code)| *to = *code);
                match names {
                    Some(names) => side[r] = names[g],
                    None => side.as_chunks_mut().0[r] = (scales[g] * more).to_le_bytes(),
                }
            }
        }
    }

    /// The scale of row `r` of a record.
    pub(super) fn scale(&self, sides: &[u8], r: usize) -> f32 {
        match &self.names {
            Some(names) => names[usize::from(sides[r])],
            None => f32::from_le_bytes(sides.as_chunks().0[r]),
        }
    }

    /// The entry that the code of input `k` of row `r` names.
    pub(super) fn entry(&self, codes: &[u8], r: usize, k: usize) -> f32 {
        match &self.kind {
            Kind::Halves(table) => table[usize::from(codes[k / 2 * TILE + r] >> (k % 2 * 4) & 15)],
            Kind::Bytes(table) => table[usize::from(codes[k * TILE + r])],
        }
    }

    /// A row as `f32`.
    ///
    /// # Panics
    /// When `row` is not below [`Self::rows`] or `out` is not one row long.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows && out.len() == self.cols, "one row");
        for (first, codes, sides) in self.records(row / TILE) {
            let scale = self.scale(sides, row % TILE);
            for (k, o) in out.iter_mut().skip(first).take(self.group).enumerate() {
                *o = self.entry(codes, row % TILE, k) * scale;
            }
        }
    }
}

/// E4M3 by its bytes as the kernels have it, if that is the table and all of the matrix fits.
fn small_floats(weight: &TableWeight) -> Option<Box<[f32; 256]>> {
    let table = <&[f32; 256]>::try_from(weight.table()).ok()?;
    let same = |b: u8| !number(b) || table[usize::from(b)].to_bits() == e4m3(b).to_bits();
    if !(0..=255).all(same) || !fits(weight) {
        return None;
    }
    let small = |b: usize| if number(b as u8) { table[b] / SMALLER } else { 0.0 };
    Some(Box::new(std::array::from_fn(small)))
}

/// Whether a byte of E4M3 is a number.
fn number(byte: u8) -> bool {
    byte & 0x7f != 0x7f
}

/// Whether every code of E4M3 is a number, and no scale becomes infinite where it makes up for [`SMALLER`].
fn fits(weight: &TableWeight) -> bool {
    let groups = weight.format().groups(weight.cols());
    let all = AtomicBool::new(true);
    pool::ranges(weight.rows(), TILE, |rows| {
        let mut scales = vec![0.0; groups];
        for row in rows {
            // No exit at each byte: many are looked at together.
            let numbers = weight.row_codes(row).iter().fold(true, |all, &b| all & number(b));
            weight.read_scales(row, &mut scales);
            let small = |s: &f32| !s.is_finite() || (s * SMALLER).is_finite();
            if !numbers || !scales.iter().all(small) {
                all.store(false, Relaxed);
                return;
            }
        }
    });
    all.into_inner()
}
