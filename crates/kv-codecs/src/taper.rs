//! Taper's own codes: trellis codes of centred, rotated rows, with one-byte scales.
//!
//! ```text
//! head region:  codes (see `tiles`) | gamma u8 [tokens] | base i16 | keys only: centre
//! centre:       mature u8 | 0 | scale f16 | 7 bits an element, lowest bits first
//!
//! row = centre + 2^((base + gamma - 128) / 24) * level(window), in the rotated space;
//! gamma = 0 is a zero row
//! ```
//! *Centred keys.* A constant added to all keys changes no softmax, but models with a bias on their
//! keys spend the code on it (Qwen2: the bias is ten times what varies). So keys are coded relative
//! to their block's mean, which costs attention one product a block.
//!
//! *Blocks being filled.* The mean of a block is not known when its first row comes. The first rows
//! therefore lie as halves in the room that the block's later codes will need; the row that no
//! longer fits replaces them by codes about their mean, shrunk towards zero where the rows show
//! none (James & Stein 1961). What a block holds depends on its rows alone, never on how many came
//! at a time, and the most recent keys of a sequence are exact.

mod kept;

use crate::{
    KvCodecError, KvGeometry, Rotation, TrellisCode,
    polar::standard_rotation,
    side::{
        Precision, Products, Queries, Region, Side, Stays, half_at, padded_tokens, put_half,
        put_halves,
    },
    tiles::{Layout, TileMath},
    trellis::Walk,
};
use taper_tensor::cpu::{
    Floats,
    codes::{
        CodeLevel, DenseRows, OCTAVE, RING, Scaling, add_rows, centre_dots, dot_rows, halves,
        power, powers, unpack_centre,
    },
};

/// Where the first scale of a block lies among 1..=255: rows much smaller are likelier than rows
/// much larger.
const FIRST: i32 = 192;
/// Largest magnitude of a centre's element.
const CENTRE: f32 = 63.0;

/// Bytes of a head region of keys (centred) or values.
pub(crate) fn head_bytes(g: KvGeometry, bits: usize, centred: bool) -> usize {
    let layout = Layout::new(g, bits);
    let centre = if centred { 4 + (7 * g.head_dim).div_ceil(8) } else { 0 };
    (layout.bytes() + layout.tokens + 2 + centre).next_multiple_of(2)
}

#[derive(Debug)]
pub(crate) struct TaperSide {
    rotation: Rotation,
    code: TrellisCode,
    math: TileMath,
    d: usize,
    /// First rows that are kept as halves; keys only.
    young: usize,
    centred: bool,
}

impl TaperSide {
    pub(crate) fn new(
        g: KvGeometry,
        code: TrellisCode,
        centred: bool,
    ) -> Result<Self, KvCodecError> {
        let layout = Layout::new(g, code.bits());
        let room = (layout.bytes() + padded_tokens(g)) / (2 * g.head_dim);
        let math = TileMath { layout, windows: code.tables() };
        let young = if centred { room.min(g.block_tokens) } else { 0 };
        let rotation = standard_rotation(g.head_dim)?;
        Ok(Self { rotation, code, math, d: g.head_dim, young, centred })
    }

    /// First rows of a block that stay halves until there is a centre.
    pub(crate) fn young(&self) -> usize {
        self.young
    }

    fn scales_at(&self) -> usize {
        self.math.layout.bytes()
    }

    fn base_at(&self) -> usize {
        self.scales_at() + self.math.layout.tokens
    }

    fn centre_at(&self) -> usize {
        self.base_at() + 2
    }

    fn base(&self, region: &[u8]) -> i32 {
        let at = self.base_at();
        i32::from(i16::from_le_bytes([region[at], region[at + 1]]))
    }

    fn set_base(&self, region: &mut [u8], base: i32) {
        let at = self.base_at();
        region[at..at + 2].copy_from_slice(&(base as i16).to_le_bytes());
    }

    fn is_young(&self, region: &[u8]) -> bool {
        self.young > 0 && region[self.centre_at()] == 0
    }

    /// Stores a scale.
    fn put_gamma(&self, region: &mut [u8], offset: usize, gamma: f32) {
        let position = (gamma.log2() * OCTAVE as f32).round();
        let position = position.is_finite().then_some(position as i32 + 128);
        self.put_position(region, offset, position);
    }

    /// Where a scale lies among all powers; nowhere, if it is 0.
    fn position(&self, region: &[u8], offset: usize) -> Option<i32> {
        let code = i32::from(region[self.scales_at() + offset]);
        (code > 0).then(|| self.base(region) + code)
    }

