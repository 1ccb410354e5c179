//! Sides whose rows stand one after the other.
//!
//! ```text
//! head region:  [tokens] rows (each format draws its own)
//! ```

use crate::{
    KvGeometry,
    side::{Precision, Products, Queries, Region, Side, Stays, half_at, padded_tokens, put_halves},
};
use std::fmt;
use taper_tensor::cpu::{
    Floats,
    codes::{Codes, DenseRows, add_rows, dot_rows},
};

/// How such a row is stored, and the products of some of them: see [`Side`].
pub(crate) trait RowFormat: Send + Sync + fmt::Debug {
    /// Elements of a row.
    fn dim(&self) -> usize;

    /// Bytes of a row.
    fn row_bytes(&self) -> usize;

    /// Stores a row.
    fn put(&self, row: &[f32], out: &mut [u8]);

    /// Reads one in the format's space.
    fn get(&self, row: &[u8], out: &mut [f32]);

    /// As [`Side::scores`].
    fn dots(
        &self,
        rows: Codes<'_>,
        q: &Queries,
        precision: Precision,
        scratch: &mut Products,
        out: &mut [f32],
    );

    /// As [`Side::add`].
    fn add_weighted(
        &self,
        rows: Codes<'_>,
        p: &[f32],
        precision: Precision,
        scratch: &mut Products,
        acc: &mut [f32],
    );

    /// As [`Side::rotate`].
    fn rotate(&self, _rows: &mut [f32]) {}

    /// As [`Side::restore`].
    fn restore(&self, _row: &mut [f32]) {}

    /// As [`Side::round`].
    fn round(&self, _q: &mut Queries) {}
}

/// The first `n` rows of a region.
fn first<'a>(format: &impl RowFormat, region: Region<'a>, n: usize) -> Codes<'a> {
    Codes { here: &region.here[..n * format.row_bytes()], next: region.next }
}

impl<T: RowFormat> Side for T {
    fn write(&self, region: &mut [u8], rows: &[(usize, &[f32])]) {
        let bytes = self.row_bytes();
        for &(offset, row) in rows {
            self.put(row, &mut region[offset * bytes..][..bytes]);
        }
    }

    fn read_rotated(&self, region: &[u8], offset: usize, out: &mut [f32]) {
        let bytes = self.row_bytes();
        self.get(&region[offset * bytes..][..bytes], out);
    }

    fn gather(&self, rows: &[Stays<'_>], out: &mut [u8]) {
        let bytes = self.row_bytes();
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(bytes)) {
            out.copy_from_slice(&row.region[row.offset * bytes..][..bytes]);
        }
    }

    fn rotate(&self, rows: &mut [f32]) {
        RowFormat::rotate(self, rows);
    }

    fn restore(&self, row: &mut [f32]) {
        RowFormat::restore(self, row);
    }

    fn round(&self, q: &mut Queries) {
        RowFormat::round(self, q);
    }

    fn width(&self) -> usize {
        self.dim()
    }

    fn scores(
        &self,
        region: Region<'_>,
        q: &Queries,
        n: usize,
        precision: Precision,
        scratch: &mut Products,
        (out, stride): (&mut [f32], usize),
    ) {
        let mut dense = std::mem::take(&mut scratch.dense);
        dense.resize(q.floats.len() / self.dim() * n, 0.0);
        self.dots(first(self, region, n), q, precision, scratch, &mut dense);
        for (out, dense) in out.chunks_mut(stride).zip(dense.chunks_exact(n)) {
            out[..n].copy_from_slice(dense);
        }
        scratch.dense = dense;
    }

    fn add(
        &self,
        region: Region<'_>,
        (p, stride): (&[f32], usize),
        n: usize,
        precision: Precision,
        scratch: &mut Products,
        acc: &mut [f32],
    ) {
        let mut dense = std::mem::take(&mut scratch.dense);
        dense.clear();
        for p in p.chunks(stride) {
            dense.extend_from_slice(&p[..n]);
        }
        self.add_weighted(first(self, region, n), &dense, precision, scratch, acc);
        scratch.dense = dense;
    }
}

/// Plain halves.
#[derive(Debug)]
pub(crate) struct HalfSide {
    d: usize,
}

impl HalfSide {
    pub(crate) fn new(g: KvGeometry) -> Self {
        Self { d: g.head_dim }
    }

    pub(crate) fn head_bytes(g: KvGeometry) -> usize {
        padded_tokens(g) * g.head_dim * 2
    }

    /// The first `n` rows.
    pub(crate) fn rows<'a>(&self, region: Region<'a>, n: usize) -> DenseRows<'a> {
        self.floats(first(self, region, n))
    }

    /// Rows, and those that are read next if they are stored alike.
    fn floats<'a>(&self, rows: Codes<'a>) -> DenseRows<'a> {
        let floats = |bytes| Floats::F16(bytemuck::cast_slice(bytes));
        let next = rows.next.and_then(|next| next.get(..rows.here.len()));
        DenseRows { here: floats(rows.here), next: next.map(floats) }
    }
}

impl RowFormat for HalfSide {
    fn dim(&self) -> usize {
        self.d
    }

    fn row_bytes(&self) -> usize {
        2 * self.d
    }

    fn put(&self, row: &[f32], out: &mut [u8]) {
        put_halves(out, row);
    }

    fn get(&self, row: &[u8], out: &mut [f32]) {
        for (i, x) in out.iter_mut().enumerate() {
            *x = half_at(row, 2 * i);
        }
    }

    fn dots(&self, rows: Codes<'_>, q: &Queries, _: Precision, _: &mut Products, out: &mut [f32]) {
        let n = rows.here.len() / self.row_bytes();
        dot_rows(&q.floats, self.floats(rows), self.d, (out, n));
    }

    fn add_weighted(
        &self,
        rows: Codes<'_>,
        p: &[f32],
        _: Precision,
        _: &mut Products,
        acc: &mut [f32],
    ) {
        let n = rows.here.len() / self.row_bytes();
        add_rows((p, n), self.floats(rows), self.d, acc);
    }
}
