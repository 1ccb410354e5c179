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
    /// The most likely beginning of a better walk, if there may be one.
    fn likely(&self) -> Option<usize> {
        let likely = (1..M).fold(0, |a, b| if self.bounds[b] < self.bounds[a] { b } else { a });
        self.promises(self.bounds[likely]).then_some(likely)
    }

    /// Whether walks that cost at least this much are worth their time.
    fn promises(&self, bound: f32) -> bool {
        bound < self.cost * GAIN
    }
}

/// A walk to be tried.
struct Trial {
    /// Of the open rings.
    ring: usize,
    start: usize,
    bound: f32,
}

/// Which beginnings of the last rings to walk from next: the most likely of each ring, then others.
fn choose<const M: usize>(open: &mut [Open<M>], first: usize) -> Vec<Trial> {
    let mut chosen = Vec::with_capacity(LANES);
    loop {
        let before = chosen.len();
        for (ring, own) in open.iter_mut().enumerate().skip(first) {
            let Some(start) = own.likely() else { continue };
            let bound = std::mem::replace(&mut own.bounds[start], f32::INFINITY);
            chosen.push(Trial { ring, start, bound });
            if chosen.len() == LANES {
                return chosen;
            }
        }
        if chosen.len() == before {
            return chosen;
        }
    }
}

/// Elements of sixteen rings, by place in the ring.
type Elements = [__m512; RING];

/// The search of codes of `K` bits: `M` memories, into each of which walks lead from `J`.
pub(super) struct Search<'a, const K: usize, const M: usize, const J: usize> {
    pub(super) trellis: &'a Trellis,
}

/// Sixteen rings, what walks through them cost, and how they went.
struct Walks<const M: usize> {
    x: Elements,
    /// How far each element is from the nearest level of a branch, where branches have several.
    misses: [[__m512; LANES]; RING],
    /// By where walks are: before an element and after it, in turn.
    costs: [__m512; M],
    after: [__m512; M],
    /// Where from, by place: bits of each memory.
    choices: [__m512i; RING],
}

impl<const M: usize> Walks<M> {
    #[target_feature(enable = "avx512f")]
    unsafe fn new() -> Self {
        let zero = _mm512_setzero_ps();
        Self {
            x: [zero; RING],
            misses: [[zero; LANES]; RING],
            costs: [zero; M],
            after: [zero; M],
            choices: [_mm512_setzero_si512(); RING],
        }
    }
}

