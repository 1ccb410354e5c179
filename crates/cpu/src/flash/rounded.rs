//! Attention with operands rounded to `bf16`, for prompts: queries, keys and values each to the nearest
//! `bf16`, and the softmax's weights too, whose sum is of what they were rounded to. Sums are of
//! `f32`.
//!
//! Scores are keys times queries, and what comes out values times weights, so that a row is a lane
//! throughout: the softmax needs no sums across lanes, and a row's result does not depend on its
//! neighbours. Keys and values are laid out once for all rows of a tile (see [`unit`]).

mod amx;
mod dot;
mod pack;
mod softmax;
#[cfg(test)]
mod tests;
mod unit;

use super::Attended;
use crate::{
    Floats, Level,
    ahead::intel,
    features::{AmxBf16, Avx512Bf16},
    kernels,
    unseen::Unseen,
};
use softmax::{Seen, Shift};
use std::{ops::Range, sync::OnceLock};
use unit::{BLOCK, CHUNK, Chunk, SIDE, Sums, Tile, Unit};

/// Products of `bf16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Products {
    /// AMX.
    Tiles(AmxBf16),
    /// AVX-512 BF16.
    Vectors(Avx512Bf16),
    /// AVX-512, by multiply-adds.
    Fused(Avx512Bf16),
    /// What AMX does, in plain Rust between vectors.
    #[cfg(test)]
    Emulated(Avx512Bf16),
}

impl Products {
    /// The kinds of products that this machine has, best first.
    pub(super) fn available() -> Vec<Self> {
        let Some(vectors) = Avx512Bf16::detect() else {
            return Vec::new();
        };
        let mut all: Vec<_> = AmxBf16::detect().map(Self::Tiles).into_iter().collect();
        let (native, fused) = (Self::Vectors(vectors), Self::Fused(vectors));
        all.extend(if intel() { [fused, native] } else { [native, fused] });
        all
    }

    pub(super) fn detect() -> Option<Self> {
        static BEST: OnceLock<Option<Products>> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().first().copied())
    }
}

/// Whether keys and values of so many elements are taken.
pub(super) fn takes(dk: usize, d: usize) -> bool {
    dk > 0 && d > 0 && dk.is_multiple_of(CHUNK) && d.is_multiple_of(BLOCK)
}

/// Query rows on their way over the keys, 32 a group.
#[derive(Debug, Default)]
pub(super) struct Rounded {
    rows: usize,
    dk: usize,
    d: usize,
    soft_cap: Option<f32>,
    /// `[group][chunk of dk]`.
    queries: Vec<Chunk>,
    state: Vec<Group>,
    /// Weighted sums of values, `[group][32 of d]`.
    acc: Vec<Sums>,
    seen: Vec<Seen>,
    step: Operands,
}

/// The softmax of a group: largest scores, and sums of weights relative to these.
#[derive(Debug, Clone)]
struct Group {
    max: [f32; BLOCK],
    sum: [f32; BLOCK],
}

/// What a step works in.
#[derive(Debug, Default)]
struct Operands {
    /// `[32 keys][chunk of dk]`.
    keys: Vec<Chunk>,
    /// `[32 of d][chunk of keys]`.
    values: Vec<Chunk>,
    /// `[32 keys]`, of a group.
    scores: Vec<Sums>,
    /// `[chunk of keys]`, of a group.
    weights: Vec<Chunk>,
    /// Rows on their way to another layout.
    rows: Vec<Chunk>,
}

/// Values that are not finite and that some row does not see, left out.
struct Cleared {
    /// Indices of pages, and the values that are read instead of theirs.
    values: Vec<(usize, Vec<f32>)>,
    /// Rows that do see some of them.
    damaged: Vec<usize>,
}

impl Cleared {
    fn new(
        pages: &[(Floats<'_>, Floats<'_>)],
        d: usize,
        rows: usize,
        visible: &impl Fn(usize) -> Range<usize>,
    ) -> Self {
        let (mut values, mut damaged, mut first) = (Vec::new(), Vec::new(), 0);
        for (page, &(_, v)) in pages.iter().enumerate() {
            let sees = |row: usize, token: usize| visible(row).contains(&(first + token));
            let unseen = Unseen::find(v, d, |token| (0..rows).any(|row| !sees(row, token)));
            if let Some(unseen) = unseen {
                let any = |&row: &usize| unseen.tokens().iter().any(|&token| sees(row, token));
                damaged.extend((0..rows).filter(any));
                values.push((page, unseen.cleared(v, d)));
            }
            first += v.len() / d;
        }
        Self { values, damaged }
    }
}

