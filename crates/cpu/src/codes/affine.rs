//! Attention arithmetic over rows of affine codes, in integers.
//!
//! An element is `scale * code + bias`, with a scale and a bias for each group of a row. So a query's
//! product with a row is, group by group, `scale * sum(q code) + bias * sum(q)`, and the weighted sum
//! of a column is `sum((w scale) code) + sum(w bias)`: products of integers, and little else.
//!
//! Queries and weights are rounded to 15 bits, so that what 8-bit codes keep is not lost
//! here. Either is two bytes for the instructions that multiply bytes. Every level gives the same
//! integers, and rounds them to floats in the same order.

use super::{CodeLevel, Codes, Order, TILE_ROWS};
use half::f16;

/// How rows of affine codes lie: `d * bits / 8` bytes of codes, lowest bits first; a scale and a bias
/// as halves for every `group` codes; rounded up to whole halves.
#[derive(Debug, Clone, Copy)]
pub struct Affine {
    /// Elements of a row.
    pub d: usize,
    /// Bits of an element: 4 or 8.
    pub bits: usize,
    /// Elements that share a scale: 32, or a multiple of 64.
    pub group: usize,
}

/// Elements of a group that are multiplied at a time: all, or so many.
pub(super) const UNIT: usize = 64;
/// Rows of a block, at most.
const MOST_ROWS: usize = 1 << 16;
/// Largest magnitude of a rounded query: 127 units of the high byte.
const QUERY: f32 = 16_256.0;
/// Largest rounded weight of blocks of up to 512 rows.
const WEIGHT: f32 = 32_767.0;
/// Adding it leaves the rounded integer in the lowest bits of a float.
const ROUND: f32 = 12_582_912.0;

impl Affine {
    /// Bytes of a row's codes.
    #[must_use]
    pub fn code_bytes(self) -> usize {
        (self.d * self.bits).div_ceil(8).next_multiple_of(2)
    }

    /// Bytes of a row.
    #[must_use]
    pub fn row_bytes(self) -> usize {
        self.code_bytes() + self.groups() * 4
    }

    /// Groups of a row.
    #[must_use]
    pub fn groups(self) -> usize {
        self.d.div_ceil(self.group)
    }

    /// Elements of a unit.
    pub(super) fn unit(self) -> usize {
        self.group.min(UNIT)
    }

    /// Units of a row.
    pub(super) fn units(self) -> usize {
        self.d.div_ceil(self.unit())
    }

    /// The group of a unit.
    pub(super) fn group_of(self, unit: usize) -> usize {
        unit * self.unit() / self.group
    }

    /// The element at position `p` of a unit as the vector kernels have it: nibbles that are low in
    /// their bytes come first.
    pub(super) fn element(self, p: usize) -> usize {
        match self.bits {
            8 => p,
            _ if p < UNIT / 2 => 2 * p,
            _ => 2 * p + 1 - UNIT,
        }
    }

    /// A row's code.
    #[inline(always)]
    fn code(self, row: &[u8], element: usize) -> u8 {
        match self.bits {
            8 => row[element],
            _ => row[element / 2] >> (element % 2 * 4) & 15,
        }
    }

    /// What codes are combined with under positive and under negative scales, so that 8 bits of them
    /// have a sign and scales need none; and what they lack then, in units of the scale.
    pub(super) fn flips(self) -> [(u8, f32); 2] {
        if self.bits == 8 { [(0x80, 128.0), (0x7f, 127.0)] } else { [(0, 0.0), (15, 15.0)] }
    }

    /// Reads a row.
    ///
    /// # Panics
    /// When `row` or `out` has another length.
    pub fn read(self, row: &[u8], out: &mut [f32]) {
        assert!(row.len() == self.row_bytes() && out.len() == self.d, "one row");
        for (group, out) in out.chunks_mut(self.group).enumerate() {
            let (scale, bias) = self.scale(row, group);
            for (e, x) in out.iter_mut().enumerate() {
                *x = f32::from(self.code(row, group * self.group + e)) * scale + bias;
            }
        }
    }

    /// Scale and bias of a group of a row.
    pub(super) fn scale(self, row: &[u8], group: usize) -> (f32, f32) {
        let at = self.code_bytes() + 4 * group;
        let half = |at: usize| f16::from_le_bytes([row[at], row[at + 1]]).to_f32();
        (half(at), half(at + 2))
    }

