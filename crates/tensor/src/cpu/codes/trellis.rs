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
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
    unsafe fn encode_vbmi(&self, x: &[f32], symbols: &mut [u8]) {
        self.encode_body(x, symbols);
    }

    #[inline(always)]
    fn encode_body(&self, x: &[f32], symbols: &mut [u8]) {
        match self.bits {
            2 => self.walk::<2, 16>(x, symbols),
            3 => self.walk::<3, 8>(x, symbols),
            _ => self.walk::<4, 4>(x, symbols),
        }
    }

    /// `M = 2^(6 - K)` is the number of memories: what of a state the next one keeps. Each lane
    /// follows one ring from one memory.
    #[inline(always)]
    fn walk<const K: usize, const M: usize>(&self, x: &[f32], symbols: &mut [u8]) {
        let rings = LANES / M;
        for (x, symbols) in x.chunks(rings * RING).zip(symbols.chunks_mut(rings * RING)) {
            let mut cost = [[f32::INFINITY; LANES]; M];
            for l in 0..LANES {
                cost[l % M][l] = 0.0;
            }
            let mut choices = [[[0u8; LANES]; M]; RING];
            for (step, choices) in choices.iter_mut().enumerate() {
                let mut at = [0.0; LANES];
                for (l, at) in at.iter_mut().enumerate() {
                    *at = x.get(l / M * RING + step).copied().unwrap_or(0.0);
                }
                cost = self.step::<K, M>(&at, &cost, choices);
            }
            for (ring, symbols) in symbols.chunks_exact_mut(RING).enumerate() {
                let closed = |m: usize| cost[m][ring * M + m];
                let start =
                    (1..M).fold(0, |best, m| if closed(m) < closed(best) { m } else { best });
                let mut memory = start;
                for step in (0..RING).rev() {
                    let low = usize::from(choices[step][memory][ring * M + start]);
                    let state = memory << K | low;
                    symbols[step] = (state >> (STATE_BITS - K)) as u8;
                    memory = state & (M - 1);
                }
            }
        }
    }

    #[inline(always)]
    fn step<const K: usize, const M: usize>(
        &self,
        x: &Lane,
        cost: &[Lane; M],
        choices: &mut [[u8; LANES]; M],
    ) -> [Lane; M] {
        let mut next = [[f32::INFINITY; LANES]; M];
        for (memory, (next, choice)) in next.iter_mut().zip(choices).enumerate() {
            let mut which = [0i32; LANES];
            for low in 0..1 << K {
                let state = memory << K | low;
                let before = &cost[state & (M - 1)];
                let (linear, square) = (self.linear[state], self.square[state]);
                for l in 0..LANES {
                    let c = before[l] + (x[l] * linear + square);
                    let better = c < next[l];
                    next[l] = if better { c } else { next[l] };
                    which[l] = if better { low as i32 } else { which[l] };
                }
            }
            *choice = which.map(|w| w as u8);
        }
        next
    }
}
