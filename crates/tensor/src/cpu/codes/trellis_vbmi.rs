//! The search for closed walks in AVX-512: sixteen rings side by side.
//!
//! A walk is free to begin anywhere in a first *lap* around its ring; a second begins with the costs
//! that the first one left, as if the ring came twice (*circular Viterbi*; Shao et al. 2003). With `F1`
//! and `F2` the least costs of ending at `m` after one and two laps, no closed walk through `m` costs
//! less than `F1(m)` or `F2(m) - F1(m)`, and if the second lap ended where it began, one costs just
//! that. Most rings are decided so; what is left is walked from its likely beginnings, one by one.

use super::{RING, trellis::Trellis};
use std::arch::x86_64::*;

/// Rings side by side.
const LANES: usize = 16;
/// What a walk must gain to be sought: more than marks in the lowest bits of costs take away.
const GAIN: f32 = 1.0 - 1e-4;
const FAR: f32 = 1e30;

/// A ring whose best walk may begin elsewhere.
struct Open<const M: usize> {
    ring: usize,
    /// Of the best closed walk so far.
    cost: f32,
    /// What walks from each memory cost at least; infinite for those walked already.
    bounds: [f32; M],
}

impl<const M: usize> Open<M> {
    /// The most likely beginning of a better walk, taken off the list.
    fn next(&mut self) -> Option<usize> {
        let likely = (1..M).fold(0, |a, b| if self.bounds[b] < self.bounds[a] { b } else { a });
        let promising = self.bounds[likely] < self.cost * GAIN;
        self.bounds[likely] = f32::INFINITY;
        promising.then_some(likely)
    }
}

/// Elements of sixteen rings, by place in the ring.
type Elements = [__m512; RING];

/// The search of codes of `K` bits: `M` memories, into each of which walks lead from `J`.
pub(super) struct Search<'a, const K: usize, const M: usize, const J: usize> {
    pub(super) trellis: &'a Trellis,
}

/// What sixteen walks cost, and how they went.
struct Lap<const M: usize> {
    /// By where they end; with [`Search::MARKS`].
    costs: [__m512; M],
    /// Where from, by place: bits of each memory.
    choices: [__m512i; RING],
}