    /// `out[i][j] = q_i . row_j`.
    ///
    /// # Shapes
    /// `rows`: as many as `scales` was read from; `out [q.rows(), n]`.
    ///
    /// # Panics
    /// When the lengths differ from these, or the queries are for other rows.
    pub fn dots(
        self,
        level: CodeLevel,
        q: &AffineQueries,
        rows: Codes<'_>,
        scales: &AffineScales,
        out: &mut [f32],
    ) {
        let n = scales.n;
        assert!(scales.order == Some(Order::Rows), "scales of keys");
        assert!(rows.here.len() == n * self.row_bytes(), "scales of these rows");
        assert!(q.sums.len() == q.rows() * self.units(), "queries for these rows");
        assert!(q.rows() == 0 || q.ints.len() == q.rows() * self.d, "queries for these rows");
        assert!(out.len() == q.rows() * n, "scores");
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level and the lengths are checked.
            CodeLevel::Vbmi(_) => unsafe { super::affine_vbmi::dots(self, q, rows, scales, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level and the lengths are checked.
            CodeLevel::Avx2(_) if self.whole_rings() => unsafe {
                super::affine_avx2::dots(self, q, rows, scales, out);
            },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the machine has the level and the lengths are checked.
            CodeLevel::Neon(_) if self.whole_rings() => unsafe {
                super::affine_neon::dots(self, q, rows.here, scales, out);
            },
            _ => self.dots_body(q, rows.here, scales, out),
        }
    }

    fn dots_body(self, q: &AffineQueries, rows: &[u8], scales: &AffineScales, out: &mut [f32]) {
        let (n, unit) = (scales.n, self.unit());
        for (i, (q_row, out)) in
            q.ints.chunks_exact(self.d).zip(out.chunks_exact_mut(n)).enumerate()
        {
            let sums = &q.sums[i * self.units()..][..self.units()];
            for (j, (row, out)) in rows.chunks_exact(self.row_bytes()).zip(out).enumerate() {
                let mut total = 0.0;
                for (u, (q, &sum)) in q_row.chunks(unit).zip(sums).enumerate() {
                    let mut dot = 0;
                    for (e, &q) in q.iter().enumerate() {
                        dot += i32::from(q) * i32::from(self.code(row, u * unit + e));
                    }
                    let (scale, bias) = scales.of(self.group_of(u), j);
                    total += dot as f32 * scale + sum * bias;
                }
                *out = total * q.scales[i];
            }
        }
    }

    /// `acc[i] += sum_j p[i][j] row_j`. Rows of `p` below `threshold` add nothing, and neither do rows
    /// of codes whose weights are 0, whatever they hold.
    ///
    /// # Shapes
    /// `p [m, n]`, `acc [m, d]`; `rows` and `scales` as for [`Self::dots`].
    ///
    /// # Panics
    /// When the lengths differ from these.
    #[expect(clippy::too_many_arguments, reason = "operands, and what they are worked out in")]
    pub fn add_weighted(
        self,
        level: CodeLevel,
        p: &[f32],
        rows: Codes<'_>,
        scales: &AffineScales,
        threshold: f32,
        weights: &mut AffineWeights,
        acc: &mut [f32],
    ) {
        let (n, m) = (scales.n, acc.len() / self.d);
        assert!(scales.order == Some(Order::Elements), "scales of values");
        assert!(rows.here.len() == n * self.row_bytes(), "scales of these rows");
        assert!(acc.len() == m * self.d && p.len() == m * n && n <= MOST_ROWS, "weights and sums");
        if n == 0 || !weights.set(level, p, scales, threshold) {
            return;
        }
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level and the lengths are checked.
            CodeLevel::Vbmi(_) => unsafe {
                super::affine_vbmi::add_weighted(self, weights, rows, scales, acc);
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level and the lengths are checked.
            CodeLevel::Avx2(_) if self.whole_rings() => unsafe {
                super::affine_avx2::add_weighted(self, weights, rows, scales, acc);
            },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: the machine has the level and the lengths are checked.
            CodeLevel::Neon(_) if self.whole_rings() => unsafe {
                super::affine_neon::add_weighted(self, weights, rows.here, scales, acc);
            },
            _ => self.add_body(weights, rows.here, scales, acc),
        }
    }

    fn add_body(self, w: &AffineWeights, rows: &[u8], scales: &AffineScales, acc: &mut [f32]) {
        let (n, groups) = (scales.n, self.groups());
        for (i, acc) in acc.chunks_exact_mut(self.d).enumerate() {
            for (unit, acc) in acc.chunks_mut(self.unit()).enumerate() {
                let group = self.group_of(unit);
                let (at, flips) = (i * groups + group, &scales.flip[group * n..][..n]);
                let mut sums = [0; UNIT];
                for (j, (row, flip)) in rows.chunks_exact(self.row_bytes()).zip(flips).enumerate() {
                    let w = w.int(at * n + j);
                    for (e, sum) in sums[..acc.len()].iter_mut().enumerate() {
                        let code = self.code(row, unit * self.unit() + e) ^ flip;
                        *sum += w * i32::from(code as i8);
                    }
                }
                for (acc, sum) in acc.iter_mut().zip(sums) {
                    *acc += sum as f32 * w.scale[at] + w.bias[at];
                }
            }
        }
    }

    /// Whole vectors of 16 elements alone.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn whole_rings(self) -> bool {
        self.d.is_multiple_of(super::RING)
    }
}

