//! The search for closed walks: a ring a lane.
//!
//! A walk is free to begin anywhere in a first *lap* around its ring; a second begins with the costs
//! that the first one left, as if the ring came twice (*circular Viterbi*; Shao et al. 2003). With `F1`
//! and `F2` the least costs of ending at `m` after one and two laps, no closed walk through `m` costs
//! less than `F1(m)` or `F2(m) - F1(m)`, and if the second lap ended where it began, one costs just
//! that. Most rings are decided so; what is left is walked from its likely beginnings, one by one.

use super::{
    RING,
    trellis::Trellis,
    trellis_lanes::{MOST, Walkers},
};

/// What a walk must gain to be sought: more than marks in the lowest bits of costs take away.
const GAIN: f32 = 1.0 - 1e-4;
const FAR: f32 = 1e30;
/// Branches in all, where they have several levels.
const BRANCHES: usize = 16;

/// A ring whose best walk may begin elsewhere.
struct Open<const M: usize> {
    ring: usize,
    /// Cost of the best closed walk so far.
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
    /// Index among the open rings.
    ring: usize,
    start: usize,
    bound: f32,
}

/// Which beginnings of the last rings to walk from next: the most likely of each ring, then others.
fn choose<const M: usize>(open: &mut [Open<M>], first: usize, lanes: usize) -> Vec<Trial> {
    let mut chosen = Vec::with_capacity(lanes);
    loop {
        let before = chosen.len();
        for (ring, own) in open.iter_mut().enumerate().skip(first) {
            let Some(start) = own.likely() else { continue };
            let bound = std::mem::replace(&mut own.bounds[start], f32::INFINITY);
            chosen.push(Trial { ring, start, bound });
            if chosen.len() == lanes {
                return chosen;
            }
        }
        if chosen.len() == before {
            return chosen;
        }
    }
}

/// The search of codes of `K` bits: `M` memories, into each of which walks lead from `J`.
pub(super) struct Search<'a, const K: usize, const M: usize, const J: usize> {
    trellis: &'a Trellis,
    /// By level of a branch, of every branch into every memory.
    near: [[f32; BRANCHES]; 4],
}

/// A ring a lane, what walks through them cost, and how they went.
struct Walks<L, const M: usize> {
    x: [L; RING],
    /// How far each element is from the nearest level of a branch, where branches have several.
    misses: [[L; BRANCHES]; RING],
    /// By where walks are: before an element and after it, alternating.
    costs: [L; M],
    after: [L; M],
    /// Where from, by position: bits of each memory.
    choices: [L; RING],
}

impl<L: Walkers, const M: usize> Walks<L, M> {
    #[inline(always)]
    unsafe fn new() -> Self {
        // SAFETY: the caller is compiled for the level.
        let zero = unsafe { L::of(0.0) };
        Self {
            x: [zero; RING],
            misses: [[zero; BRANCHES]; RING],
            costs: [zero; M],
            after: [zero; M],
            choices: [zero; RING],
        }
    }
}

/// Every method but [`Self::new`] runs in a function that is compiled for the level of its lanes.
impl<'a, const K: usize, const M: usize, const J: usize> Search<'a, K, M, J> {
    const CHOICE_BITS: u32 = J.trailing_zeros();
    const CHOICE: usize = J - 1;
    /// Lowest bits of costs: the last choice, and above it the memory that the lap began with.
    const MARKS: usize = M * J - 1;
    /// Levels among which a branch takes the nearest.
    const NEAR: usize = 64 / (M * J);

    pub(super) fn new(trellis: &'a Trellis) -> Self {
        let mut near = [[0.0; BRANCHES]; 4];
        if Self::NEAR > 1 {
            for (q, near) in near.iter_mut().enumerate().take(Self::NEAR) {
                for (branch, level) in near.iter_mut().enumerate() {
                    *level = trellis.levels[Self::state(branch / J, q, branch % J)];
                }
            }
        }
        Self { trellis, near }
    }

    /// The state of memory `to`, come to on branch `j`, with the `q`th of the levels.
    const fn state(to: usize, q: usize, j: usize) -> usize {
        (to << K) + q * J + j
    }