fn grow<T: Clone>(v: &mut Vec<T>, n: usize, x: T) {
    if v.len() < n {
        v.resize(n, x);
    }
}

const ZERO: Chunk = [Tile([[0; SIDE]; SIDE]); 2];

impl Rounded {
    /// Starts queries `q [rows, dk]`, already scaled, with values of `d` elements.
    pub(super) fn start(&mut self, q: &[f32], rows: usize, d: usize, soft_cap: Option<f32>) {
        let dk = q.len() / rows.max(1);
        assert!(rows == 0 || takes(dk, d), "whole chunks");
        assert!(Products::detect().is_some(), "a machine that multiplies bf16");
        (self.rows, self.dk, self.d, self.soft_cap) = (rows, dk, d, soft_cap);
        let chunks = pack::chunks(rows, dk);
        grow(&mut self.queries, chunks, ZERO);
        grow(&mut self.step.rows, chunks, ZERO);
        // SAFETY: the machine has the instructions.
        unsafe { pack::queries(q, dk, &mut self.step.rows, &mut self.queries) };
        self.restart();
    }

    /// Drops the attention so far.
    pub(super) fn restart(&mut self) {
        let groups = self.rows.div_ceil(BLOCK);
        let fresh = Group { max: [f32::NEG_INFINITY; BLOCK], sum: [0.0; BLOCK] };
        self.state.clear();
        self.state.resize(groups, fresh);
        self.acc.clear();
        self.acc.resize(groups * self.d / BLOCK, Sums::ZERO);
    }

    /// Attends to some pages; `visible(row)` is the range of their tokens that the row may see.
    pub(super) fn step(
        &mut self,
        products: Products,
        pages: &[(Floats<'_>, Floats<'_>)],
        visible: impl Fn(usize) -> Range<usize>,
    ) {
        let rows = self.rows;
        let group = |first: usize| Seen::new((first..rows.min(first + BLOCK)).map(&visible));
        self.seen.clear();
        self.seen.extend((0..rows).step_by(BLOCK).map(group));
        let Cleared { values, damaged } = Cleared::new(pages, self.d, rows, &visible);
        let mut whole = pages.to_vec();
        for (page, values) in &values {
            whole[*page].1 = Floats::F32(values);
        }
        let pages = &whole[..];
        // SAFETY: the products hold the token of their features.
        unsafe {
            match products {
                Products::Tiles(_) => self.step_in::<amx::Registers>(pages),
                Products::Fused(_) => self.step_in::<dot::Vectors<dot::Fused>>(pages),
                Products::Vectors(_) => self.step_in::<dot::Vectors<dot::Native>>(pages),
                #[cfg(test)]
                Products::Emulated(_) => self.step_in::<tests::Emulated>(pages),
            }
        }
        damaged.into_iter().for_each(|row| self.damage(row));
    }

    /// A row has attended to a value that is not finite.
    fn damage(&mut self, row: usize) {
        let blocks = self.d / BLOCK;
        for sums in &mut self.acc[row / BLOCK * blocks..][..blocks] {
            sums.0.iter_mut().for_each(|line| line[row % BLOCK] = f32::NAN);
        }
    }