impl<const K: usize, const M: usize, const J: usize> Search<'_, K, M, J> {
    const CHOICE_BITS: u32 = J.trailing_zeros();
    const CHOICE: usize = J - 1;
    /// Lowest bits of costs: the last choice, and above it the memory that the lap began with.
    const MARKS: usize = M * J - 1;
    /// Levels among which a branch takes the nearest.
    const NEAR: usize = 64 / (M * J);

    /// The state of memory `to`, come to on branch `j`, with the `q`th of the levels.
    #[inline(always)]
    const fn state(to: usize, q: usize, j: usize) -> usize {
        (to << K) + q * J + j
    }

    /// The symbols of the closed walks nearest to whole rings.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) unsafe fn encode(&self, x: &[f32], symbols: &mut [u8]) {
        let (x, symbols) = (x.as_chunks::<RING>().0, symbols.as_chunks_mut::<RING>().0);
        let mut open: Vec<Open<M>> = Vec::new();
        // SAFETY: compiled for the level, and whole registers of arrays of this function.
        unsafe {
            let mut walks = Walks::new();
            for (group, symbols) in symbols.chunks_mut(LANES).enumerate() {
                let first = group * LANES;
                self.enter(&mut walks, &x[first..first + symbols.len()]);
                let (mut costs, mut bounds) = ([0.0; LANES], [[0.0; LANES]; M]);
                let (start, unsure) = self.free(&mut walks, &mut costs, &mut bounds);
                self.follow(&walks, start, symbols);
                for lane in (0..symbols.len()).filter(|lane| unsure >> lane & 1 == 1) {
                    let mut own = [0.0; M];
                    for (own, bound) in own.iter_mut().zip(&bounds) {
                        *own = bound[lane];
                    }
                    open.push(Open { ring: first + lane, cost: costs[lane], bounds: own });
                }
            }
            self.settle(&mut walks, x, symbols, open);
        }
    }

    /// Takes up to sixteen rings.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn enter(&self, walks: &mut Walks<M>, rings: &[[f32; RING]]) {
        // SAFETY: compiled for the level.
        unsafe {
            turn(rings, &mut walks.x);
            if Self::NEAR > 1 {
                for (x, misses) in walks.x.iter().zip(&mut walks.misses) {
                    for (branch, miss) in misses.iter_mut().enumerate() {
                        *miss = self.miss(*x, branch / J, branch % J);
                    }
                }
            }
        }
    }

    /// Two laps: where the best closed walk that they found begins, what it costs (infinite if
    /// none is closed), and what others cost at least; and those rings which others may suit better.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn free(
        &self,
        walks: &mut Walks<M>,
        costs: &mut [f32; LANES],
        bounds: &mut [[f32; LANES]; M],
    ) -> (__m512i, u16) {
        // SAFETY: compiled for the level, and whole registers of arrays.
        unsafe {
            for cost in &mut walks.costs {
                *cost = _mm512_setzero_ps();
            }
            self.lap::<false>(walks);
            let mut once = walks.costs;
            for (m, (once, cost)) in once.iter_mut().zip(&mut walks.costs).enumerate() {
                *cost = marked(*cost, Self::MARKS, m << Self::CHOICE_BITS | m & Self::CHOICE);
                *once = *cost;
            }
            self.lap::<true>(walks);
            let far = _mm512_set1_ps(f32::INFINITY);
            let (mut start, mut best) = (_mm512_setzero_si512(), far);
            for (m, bound) in bounds.iter_mut().enumerate() {
                let cost = _mm512_sub_ps(walks.costs[m], once[m]);
                let own = _mm512_set1_epi32((m << Self::CHOICE_BITS) as i32);
                let apart = _mm512_xor_si512(_mm512_castps_si512(walks.costs[m]), own);
                let label = _mm512_set1_epi32((Self::MARKS - Self::CHOICE) as i32);
                let closed = _mm512_testn_epi32_mask(apart, label);
                let least = _mm512_mask_blend_ps(closed, _mm512_max_ps(cost, once[m]), far);
                _mm512_storeu_ps(bound.as_mut_ptr(), least);
                let better = _mm512_mask_cmp_ps_mask::<_CMP_LT_OQ>(closed, cost, best);
                best = _mm512_mask_blend_ps(better, best, cost);
                start = _mm512_mask_blend_epi32(better, start, _mm512_set1_epi32(m as i32));
            }
            _mm512_storeu_ps(costs.as_mut_ptr(), best);
            let least = _mm512_mul_ps(best, _mm512_set1_ps(GAIN));
            let mut unsure = 0;
            for bound in bounds {
                let bound = _mm512_loadu_ps(bound.as_ptr());
                unsure |= _mm512_cmp_ps_mask::<_CMP_LT_OQ>(bound, least);
            }
            (start, unsure)
        }
    }

    /// Walks from the beginnings that are left.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn settle(
        &self,
        walks: &mut Walks<M>,
        x: &[[f32; RING]],
        symbols: &mut [[u8; RING]],
        mut open: Vec<Open<M>>,
    ) {
        while !open.is_empty() {
            let last = open.len().saturating_sub(LANES);
            let walked = choose(&mut open, last);
            let (mut rings, mut starts) = ([[0.0; RING]; LANES], [0i32; LANES]);
            for (lane, trial) in walked.iter().enumerate() {
                (rings[lane], starts[lane]) = (x[open[trial.ring].ring], trial.start as i32);
            }
            let (mut costs, mut found) = ([0.0; LANES], [[0; RING]; LANES]);
            // SAFETY: compiled for the level, and whole registers of arrays of this function.
            unsafe {
                self.enter(walks, &rings[..walked.len()]);
                let start = _mm512_loadu_si512(starts.as_ptr().cast());
                for (m, cost) in walks.costs.iter_mut().enumerate() {
                    let here = _mm512_cmpeq_epi32_mask(start, _mm512_set1_epi32(m as i32));
                    let begin =
                        _mm512_mask_blend_ps(here, _mm512_set1_ps(FAR), _mm512_setzero_ps());
                    *cost = marked(begin, Self::MARKS, m & Self::CHOICE);
                }
                self.lap::<true>(walks);
                let mut cost = walks.costs[0];
                for (m, end) in walks.costs.iter().enumerate().skip(1) {
                    let here = _mm512_cmpeq_epi32_mask(start, _mm512_set1_epi32(m as i32));
                    cost = _mm512_mask_blend_ps(here, cost, *end);
                }
                _mm512_storeu_ps(costs.as_mut_ptr(), cost);
                self.follow(walks, start, &mut found[..walked.len()]);
            }
            for (lane, trial) in walked.iter().enumerate() {
                let own = &mut open[trial.ring];
                // As if the ring's trials came one by one: how many fit in must not matter.
                if own.promises(trial.bound) && costs[lane] < own.cost {
                    own.cost = costs[lane];
                    symbols[own.ring] = found[lane];
                }
            }
            for ring in (last..open.len()).rev() {
                if open[ring].likely().is_none() {
                    open.swap_remove(ring);
                }
            }
        }
    }

    /// Once around: the cheapest way into each memory, element by element.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn lap<const MARKED: bool>(&self, walks: &mut Walks<M>) {
        let Walks { x, misses, costs, after, choices } = walks;
        for i in (0..RING).step_by(2) {
            // SAFETY: compiled for the level.
            unsafe {
                choices[i] = self.step::<MARKED>(x[i], &misses[i], costs, after);
                choices[i + 1] = self.step::<MARKED>(x[i + 1], &misses[i + 1], after, costs);
            }
        }
    }

    /// One element further, and the choices made.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn step<const MARKED: bool>(
        &self,
        x: __m512,
        misses: &[__m512; LANES],
        costs: &[__m512; M],
        after: &mut [__m512; M],
    ) -> __m512i {
        let marks = _mm512_set1_epi32(Self::MARKS as i32);
        let choice = _mm512_set1_epi32(Self::CHOICE as i32);
        let mut choices = _mm512_setzero_si512();
        // Walks from the same memories lead to as many.
        for (from, costs) in costs.as_chunks::<J>().0.iter().enumerate() {
            for to in 0..J {
                let to = to * (M / J) + from;
                let mut next = _mm512_setzero_si512();
                for (j, &cost) in costs.iter().enumerate() {
                    // SAFETY: compiled for the level.
                    let miss = unsafe {
                        if Self::NEAR > 1 { misses[to * J + j] } else { self.miss(x, to, j) }
                    };
                    let mut sum = _mm512_castps_si512(_mm512_fmadd_ps(miss, miss, cost));
                    if MARKED {
                        // Bits of the beginning and the choice where marks are, else of the cost.
                        let own = _mm512_castps_si512(cost);
                        sum = _mm512_ternarylogic_epi32::<0b1101_1000>(sum, own, marks);
                    }
                    // Costs are positive, and positive floats lie in the order of their bits.
                    next = if j == 0 { sum } else { _mm512_min_epi32(sum, next) };
                }
                after[to] = _mm512_castsi512_ps(next);
                if MARKED {
                    let at = _mm512_set1_epi32((to as u32 * Self::CHOICE_BITS) as i32);
                    let own = _mm512_sllv_epi32(_mm512_and_si512(next, choice), at);
                    choices = _mm512_or_si512(choices, own);
                    // SAFETY: compiled for the level.
                    after[to] = unsafe { marked(after[to], Self::CHOICE, to & Self::CHOICE) };
                }
            }
        }
        choices
    }

    /// How far the nearest level is on branch `j` to memory `to`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn miss(&self, x: __m512, to: usize, j: usize) -> __m512 {
        let level = &self.trellis.levels;
        let mut miss = _mm512_sub_ps(x, _mm512_set1_ps(level[Self::state(to, 0, j)]));
        for q in 1..Self::NEAR {
            let other = _mm512_sub_ps(x, _mm512_set1_ps(level[Self::state(to, q, j)]));
            // Magnitudes lie in the order of their bits.
            let (a, b) = (_mm512_abs_ps(miss), _mm512_abs_ps(other));
            let less = _mm512_min_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b));
            miss = _mm512_castsi512_ps(less);
        }
        miss
    }

    /// Writes the symbols of the walks that end in `end`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn follow(&self, walks: &Walks<M>, end: __m512i, symbols: &mut [[u8; RING]]) {
        let mut memory = end;
        let mut words = [[0u32; LANES]; RING / 4];
        for (four, word) in words.iter_mut().enumerate().rev() {
            let mut own = _mm512_setzero_si512();
            for i in (4 * four..4 * four + 4).rev() {
                let at = _mm512_mullo_epi32(memory, _mm512_set1_epi32(Self::CHOICE_BITS as i32));
                let j = _mm512_and_si512(
                    _mm512_srlv_epi32(walks.choices[i], at),
                    _mm512_set1_epi32(Self::CHOICE as i32),
                );
                // SAFETY: compiled for the level.
                let symbol = unsafe { self.symbol(walks.x[i], memory, j) };
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
                *level = self.trellis.levels[Self::state(pair / J, q, pair % J)];
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

/// A cost with a mark in its lowest bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn marked(cost: __m512, bits: usize, mark: usize) -> __m512 {
    let bits = _mm512_set1_epi32(bits as i32);
    let plain = _mm512_andnot_si512(bits, _mm512_castps_si512(cost));
    _mm512_castsi512_ps(_mm512_or_si512(plain, _mm512_set1_epi32(mark as i32)))
}

/// Brings up to sixteen rings side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn turn(rings: &[[f32; RING]], out: &mut Elements) {
    let mut rows = [_mm512_setzero_ps(); LANES];
    for (row, ring) in rows.iter_mut().zip(rings) {
        // SAFETY: a whole register.
        *row = unsafe { _mm512_loadu_ps(ring.as_ptr()) };
    }
    // SAFETY: compiled for the level.
    unsafe {
        exchange::<1>(&mut rows);
        exchange::<2>(&mut rows);
        exchange::<4>(&mut rows);
        exchange::<8>(&mut rows);
    }
    out.copy_from_slice(&rows);
}