    /// Stores a scale by its position. One that is larger than all of the block's moves its base,
    /// exactly.
    fn put_position(&self, region: &mut [u8], offset: usize, position: Option<i32>) {
        let at = self.scales_at();
        let Some(position) = position else {
            region[at + offset] = 0;
            return;
        };
        let scales = at..self.base_at();
        if region[scales.clone()].iter().all(|&s| s == 0) {
            self.set_base(region, position - FIRST);
        }
        let mut code = position - self.base(region);
        if code > 255 {
            let up = code - FIRST;
            for s in &mut region[scales] {
                *s = i32::from(*s).saturating_sub(up).clamp(i32::from(*s > 0), 255) as u8;
            }
            let base = self.base(region) + up;
            self.set_base(region, base);
            code = FIRST;
        }
        region[at + offset] = code.max(0) as u8;
    }

    fn gamma(&self, region: &[u8], offset: usize) -> f32 {
        self.position(region, offset).map_or(0.0, |position| power(position - 128))
    }

    /// Scales of the first `n` rows, times the table's step.
    fn gammas(&self, region: &[u8], n: usize, level: CodeLevel, out: &mut Vec<f32>) {
        let codes = &region[self.scales_at()..][..n];
        out.resize(n, 0.0);
        powers(level, codes, self.base(region) - 128, self.code.step(), out);
    }

    /// The centre of a mature block.
    fn centre(&self, region: &[u8], out: &mut Vec<f32>) {
        let (bytes, factor) = self.stored_centre(region);
        out.resize(self.d, 0.0);
        unpack_centre(CodeLevel::detect(), bytes, factor, out);
    }

    /// Codes of a block's centre, and the factor that they are multiplied by.
    fn stored_centre<'a>(&self, region: &'a [u8]) -> (&'a [u8], f32) {
        let at = self.centre_at();
        (&region[at + 4..], half_at(region, at + 2))
    }

    fn set_centre(&self, region: &mut [u8], centre: &[f32]) {
        let at = self.centre_at();
        let most = centre.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        put_half(region, at + 2, most / CENTRE);
        let scale = half_at(region, at + 2);
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        region[at] = 1;
        let bytes = &mut region[at + 4..];
        bytes.fill(0);
        for (i, x) in centre.iter().enumerate() {
            let code = ((x * inverse).round().clamp(-CENTRE, CENTRE) + CENTRE) as u16;
            let (bit, word) = (7 * i, code << (7 * i % 8));
            bytes[bit / 8] |= word as u8;
            if let Some(next) = bytes.get_mut(bit / 8 + 1) {
                *next |= (word >> 8) as u8;
            }
        }
    }

    /// Encodes the rows that a block being filled keeps as halves.
    fn mature(&self, region: &mut [u8]) {
        let d = self.d;
        let mut rows: Vec<_> = (0..self.young * d).map(|i| half_at(region, 2 * i)).collect();
        let centre = shrunk_mean(&rows, d);
        region[..self.centre_at()].fill(0);
        self.set_centre(region, &centre);
        let mut stored = Vec::new();
        self.centre(region, &mut stored);
        for row in rows.chunks_exact_mut(d) {
            row.iter_mut().zip(&stored).for_each(|(x, c)| *x -= c);
        }
        let offsets: Vec<_> = (0..self.young).collect();
        self.put(region, &offsets, &rows);
    }

    /// Writes centred, rotated rows.
    fn put(&self, region: &mut [u8], offsets: &[usize], rows: &[f32]) {
        for (&offset, walk) in offsets.iter().zip(self.code.encode_rows(rows, self.d)) {
            self.put_walk(region, offset, &walk);
        }
    }

    fn put_walk(&self, region: &mut [u8], offset: usize, walk: &Walk) {
        self.math.layout.put(region, offset, &walk.symbols);
        self.put_gamma(region, offset, walk.gamma);
    }

    fn young_rows<'a>(&self, region: &[u8], n: usize, out: &'a mut Vec<f32>) -> DenseRows<'a> {
        out.resize(n * self.d, 0.0);
        halves(CodeLevel::detect(), region, 1.0, out);
        DenseRows::last(Floats::F32(out))
    }
}

