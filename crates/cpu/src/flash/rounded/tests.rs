//! Every unit against f64, rows alone against rows in a batch, and prompts chunked anywhere.

use super::{
    Products, Rounded,
    unit::{Chunk, SIDE, Sums, Unit},
};
use crate::{
    Attended, Floats,
    features::Avx512Bf16,
    flash::tests::{dense, noise},
};
use half::{bf16, f16};
use std::ops::Range;

/// What the registers do, in plain Rust: pairs are added in order.
pub(super) struct Emulated;

fn pair(bits: u32) -> [f32; 2] {
    [bits as u16, (bits >> 16) as u16].map(|bits| bf16::from_bits(bits).to_f32())
}

impl Unit for Emulated {
    type Ready = ();

    unsafe fn ready() {}

    unsafe fn multiply<const ADD: bool>(
        left: *const Chunk,
        right: *const Chunk,
        chunks: usize,
        sums: *mut Sums,
    ) {
        // SAFETY: the caller keeps the contract of `Unit::multiply`.
        let (left, right, sums) = unsafe {
            let operand = |x| std::slice::from_raw_parts(x, chunks);
            (operand(left), operand(right), &mut *sums)
        };
        for (line, sums) in sums.0.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                let mut all = if ADD { *sum } else { 0.0 };
                for (left, right) in left.iter().zip(right) {
                    for i in 0..SIDE {
                        let x = pair(left[line / SIDE].0[line % SIDE][i]);
                        let y = pair(right[column / SIDE].0[i][column % SIDE]);
                        all += x[0] * y[0] + x[1] * y[1];
                    }
                }
                *sum = all;
            }
        }
    }
}

/// What this machine has, and the emulation, which wants AVX-512 for what is not products.
fn units() -> Vec<Products> {
    let mut all = Products::available();
    all.extend(Avx512Bf16::detect().map(Products::Emulated));
    all
}

/// Stored rows.
enum Stored {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Stored {
    fn new(x: &[f32], kind: usize) -> Self {
        match kind {
            0 => Self::F32(x.to_vec()),
            1 => Self::F16(x.iter().map(|&x| f16::from_f32(x)).collect()),
            _ => Self::Bf16(x.iter().map(|&x| bf16::from_f32(x)).collect()),
        }
    }

    fn floats(&self) -> Floats<'_> {
        match self {
            Self::F32(x) => Floats::F32(x),
            Self::F16(x) => Floats::F16(x),
            Self::Bf16(x) => Floats::Bf16(x),
        }
    }
}

/// Rows of a prompt over their keys, in steps of some pages.
struct Case {
    dk: usize,
    d: usize,
    /// Rows of a token, and tokens of a page.
    group: usize,
    page: usize,
    window: usize,
    soft_cap: Option<f32>,
    q: Vec<f32>,
    k: Stored,
    v: Stored,
}

const PAGES: usize = 4;

impl Case {
    fn new(n: usize, group: usize, page: usize, (k, v): (usize, usize)) -> Self {
        let (dk, d) = (64, 96);
        let q = noise(n * group * dk, 1).iter().map(|q| q * 0.2).collect();
        let k = Stored::new(&noise(n * dk, 2), k);
        let v = Stored::new(&noise(n * d, 3), v);
        Self { dk, d, group, page, window: usize::MAX, soft_cap: None, q, k, v }
    }

    fn sees(&self, row: usize) -> Range<usize> {
        let end = row / self.group + 1;
        end.saturating_sub(self.window)..end
    }

    /// The rows of some tokens, when the cache has no others after them.
    fn attended(&self, products: Products, tokens: Range<usize>) -> Vec<f32> {
        let rows = tokens.start * self.group..tokens.end * self.group;
        let mut tile = Rounded::default();
        let q = &self.q[rows.start * self.dk..rows.end * self.dk];
        tile.start(q, rows.len(), self.d, self.soft_cap);
        for start in (0..tokens.end).step_by(PAGES * self.page) {
            let end = (start + PAGES * self.page).min(tokens.end);
            let page = |at: usize| {
                let to = (at + self.page).min(end);
                let (k, v) = (self.k.floats(), self.v.floats());
                (k.slice(at * self.dk..to * self.dk), v.slice(at * self.d..to * self.d))
            };
            let pages: Vec<_> = (start..end).step_by(self.page).map(page).collect();
            tile.step(products, &pages, |row| {
                let seen = self.sees(rows.start + row);
                let clamp = |x: usize| x.clamp(start, end) - start;
                clamp(seen.start)..clamp(seen.end)
            });
        }
        let mut seen = Attended::default();
        tile.settle(&mut seen);
        let mut out = vec![0.0; rows.len() * self.d];
        out.chunks_mut(self.d).enumerate().for_each(|(row, out)| seen.finish(row, None, out));
        out
    }