    /// # Safety
    /// The machine has the unit.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn step_in<U: Unit>(&mut self, pages: &[(Floats<'_>, Floats<'_>)]) {
        let tokens = pages.iter().map(|(_, v)| v.len()).sum::<usize>() / self.d;
        let Operands { keys, values, scores, weights, rows } = &mut self.step;
        let blocks = tokens.div_ceil(BLOCK);
        grow(keys, pack::chunks(tokens, self.dk), ZERO);
        grow(values, pack::chunks(tokens, self.d), ZERO);
        grow(rows, pack::chunks(tokens, self.d), ZERO);
        grow(scores, blocks, Sums::ZERO);
        grow(weights, blocks, ZERO);
        pack::keys(pages.iter().map(|(k, _)| *k), self.dk, keys);
        pack::values(pages.iter().map(|(_, v)| *v), self.d, rows, values);
        // SAFETY: the machine has the unit, and `keys`, `rows`, `scores` and `weights` have just
        // been grown to the step's shapes.
        unsafe {
            let _ready = U::ready();
            for group in 0..self.state.len() {
                self.attend::<U>(group, blocks);
            }
        }
    }

    /// A group of rows over the keys and values of a step, which are so many blocks.
    ///
    /// # Safety
    /// The unit is ready, and operands are laid out.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn attend<U: Unit>(&mut self, group: usize, blocks: usize) {
        let live = self.seen[group].blocks();
        if live.is_empty() {
            return;
        }
        // SAFETY: the caller promises that the unit is ready, and operands are laid out.
        unsafe { self.score::<U>(group, live.clone()) };
        self.soften(group, live.clone());
        let (d, Operands { values, weights, .. }) = (self.d / BLOCK, &self.step);
        let weights = weights[live.clone()].as_ptr();
        for (element, acc) in self.acc[group * d..][..d].iter_mut().enumerate() {
            let values = values[element * blocks..][live.clone()].as_ptr();
            // SAFETY: both have the chunks of the live blocks.
            unsafe { U::multiply::<true>(values, weights, live.len(), acc) };
        }
    }

    /// Scores of a group with some blocks of keys; those that a row does not see are minus infinity.
    ///
    /// # Safety
    /// As [`Self::attend`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn score<U: Unit>(&mut self, group: usize, blocks: Range<usize>) {
        let (chunks, seen) = (self.dk / CHUNK, &self.seen[group]);
        let queries = self.queries[group * chunks..][..chunks].as_ptr();
        for block in blocks {
            let keys = self.step.keys[block * chunks..][..chunks].as_ptr();
            let scores = &mut self.step.scores[block];
            // SAFETY: both have so many chunks.
            unsafe { U::multiply::<false>(keys, queries, chunks, scores) };
            if let Some(cap) = self.soft_cap {
                let all = scores.0.as_flattened_mut();
                // SAFETY: as many elements.
                unsafe { kernels::soft_cap(Level::detect(), all.as_mut_ptr(), all.len(), cap) };
            }
            if !seen.all(block) {
                seen.hide(block, scores);
            }
        }
    }

    /// Softmax of a group's scores; rescales its earlier sums to its new maxima.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    fn soften(&mut self, group: usize, blocks: Range<usize>) {
        let (d, state) = (self.d / BLOCK, &mut self.state[group]);
        let scores = &self.step.scores[blocks.clone()];
        let old = softmax::load(&state.max);
        let mut max = old;
        for scores in scores {
            max = softmax::largest(scores, max);
        }
        let shift = Shift::new(old, max);
        if shift.shrinks() {
            for sums in &mut self.acc[group * d..][..d] {
                shift.scale(sums);
            }
        }
        let mut sum = shift.shrunk(softmax::load(&state.sum));
        for (scores, weights) in scores.iter().zip(&mut self.step.weights[blocks]) {
            sum = shift.weights(scores, sum, weights);
        }
        softmax::store(max, &mut state.max);
        softmax::store(sum, &mut state.sum);
    }

    /// Writes the attention of the rows.
    pub(super) fn settle(&self, out: &mut Attended) {
        out.resize(self.rows, self.d);
        for row in 0..self.rows {
            let state = &self.state[row / BLOCK];
            out.max[row] = state.max[row % BLOCK];
            out.sum[row] = state.sum[row % BLOCK];
        }
        let blocks = self.d / BLOCK;
        for first in (0..self.rows).step_by(SIDE) {
            let rows = SIDE.min(self.rows - first);
            for element in (0..self.d).step_by(SIDE) {
                let sums = &self.acc[first / BLOCK * blocks + element / BLOCK].0;
                let to = &mut out.acc[first * self.d + element..];
                // SAFETY: lines `element % 32..` of the sums and columns `first % 32..`; `to` has these rows.
                unsafe {
                    let from = sums[element % BLOCK..].as_ptr().cast::<f32>().add(first % BLOCK);
                    pack::turn_sums(from, rows, to.as_mut_ptr(), self.d);
                }
            }
        }
    }
}