impl<const K: usize, const M: usize, const J: usize> Search<'_, K, M, J> {
    const CHOICE_BITS: u32 = J.trailing_zeros();
    const CHOICE: i32 = J as i32 - 1;
    /// Lowest bits of costs: the last choice, and above it the memory that the lap began with.
    const MARKS: i32 = (M * J) as i32 - 1;
    /// Levels among which a branch takes the nearest.
    const NEAR: usize = 64 / (M * J);

    /// The symbols of the closed walks nearest to whole rings.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) unsafe fn encode(&self, x: &[f32], symbols: &mut [u8]) {
        let (x, symbols) = (x.as_chunks::<RING>().0, symbols.as_chunks_mut::<RING>().0);
        let mut open: Vec<Open<M>> = Vec::new();
        let mut costs = [0.0; LANES];
        let mut bounds = [[0.0; LANES]; M];
        // SAFETY: compiled for the level, and whole registers of arrays of this function.
        unsafe {
            for (group, symbols) in symbols.chunks_mut(LANES).enumerate() {
                let first = group * LANES;
                let elements = turn(&x[first..first + symbols.len()]);
                let (start, cost, bound, lap) = self.free(&elements);
                self.follow(&elements, &lap, start, symbols);
                _mm512_storeu_ps(costs.as_mut_ptr(), cost);
                let mut unsure = 0;
                for (stored, &bound) in bounds.iter_mut().zip(&bound) {
                    let least = _mm512_mul_ps(cost, _mm512_set1_ps(GAIN));
                    unsure |= _mm512_cmp_ps_mask::<_CMP_LT_OQ>(bound, least);
                    _mm512_storeu_ps(stored.as_mut_ptr(), bound);
                }
                for lane in (0..symbols.len()).filter(|lane| unsure >> lane & 1 == 1) {
                    let mut own = [0.0; M];
                    for (own, bound) in own.iter_mut().zip(&bounds) {
                        *own = bound[lane];
                    }
                    open.push(Open { ring: first + lane, cost: costs[lane], bounds: own });
                }
            }
            self.settle(x, symbols, open);
        }
    }

    /// Two laps: where the best closed walk that they found begins, what it costs (infinite if
    /// none is closed), and what any other costs at least.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn free(&self, x: &Elements) -> (__m512i, __m512, [__m512; M], Lap<M>) {
        // SAFETY: compiled for the level.
        unsafe {
            let once = self.lap::<false>(x, [_mm512_setzero_ps(); M]).costs;
            let mut begin = once;
            for (m, cost) in begin.iter_mut().enumerate() {
                *cost = self.marked(*cost, m);
            }
            let lap = self.lap::<true>(x, begin);
            let far = _mm512_set1_ps(f32::INFINITY);
            let (mut start, mut best, mut bounds) = (_mm512_setzero_si512(), far, [far; M]);
            for m in 0..M {
                let cost = _mm512_sub_ps(lap.costs[m], begin[m]);
                let label = _mm512_and_si512(
                    _mm512_castps_si512(lap.costs[m]),
                    _mm512_set1_epi32(Self::MARKS - Self::CHOICE),
                );
                let own = _mm512_set1_epi32((m << Self::CHOICE_BITS) as i32);
                let closed = _mm512_cmpeq_epi32_mask(label, own);
                bounds[m] = _mm512_mask_blend_ps(closed, _mm512_max_ps(cost, once[m]), far);
                let better = _mm512_mask_cmp_ps_mask::<_CMP_LT_OQ>(closed, cost, best);
                best = _mm512_mask_blend_ps(better, best, cost);
                start = _mm512_mask_blend_epi32(better, start, _mm512_set1_epi32(m as i32));
            }
            (start, best, bounds, lap)
        }
    }

    /// Walks from the beginnings that are left.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn settle(
        &self,
        x: &[[f32; RING]],
        symbols: &mut [[u8; RING]],
        mut open: Vec<Open<M>>,
    ) {
        let mut walked: Vec<(Open<M>, usize)> = Vec::with_capacity(LANES);
        loop {
            while walked.len() < LANES {
                let Some(mut ring) = open.pop() else { break };
                if let Some(start) = ring.next() {
                    walked.push((ring, start));
                }
            }
            if walked.is_empty() {
                return;
            }
            let (mut rings, mut starts) = ([[0.0; RING]; LANES], [0i32; LANES]);
            for (lane, (ring, start)) in walked.iter().enumerate() {
                (rings[lane], starts[lane]) = (x[ring.ring], *start as i32);
            }
            let (mut costs, mut found) = ([0.0; LANES], [[0; RING]; LANES]);
            // SAFETY: compiled for the level, and whole registers of arrays of this function.
            unsafe {
                let elements = turn(&rings);
                let start = _mm512_loadu_si512(starts.as_ptr().cast());
                let mut begin = [_mm512_set1_ps(FAR); M];
                for (m, cost) in begin.iter_mut().enumerate() {
                    let here = _mm512_cmpeq_epi32_mask(start, _mm512_set1_epi32(m as i32));
                    *cost = _mm512_mask_blend_ps(here, *cost, _mm512_setzero_ps());
                }
                let lap = self.lap::<true>(&elements, begin);
                let mut cost = lap.costs[0];
                for (m, end) in lap.costs.iter().enumerate().skip(1) {
                    let here = _mm512_cmpeq_epi32_mask(start, _mm512_set1_epi32(m as i32));
                    cost = _mm512_mask_blend_ps(here, cost, *end);
                }
                _mm512_storeu_ps(costs.as_mut_ptr(), cost);
                self.follow(&elements, &lap, start, &mut found);
            }
            for (lane, (mut ring, _)) in walked.drain(..).enumerate() {
                if costs[lane] < ring.cost {
                    ring.cost = costs[lane];
                    symbols[ring.ring] = found[lane];
                }
                open.push(ring);
            }
        }
    }

    /// A cost that remembers its beginning.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn marked(&self, cost: __m512, m: usize) -> __m512 {
        let plain = _mm512_andnot_si512(_mm512_set1_epi32(Self::MARKS), _mm512_castps_si512(cost));
        let mark = _mm512_set1_epi32((m << Self::CHOICE_BITS) as i32);
        _mm512_castsi512_ps(_mm512_or_si512(plain, mark))
    }

    /// Once around: the cheapest way into each memory, element by element.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn lap<const MARKED: bool>(&self, x: &Elements, begin: [__m512; M]) -> Lap<M> {
        let marks = _mm512_set1_epi32(Self::MARKS);
        let choice = _mm512_set1_epi32(Self::CHOICE);
        let mut here = begin;
        let mut choices = [_mm512_setzero_si512(); RING];
        for (i, &x) in x.iter().enumerate() {
            let mut marked = here;
            if MARKED {
                for (m, cost) in marked.iter_mut().enumerate() {
                    let plain = _mm512_andnot_si512(choice, _mm512_castps_si512(*cost));
                    let mark = _mm512_set1_epi32(m as i32 & Self::CHOICE);
                    *cost = _mm512_castsi512_ps(_mm512_or_si512(plain, mark));
                }
            }
            let mut next = here;
            for (to, next) in next.iter_mut().enumerate() {
                for j in 0..J {
                    let from = (to << K | j) & (M - 1);
                    // SAFETY: compiled for the level.
                    let branch = unsafe { self.branch(x, to, j) };
                    let mut cost = _mm512_add_ps(here[from], branch);
                    if MARKED {
                        // Bits of the beginning and the choice where marks are, of the cost
                        // elsewhere.
                        cost = _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0b1101_1000>(
                            _mm512_castps_si512(cost),
                            _mm512_castps_si512(marked[from]),
                            marks,
                        ));
                    }
                    *next = if j == 0 { cost } else { _mm512_min_ps(cost, *next) };
                }
            }
            here = next;
            if MARKED {
                let mut all = _mm512_setzero_si512();
                for cost in here.iter().rev() {
                    let own = _mm512_and_si512(_mm512_castps_si512(*cost), choice);
                    all = _mm512_or_si512(
                        _mm512_sllv_epi32(all, _mm512_set1_epi32(Self::CHOICE_BITS as i32)),
                        own,
                    );
                }
                choices[i] = all;
            }
        }
        Lap { costs: here, choices }
    }

    /// What it costs to come to memory `to` on branch `j`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn branch(&self, x: __m512, to: usize, j: usize) -> __m512 {
        let level = &self.trellis.levels;
        let mut miss = _mm512_sub_ps(x, _mm512_set1_ps(level[to << K | j]));
        for q in 1..Self::NEAR {
            let other = _mm512_sub_ps(x, _mm512_set1_ps(level[to << K | q * J | j]));
            // The smaller magnitude.
            miss = _mm512_range_ps::<0b1010>(miss, other);
        }
        _mm512_mul_ps(miss, miss)
    }

    /// Writes the symbols of the walks that end in `end`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn follow(
        &self,
        x: &Elements,
        lap: &Lap<M>,
        end: __m512i,
        symbols: &mut [[u8; RING]],
    ) {
        let mut memory = end;
        let mut words = [[0u32; LANES]; RING / 4];
        for (four, word) in words.iter_mut().enumerate().rev() {
            let mut own = _mm512_setzero_si512();
            for i in (4 * four..4 * four + 4).rev() {
                let at = _mm512_mullo_epi32(memory, _mm512_set1_epi32(Self::CHOICE_BITS as i32));
                let j = _mm512_and_si512(
                    _mm512_srlv_epi32(lap.choices[i], at),
                    _mm512_set1_epi32(Self::CHOICE),
                );
                // SAFETY: compiled for the level.
                let symbol = unsafe { self.symbol(x[i], memory, j) };
                own = _mm512_or_si512(_mm512_slli_epi32::<8>(own), symbol);
                let before = _mm512_sll_epi32(memory, _mm_cvtsi32_si128(K as i32));
                let before = _mm512_or_si512(before, j);
                memory = _mm512_and_si512(before, _mm512_set1_epi32(M as i32 - 1));
            }
            // SAFETY: a whole register.
            unsafe { _mm512_storeu_si512(word.as_mut_ptr().cast(), own) };
        }
        for (lane, symbols) in symbols.iter_mut().enumerate() {
            for (word, symbols) in words.iter().zip(symbols.as_chunks_mut::<4>().0) {
                *symbols = word[lane].to_le_bytes();
            }
        }
    }

    /// The symbol that leads to a memory on branch `j`: the highest bits of the state, of which the
    /// memory has as many as there are, and the nearest level the others.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn symbol(&self, x: __m512, memory: __m512i, j: __m512i) -> __m512i {
        if Self::NEAR == 1 {
            let above = (6 - K as i32 - K as i32).max(0);
            return _mm512_srl_epi32(memory, _mm_cvtsi32_si128(above));
        }
        let pair = _mm512_or_si512(_mm512_slli_epi32::<2>(memory), j);
        let (mut nearest, mut least) = (_mm512_setzero_si512(), _mm512_set1_ps(f32::INFINITY));
        for q in 0..Self::NEAR {
            let mut levels = [0.0; LANES];
            for (pair, level) in levels.iter_mut().enumerate() {
                *level = self.trellis.levels[pair / J << K | q * J | pair % J];
            }
            // SAFETY: a whole register.
            let levels = unsafe { _mm512_loadu_ps(levels.as_ptr()) };
            let miss = _mm512_abs_ps(_mm512_sub_ps(x, _mm512_permutexvar_ps(pair, levels)));
            let nearer = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(miss, least);
            least = _mm512_mask_blend_ps(nearer, least, miss);
            nearest = _mm512_mask_blend_epi32(nearer, nearest, _mm512_set1_epi32(q as i32));
        }
        _mm512_or_si512(_mm512_slli_epi32::<2>(memory), nearest)
    }
}

