//! Attention with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022), some keys and
//! values at a time.

mod products;
#[cfg(target_arch = "x86_64")]
mod rounded;
#[cfg(test)]
mod tests;

use super::{
    Floats, Level,
    kernels::{self, Rows, RowsMut, Soon, Turned},
    unseen::Unseen,
};
use products::{add_weighted, dots, soon};
use std::ops::Range;

pub(super) use products::stored;

/// A few query rows on their way over the keys.
///
/// Feed the keys in order, cut at the same positions for every row; then a row's result does not
/// depend on the other rows, and keys that a row may not see leave it as it is, bit for bit.
#[derive(Debug, Default)]
pub struct FlashTile {
    level: Option<Level>,
    soft_cap: Option<f32>,
    dk: usize,
    /// `[rows, dk]`.
    q: Vec<f32>,
    /// The queries in the order of [`kernels::dot_turned`], made when first needed.
    turned: Vec<f32>,
    state: Attended,
    scores: Vec<f32>,
    /// Tokens of a step.
    tokens: usize,
    wide: Vec<f32>,
    arithmetic: Arithmetic,
    /// The step's tokens that each row attends to, where some row does not attend to all; else
    /// none.
    seen: Vec<Range<usize>>,
    /// Whether no keys were processed since the start.
    fresh: bool,
    #[cfg(target_arch = "x86_64")]
    rounded: rounded::Rounded,
}

/// Keys and values of some tokens.
type Page<'a> = (Floats<'a>, Floats<'a>);

/// How attention treats its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arithmetic {
    /// As they are, in `f32`.
    #[default]
    Exact,
    /// Rounded to `bf16` where [`FlashTile::rounds`] says so.
    Rounded,
}

/// Attention of some rows so far: the running softmax and the values weighted by it.
#[derive(Debug, Default, Clone)]
pub struct Attended {
    d: usize,
    /// Largest score.
    max: Vec<f32>,
    /// Sum of `e^(score - max)`.
    sum: Vec<f32>,
    /// `[rows, d]`, weighted by `e^(score - max)`.
    acc: Vec<f32>,
}

/// From so many rows on, halves are widened once instead of by every pass over them. The sums are
/// the same.
const WIDEN_FROM: usize = 8;
/// From so many rows on, a vector holds an element of many rows and not elements of one.
const TURN_FROM: usize = 16;

impl Attended {
    /// `rows` rows that have attended to no keys.
    pub fn clear(&mut self, rows: usize, d: usize) {
        let fill = |v: &mut Vec<f32>, n: usize, x: f32| {
            v.clear();
            v.resize(n, x);
        };
        self.d = d;
        fill(&mut self.max, rows, f32::NEG_INFINITY);
        fill(&mut self.sum, rows, 0.0);
        fill(&mut self.acc, rows * d, 0.0);
    }

    /// Room for `rows` rows that are to be written.
    #[cfg(target_arch = "x86_64")]
    fn resize(&mut self, rows: usize, d: usize) {
        self.d = d;
        self.max.resize(rows, f32::NEG_INFINITY);
        self.sum.resize(rows, 0.0);
        self.acc.resize(rows * d, 0.0);
    }

