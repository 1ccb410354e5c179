//! Codes in tiles, and attention's two products over them.
//!
//! ```text
//! codes of a head region:  [tokens / 4][d / 16][4 tokens][16 codes: 2 * bits bytes]
//! ```
//! Codes of a token's ring of 16 elements stand lowest bits first; `d` is padded to whole rings and
//! the block's tokens to whole tiles. Scalar codes of 4 bits stand otherwise within a tile: byte
//! `i` of its 32 holds positions `i` (low nibble) and `i + 32`, where position is `16 token +
//! element` for keys and `4 element + token` for values. See [`taper_tensor::cpu::codes`].

use crate::{
    KvGeometry,
    side::{Precision, Products, Queries, Region, Tiles, padded_tokens},
};
use taper_tensor::cpu::codes::{
    Order, RING, Scaling, TILE, TILE_ROWS, WideWindows, Windows, weigh,
};

/// Where codes of some bits lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) bits: usize,
    pub(crate) rings: usize,
    /// Whole tiles of them.
    pub(crate) tokens: usize,
    /// Codes of 4 bits in the order of the expanded bytes.
    pub(crate) nibbles: Option<Order>,
}

impl Layout {
    pub(crate) fn new(g: KvGeometry, bits: usize) -> Self {
        Self { bits, rings: g.head_dim.div_ceil(RING), tokens: padded_tokens(g), nibbles: None }
    }

    /// Bytes of the codes of a head region.
    pub(crate) fn bytes(self) -> usize {
        self.tokens * self.rings * 2 * self.bits
    }

    /// Byte and shift of a nibble.
    fn nibble(self, order: Order, token: usize, element: usize) -> (usize, usize) {
        let tile = token / TILE_ROWS * self.rings + element / RING;
        let at = match order {
            Order::Rows => token % TILE_ROWS * RING + element % RING,
            Order::Elements => element % RING * TILE_ROWS + token % TILE_ROWS,
        };
        (tile * TILE / 2 + at % (TILE / 2), at / (TILE / 2) * 4)
    }

    /// Writes a token's codes, whole rings of them.
    pub(crate) fn put(self, codes: &mut [u8], token: usize, symbols: &[u8]) {
        if let Some(order) = self.nibbles {
            for (ring, symbols) in symbols.chunks_exact(RING).enumerate() {
                let (at, shift) = self.nibble(order, token, ring * RING);
                match order {
                    Order::Rows => {
                        for (byte, symbol) in codes[at..].iter_mut().zip(symbols) {
                            *byte = *byte & !(15 << shift) | symbol << shift;
                        }
                    }
                    Order::Elements => {
                        let (low, high) = symbols.split_at(RING / 2);
                        let bytes = codes[at..].iter_mut().step_by(TILE_ROWS);
                        for (byte, (low, high)) in bytes.zip(low.iter().zip(high)) {
                            *byte = low | high << 4;
                        }
                    }
                }
            }
            return;
        }
        for (ring, symbols) in symbols.chunks_exact(RING).enumerate() {
            let (low, high) = symbols.split_at(RING / 2);
            let word = |s: &[u8]| s.iter().rev().fold(0u64, |w, &s| w << self.bits | u64::from(s));
            let word = u128::from(word(low)) | u128::from(word(high)) << (RING / 2 * self.bits);
            let at = self.ring(token, ring);
            codes[at..at + 2 * self.bits].copy_from_slice(&word.to_le_bytes()[..2 * self.bits]);
        }
    }

    /// A token's codes.
    pub(crate) fn get(self, codes: &[u8], token: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.rings * RING);
        if let Some(order) = self.nibbles {
            out.extend((0..self.rings * RING).map(|element| {
                let (at, shift) = self.nibble(order, token, element);
                codes[at] >> shift & 15
            }));
            return out;
        }
        for ring in 0..self.rings {
            let mut word = [0; 16];
            word[..2 * self.bits]
                .copy_from_slice(&codes[self.ring(token, ring)..][..2 * self.bits]);
            let word = u128::from_le_bytes(word);
            out.extend((0..RING).map(|i| (word >> (i * self.bits)) as u8 & ((1 << self.bits) - 1)));
        }
        out
    }

    /// Moves a token's codes to another position.
    pub(crate) fn copy(self, (from, token): (&[u8], usize), (to, at): (&mut [u8], usize)) {
        if self.nibbles.is_some() {
            return self.put(to, at, &self.get(from, token));
        }
        let bytes = 2 * self.bits;
        for ring in 0..self.rings {
            let code = &from[self.ring(token, ring)..][..bytes];
            to[self.ring(at, ring)..][..bytes].copy_from_slice(code);
        }
    }

    fn ring(self, token: usize, ring: usize) -> usize {
        let tile = token / TILE_ROWS * self.rings + ring;
        (tile * TILE_ROWS + token % TILE_ROWS) * 2 * self.bits
    }

    /// Bytes of the tiles of the first `n` tokens.
    fn part(self, n: usize) -> usize {
        n * self.rings * 2 * self.bits
    }
}

/// The products of a code whose rows are `gamma * table[window]`.
#[derive(Debug)]
pub(crate) struct TileMath {
    pub(crate) layout: Layout,
    pub(crate) windows: Tables,
}

/// How codes become table entries.
#[derive(Debug)]
pub(crate) enum Tables {
    /// By windows of a ring.
    Ring(Box<Windows>),
    /// By windows of a row.
    Row(WideWindows),
}

impl TileMath {
    /// `out[i][j] = gamma_j <q_i, entries_j> + offset_i`.
    pub(crate) fn scores(
        &self,
        region: Region<'_>,
        scaling: Scaling<'_>,
        q: &Queries,
        precision: Precision,
        tiles: &mut Tiles,
        out: (&mut [f32], usize),
    ) {
        let n = scaling.gamma.len();
        let tiles = tiles.room(n * self.layout.rings * RING);
        let codes = region.codes(self.layout.part(n), self.layout.bytes());
        let level = precision.level;
        match &self.windows {
            Tables::Ring(w) => w.dots(level, &q.int8, codes, scaling, tiles, out),
            Tables::Row(w) => w.dots(level, &q.int8, codes, scaling, tiles, out),
        }
    }

    /// `acc_i += sum_j p_ij gamma_j entries_j`.
    pub(crate) fn add(
        &self,
        region: Region<'_>,
        (p, stride): (&[f32], usize),
        precision: Precision,
        scratch: &mut Products,
        acc: &mut [f32],
    ) {
        let Products { tiles, gamma, weights, scales, .. } = scratch;
        let n = gamma.len();
        let rows = acc.len() / (self.layout.rings * RING);
        weights.resize(rows * n, 0);
        scales.resize(rows, 0.0);
        weigh(precision.level, (p, stride), gamma, precision.sparse_v, weights, scales);
        if scales.iter().all(|&s| s == 0.0) {
            return;
        }
        let tiles = tiles.room(n * self.layout.rings * RING);
        let codes = region.codes(self.layout.part(n), self.layout.bytes());
        let level = precision.level;
        match &self.windows {
            Tables::Ring(w) => w.add_weighted(level, weights, scales, codes, tiles, acc),
            Tables::Row(w) => w.add_weighted(level, weights, scales, codes, tiles, acc),
        }
    }
}

/// A table of levels, repeated, as int8: `level = entry * step`, the largest level at 127.
pub(crate) fn int8_table<const N: usize>(levels: &[f32]) -> ([i8; N], f32) {
    let most = levels.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let step = most / 127.0;
    (std::array::from_fn(|i| (levels[i % levels.len()] / step).round() as i8), step)
}
