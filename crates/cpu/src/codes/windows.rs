//! How the packed codes of a tile become table entries.

use super::{
    CodeLevel, Codes, Int8Queries, RING, Scaling, TILE, TILE_ROWS, add_weighted, dots, portable,
};

/// In which order the bytes of an expanded tile stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// `[4 rows][16 elements]`, each `entry + 128` as u8: for dot products along a row.
    Rows,
    /// `[16 elements][4 rows]`, each an i8 entry: for sums over rows.
    Elements,
}

/// Byte gather, window shifts and table of one order.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Byte of the packed tile for each byte of the eight words that windows are cut from.
    pub(super) gather: [u8; TILE],
    /// Where in its word a window starts.
    pub(super) shift: [u8; TILE],
    pub(super) table: [u8; 64],
    /// The table by windows whose two bits before the code's own four stand above them.
    #[cfg(target_arch = "x86_64")]
    pub(super) turned: [u8; 64],
    /// The first two, as AVX2 wants them; the same in both orders.
    #[cfg(target_arch = "x86_64")]
    pub(super) words: super::avx2::Words,
    /// The first two, as NEON wants them.
    #[cfg(target_arch = "aarch64")]
    pub(super) pairs: super::neon::Pairs,
}

/// How a packed tile is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// Rings, row by row.
    Windows {
        /// Bytes of a tile, below 64.
        bytes: usize,
        /// Bits of a window before the code's own.
        lead: usize,
    },
    /// Nibbles in the order of the expanded bytes.
    Nibbles,
}

/// Query rows up to which packed codes are expanded anew by every pass of four rows over them: storing
/// them costs more.
#[cfg(target_arch = "x86_64")]
const FUSED_ROWS: usize = 8;

/// A code's bit layout and table.
#[derive(Debug, Clone)]
pub struct Windows {
    bits: usize,
    layout: Layout,
    rows: Plan,
    elements: Plan,
}

impl Windows {
    /// Codes of `bits` bits whose window starts `lead` bits early.
    ///
    /// # Panics
    /// Unless `1 <= bits <= 6` and `bits + lead <= 6`, or `lead` is 0 and the table does not repeat.
    #[must_use]
    pub fn new(bits: usize, lead: usize, table: &[i8; 64]) -> Self {
        assert!((1..=5).contains(&bits) && bits + lead <= 6, "a window has six bits");
        let repeats = (0..64).all(|i| table[i] == table[i % (1 << bits)]);
        assert!(bits + lead == 6 || repeats, "the table of a short window repeats");
        let plan = |order| Plan::new(bits, lead, table, order);
        let (rows, elements) = (plan(Order::Rows), plan(Order::Elements));
        let layout = Layout::Windows { bytes: 2 * bits * TILE_ROWS, lead };
        Self { bits, layout, rows, elements }
    }

    /// Scalar codes of four bits in tiles that are packed for one order: byte `i` of a tile's 32
    /// holds the codes of bytes `i` and `i + 32` of the expanded tile, so that there is nothing to
    /// gather.
    #[must_use]
    pub fn nibbles(table: &[i8; 16]) -> Self {
        let wide = std::array::from_fn(|i| table[i % 16]);
        Self { layout: Layout::Nibbles, ..Self::new(4, 0, &wide) }
    }

    /// Bits per element.
    #[must_use]
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// Bytes of a packed tile.
    #[must_use]
    pub fn tile_bytes(&self) -> usize {
        2 * self.bits * TILE_ROWS
    }

    pub(super) fn plan(&self, order: Order) -> &Plan {
        match order {
            Order::Rows => &self.rows,
            Order::Elements => &self.elements,
        }
    }

