//! The encoder of trellis codes: the best closed walk through a ring.

use super::{CodeLevel, RING};

/// Codes of a ring.
pub const SYMBOLS_PER_RING: usize = RING;

/// Bits of a state: the window that [`super::Windows`] cuts out.
const STATE_BITS: usize = 6;

/// A trellis code of `bits` bits an element over a table of 64 entries.
///
/// The state after symbol `o` is `s' = (s >> bits) | (o << (6 - bits))` and stands for
/// `table[s']` (a *bitshift trellis*; Marcellin & Fischer 1990, Tseng et al. 2024). A ring is a
/// closed walk: the state before its first symbol is the one after its last, so that no bits go
/// to a start state, and rings can be decoded one by one.
#[derive(Debug, Clone)]
pub struct Trellis {
    bits: usize,
    /// `-2 c` and `c^2` of each entry: a branch costs `c^2 - 2 c x`.
    linear: [f32; 64],
    square: [f32; 64],
}

/// Lanes that walk side by side.
const LANES: usize = 16;
type Lane = [f32; LANES];
/// Costs as bits, with the branch in [`MARK`].
type Choice = [u32; LANES];
/// Lowest bits of a cost, which hold the branch.
const MARK: u32 = 15;
/// The cost of a walk that starts elsewhere.
const FAR: f32 = 1e30;

impl Trellis {
    /// A trellis of 2, 3 or 4 bits.
    ///
    /// # Panics
    /// When it has other bits.
    #[must_use]
    pub fn new(bits: usize, table: &[f32; 64]) -> Self {
        assert!((2..=4).contains(&bits), "2, 3 or 4 bits");
        Self { bits, linear: table.map(|c| -2.0 * c), square: table.map(|c| c * c) }
    }

    /// The symbols of the closed walks that come nearest to `x`, ring by ring.
    ///
    /// # Panics
    /// When `x` is not whole rings, or `symbols` has another length.
    pub fn encode(&self, level: CodeLevel, x: &[f32], symbols: &mut [u8]) {
        assert!(x.len().is_multiple_of(RING) && x.len() == symbols.len(), "whole rings");
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level.
            CodeLevel::Vbmi => unsafe { self.encode_vbmi(x, symbols) },
            _ => self.encode_body(x, symbols),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn encode_vbmi(&self, x: &[f32], symbols: &mut [u8]) {
        let rings = x.chunks(LANES * RING).zip(symbols.chunks_mut(LANES * RING));
        for (x, symbols) in rings {
            // SAFETY: compiled for the level.
            unsafe {
                match self.bits {
                    2 => self.rings_vbmi::<2, 16, 4>(x, symbols),
                    3 => self.rings_vbmi::<3, 8, 8>(x, symbols),
                    _ => self.rings_vbmi::<4, 4, 4>(x, symbols),
                }
            }
        }
    }

    /// Up to 16 rings of `K` bits, a lane each: `M` memories, into each of which walks lead from `J`.
    /// What a branch costs does not depend on where the walk began, so it is computed once for all
    /// of them; the walks themselves are followed again from the best beginning only.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn rings_vbmi<const K: usize, const M: usize, const J: usize>(
        &self,
        x: &[f32],
        symbols: &mut [u8],
    ) {
        use std::arch::x86_64::*;
        let mut turned = [[0.0; LANES]; RING];
        for (lane, ring) in x.chunks_exact(RING).enumerate() {
            for (at, &x) in turned.iter_mut().zip(ring) {
                at[lane] = x;
            }
        }
        let mut starts = [0u32; LANES];
        let mut cost = [[FAR; LANES]; M];
        // SAFETY: whole registers of arrays of this function.
        unsafe {
            // By where the walk began, and where it is.
            let mut here = [[_mm512_set1_ps(FAR); M]; M];
            let mut next = here;
            for (start, costs) in here.iter_mut().enumerate() {
                costs[start] = _mm512_setzero_ps();
            }
            for x in &turned {
                let x = _mm512_loadu_ps(x.as_ptr());
                for to in 0..M {
                    let mut branch = [_mm512_set1_ps(f32::INFINITY); J];
                    for low in 0..1 << K {
                        let state = to << K | low;
                        let square = _mm512_set1_ps(self.square[state]);
                        let c = _mm512_fmadd_ps(x, _mm512_set1_ps(self.linear[state]), square);
                        branch[low % J] = _mm512_min_ps(c, branch[low % J]);
                    }
                    for (next, here) in next.iter_mut().zip(&here) {
                        let mut best = _mm512_set1_ps(f32::INFINITY);
                        for (j, &branch) in branch.iter().enumerate() {
                            let c = _mm512_add_ps(here[(to << K | j) & (M - 1)], branch);
                            best = _mm512_min_ps(c, best);
                        }
                        next[to] = best;
                    }
                }
                here = next;
            }
            let (mut best, mut start) = (here[0][0], _mm512_setzero_si512());
            for (m, here) in here.iter().enumerate().skip(1) {
                let nearer = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(here[m], best);
                best = _mm512_mask_blend_ps(nearer, best, here[m]);
                start = _mm512_mask_blend_epi32(nearer, start, _mm512_set1_epi32(m as i32));
            }
            _mm512_storeu_si512(starts.as_mut_ptr().cast(), start);
            for (lane, &start) in starts.iter().enumerate() {
                cost[start as usize][lane] = 0.0;
            }
        }
        let mut choices = [[[0u32; LANES]; M]; RING];
        for (x, choices) in turned.iter().zip(&mut choices) {
            // SAFETY: both have `M` entries.
            unsafe { self.step_vbmi::<K, M>(x, &mut cost, choices) };
        }
        for (lane, symbols) in symbols.chunks_exact_mut(RING).enumerate() {
            let mut memory = starts[lane] as usize;
            for (symbol, choices) in symbols.iter_mut().zip(&choices).rev() {
                let state = memory << K | (choices[memory][lane] & MARK) as usize;
                *symbol = (state >> (STATE_BITS - K)) as u8;
                memory = state & (M - 1);
            }
        }
    }

