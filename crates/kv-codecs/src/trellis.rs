//! Trellis codes of a rotated direction: more precise than a scalar code of the same bits.
//!
//! A code of `k` bits moves a state of six bits, `s' = (s >> k) | (code << (6 - k))`, and the state
//! picks one of 64 levels: neighbours share bits, so a code chooses among finer levels than `2^k`.
//! The states of a row are windows of its bits (see [`taper_tensor::cpu::codes`]), so that decoding
//! needs no history. Each ring of 16 elements is a closed walk and costs no start state.

use crate::polar::norm;
use taper_tensor::cpu::codes::{CodeLevel, RING, Trellis, Windows};

/// Bits of a state.
pub const STATE_BITS: usize = 6;

/// A direction in trellis codes: `x ~ gamma * level(state)`, in table units.
#[derive(Debug, Clone, PartialEq)]
pub struct Walk {
    /// One code an element, padded to whole rings.
    pub symbols: Vec<u8>,
    /// The unbiased scale of the unit-variance levels times `|x| / sqrt(d)`; 0 for a zero row.
    pub gamma: f32,
    /// Squared error relative to `|x|^2`.
    pub error: f32,
}

/// A trellis code of 2, 3 or 4 bits an element.
#[derive(Debug, Clone)]
pub struct TrellisCode {
    bits: usize,
    trellis: Trellis,
    /// As trained.
    levels: [f32; 64],
    /// As stored.
    entries: [i8; 64],
    /// `level = entry * step` has about unit variance.
    step: f32,
}

/// Factors on the direction that the encoder tries: more pay where the code is fine.
const FEW: [f32; 3] = [1.0, 0.92, 1.08];
const MANY: [f32; 5] = [0.99, 0.93, 0.87, 1.05, 1.11];

impl TrellisCode {
    /// The trained code of 2, 3 or 4 bits.
    ///
    /// # Panics
    /// When there is none of these bits.
    #[must_use]
    pub fn new(bits: usize) -> Self {
        let table = match bits {
            2 => &crate::tables::TRELLIS_2,
            3 => &crate::tables::TRELLIS_3,
            4 => &crate::tables::TRELLIS_4,
            _ => panic!("trellis codes have 2, 3 or 4 bits"),
        };
        Self::with_table(bits, table)
    }

    /// A code over other levels.
    ///
    /// # Panics
    /// Unless `bits` is 2, 3 or 4.
    #[must_use]
    pub fn with_table(bits: usize, table: &[f32; 64]) -> Self {
        let (entries, step) = crate::tiles::int8_table(table);
        let trellis = Trellis::new(bits, &entries.map(f32::from));
        Self { bits, trellis, levels: *table, entries, step }
    }

    /// Bits an element.
    #[must_use]
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// The level of a state, for elements of unit variance.
    #[must_use]
    pub fn level(&self, state: u8) -> f32 {
        f32::from(self.entries[usize::from(state)]) * self.step
    }

    /// The levels as trained, before they are rounded to int8.
    #[must_use]
    pub fn table(&self) -> &[f32; 64] {
        &self.levels
    }

    /// How far one step of an entry is.
    #[must_use]
    pub fn step(&self) -> f32 {
        self.step
    }

    pub(crate) fn windows(&self) -> Windows {
        Windows::new(self.bits, STATE_BITS - self.bits, &self.entries)
    }

    /// The states that closed walks pass through, ring by ring.
    #[must_use]
    pub fn states(&self, symbols: &[u8]) -> Vec<u8> {
        let keep = STATE_BITS - self.bits;
        let mut states = Vec::with_capacity(symbols.len());
        for ring in symbols.chunks_exact(RING) {
            // Three symbols fill a state of any of these codes.
            let mut state = 0;
            for &symbol in ring[RING - 3..].iter().chain(ring) {
                state = state >> self.bits | symbol << keep;
                states.push(state);
            }
            let start = states.len() - RING;
            states.copy_within(start.., start - 3);
            states.truncate(states.len() - 3);
        }
        states
    }

    /// The walk nearest to a rotated row, with the scale that leaves inner products unbiased.
    #[must_use]
    pub fn encode_rotated(&self, x: &[f32]) -> Walk {
        self.encode_scaled(x, if self.bits == 4 { &MANY } else { &FEW })
    }

    /// The same, trying these factors on the direction.
    #[must_use]
    pub fn encode_scaled(&self, x: &[f32], scales: &[f32]) -> Walk {
        let (norm, padded) = (norm(x), x.len().next_multiple_of(RING));
        let mut best = Walk { symbols: vec![0; padded], gamma: 0.0, error: f32::INFINITY };
        if norm == 0.0 {
            return Walk { error: 0.0, ..best };
        }
        let deviation = norm / (x.len() as f32).sqrt();
        let mut scaled = vec![0.0; padded];
        let mut symbols = vec![0; padded];
        for scale in scales {
            let factor = scale / (deviation * self.step);
            scaled.iter_mut().zip(x).for_each(|(s, x)| *s = x * factor);
            self.trellis.encode(CodeLevel::detect(), &scaled, &mut symbols);
            let (mut along, mut energy) = (0.0, 0.0);
            for (&state, x) in self.states(&symbols).iter().zip(x) {
                let level = self.level(state);
                along += level * x;
                energy += level * level;
            }
            let error = energy * norm * norm / (along * along) - 1.0;
            if along > 0.0 && error < best.error {
                best.symbols.copy_from_slice(&symbols);
                best.gamma = norm * norm / along;
                best.error = error;
            }
        }
        best
    }
}
