//! The encoder of trellis codes: the best closed walk through a ring.

#[cfg(target_arch = "x86_64")]
use super::trellis_lanes;
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
    pub(super) bits: usize,
    /// The entries.
    pub(super) levels: [f32; 64],
}

/// Lanes that walk side by side.
pub(super) const LANES: usize = 16;
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
        Self { bits, levels: *table }
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
            CodeLevel::Vbmi(_) => unsafe { trellis_lanes::encode_avx512(self, x, symbols) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level.
            CodeLevel::Avx2(_) => unsafe { trellis_lanes::encode_avx2(self, x, symbols) },
            _ => self.encode_plainly(x, symbols),
        }
    }

    /// `(<levels, x>, |levels|^2)` of closed walks, over the elements that `x` has.
    ///
    /// # Panics
    /// When `symbols` is not `x` in whole rings.
    #[must_use]
    pub fn fit(&self, level: CodeLevel, symbols: &[u8], x: &[f32]) -> (f32, f32) {
        assert_eq!(symbols.len(), x.len().next_multiple_of(RING), "whole rings");
        let (mut along, mut energy) = ([0.0; LANES], [0.0; LANES]);
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the machine has the level.
            CodeLevel::Vbmi(_) => unsafe {
                trellis_lanes::fit(self, symbols, x, &mut along, &mut energy);
            },
            _ => {
                for (symbols, x) in symbols.as_chunks::<RING>().0.iter().zip(x.chunks(RING)) {
                    let states = self.states(symbols);
                    for (l, x) in x.iter().enumerate() {
                        let level = self.levels[usize::from(states[l])];
                        along[l] += level * x;
                        energy[l] += level * level;
                    }
                }
            }
        }
        (along.iter().sum(), energy.iter().sum())
    }

    /// The states that a closed walk passes through.
    #[inline(always)]
    pub(super) fn states(&self, symbols: &[u8; RING]) -> [u8; RING] {
        let mut states = [0; RING];
        for (i, state) in states.iter_mut().enumerate() {
            let mut window = 0;
            for back in [2, 1, 0] {
                let symbol = symbols[(i + RING - back) % RING];
                window = window >> self.bits | symbol << (STATE_BITS - self.bits);
            }
            *state = window;
        }
        states
    }

    /// Each lane follows one ring from one memory: what of a state the next one keeps.
    fn encode_plainly(&self, x: &[f32], symbols: &mut [u8]) {
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
                    let miss = x[l] - self.levels[state];
                    let c = before[l] + miss * miss;
                    let c = f32::from_bits(c.to_bits() & !MARK | low as u32);
                    next[l] = if c < next[l] { c } else { next[l] };
                }
            }
            *choice = next.map(f32::to_bits);
        }
    }
}