/// Query rows rounded to 15 bits: `x = scale * int`.
#[derive(Debug, Default, Clone)]
pub struct AffineQueries {
    /// `[rows, d]`.
    pub(super) ints: Vec<i16>,
    /// `int = 128 high + low`: `[rows, units, 64]` in the order of the vector kernels.
    pub(super) high: Vec<i8>,
    pub(super) low: Vec<i8>,
    pub(super) scales: Vec<f32>,
    /// Sums of each unit's elements: `[rows, units]`.
    pub(super) sums: Vec<f32>,
}

impl AffineQueries {
    /// Takes rows that will be multiplied with codes of `shape`.
    ///
    /// # Panics
    /// When `x` is not whole rows.
    pub fn set(&mut self, x: &[f32], shape: Affine) {
        assert!(x.len().is_multiple_of(shape.d), "whole rows");
        self.ints.clear();
        self.scales.clear();
        self.sums.clear();
        for row in x.chunks_exact(shape.d) {
            let max = row.iter().fold(0.0f32, |m, x| if x.abs() > m { x.abs() } else { m });
            let (scale, inverse) = if max > 0.0 { (max / QUERY, QUERY / max) } else { (0.0, 0.0) };
            let at = self.ints.len();
            self.ints.extend(row.iter().map(|x| (x * inverse + ROUND).to_bits() as i16));
            self.scales.push(scale);
            let sum = |unit: &[i16]| unit.iter().map(|&q| i32::from(q)).sum::<i32>() as f32;
            self.sums.extend(self.ints[at..].chunks(shape.unit()).map(sum));
        }
        let bytes = self.sums.len() * UNIT;
        self.high.clear();
        self.low.clear();
        self.high.resize(bytes, 0);
        self.low.resize(bytes, 0);
        for (i, row) in self.ints.chunks_exact(shape.d).enumerate() {
            for (u, unit) in row.chunks(shape.unit()).enumerate() {
                let at = (i * shape.units() + u) * UNIT;
                for p in 0..UNIT {
                    let q = unit.get(shape.element(p)).copied().unwrap_or(0);
                    let high = (q + 64) >> 7;
                    self.high[at + p] = high as i8;
                    self.low[at + p] = (q - (high << 7)) as i8;
                }
            }
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.scales.len()
    }
}

/// Scales and biases of rows, `[groups, n]`.
#[derive(Debug, Default)]
pub struct AffineScales {
    order: Option<Order>,
    pub(super) n: usize,
    pub(super) scale: Vec<f32>,
    pub(super) bias: Vec<f32>,
    /// What codes of values are combined with to make their scales positive.
    pub(super) flip: Vec<u8>,
}

impl AffineScales {
    /// Reads those of `rows`, for [`Affine::dots`] or for [`Affine::add_weighted`].
    ///
    /// # Panics
    /// Unless they are whole rows, a multiple of [`TILE_ROWS`].
    pub fn set(&mut self, level: CodeLevel, rows: &[u8], shape: Affine, order: Order) {
        self.n = rows.len() / shape.row_bytes();
        let whole = rows.len() == self.n * shape.row_bytes();
        assert!(whole && self.n.is_multiple_of(TILE_ROWS), "whole tiles of rows");
        self.order = Some(order);
        let all = self.n * shape.groups();
        self.scale.resize(all, 0.0);
        self.bias.resize(all, 0.0);
        self.flip.resize(all, 0);
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level and the vectors have their lengths.
            CodeLevel::Vbmi(_) => unsafe { super::affine_vbmi::scales(rows, shape, order, self) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level and the vectors have their lengths.
            CodeLevel::Avx2(_) => unsafe { super::affine_avx2::scales(rows, shape, order, self) },
            _ => {
                self.set_body(rows, shape);
                if order == Order::Elements {
                    self.make_positive(shape);
                }
            }
        }
    }

