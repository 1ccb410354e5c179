//! Windows of nine bits over codes of three: 512 table entries, and walks that close over a row.
//!
//! Codes stand in the same tiles as others of three bits. An element's window is its own code and
//! the two before it in the row; before the row's first code stand its last ones. (A walk of nine
//! bits of state that closed over a ring of 16 would give back what it gains.)

use super::{
    CodeLevel, Codes, Int8Queries, Order, RING, Scaling, TILE, TILE_ROWS, add_weighted, dots,
};

/// Bits of a code.
const BITS: usize = 3;
/// Bits of a window.
const WINDOW: usize = 9;
/// Bits that a window takes from the codes before.
const LEAD: usize = WINDOW - BITS;
/// Bytes of a ring.
pub(super) const RING_BYTES: usize = RING * BITS / 8;
/// Entries of a table.
pub const WIDE_STATES: usize = 1 << WINDOW;
/// Walks after whose next code they may meet again.
const MEMORIES: usize = 1 << LEAD;
const BRANCHES: usize = 1 << BITS;

/// A table of 512 entries over codes of three bits.
#[derive(Debug, Clone)]
pub struct WideWindows {
    rows: Vec<u8>,
    elements: Vec<u8>,
}

impl WideWindows {
    /// Codes over the entries of `table`.
    #[must_use]
    pub fn new(table: &[i8; WIDE_STATES]) -> Self {
        let rows = table.iter().map(|&t| t as u8 ^ 0x80).collect();
        Self { rows, elements: table.iter().map(|&t| t as u8).collect() }
    }

    /// Bytes of a packed tile.
    #[must_use]
    pub fn tile_bytes(&self) -> usize {
        RING_BYTES * TILE_ROWS
    }

    /// Expands packed tiles of rows of `rings` rings; see [`super::Windows::expand`].
    ///
    /// # Panics
    /// When the lengths are not those of whole rows.
    pub fn expand(
        &self,
        level: CodeLevel,
        order: Order,
        rings: usize,
        codes: Codes<'_>,
        out: &mut [u8],
    ) {
        let tiles = codes.here.len() / self.tile_bytes();
        assert!(rings > 0 && tiles.is_multiple_of(rings), "whole rows");
        assert!(
            codes.here.len() == tiles * self.tile_bytes() && out.len() == tiles * TILE,
            "tiles"
        );
        let table = match order {
            Order::Rows => &self.rows,
            Order::Elements => &self.elements,
        };
        if let Some(next) = codes.next {
            super::prefetch(next);
        }
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level, the table 512 entries, and lengths are checked.
            CodeLevel::Vbmi(_) => unsafe {
                super::vbmi::expand_wide(table, order, rings, codes.here, out);
            },
            _ => expand(table, order, rings, codes.here, out),
        }
    }

    /// As [`super::Windows::dots`].
    ///
    /// # Panics
    /// When the lengths do not fit.
    pub fn dots(
        &self,
        level: CodeLevel,
        q: &Int8Queries,
        codes: Codes<'_>,
        scaling: Scaling<'_>,
        scratch: &mut [u8],
        out: (&mut [f32], usize),
    ) {
        self.expand(level, Order::Rows, q.width() / RING, codes, scratch);
        dots(level, q, scratch, scaling, out);
    }

    /// As [`super::Windows::add_weighted`].
    ///
    /// # Panics
    /// When the lengths do not fit.
    pub fn add_weighted(
        &self,
        level: CodeLevel,
        weights: &[u8],
        scale: &[f32],
        codes: Codes<'_>,
        scratch: &mut [u8],
        acc: &mut [f32],
    ) {
        let rings = acc.len() / scale.len().max(1) / RING;
        self.expand(level, Order::Elements, rings, codes, scratch);
        add_weighted(level, weights, scale, scratch, acc);
    }
}

/// A ring's bits behind the last ones of the ring before it: window `i` starts at bit `3 i`.
pub(super) fn ring_word(ring: &[u8], before: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..RING_BYTES].copy_from_slice(&ring[..RING_BYTES]);
    u64::from_le_bytes(word) << LEAD | u64::from(before[RING_BYTES - 1] >> (8 - LEAD))
}

/// Where a row's ring and the one before it begin in its group of tiles.
pub(super) fn ring_starts(rings: usize, ring: usize, row: usize) -> (usize, usize) {
    let at = |ring: usize| (ring * TILE_ROWS + row) * RING_BYTES;
    (at(ring), at((ring + rings - 1) % rings))
}

