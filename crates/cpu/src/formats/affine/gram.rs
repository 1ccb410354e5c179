//! What a map's inputs are like: the sums of products of all pairs of them, `XᵀX`.

use crate::{Floats, RowSource, matmul, pool};

/// Rows that are multiplied at a time.
const BATCH: usize = 512;

/// `XᵀX` over all rows that a map has read: up to a factor, the Hessian of the squared error of its outputs.
#[derive(Debug, Clone)]
pub struct Gram {
    cols: usize,
    rows: usize,
    /// Rows that are not yet in the sums.
    pending: Vec<f32>,
    /// `[cols, cols]`, or empty before the first product.
    sums: Vec<f32>,
}

/// Rows of floats as a matrix.
pub(super) struct Rows<'a> {
    pub(super) values: &'a [f32],
    pub(super) cols: usize,
}

impl RowSource for Rows<'_> {
    fn rows(&self) -> usize {
        self.values.len() / self.cols.max(1)
    }

    fn cols(&self) -> usize {
        self.cols
    }

    fn read_rows(&self, first: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.values[first * self.cols..][..out.len()]);
    }

    fn floats(&self) -> Option<Floats<'_>> {
        Some(Floats::F32(self.values))
    }
}

impl Gram {
    /// That of no rows yet, for maps of so many inputs.
    #[must_use]
    pub fn new(cols: usize) -> Self {
        Self { cols, rows: 0, pending: Vec::new(), sums: Vec::new() }
    }

    /// Inputs of the map.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Rows that were added.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Adds rows. Rows with numbers that are not finite are left out.
    ///
    /// # Shapes
    /// `x [t, cols]`; what is beyond whole rows is ignored.
    pub fn add(&mut self, x: &[f32]) {
        for row in x.chunks_exact(self.cols.max(1)) {
            if !row.iter().all(|v| v.is_finite()) {
                continue;
            }
            self.pending.extend_from_slice(row);
            self.rows += 1;
            if self.pending.len() >= BATCH * self.cols {
                self.multiply();
            }
        }
    }

    fn multiply(&mut self) {
        let (cols, rows) = (self.cols, self.pending.len() / self.cols.max(1));
        if rows == 0 {
            return;
        }
        let mut turned = vec![0.0; self.pending.len()];
        let mut columns: Vec<_> = turned.chunks_exact_mut(rows).collect();
        pool::for_each(&mut columns, |c, column| {
            let values = self.pending.iter().skip(c).step_by(cols);
            column.iter_mut().zip(values).for_each(|(to, from)| *to = *from);
        });
        let mut products = vec![0.0; cols * cols];
        matmul(&turned, &Rows { values: &turned, cols: rows }, None, &mut products);
        self.pending.clear();
        if self.sums.is_empty() {
            self.sums = products;
            return;
        }
        let mut sums: Vec<_> = self.sums.chunks_exact_mut(cols).collect();
        pool::for_each(&mut sums, |r, sums| {
            let more = &products[r * cols..][..cols];
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        });
    }

    /// The sums over all rows, `[cols, cols]`.
    #[must_use]
    pub fn into_sums(mut self) -> Vec<f32> {
        self.multiply();
        if self.sums.is_empty() {
            self.sums = vec![0.0; self.cols * self.cols];
        }
        self.sums
    }
}