    /// What a row should be but for the rounding of weights.
    fn want(&self, row: usize) -> Vec<f64> {
        let rounded =
            |x: &[f32]| -> Vec<f32> { x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect() };
        let stored = |x: &Stored| {
            let mut wide = vec![0.0; x.floats().len()];
            x.floats().widen(&mut wide);
            rounded(&wide)
        };
        let q = rounded(&self.q[row * self.dk..][..self.dk]);
        dense(&q, &stored(&self.k), &stored(&self.v), self.d, self.soft_cap, self.sees(row))
    }
}

const KINDS: [(usize, usize); 4] = [(0, 0), (1, 1), (2, 2), (1, 0)];

/// Weights have eight bits, an error of at most 2^-9 of each, and values are at most 2: beside operands that
/// were rounded before.
const TOLERANCE: f64 = 4e-3;

#[test]
fn every_unit_agrees_with_f64() {
    for products in units() {
        for kinds in KINDS {
            for (n, group, page) in [(1, 1, 32), (37, 2, 16), (300, 2, 32), (150, 3, 20)] {
                for (window, soft_cap) in [(usize::MAX, None), (45, Some(2.0))] {
                    let case = Case { window, soft_cap, ..Case::new(n, group, page, kinds) };
                    let got = case.attended(products, 0..n);
                    let mut errors = 0.0;
                    for (row, got) in got.chunks_exact(case.d).enumerate() {
                        for (g, w) in got.iter().zip(case.want(row)) {
                            let what = format!("{products:?} {kinds:?} {n} x {group}, row {row}");
                            let error = (f64::from(*g) - w).abs();
                            assert!(error < TOLERANCE, "{what}: {g} {w}");
                            errors += error;
                        }
                    }
                    assert!(
                        errors / (got.len() as f64) < TOLERANCE / 10.0,
                        "{products:?} {kinds:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_prompt_cut_anywhere_gives_the_same_bits() {
    for products in units() {
        for window in [usize::MAX, 50] {
            let (n, group) = (290, 3);
            let case = Case { window, ..Case::new(n, group, 32, (1, 1)) };
            let whole = case.attended(products, 0..n);
            for cuts in [vec![0, 100, 101, 256, n], vec![0, 1, 31, 33, 129, n], vec![0, 289, n]] {
                let parts = cuts.windows(2).flat_map(|cut| case.attended(products, cut[0]..cut[1]));
                assert!(whole.iter().copied().eq(parts), "{products:?} {cuts:?}");
            }
        }
    }
}

#[test]
fn large_scores_and_growing_maxima_stay_finite() {
    for products in units() {
        let mut case = Case::new(200, 1, 32, (0, 0));
        // Later keys score higher, by thousands.
        if let Stored::F32(k) = &mut case.k {
            k.chunks_mut(64).enumerate().for_each(|(key, k)| k.fill(key as f32));
        }
        case.q.fill(1.0);
        let got = case.attended(products, 0..200);
        for (row, got) in got.chunks_exact(case.d).enumerate() {
            // All weight is on the last key, or, as `bf16` has eight bits, on its neighbour too.
            for (g, w) in got.iter().zip(case.want(row)) {
                assert!(g.is_finite() && (f64::from(*g) - w).abs() < 4.1, "{products:?}: {g} {w}");
            }
        }
    }
}

#[test]
fn what_is_not_a_number_shows_and_spoils_no_row_before_it() {
    for products in units() {
        let mut case = Case::new(70, 2, 32, (0, 0));
        case.q[40 * 2 * case.dk] = f32::NAN;
        let got = case.attended(products, 0..70);
        for (row, got) in got.chunks_exact(case.d).enumerate() {
            assert!(got.iter().all(|x| x.is_nan() == (row == 80)), "{products:?} row {row}");
        }
    }
}