    /// Expands packed tiles.
    ///
    /// # Shapes
    /// `codes`: tiles of [`Self::tile_bytes`]; `out`: as many of [`TILE`].
    ///
    /// # Panics
    /// When the lengths differ from these.
    pub fn expand(&self, level: CodeLevel, order: Order, codes: Codes<'_>, out: &mut [u8]) {
        let tiles = codes.here.len() / self.tile_bytes();
        let whole = codes.here.len() == tiles * self.tile_bytes();
        assert!(whole && out.len() == tiles * TILE, "tiles");
        match (level, self.layout) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level and the lengths are checked.
            (CodeLevel::Vbmi(_), layout) => unsafe {
                super::vbmi::expand(self.plan(order), layout, codes, out);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level and the lengths are checked.
            (CodeLevel::Avx2(_), Layout::Nibbles) => unsafe {
                super::avx2::expand_nibbles(self.plan(order), codes.here, out);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level, and the lengths are checked; five bits an element are 40 bytes a tile.
            (CodeLevel::Avx2(_), Layout::Windows { bytes, lead }) => unsafe {
                let tile = (bytes, self.bits + lead);
                super::avx2::expand(self.plan(order), order, tile, codes.here, out);
            },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the machine has the level, and the lengths are checked; five bits an element are 40 bytes a tile.
            (CodeLevel::Neon(_), Layout::Nibbles) => unsafe {
                super::neon::expand_nibbles(self.plan(order), codes.here, out);
            },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the machine has the level, and the lengths are checked; five bits an element are 40 bytes a tile.
            (CodeLevel::Neon(_), Layout::Windows { bytes, .. }) => unsafe {
                super::neon::expand(self.plan(order), bytes, codes.here, out);
            },
            (_, Layout::Nibbles) => portable::expand_nibbles(self.plan(order), codes.here, out),
            (_, Layout::Windows { bytes, .. }) => {
                portable::expand(self.plan(order), bytes, codes.here, out);
            }
        }
    }

    /// [`dots`] with the rows of packed tiles. `scratch` has room for them expanded.
    ///
    /// # Panics
    /// When the lengths differ from these.
    pub fn dots(
        &self,
        level: CodeLevel,
        q: &Int8Queries,
        codes: Codes<'_>,
        scaling: Scaling<'_>,
        scratch: &mut [u8],
        out: (&mut [f32], usize),
    ) {
        #[cfg(target_arch = "x86_64")]
        if matches!(level, CodeLevel::Vbmi(_)) && q.rows() <= FUSED_ROWS && q.rows() > 0 {
            let n = scaling.gamma.len();
            let tiles = n / TILE_ROWS * (q.width() / RING);
            assert!(n.is_multiple_of(TILE_ROWS), "whole tiles");
            assert!(codes.here.len() == tiles * self.tile_bytes(), "codes");
            super::check_rows((out.0.len(), out.1), q.rows(), n);
            scaling.check(q.rows());
            let packed = (&self.rows, self.layout, codes);
            // SAFETY: the machine has the level and the lengths are checked.
            unsafe { super::vbmi::dots_packed(q, packed, scaling, out) };
            return;
        }
        self.expand(level, Order::Rows, codes, scratch);
        dots(level, q, scratch, scaling, out);
    }

    /// [`add_weighted`] over the rows of packed tiles. `scratch` has room for them expanded.
    ///
    /// # Panics
    /// When the lengths differ from these.
    pub fn add_weighted(
        &self,
        level: CodeLevel,
        weights: &[u8],
        scale: &[f32],
        codes: Codes<'_>,
        scratch: &mut [u8],
        acc: &mut [f32],
    ) {
        #[cfg(target_arch = "x86_64")]
        if matches!(level, CodeLevel::Vbmi(_)) && scale.len() <= FUSED_ROWS && !scale.is_empty() {
            let (n, padded) = (weights.len() / scale.len(), acc.len() / scale.len());
            let tiles = n / TILE_ROWS * (padded / RING);
            assert!(n.is_multiple_of(TILE_ROWS) && weights.len() == n * scale.len(), "weights");
            assert!(padded.is_multiple_of(RING) && acc.len() == padded * scale.len(), "sums");
            assert!(codes.here.len() == tiles * self.tile_bytes() && n <= 1 << 16, "codes");
            let packed = (&self.elements, self.layout, codes);
            // SAFETY: the machine has the level and the lengths are checked.
            unsafe { super::vbmi::add_packed(weights, scale, packed, acc) };
            return;
        }
        self.expand(level, Order::Elements, codes, scratch);
        add_weighted(level, weights, scale, scratch, acc);
    }
}

impl Plan {
    fn new(bits: usize, lead: usize, table: &[i8; 64], order: Order) -> Self {
        let ring_bytes = 2 * bits;
        // Elements of a row in one word, and the word's bytes of each row.
        let (elements, bytes) = match order {
            Order::Rows => (8, 8),
            Order::Elements => (2, 2),
        };
        // First byte that the windows of the elements from `e` on touch; may be before the ring.
        let first = |e: usize| (bits * e).wrapping_sub(lead) as isize >> 3;
        let (mut gather, mut shift, mut entries) = ([0; TILE], [0; TILE], [0; 64]);
        for i in 0..TILE {
            let (word, byte) = (i / 8, i % 8);
            // The row and the first element that this byte of the word serves.
            let (row, e) = match order {
                Order::Rows => (word / 2, word % 2 * 8),
                Order::Elements => (byte / bytes, word * elements),
            };
            let at = (first(e) + (byte % bytes) as isize).rem_euclid(ring_bytes as isize);
            gather[i] = (row * ring_bytes) as u8 + at as u8;
            // The element that this output byte holds.
            let (row, element) = match order {
                Order::Rows => (i / RING, i % RING),
                Order::Elements => (i % TILE_ROWS, i / TILE_ROWS),
            };
            let start = (bits * element) as isize
                - lead as isize
                - 8 * first(element / elements * elements);
            let before = if order == Order::Elements { row * bytes * 8 } else { 0 };
            shift[i] = (start as usize + before) as u8;
        }
        for (t, &entry) in entries.iter_mut().zip(table) {
            *t = match order {
                Order::Rows => entry as u8 ^ 0x80,
                Order::Elements => entry as u8,
            };
        }
        Self {
            #[cfg(target_arch = "aarch64")]
            pairs: super::neon::Pairs::new(&gather, &shift),
            #[cfg(target_arch = "x86_64")]
            words: super::avx2::Words::new(bits, lead),
            #[cfg(target_arch = "x86_64")]
            turned: std::array::from_fn(|i| entries[i << 2 & 63 | i >> 4]),
            gather,
            shift,
            table: entries,
        }
    }
}