fn expand(table: &[u8], order: Order, rings: usize, codes: &[u8], out: &mut [u8]) {
    let groups = codes.chunks_exact(rings * TILE_ROWS * RING_BYTES);
    for (group, out) in groups.zip(out.chunks_exact_mut(rings * TILE)) {
        for (ring, out) in out.chunks_exact_mut(TILE).enumerate() {
            for row in 0..TILE_ROWS {
                let (here, before) = ring_starts(rings, ring, row);
                let word = ring_word(&group[here..], &group[before..]);
                for element in 0..RING {
                    let at = match order {
                        Order::Rows => row * RING + element,
                        Order::Elements => element * TILE_ROWS + row,
                    };
                    out[at] = table[(word >> (BITS * element)) as usize % WIDE_STATES];
                }
            }
        }
    }
}

/// The encoder: a trellis of nine bits of state and three of code, see [`super::Trellis`].
#[derive(Debug, Clone)]
pub struct WideTrellis {
    /// `-2 c` and `c^2` of each entry, by the bits that the next state forgets and those it keeps.
    linear: [[f32; MEMORIES]; BRANCHES],
    square: [[f32; MEMORIES]; BRANCHES],
}

/// Which branch was the cheapest into each memory.
type Choice = [u8; MEMORIES];

impl WideTrellis {
    /// Over a table of entries.
    #[must_use]
    pub fn new(table: &[f32; WIDE_STATES]) -> Self {
        let of = |f: fn(f32) -> f32| {
            std::array::from_fn(|low| std::array::from_fn(|memory| f(table[memory << BITS | low])))
        };
        Self { linear: of(|c| -2.0 * c), square: of(|c| c * c) }
    }

    /// The symbols of a closed walk near to a row. Where it starts is where the best walk through
    /// the row's second half and its first one passes; the walk is the best one from there.
    ///
    /// # Panics
    /// When `symbols` has another length, or there are none.
    pub fn encode(&self, level: CodeLevel, x: &[f32], symbols: &mut [u8]) {
        assert!(x.len() == symbols.len() && x.len() > 1, "one symbol an element");
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level.
            CodeLevel::Vbmi(_) => unsafe { self.encode_vector(x, symbols) },
            _ => self.encode_body(x, symbols),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(
        enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c"
    )]
    unsafe fn encode_vector(&self, x: &[f32], symbols: &mut [u8]) {
        self.encode_body(x, symbols);
    }

    #[inline(always)]
    fn encode_body(&self, x: &[f32], symbols: &mut [u8]) {
        let mut choices = vec![[0; MEMORIES]; x.len()];
        let half = x.len() / 2;
        let mut cost = [0.0; MEMORIES];
        self.walk(&x[half..], &mut cost, &mut choices[half..]);
        self.walk(&x[..half], &mut cost, &mut choices[..half]);
        let mut memory = 0;
        for (other, &c) in cost.iter().enumerate() {
            memory = if c < cost[memory] { other } else { memory };
        }
        for choice in choices[..half].iter().rev() {
            memory = (memory << BITS | usize::from(choice[memory])) % MEMORIES;
        }
        let mut cost = [f32::INFINITY; MEMORIES];
        cost[memory] = 0.0;
        self.walk(x, &mut cost, &mut choices);
        for (symbol, choice) in symbols.iter_mut().zip(&choices).rev() {
            let state = memory << BITS | usize::from(choice[memory]);
            *symbol = (state >> LEAD) as u8;
            memory = state % MEMORIES;
        }
    }

    /// Goes through elements; `cost` is of the cheapest walk into each memory.
    #[inline(always)]
    fn walk(&self, x: &[f32], cost: &mut [f32; MEMORIES], choices: &mut [Choice]) {
        for (&x, choice) in x.iter().zip(choices) {
            let mut next = [f32::INFINITY; MEMORIES];
            let mut branch = [0u32; MEMORIES];
            for low in 0..BRANCHES {
                // State `memory << 3 | low` comes from the memory of its lowest six bits.
                let mut before = [0.0; BRANCHES];
                for (j, b) in before.iter_mut().enumerate() {
                    *b = cost[j << BITS | low];
                }
                let parts = self.linear[low].as_chunks::<BRANCHES>().0.iter();
                let parts = parts.zip(self.square[low].as_chunks::<BRANCHES>().0);
                let nexts = next.as_chunks_mut::<BRANCHES>().0.iter_mut();
                let nexts = nexts.zip(branch.as_chunks_mut::<BRANCHES>().0);
                for ((linear, square), (next, branch)) in parts.zip(nexts) {
                    for j in 0..BRANCHES {
                        let c = before[j] + (x * linear[j] + square[j]);
                        let nearer = c < next[j];
                        next[j] = if nearer { c } else { next[j] };
                        branch[j] = if nearer { low as u32 } else { branch[j] };
                    }
                }
            }
            *cost = next;
            for (c, &b) in choice.iter_mut().zip(&branch) {
                *c = b as u8;
            }
        }
    }
}