    /// The symbols of the closed walks nearest to whole rings.
    #[inline(always)]
    pub(super) unsafe fn encode<L: Walkers>(&self, x: &[f32], symbols: &mut [u8]) {
        let (x, symbols) = (x.as_chunks::<RING>().0, symbols.as_chunks_mut::<RING>().0);
        let mut open: Vec<Open<M>> = Vec::new();
        // SAFETY: the caller is compiled for the level.
        unsafe {
            let mut walks = Walks::<L, M>::new();
            for (group, symbols) in symbols.chunks_mut(L::LANES).enumerate() {
                let first = group * L::LANES;
                self.enter(&mut walks, &x[first..first + symbols.len()]);
                let (mut costs, mut bounds) = ([0.0; MOST], [[0.0; MOST]; M]);
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

    /// Takes up to as many rings as there are lanes.
    #[inline(always)]
    unsafe fn enter<L: Walkers>(&self, walks: &mut Walks<L, M>, rings: &[[f32; RING]]) {
        // SAFETY: the caller is compiled for the level; a buffer has room for all lanes.
        unsafe {
            if rings.len() == L::LANES {
                L::turn(rings.as_ptr(), &mut walks.x);
            } else {
                let mut some = [[0.0; RING]; MOST];
                some[..rings.len()].copy_from_slice(rings);
                L::turn(some.as_ptr(), &mut walks.x);
            }
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
    #[inline(always)]
    unsafe fn free<L: Walkers>(
        &self,
        walks: &mut Walks<L, M>,
        costs: &mut [f32; MOST],
        bounds: &mut [[f32; MOST]; M],
    ) -> (L, u32) {
        // SAFETY: the caller is compiled for the level, and arrays have room for all lanes.
        unsafe {
            for cost in &mut walks.costs {
                *cost = L::of(0.0);
            }
            self.lap::<L, false>(walks);
            let mut once = walks.costs;
            for (m, (once, cost)) in once.iter_mut().zip(&mut walks.costs).enumerate() {
                *cost = marked(*cost, Self::MARKS, m << Self::CHOICE_BITS | m & Self::CHOICE);
                *once = *cost;
            }
            self.lap::<L, true>(walks);
            let far = L::of(f32::INFINITY);
            let (mut start, mut best) = (L::of_bits(0), far);
            for (m, bound) in bounds.iter_mut().enumerate() {
                let cost = walks.costs[m].sub(once[m]);
                let own = L::of_bits((m << Self::CHOICE_BITS) as i32);
                let label = L::of_bits((Self::MARKS - Self::CHOICE) as i32);
                let apart = walks.costs[m].xor(own).and(label);
                L::if_zero(apart, far, cost.max(once[m])).store(bound.as_mut_ptr());
                let closed = L::if_zero(apart, cost, far);
                start = L::if_less(closed, best, L::of_bits(m as i32), start);
                best = L::if_less(closed, best, closed, best);
            }
            best.store(costs.as_mut_ptr());
            let least = best.mul(L::of(GAIN));
            let mut unsure = 0;
            for bound in bounds {
                unsure |= L::load(bound.as_ptr()).less(least);
            }
            (start, unsure)
        }
    }

    /// Walks from the beginnings that are left.
    #[inline(always)]
    unsafe fn settle<L: Walkers>(
        &self,
        walks: &mut Walks<L, M>,
        x: &[[f32; RING]],
        symbols: &mut [[u8; RING]],
        mut open: Vec<Open<M>>,
    ) {
        while !open.is_empty() {
            let last = open.len().saturating_sub(L::LANES);
            let walked = choose(&mut open, last, L::LANES);
            let (mut rings, mut starts) = ([[0.0; RING]; MOST], [0.0; MOST]);
            for (lane, trial) in walked.iter().enumerate() {
                rings[lane] = x[open[trial.ring].ring];
                starts[lane] = f32::from_bits(trial.start as u32);
            }
            let (mut costs, mut found) = ([0.0; MOST], [[0; RING]; MOST]);
            // SAFETY: the caller is compiled for the level, and arrays have room for all lanes.
            unsafe {
                self.enter(walks, &rings[..L::LANES]);
                let start = L::load(starts.as_ptr());
                for (m, cost) in walks.costs.iter_mut().enumerate() {
                    let apart = start.xor(L::of_bits(m as i32));
                    let begin = L::if_zero(apart, L::of(0.0), L::of(FAR));
                    *cost = marked(begin, Self::MARKS, m & Self::CHOICE);
                }
                self.lap::<L, true>(walks);
                let mut cost = walks.costs[0];
                for (m, end) in walks.costs.iter().enumerate().skip(1) {
                    cost = L::if_zero(start.xor(L::of_bits(m as i32)), *end, cost);
                }
                cost.store(costs.as_mut_ptr());
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
    #[inline(always)]
    unsafe fn lap<L: Walkers, const MARKED: bool>(&self, walks: &mut Walks<L, M>) {
        let Walks { x, misses, costs, after, choices } = walks;
        for i in (0..RING).step_by(2) {
            // SAFETY: the caller is compiled for the level.
            unsafe {
                choices[i] = self.step::<L, MARKED>(x[i], &misses[i], costs, after);
                choices[i + 1] = self.step::<L, MARKED>(x[i + 1], &misses[i + 1], after, costs);
            }
        }
    }

    /// One element further, and the choices made.
    #[inline(always)]
    unsafe fn step<L: Walkers, const MARKED: bool>(
        &self,
        x: L,
        misses: &[L; BRANCHES],
        costs: &[L; M],
        after: &mut [L; M],
    ) -> L {
        // SAFETY: the caller is compiled for the level.
        unsafe {
            let marks = L::of_bits(Self::MARKS as i32);
            let choice = L::of_bits(Self::CHOICE as i32);
            let mut choices = L::of_bits(0);
            // Walks from the same memories lead to as many.
            for (from, costs) in costs.as_chunks::<J>().0.iter().enumerate() {
                for to in 0..J {
                    let to = to * (M / J) + from;
                    let mut next = L::of_bits(0);
                    for (j, &cost) in costs.iter().enumerate() {
                        let miss = match Self::NEAR {
                            1 => self.miss(x, to, j),
                            _ => misses[to * J + j],
                        };
                        let mut sum = cost.add_square(miss);
                        if MARKED {
                            // Bits of the beginning and the choice where marks are, else of the cost.
                            sum = sum.with(cost, marks);
                        }
                        // Costs are positive, and positive floats lie in the order of their bits.
                        next = if j == 0 { sum } else { sum.less_bits(next) };
                    }
                    after[to] = next;
                    if MARKED {
                        let at = L::of_bits((to as u32 * Self::CHOICE_BITS) as i32);
                        choices = choices.or(next.and(choice).up(at));
                        after[to] = marked(next, Self::CHOICE, to & Self::CHOICE);
                    }
                }
            }
            choices
        }
    }

    /// How far the nearest level is on branch `j` to memory `to`.
    #[inline(always)]
    unsafe fn miss<L: Walkers>(&self, x: L, to: usize, j: usize) -> L {
        let level = &self.trellis.levels;
        // SAFETY: the caller is compiled for the level.
        unsafe {
            let mut miss = x.sub(L::of(level[Self::state(to, 0, j)]));
            for q in 1..Self::NEAR {
                let other = x.sub(L::of(level[Self::state(to, q, j)]));
                // Magnitudes lie in the order of their bits.
                miss = size(miss).less_bits(size(other));
            }
            miss
        }
    }

    /// Writes the symbols of the walks that end in `end`.
    #[inline(always)]
    unsafe fn follow<L: Walkers>(&self, walks: &Walks<L, M>, end: L, symbols: &mut [[u8; RING]]) {
        let mut memory = end;
        let mut words = [[0.0; MOST]; RING / 4];
        // SAFETY: the caller is compiled for the level, and arrays have room for all lanes.
        unsafe {
            let (bits, byte) = (L::of_bits(Self::CHOICE_BITS as i32), L::of_bits(8));
            for (four, word) in words.iter_mut().enumerate().rev() {
                let mut own = L::of_bits(0);
                for i in (4 * four..4 * four + 4).rev() {
                    let choice = walks.choices[i].down(memory.times(bits));
                    let j = choice.and(L::of_bits(Self::CHOICE as i32));
                    own = own.up(byte).or(self.symbol(walks.x[i], memory, j));
                    let before = memory.up(L::of_bits(K as i32)).or(j);
                    memory = before.and(L::of_bits(M as i32 - 1));
                }
                own.store(word.as_mut_ptr());
            }
        }
        for (lane, symbols) in symbols.iter_mut().enumerate() {
            for (word, symbols) in words.iter().zip(symbols.as_chunks_mut::<4>().0) {
                *symbols = word[lane].to_bits().to_le_bytes();
            }
        }
    }

    /// The symbol that leads to a memory on branch `j`: the highest bits of the state, of which the
    /// memory has as many as there are, and the nearest level the others.
    #[inline(always)]
    unsafe fn symbol<L: Walkers>(&self, x: L, memory: L, j: L) -> L {
        // SAFETY: the caller is compiled for the level.
        unsafe {
            if Self::NEAR == 1 {
                return memory.down(L::of_bits((6 - 2 * K as i32).max(0)));
            }
            let four = memory.up(L::of_bits(2));
            let (mut nearest, mut least) = (L::of_bits(0), L::of(f32::INFINITY));
            for (q, near) in self.near.iter().enumerate().take(Self::NEAR) {
                let miss = size(x.sub(L::pick(near, four.or(j))));
                nearest = L::if_less(miss, least, L::of_bits(q as i32), nearest);
                least = L::if_less(miss, least, miss, least);
            }
            four.or(nearest)
        }
    }
}

/// A number without its sign.
#[inline(always)]
unsafe fn size<L: Walkers>(x: L) -> L {
    // SAFETY: the caller is compiled for the level.
    unsafe { x.and(L::of_bits(i32::MAX)) }
}

/// A cost with a mark in its lowest bits.
#[inline(always)]
unsafe fn marked<L: Walkers>(cost: L, bits: usize, mark: usize) -> L {
    // SAFETY: the caller is compiled for the level.
    unsafe { cost.with(L::of_bits(mark as i32), L::of_bits(bits as i32)) }
}