    /// Number of query rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.max.len()
    }

    /// Elements of a value.
    #[must_use]
    pub fn width(&self) -> usize {
        self.d
    }

    /// Adds what the same rows saw elsewhere.
    ///
    /// # Panics
    /// When the shapes differ.
    pub fn merge(&mut self, other: &Self) {
        assert!(self.d == other.d && self.acc.len() == other.acc.len(), "one shape");
        let level = Level::detect();
        for row in 0..self.max.len() {
            let (ours, theirs) = (self.max[row], other.max[row]);
            let max = ours.max(theirs);
            if max == f32::NEG_INFINITY {
                continue;
            }
            let (a, b) = ((ours - max).exp(), (theirs - max).exp());
            self.max[row] = max;
            self.sum[row] = self.sum[row] * a + other.sum[row] * b;
            let at = row * self.d;
            let (acc, add) = (&mut self.acc[at..][..self.d], &other.acc[at..][..self.d]);
            // SAFETY: both have `d` elements.
            unsafe { kernels::blend(level, acc.as_mut_ptr(), a, add.as_ptr(), b, self.d) };
        }
    }

    /// Softmax of the scores of a row's next keys, relative to its new maximum; rescales
    /// the row's earlier sums to that maximum. Scores outside `seen` become 0; a row without keys
    /// stays as it is. The values under the weights are the caller's to add.
    ///
    /// # Panics
    /// When `seen` is not inside `scores`.
    pub fn soften(
        &mut self,
        row: usize,
        scores: &mut [f32],
        seen: Range<usize>,
        soft_cap: Option<f32>,
    ) {
        self.soften_at(Level::detect(), row, scores, seen, soft_cap);
    }

    fn soften_at(
        &mut self,
        level: Level,
        row: usize,
        scores: &mut [f32],
        seen: Range<usize>,
        soft_cap: Option<f32>,
    ) {
        scores[..seen.start].fill(0.0);
        scores[seen.end..].fill(0.0);
        let live = &mut scores[seen];
        if live.is_empty() {
            return;
        }
        // SAFETY: each call works inside its slice, which is not empty.
        unsafe {
            if let Some(cap) = soft_cap {
                kernels::soft_cap(level, live.as_mut_ptr(), live.len(), cap);
            }
            let max = self.max[row].max(kernels::row_max(level, live.as_ptr(), live.len()));
            let shrink = if self.max[row] == max { 1.0 } else { (self.max[row] - max).exp() };
            let sum = kernels::exp_shift(level, live.as_mut_ptr(), live.len(), max);
            self.sum[row] = self.sum[row] * shrink + sum;
            if shrink != 1.0 {
                let acc = &mut self.acc[row * self.d..][..self.d];
                kernels::scale(level, acc.as_mut_ptr(), acc.len(), shrink);
            }
            self.max[row] = max;
        }
    }

    /// Weighted sums of the values, `[rows, d]`, relative to each row's maximum.
    pub fn sums(&mut self) -> &mut [f32] {
        &mut self.acc
    }

    /// Writes the attended values of `row`; zeros when it saw nothing. A `sink` is a score that takes its part
    /// of the softmax and has no value (gpt-oss, arXiv 2508.10925).
    ///
    /// # Panics
    /// When `out` is not one value long.
    pub fn finish(&self, row: usize, sink: Option<f32>, out: &mut [f32]) {
        let acc = &self.acc[row * self.d..][..self.d];
        let (max, sum) = (self.max[row], self.sum[row]);
        let s = match sink {
            Some(sink) => {
                let top = max.max(sink);
                let shrink = (max - top).exp();
                shrink / (sum * shrink + (sink - top).exp())
            }
            None if sum == 0.0 => 0.0,
            // A sum that is not a number shows that something it saw was none.
            None => 1.0 / sum,
        };
        assert_eq!(out.len(), self.d, "one value");
        out.iter_mut().zip(acc).for_each(|(o, a)| *o = a * s);
    }
}

impl FlashTile {
    /// Whether this machine rounds operands of [`Arithmetic::Rounded`], for keys of `dk` elements and
    /// values of `d`. It does where it multiplies `bf16` and both are multiples of 32.
    #[must_use]
    pub fn rounds(dk: usize, d: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        return rounded::takes(dk, d) && rounded::Products::detect().is_some();
        #[cfg(not(target_arch = "x86_64"))]
        return {
            let _ = (dk, d);
            false
        };
    }

    /// Starts queries `q [rows, dk]`, already scaled, with values of `d` elements. Scores are
    /// capped to `cap * tanh(score / cap)` if a cap is given.
    pub fn start(
        &mut self,
        q: &[f32],
        rows: usize,
        d: usize,
        soft_cap: Option<f32>,
        arithmetic: Arithmetic,
    ) {
        (self.soft_cap, self.dk, self.fresh) = (soft_cap, q.len() / rows.max(1), true);
        let rounds = arithmetic == Arithmetic::Rounded && Self::rounds(self.dk, d);
        self.arithmetic = if rounds { arithmetic } else { Arithmetic::Exact };
        #[cfg(target_arch = "x86_64")]
        if rounds {
            self.state.resize(rows, d);
            self.rounded.start(q, rows, d, soft_cap);
            return;
        }
        self.state.clear(rows, d);
        self.q.clear();
        self.q.extend_from_slice(q);
        self.turned.clear();
    }