/// The mean of some rows, shrunk by what its length owes to their scatter.
fn shrunk_mean(rows: &[f32], d: usize) -> Vec<f32> {
    let n = (rows.len() / d) as f32;
    let mut mean = vec![0.0; d];
    for row in rows.chunks_exact(d) {
        mean.iter_mut().zip(row).for_each(|(m, x)| *m += x / n);
    }
    let square = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>();
    let length = square(&mean);
    // The mean of rows that scatter about zero would have this squared length.
    let by_chance = (square(rows) - n * length) / (n - 1.0).max(1.0) / n;
    let keep = if n > 1.0 && length > 0.0 { (1.0 - by_chance / length).max(0.0) } else { 0.0 };
    mean.iter_mut().for_each(|m| *m *= keep);
    mean
}

impl Side for TaperSide {
    fn write(&self, region: &mut [u8], rows: &[(usize, &[f32])]) {
        let (mut offsets, mut coded) = (Vec::with_capacity(rows.len()), Vec::new());
        let mut centre = Vec::new();
        for &(offset, row) in rows {
            let mut x = row.to_vec();
            self.rotation.apply(&mut x);
            if offset == 0 {
                // What was to be written here before is gone.
                region.fill(0);
                offsets.clear();
                coded.clear();
                centre.clear();
            }
            if self.is_young(region) {
                if offset < self.young {
                    put_halves(&mut region[2 * offset * self.d..], &x);
                    continue;
                }
                self.mature(region);
            }
            if self.centred {
                if centre.is_empty() {
                    self.centre(region, &mut centre);
                }
                x.iter_mut().zip(&centre).for_each(|(x, c)| *x -= c);
            }
            offsets.push(offset);
            coded.extend(x);
        }
        self.put(region, &offsets, &coded);
    }

    fn read_rotated(&self, region: &[u8], offset: usize, out: &mut [f32]) {
        if self.is_young(region) {
            for (i, x) in out.iter_mut().enumerate() {
                *x = half_at(region, 2 * (offset * self.d + i));
            }
            return;
        }
        let gamma = self.gamma(region, offset);
        let states = self.code.states(&self.math.layout.get(region, offset));
        out.iter_mut().zip(states).for_each(|(x, s)| *x = self.code.level(s) * gamma);
        if self.centred {
            let mut centre = Vec::new();
            self.centre(region, &mut centre);
            out.iter_mut().zip(&centre).for_each(|(x, c)| *x += c);
        }
    }

    fn gather(&self, rows: &[Stays<'_>], out: &mut [u8]) {
        self.gather_rows(rows, out);
    }

    fn rotate(&self, rows: &mut [f32]) {
        self.rotation.apply(rows);
    }

    fn restore(&self, row: &mut [f32]) {
        self.rotation.undo(row);
    }

    fn round(&self, q: &mut Queries) {
        q.int8.set(&q.floats, self.d);
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
        (out, stride): (&mut [f32], usize),
    ) {
        let d = self.d;
        if self.is_young(region.here) {
            // Only so many rows are there; the others' scores are never used.
            let rows = self.young.min(n);
            let keys = self.young_rows(region.here, rows, &mut scratch.floats);
            dot_rows(&q.floats, keys, d, (out, stride));
            return;
        }
        self.gammas(region.here, n, precision.level, &mut scratch.gamma);
        let Products { gamma, tiles, floats, scales: offsets, .. } = scratch;
        let mut scaling = Scaling::of(gamma);
        if self.centred {
            let (bytes, factor) = self.stored_centre(region.here);
            floats.resize(d, 0.0);
            offsets.resize(q.floats.len() / d, 0.0);
            centre_dots(precision.level, bytes, factor, &q.floats, floats, offsets);
            scaling.offsets = Some(offsets);
        }
        self.math.scores(region, scaling, q, precision, tiles, (out, stride));
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
        if self.is_young(region.here) {
            let (d, width, rows) = (self.d, self.width(), self.young.min(n));
            let values = self.young_rows(region.here, rows, &mut scratch.floats);
            for (p, acc) in p.chunks(stride).zip(acc.chunks_exact_mut(width)) {
                add_rows((p, rows), values, d, &mut acc[..d]);
            }
            return;
        }
        self.gammas(region.here, n, precision.level, &mut scratch.gamma);
        self.math.add(region, (p, stride), precision, scratch, acc);
        if self.centred {
            self.centre(region.here, &mut scratch.floats);
            let width = self.width();
            for (p, acc) in p.chunks(stride).zip(acc.chunks_exact_mut(width)) {
                let total: f32 = p[..n].iter().sum();
                acc.iter_mut().zip(&scratch.floats).for_each(|(a, c)| *a += total * c);
            }
        }
    }
}