    /// Each lane follows one ring from one memory: what of a state the next one keeps.
    fn encode_body(&self, x: &[f32], symbols: &mut [u8]) {
        let memories = 1 << (STATE_BITS - self.bits);
        let rings = LANES / memories;
        for (x, symbols) in x.chunks(rings * RING).zip(symbols.chunks_mut(rings * RING)) {
            let mut cost = [[FAR; LANES]; LANES];
            let cost = &mut cost[..memories];
            for l in 0..LANES {
                cost[l % memories][l] = 0.0;
            }
            let mut choices = [[[0u32; LANES]; LANES]; RING];
            for (i, choices) in choices.iter_mut().enumerate() {
                let mut at = [0.0; LANES];
                for (l, at) in at.iter_mut().enumerate() {
                    *at = x.get(l / memories * RING + i).copied().unwrap_or(0.0);
                }
                self.step(&at, cost, &mut choices[..memories]);
            }
            for (ring, symbols) in symbols.chunks_exact_mut(RING).enumerate() {
                let closed = |m: usize| cost[m][ring * memories + m];
                let nearer = |best, m| if closed(m) < closed(best) { m } else { best };
                let start = (1..memories).fold(0, nearer);
                let mut memory = start;
                for (symbol, choices) in symbols.iter_mut().zip(&choices).rev() {
                    let branch = choices[memory][ring * memories + start] as usize & MARK as usize;
                    let state = memory << self.bits | branch;
                    *symbol = (state >> (STATE_BITS - self.bits)) as u8;
                    memory = state & (memories - 1);
                }
            }
        }
    }

    /// One element further: the cheapest way into each memory, with the branch it took in the
    /// lowest bits of its cost (which it disturbs by less than a millionth).
    fn step(&self, x: &Lane, cost: &mut [Lane], choices: &mut [Choice]) {
        let before: [Lane; LANES] = std::array::from_fn(|m| *cost.get(m).unwrap_or(&[FAR; LANES]));
        let memories = cost.len();
        for (memory, (next, choice)) in cost.iter_mut().zip(choices).enumerate() {
            *next = [f32::INFINITY; LANES];
            for low in 0..1 << self.bits {
                let state = memory << self.bits | low;
                let before = &before[state & (memories - 1)];
                for l in 0..LANES {
                    let c = x[l] * self.linear[state] + (before[l] + self.square[state]);
                    let c = f32::from_bits(c.to_bits() & !MARK | low as u32);
                    next[l] = if c < next[l] { c } else { next[l] };
                }
            }
            *choice = next.map(f32::to_bits);
        }
    }

    /// The same in one register a memory; products are fused.
    ///
    /// # Safety
    /// `cost` and `choices` have `M` entries.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn step_vbmi<const K: usize, const M: usize>(
        &self,
        x: &Lane,
        cost: &mut [Lane],
        choices: &mut [Choice],
    ) {
        use std::arch::x86_64::*;
        // SAFETY: whole registers of the caller's arrays.
        unsafe {
            let x = _mm512_loadu_ps(x.as_ptr());
            let before: [__m512; M] = std::array::from_fn(|m| _mm512_loadu_ps(cost[m].as_ptr()));
            let mark = _mm512_set1_epi32(MARK as i32);
            for memory in 0..M {
                let mut next = _mm512_set1_ps(f32::INFINITY);
                for low in 0..1 << K {
                    let state = memory << K | low;
                    let square = _mm512_set1_ps(self.square[state]);
                    let c = _mm512_add_ps(before[state & (M - 1)], square);
                    let c = _mm512_fmadd_ps(x, _mm512_set1_ps(self.linear[state]), c);
                    // Bits of the branch where the mark is set, of the cost elsewhere.
                    let low = _mm512_set1_epi32(low as i32);
                    let c =
                        _mm512_ternarylogic_epi32::<0b1101_1000>(_mm512_castps_si512(c), low, mark);
                    next = _mm512_min_ps(_mm512_castsi512_ps(c), next);
                }
                _mm512_storeu_ps(cost[memory].as_mut_ptr(), next);
                _mm512_storeu_ps(choices[memory].as_mut_ptr().cast(), next);
            }
        }
    }
}
