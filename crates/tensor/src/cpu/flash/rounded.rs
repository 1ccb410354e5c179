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
use crate::cpu::{Floats, Level, kernels};
use softmax::{Seen, Shift};
use std::{ops::Range, sync::OnceLock};
use unit::{BLOCK, CHUNK, Chunk, SIDE, Sums, Tile, Unit};

/// Products of `bf16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Products {
    /// AMX.
    Tiles,
    /// AVX-512 BF16.
    Vectors,
    /// What AMX does, in plain Rust.
    #[cfg(test)]
    Emulated,
}

impl Products {
    /// Those of this machine, best first.
    pub(super) fn available() -> Vec<Self> {
        let vectors = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bf16");
        if !vectors {
            return Vec::new();
        }
        let mut all = vec![Self::Vectors];
        if crate::cpu::tiles::bf16() {
            all.insert(0, Self::Tiles);
        }
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

    /// Forgets what was seen.
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
        // SAFETY: the machine has what was detected, or asked for by a test that has checked it.
        unsafe {
            match products {
                Products::Tiles => self.step_in::<amx::Registers>(pages),
                Products::Vectors => self.step_in::<dot::Vectors>(pages),
                #[cfg(test)]
                Products::Emulated => self.step_in::<tests::Emulated>(pages),
            }
        }
    }

    /// # Safety
    /// The machine has the unit.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
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
        // SAFETY: the caller's promise; operands have been laid out.
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
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    unsafe fn attend<U: Unit>(&mut self, group: usize, blocks: usize) {
        let (dk, d) = (self.dk / CHUNK, self.d / BLOCK);
        let Operands { keys, values, scores, weights, .. } = &mut self.step;
        let (seen, state) = (&self.seen[group], &mut self.state[group]);
        let acc = &mut self.acc[group * d..][..d];
        let queries = self.queries[group * dk..][..dk].as_ptr();
        let range = seen.blocks();
        if range.is_empty() {
            return;
        }
        // SAFETY: `max` and `sum` are 32 numbers.
        let (old, sum) =
            unsafe { (softmax::load(state.max.as_ptr()), softmax::load(state.sum.as_ptr())) };
        let mut max = old;
        for block in range.clone() {
            let scores = &mut scores[block];
            // SAFETY: both have the chunks of `dk`.
            unsafe { U::multiply::<false>(keys[block * dk..][..dk].as_ptr(), queries, dk, scores) };
            if let Some(cap) = self.soft_cap {
                // SAFETY: all of the sums.
                unsafe {
                    kernels::soft_cap(
                        Level::Avx512,
                        scores.0.as_mut_ptr().cast(),
                        BLOCK * BLOCK,
                        cap,
                    )
                };
            }
            if !seen.all(block) {
                seen.hide(block, scores);
            }
            max = softmax::largest(scores, max);
        }
        let shift = Shift::new(old, max);
        if shift.shrinks() {
            acc.iter_mut().for_each(|sums| shift.scale(sums));
        }
        let mut new = shift.shrunk(sum);
        for block in range.clone() {
            new = shift.weights(&scores[block], new, &mut weights[block]);
        }
        softmax::store(max, &mut state.max);
        softmax::store(new, &mut state.sum);
        for (i, acc) in acc.iter_mut().enumerate() {
            let values = &values[i * blocks..][range.clone()];
            // SAFETY: both have the chunks of the range.
            unsafe {
                U::multiply::<true>(
                    values.as_ptr(),
                    weights[range.start..].as_ptr(),
                    range.len(),
                    acc,
                );
            }
        }
    }

    /// Writes what the rows have seen.
    pub(super) fn settle(&self, out: &mut Attended) {
        out.clear(self.rows, self.d);
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