    /// Drops the attention so far, for the same queries over other keys.
    pub fn restart(&mut self) {
        if std::mem::replace(&mut self.fresh, true) {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if self.arithmetic == Arithmetic::Rounded {
            return self.rounded.restart();
        }
        self.state.clear(self.state.max.len(), self.state.d);
    }

    /// Uses `level` instead of the best one; for tests.
    pub fn force_level(&mut self, level: Level) {
        self.level = Some(level);
    }

    /// Merges the attention since the start, for [`Self::state`].
    pub fn settle(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if self.arithmetic == Arithmetic::Rounded {
            self.rounded.settle(&mut self.state);
        }
    }

    /// The attention from the start to [`Self::settle`].
    #[must_use]
    pub fn state(&self) -> &Attended {
        &self.state
    }

    /// Attends to some pages.
    ///
    /// # Shapes
    /// Keys `[n_i, dk]` and values `[n_i, d]` of each page; `next` are the two pages after them, if it
    /// is known where they lie, and are only prefetched. `visible(row)` is the range of their
    /// tokens, counted over all pages, that the row may see.
    ///
    /// # Panics
    /// When the lengths differ from these.
    pub fn step(
        &mut self,
        pages: &[Page<'_>],
        next: [Option<Page<'_>>; 2],
        visible: impl Fn(usize) -> Range<usize>,
    ) {
        let (rows, d) = (self.state.max.len(), self.state.d);
        let tokens = |v: &Floats<'_>| v.len() / d.max(1);
        let n: usize = pages.iter().map(|(_, v)| tokens(v)).sum();
        if rows == 0 || n == 0 {
            return;
        }
        let fits = |(k, v): &Page<'_>| k.len() == tokens(v) * self.dk && v.len() == tokens(v) * d;
        assert!(pages.iter().all(fits), "shapes");
        self.fresh = false;
        #[cfg(target_arch = "x86_64")]
        if self.arithmetic == Arithmetic::Rounded
            && let Some(products) = rounded::Products::detect()
        {
            self.rounded.step(products, pages, visible);
            return;
        }
        self.step_exactly(pages, next, n, visible);
    }

    fn step_exactly(
        &mut self,
        pages: &[Page<'_>],
        next: [Option<Page<'_>>; 2],
        n: usize,
        visible: impl Fn(usize) -> Range<usize>,
    ) {
        let after = |i: usize| {
            [i + 1, i + 2].map(|i| match i.checked_sub(pages.len()) {
                None => Some(pages[i]),
                Some(i) => next[i],
            })
        };
        let d = self.state.d;
        self.expect(n);
        let mut first = 0;
        for (i, &(k, v)) in pages.iter().enumerate() {
            self.score_page(first, k, after(i).map(|page| page.map(|(k, _)| k)), Some(v));
            first += v.len() / d;
        }
        self.soften(visible);
        let mut first = 0;
        for (i, &(_, v)) in pages.iter().enumerate() {
            self.weigh(first, v, after(i).map(|page| page.map(|(_, v)| v)));
            first += v.len() / d;
        }
    }

    /// Whether so many rows read pages in place. Then several tiles may share a step, page by
    /// page as memory has them: each is told with [`Self::expect`] how many tokens the step has, and given its
    /// keys with [`Self::score`]; then they [`Self::soften`], and get the values with [`Self::weigh`]. That is
    /// [`Self::step`] in parts, to the bit, unless [`Self::rounds`].
    #[must_use]
    pub fn reads_in_place(rows: usize) -> bool {
        rows < WIDEN_FROM
    }

    /// A step over so many tokens begins.
    pub fn expect(&mut self, tokens: usize) {
        (self.fresh, self.tokens) = (false, tokens);
        self.scores.resize((self.state.rows() * tokens).max(self.scores.len()), 0.0);
    }

    /// Scores the keys `k [n, dk]` of a step's tokens from `first` on; of the pages that are read after
    /// this one, as far as it is known where they lie, lines are prefetched meanwhile.
    ///
    /// # Panics
    /// When the step has not so many tokens.
    pub fn score(&mut self, first: usize, k: Floats<'_>, next: [Option<Floats<'_>>; 2]) {
        self.score_page(first, k, next, None);
    }

    /// Like [`Self::score`]; `v` are values that are read soon.
    fn score_page(
        &mut self,
        first: usize,
        k: Floats<'_>,
        next: [Option<Floats<'_>>; 2],
        v: Option<Floats<'_>>,
    ) {
        let (rows, dk) = (self.state.rows(), self.dk);
        let (tokens, level) = (k.len() / dk, self.level.unwrap_or_else(Level::detect));
        assert!(k.len() == tokens * dk && first + tokens <= self.tokens, "the step's tokens");
        let out = RowsMut { ptr: self.scores[first..].as_mut_ptr(), stride: self.tokens };
        if rows < WIDEN_FROM {
            return dots(level, &self.q, rows, k, tokens, next, out);
        }
        let wide = k.widened(&mut self.wide);
        if rows < TURN_FROM {
            return dots(level, &self.q, rows, Floats::F32(wide), tokens, [None; 2], out);
        }
        if self.turned.is_empty() {
            // Room for the vectors of the level with the most lanes.
            self.turned.resize(rows.next_multiple_of(TURN_FROM) * dk, 0.0);
            let q = Rows::new(self.q.as_ptr(), rows, dk);
            // SAFETY: `q` is rows x dk, and there is room for whole vectors of rows.
            unsafe { kernels::turn_rows(level, q, dk, self.turned.as_mut_ptr()) };
        }
        let x = Turned { ptr: self.turned.as_ptr(), rows };
        let soon = [next[0], v].map(|page| page.map_or(Soon::NONE, soon));
        let k = Rows::new(wide.as_ptr(), tokens, dk);
        // SAFETY: the lengths were checked; `out` has the step's tokens for each row.
        unsafe { kernels::dot_turned(level, x, k, dk, out, soon) };
    }

    /// Softmax of the step's scores: [`Attended::soften`] of all rows.
    ///
    /// # Panics
    /// When the range of a row is not inside the step.
    pub fn soften(&mut self, visible: impl Fn(usize) -> Range<usize>) {
        let (n, level) = (self.tokens, self.level.unwrap_or_else(Level::detect));
        self.seen.clear();
        self.seen.extend((0..self.state.rows()).map(visible));
        for (row, seen) in self.seen.iter().enumerate() {
            let scores = &mut self.scores[row * n..][..n];
            self.state.soften_at(level, row, scores, seen.clone(), self.soft_cap);
        }
        if self.seen.iter().all(|seen| *seen == (0..n)) {
            self.seen.clear();
        }
    }

    /// Adds the values `v [n, d]` of a step's tokens from `first` on, weighted; `next` as for keys.
    ///
    /// # Panics
    /// As [`Self::score`].
    pub fn weigh(&mut self, first: usize, v: Floats<'_>, next: [Option<Floats<'_>>; 2]) {
        let (rows, d) = (self.state.rows(), self.state.d);
        let (tokens, level) = (v.len() / d, self.level.unwrap_or_else(Level::detect));
        assert!(v.len() == tokens * d && first + tokens <= self.tokens, "the step's tokens");
        let hidden = |token: usize| self.seen.iter().any(|seen| !seen.contains(&(first + token)));
        let unseen = (!self.seen.is_empty()).then(|| Unseen::find(v, d, hidden)).flatten();
        let cleared = unseen.as_ref().map(|unseen| unseen.cleared(v, d));
        if let Some(unseen) = unseen {
            let weight = |row: usize, token: usize| {
                let seen = self.seen[row].contains(&(first + token));
                seen.then(|| self.scores[row * self.tokens + first + token])
            };
            unseen.add(v, d, weight, &mut self.state.acc);
        }
        let v = cleared.as_deref().map_or(v, Floats::F32);
        let p = Rows::new(self.scores[first..].as_ptr(), rows, self.tokens);
        let v = if rows < WIDEN_FROM { v } else { Floats::F32(v.widened(&mut self.wide)) };
        let acc = RowsMut { ptr: self.state.acc.as_mut_ptr(), stride: d };
        add_weighted(level, p, v, tokens, next, acc);
    }
}