    fn set_body(&mut self, rows: &[u8], shape: Affine) {
        for (j, row) in rows.chunks_exact(shape.row_bytes()).enumerate() {
            for group in 0..shape.groups() {
                let at = group * self.n + j;
                (self.scale[at], self.bias[at]) = shape.scale(row, group);
            }
        }
    }

    /// Makes all scales positive by flipping codes: `scale c + bias = |scale| (c ^ flip) + bias'`.
    fn make_positive(&mut self, shape: Affine) {
        let [plus, minus] = shape.flips();
        for ((scale, bias), flip) in self.scale.iter_mut().zip(&mut self.bias).zip(&mut self.flip) {
            let lacks = if *scale < 0.0 { &minus } else { &plus };
            *bias += *scale * lacks.1;
            *flip = lacks.0;
            *scale = scale.abs();
        }
    }

    fn of(&self, group: usize, row: usize) -> (f32, f32) {
        (self.scale[group * self.n + row], self.bias[group * self.n + row])
    }
}

/// Weights times scales, rounded to 15 bits, and what biases add.
#[derive(Debug, Default)]
pub struct AffineWeights {
    /// `[m, groups, n]`.
    pub(super) ints: Vec<i16>,
    /// `int = 256 high + low`, in their place where bytes are multiplied.
    pub(super) high: Vec<u8>,
    pub(super) low: Vec<u8>,
    /// Scale of the integers, and sum of weighted biases: `[m, groups]`.
    pub(super) scale: Vec<f32>,
    pub(super) bias: Vec<f32>,
}

/// Partial sums of biases: as many as the widest level has lanes.
const LANES: usize = 16;

impl AffineWeights {
    /// Takes `p [m, n]`; false when all of it is below the threshold.
    fn set(&mut self, level: CodeLevel, p: &[f32], scales: &AffineScales, threshold: f32) -> bool {
        let (n, groups) = (scales.n, scales.scale.len() / scales.n);
        let all = p.len() * groups;
        self.ints.resize(all, 0);
        self.high.resize(all, 0);
        self.low.resize(all, 0);
        self.scale.clear();
        self.bias.clear();
        // So that sums fit 31 bits.
        let largest = WEIGHT.min((((1 << 24) - 1) / n) as f32);
        let mut any = false;
        for (i, p) in p.chunks_exact(n).enumerate() {
            let likely = p.iter().any(|&p| p >= threshold && p > 0.0);
            any |= likely;
            for group in 0..groups {
                let at = (i * groups + group) * n;
                let (high, low) = (&mut self.high[at..][..n], &mut self.low[at..][..n]);
                let ints = &mut self.ints[at..][..n];
                let of = (&scales.scale[group * n..][..n], &scales.bias[group * n..][..n]);
                let (scale, bias) = match level {
                    _ if !likely => {
                        ints.fill(0);
                        high.fill(0);
                        low.fill(0);
                        (0.0, 0.0)
                    }
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the machine has the level; all have `n` elements.
                    CodeLevel::Vbmi(_) => unsafe {
                        super::affine_vbmi::weigh(p, of, largest, high, low)
                    },
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the machine has AVX2; all slices have `n` elements, a multiple of
                    // four.
                    CodeLevel::Avx2(_) => unsafe {
                        super::affine_avx2::weigh(p, of, largest, ints)
                    },
                    _ => weigh_body(p, of, largest, ints),
                };
                self.scale.push(scale);
                self.bias.push(bias);
            }
        }
        any
    }

    pub(super) fn int(&self, at: usize) -> i32 {
        i32::from(self.ints[at])
    }
}

/// `p[j] * scale[j] = step * int[j]`, with integers up to `largest`. Returns the step and
/// `sum p[j] bias[j]`.
fn weigh_body(
    p: &[f32],
    (scale, bias): (&[f32], &[f32]),
    largest: f32,
    ints: &mut [i16],
) -> (f32, f32) {
    let mut most = 0.0;
    let mut sums = [0.0; LANES];
    for (j, ((&p, &s), &b)) in p.iter().zip(scale).zip(bias).enumerate() {
        // What has no weight may be anything.
        let (w, b) = if p > 0.0 { (p * s, p * b) } else { (0.0, 0.0) };
        most = if w > most { w } else { most };
        sums[j % LANES] += b;
    }
    let inverse = if most > 0.0 { largest / most } else { 0.0 };
    for ((&p, &s), int) in p.iter().zip(scale).zip(ints) {
        let w = if p > 0.0 { p * s } else { 0.0 };
        *int = (w * inverse + ROUND).to_bits() as i16;
    }
    (most / largest, sum_lanes(sums))
}

/// Halves onto halves.
pub(super) fn sum_lanes(mut sums: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0]
}