/// Up to sixteen rings, by place.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn turn(rings: &[[f32; RING]]) -> Elements {
    let mut rows = [_mm512_setzero_ps(); LANES];
    for (row, ring) in rows.iter_mut().zip(rings) {
        // SAFETY: a whole register.
        *row = unsafe { _mm512_loadu_ps(ring.as_ptr()) };
    }
    // Each round exchanges one bit of the row's number with one of the column's.
    for bit in 0..4 {
        let mut turned = rows;
        let step = 1 << bit;
        let mut lanes = [[0i32; LANES]; 2];
        for lane in 0..LANES {
            let (high, without) = (lane >> bit & 1, lane & !step);
            lanes[0][lane] = (without | high * LANES) as i32;
            lanes[1][lane] = (without | step | high * LANES) as i32;
        }
        // SAFETY: whole registers.
        let (low, high) = unsafe {
            (
                _mm512_loadu_si512(lanes[0].as_ptr().cast()),
                _mm512_loadu_si512(lanes[1].as_ptr().cast()),
            )
        };
        for row in (0..LANES).filter(|row| row & step == 0) {
            turned[row] = _mm512_permutex2var_ps(rows[row], low, rows[row | step]);
            turned[row | step] = _mm512_permutex2var_ps(rows[row], high, rows[row | step]);
        }
        rows = turned;
    }
    rows
}
