//! TurboQuant without its sketch: PolarQuant codes with an unbiased scale.
//!
//! ```text
//! head region:  codes (see `tiles`), bits * d / 8 bytes a token | gamma f16 [tokens]
//! ```
//! At `d = 128`: 66, 50 and 34 bytes a row at 4, 3 and 2 bits. Source: Zandieh et al.,
//! *TurboQuant* (arXiv 2504.19874); the scale is EDEN's (Vargaftik et al. 2022). Levels are rounded
//! to int8 (at most 0.14 % of the error), so that every path reads the same values.

use crate::{
    KvCodecError, KvGeometry, Polar, Scale,
    polar::standard_rotation,
    side::{Precision, Products, Queries, Region, Side, Stays, half_at, put_half},
    tiles::{Layout, Tables, TileMath, int8_table},
};
use taper_tensor::cpu::codes::{CodeLevel, Order, RING, Scaling, Windows, halves};

/// Bytes of a head region.
pub(crate) fn head_bytes(g: KvGeometry, bits: usize) -> usize {
    let layout = Layout::new(g, bits);
    layout.bytes() + 2 * layout.tokens
}

#[derive(Debug)]
pub(crate) struct TurboSide {
    /// With the levels as stored.
    polar: Polar,
    math: TileMath,
    step: f32,
}

impl TurboSide {
    pub(crate) fn new(g: KvGeometry, bits: usize, order: Order) -> Result<Self, KvCodecError> {
        let exact = Polar::new(standard_rotation(g.head_dim)?, bits);
        let (table, step) = int8_table::<64>(exact.levels());
        let levels = table[..1 << bits].iter().map(|&c| f32::from(c) * step).collect();
        let polar = Polar::with_levels(exact.rotation().clone(), levels);
        let nibbles = (bits == 4).then_some(order);
        let windows = match bits {
            4 => Windows::nibbles(&std::array::from_fn(|i| table[i])),
            _ => Windows::new(bits, 0, &table),
        };
        let math = TileMath {
            layout: Layout { nibbles, ..Layout::new(g, bits) },
            windows: Tables::Ring(Box::new(windows)),
        };
        Ok(Self { polar, math, step })
    }

    fn gammas(&self, region: &[u8], n: usize, level: CodeLevel, out: &mut Vec<f32>) {
        let at = self.math.layout.bytes();
        out.resize(n, 0.0);
        halves(level, &region[at..], self.step, out);
    }
}

impl Side for TurboSide {
    fn write(&self, region: &mut [u8], rows: &[(usize, &[f32])]) {
        let layout = self.math.layout;
        for &(offset, row) in rows {
            let mut coded = self.polar.encode(row, &[1.0]);
            coded.codes.resize(self.width(), 0);
            layout.put(region, offset, &coded.codes);
            put_half(region, layout.bytes() + 2 * offset, coded.gamma(Scale::Unbiased));
        }
    }

    fn read_rotated(&self, region: &[u8], offset: usize, out: &mut [f32]) {
        let gamma = half_at(region, self.math.layout.bytes() + 2 * offset);
        let codes = self.math.layout.get(region, offset);
        for (x, code) in out.iter_mut().zip(codes) {
            *x = self.polar.levels()[usize::from(code)] * gamma;
        }
    }

    fn gather(&self, rows: &[Stays<'_>], out: &mut [u8]) {
        let layout = self.math.layout;
        for (offset, row) in rows.iter().enumerate() {
            layout.copy((row.region, row.offset), (out, offset));
            let gamma =
                |offset: usize| layout.bytes() + 2 * offset..layout.bytes() + 2 * offset + 2;
            out[gamma(offset)].copy_from_slice(&row.region[gamma(row.offset)]);
        }
    }

    fn rotate(&self, rows: &mut [f32]) {
        self.polar.rotation().apply(rows);
    }

    fn restore(&self, row: &mut [f32]) {
        self.polar.rotation().undo(row);
    }

    fn round(&self, q: &mut Queries) {
        q.int8.set(&q.floats, self.polar.rotation().dim());
    }

    fn width(&self) -> usize {
        self.math.layout.rings * RING
    }

    fn scores(
        &self,
        region: Region<'_>,
        q: &Queries,
        n: usize,
        precision: Precision,
        scratch: &mut Products,
        out: (&mut [f32], usize),
    ) {
        self.gammas(region.here, n, precision.level, &mut scratch.gamma);
        let scaling = Scaling::of(&scratch.gamma);
        self.math.scores(region, scaling, q, precision, &mut scratch.tiles, out);
    }

    fn add(
        &self,
        region: Region<'_>,
        p: (&[f32], usize),
        n: usize,
        precision: Precision,
        scratch: &mut Products,
        acc: &mut [f32],
    ) {
        self.gammas(region.here, n, precision.level, &mut scratch.gamma);
        self.math.add(region, p, precision, scratch, acc);
    }
}
