//! Heads of values in the order in which ggml repeats heads of keys: the first head of every key, then the second
//! of every key, and so on. Hugging Face has all heads of a key together.

use std::num::NonZeroUsize;

/// Such heads, perhaps after other rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiles {
    before: usize,
    keys: NonZeroUsize,
    /// Heads of values for each of keys.
    each: NonZeroUsize,
    dim: NonZeroUsize,
}

impl Tiles {
    /// `heads` of values of `dim` rows each, which `keys` heads of keys share evenly.
    pub(super) fn new(keys: usize, heads: usize, dim: usize) -> Option<Self> {
        let (keys, dim) = (NonZeroUsize::new(keys)?, NonZeroUsize::new(dim)?);
        let each = NonZeroUsize::new(heads / keys).filter(|_| heads.is_multiple_of(keys.get()))?;
        heads.checked_mul(dim.get())?;
        Some(Self { before: 0, keys, each, dim })
    }

    pub(super) fn after(self, before: usize) -> Self {
        Self { before, ..self }
    }

    /// One row a head.
    pub(super) fn of_one(self) -> Self {
        Self { dim: NonZeroUsize::MIN, ..self }
    }

    /// Counted in units of `size` rows, which divide a head ([`Self::divides`]).
    pub(super) fn in_units(self, size: usize) -> Self {
        Self { dim: NonZeroUsize::new(self.dim.get() / size).unwrap_or(self.dim), ..self }
    }

    /// Whether heads are of whole units.
    pub(super) fn divides(self, size: usize) -> bool {
        self.dim.get().is_multiple_of(size)
    }

    /// All rows.
    pub(super) fn rows(self) -> usize {
        self.before.saturating_add(self.keys.get() * self.each.get() * self.dim.get())
    }

    /// Which row of the file is row `r` of Hugging Face's.
    pub(super) fn source(self, r: usize) -> usize {
        self.turned(r, self.each, self.keys)
    }

    /// Which row of Hugging Face's is row `r` of the file.
    pub(super) fn target(self, r: usize) -> usize {
        self.turned(r, self.keys, self.each)
    }

    /// Heads are rows of a matrix of `inner` columns, and go to the matrix turned over.
    fn turned(self, r: usize, inner: NonZeroUsize, outer: NonZeroUsize) -> usize {
        let Some(at) = r.checked_sub(self.before) else { return r };
        let (head, i) = (at / self.dim, at % self.dim);
        let (row, column) = (head / inner, head % inner);
        self.before + (column * outer.get() + row) * self.dim.get() + i
    }
}