/// Exchanges one bit of the row's number with the same of the column's.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn exchange<const BIT: usize>(rows: &mut Elements) {
    let (mut low, mut high) = ([0i32; LANES], [0i32; LANES]);
    for (lane, (low, high)) in low.iter_mut().zip(&mut high).enumerate() {
        let from = if lane & BIT == 0 { 0 } else { LANES };
        *low = (lane & !BIT | from) as i32;
        *high = (lane | BIT | from) as i32;
    }
    // SAFETY: whole registers.
    let (low, high) = unsafe {
        (_mm512_loadu_si512(low.as_ptr().cast()), _mm512_loadu_si512(high.as_ptr().cast()))
    };
    for pair in 0..LANES / 2 {
        let row = pair / BIT * 2 * BIT + pair % BIT;
        let (a, b) = (rows[row], rows[row + BIT]);
        rows[row] = _mm512_permutex2var_ps(a, low, b);
        rows[row + BIT] = _mm512_permutex2var_ps(a, high, b);
    }
}

/// See [`Trellis::fit`].
///
/// # Safety
/// The machine has the level.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn fit(
    trellis: &Trellis,
    symbols: &[u8],
    x: &[f32],
    along: &mut [f32; LANES],
    energy: &mut [f32; LANES],
) {
    // SAFETY: whole registers of arrays, and as many elements as masks let pass.
    unsafe {
        let table = trellis.levels.as_ptr();
        let table = [
            _mm512_loadu_ps(table),
            _mm512_loadu_ps(table.add(16)),
            _mm512_loadu_ps(table.add(32)),
            _mm512_loadu_ps(table.add(48)),
        ];
        let (mut sum, mut square) = (_mm512_setzero_ps(), _mm512_setzero_ps());
        for (symbols, x) in symbols.as_chunks::<RING>().0.iter().zip(x.chunks(RING)) {
            let own = (0xffff_u32 >> (LANES - x.len())) as __mmask16;
            let states = trellis.states(symbols);
            let states = _mm512_cvtepu8_epi32(_mm_loadu_si128(states.as_ptr().cast()));
            let low = _mm512_permutex2var_ps(table[0], states, table[1]);
            let high = _mm512_permutex2var_ps(table[2], states, table[3]);
            let upper = _mm512_test_epi32_mask(states, _mm512_set1_epi32(32));
            let level = _mm512_maskz_mov_ps(own, _mm512_mask_blend_ps(upper, low, high));
            let x = _mm512_maskz_loadu_ps(own, x.as_ptr());
            sum = _mm512_add_ps(sum, _mm512_mul_ps(level, x));
            square = _mm512_add_ps(square, _mm512_mul_ps(level, level));
        }
        _mm512_storeu_ps(along.as_mut_ptr(), sum);
        _mm512_storeu_ps(energy.as_mut_ptr(), square);
    }
}
