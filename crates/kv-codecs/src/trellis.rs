//! Trellis codes of a rotated direction: more precise than a scalar code of the same bits.
//!
//! A code of `k` bits moves a state of six bits, `s' = (s >> k) | (code << (6 - k))`, and the state
//! picks one of 64 levels: neighbours share bits, so a code chooses among finer levels than `2^k`.
//! The states of a row are windows of its bits (see [`taper_tensor::cpu::codes`]), so that decoding
//! needs no history. Each ring of 16 elements is a closed walk and costs no start state.
//!
//! [`TrellisCode::wide`] is the same with nine bits of state, 512 levels and a closed walk through the
//! whole row, at 3 bits: an eighth less error, for slower encoding and attention.

use crate::{
    polar::norm,
    tables,
    tiles::{Tables, int8_table},
};
use taper_tensor::cpu::codes::{
    CodeLevel, RING, Trellis, WIDE_STATES, WideTrellis, WideWindows, Windows,
};

/// Bits of a trellis state.
pub const STATE_BITS: usize = 6;

/// Bits of a state of the wide code.
pub const WIDE_STATE_BITS: usize = 9;

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
    trellis: Encoder,
    /// As trained.
    levels: Vec<f32>,
    /// As stored.
    entries: Vec<i8>,
    /// `level = entry * step` has about unit variance.
    step: f32,
}

#[derive(Debug, Clone)]
enum Encoder {
    /// Walks that close over rings.
    Ring(Box<Trellis>),
    /// Walks that close over rows.
    Row(Box<WideTrellis>),
}

/// Factors on the direction that the encoder tries: more pay where the code is fine.
const FEW: [f32; 3] = [1.0, 0.92, 1.08];
const MANY: [f32; 5] = [0.99, 0.93, 0.87, 1.05, 1.11];
/// Factors of the wide code. It tries only one, as its walks take longer to find.
const ONE: [f32; 1] = [1.0];
/// Rows encoded together: enough to fill all lanes, few enough to stay in the first-level cache.
const TOGETHER: usize = 8;

impl TrellisCode {
    /// The trained code of 2, 3 or 4 bits.
    ///
    /// # Panics
    /// When there is none of these bits.
    #[must_use]
    pub fn new(bits: usize) -> Self {
        let table = match bits {
            2 => &tables::TRELLIS_2,
            3 => &tables::TRELLIS_3,
            4 => &tables::TRELLIS_4,
            _ => panic!("trellis codes have 2, 3 or 4 bits"),
        };
        Self::with_table(bits, table)
    }

    /// The trained code of 3 bits whose states have [`WIDE_STATE_BITS`].
    #[must_use]
    pub fn wide() -> Self {
        let (entries, step) = &tables::TRELLIS_3_WIDE;
        Self::with_wide_table(&entries.map(|e| f32::from(e) * step))
    }

    /// A code over other levels.
    ///
    /// # Panics
    /// Unless `bits` is 2, 3 or 4.
    #[must_use]
    pub fn with_table(bits: usize, table: &[f32; 64]) -> Self {
        let (entries, step) = int8_table::<64>(table);
        let trellis = Encoder::Ring(Box::new(Trellis::new(bits, &entries.map(f32::from))));
        Self { bits, trellis, levels: table.to_vec(), entries: entries.to_vec(), step }
    }

    /// A wide code over other levels.
    #[must_use]
    pub fn with_wide_table(table: &[f32; WIDE_STATES]) -> Self {
        let (entries, step) = int8_table::<WIDE_STATES>(table);
        let trellis = Encoder::Row(Box::new(WideTrellis::new(&entries.map(f32::from))));
        Self { bits: 3, trellis, levels: table.to_vec(), entries: entries.to_vec(), step }
    }

    /// Bits per element.
    #[must_use]
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// Bits of a trellis state.
    #[must_use]
    pub fn state_bits(&self) -> usize {
        self.entries.len().ilog2() as usize
    }

    /// The level of a state, for elements of unit variance.
    #[must_use]
    pub fn level(&self, state: u16) -> f32 {
        f32::from(self.entries[usize::from(state)]) * self.step
    }

    /// The levels as trained, before they are rounded to int8.
    #[must_use]
    pub fn table(&self) -> &[f32] {
        &self.levels
    }

    /// How far one step of an entry is.
    #[must_use]
    pub fn step(&self) -> f32 {
        self.step
    }

    pub(crate) fn tables(&self) -> Tables {
        let entry = |i: usize| self.entries[i % self.entries.len()];
        match self.trellis {
            Encoder::Ring(_) => {
                let lead = STATE_BITS - self.bits;
                let windows = Windows::new(self.bits, lead, &std::array::from_fn(entry));
                Tables::Ring(Box::new(windows))
            }
            Encoder::Row(_) => Tables::Row(WideWindows::new(&std::array::from_fn(entry))),
        }
    }

    /// The states that closed walks pass through, ring by ring or through the row.
    #[must_use]
    pub fn states(&self, symbols: &[u8]) -> Vec<u16> {
        let keep = self.state_bits() - self.bits;
        let closed = match self.trellis {
            Encoder::Ring(_) => RING,
            Encoder::Row(_) => symbols.len().max(1),
        };
        let mut states = Vec::with_capacity(symbols.len());
        for symbols in symbols.chunks_exact(closed) {
            // Three symbols fill a state of any of these codes.
            let step = |state: u16, symbol: &u8| state >> self.bits | u16::from(*symbol) << keep;
            let mut state = symbols[closed - 3..].iter().fold(0, step);
            for symbol in symbols {
                state = step(state, symbol);
                states.push(state);
            }
        }
        states
    }

    /// The walk nearest to a rotated row, with the scale that leaves inner products unbiased.
    #[must_use]
    pub fn encode_rotated(&self, x: &[f32]) -> Walk {
        self.encode_scaled(x, self.scales())
    }

    /// Encodes rows of `d` elements, which takes less time than one call a row.
    ///
    /// # Panics
    /// When `x` is not whole rows.
    #[must_use]
    pub fn encode_rows(&self, x: &[f32], d: usize) -> Vec<Walk> {
        assert!(d > 0 && x.len().is_multiple_of(d), "whole rows");
        x.chunks(TOGETHER * d).flat_map(|x| self.encode_some(x, d, self.scales())).collect()
    }

    /// The walk of a row, trying these factors on the direction.
    ///
    /// # Panics
    /// When there are none.
    #[must_use]
    pub fn encode_scaled(&self, x: &[f32], scales: &[f32]) -> Walk {
        self.encode_some(x, x.len(), scales).swap_remove(0)
    }

    /// The factors that are worth their time.
    fn scales(&self) -> &'static [f32] {
        match (&self.trellis, self.bits) {
            (Encoder::Row(_), _) => &ONE,
            (_, 4) => &MANY,
            _ => &FEW,
        }
    }

    fn encode_some(&self, x: &[f32], d: usize, scales: &[f32]) -> Vec<Walk> {
        let padded = d.next_multiple_of(RING);
        let mut scaled = vec![0.0; x.len() / d * padded * scales.len()];
        let tried = scaled.chunks_exact_mut(padded * scales.len());
        let norms: Vec<_> = x.chunks_exact(d).map(norm).collect();
        for ((x, tried), &norm) in x.chunks_exact(d).zip(tried).zip(&norms) {
            let deviation = norm / (d as f32).sqrt();
            for (scaled, scale) in tried.chunks_exact_mut(padded).zip(scales) {
                let factor = if norm > 0.0 { scale / (deviation * self.step) } else { 0.0 };
                scaled.iter_mut().zip(x).for_each(|(s, x)| *s = x * factor);
            }
        }
        let mut symbols = vec![0; scaled.len()];
        match &self.trellis {
            Encoder::Ring(t) => t.encode(CodeLevel::detect(), &scaled, &mut symbols),
            Encoder::Row(t) => {
                let rows = scaled.chunks_exact(padded).zip(symbols.chunks_exact_mut(padded));
                rows.for_each(|(x, symbols)| t.encode(CodeLevel::detect(), x, symbols));
            }
        }
        let tried = symbols.chunks_exact(padded * scales.len());
        let rows = x.chunks_exact(d).zip(tried).zip(norms);
        rows.map(|((x, tried), norm)| self.best(x, norm, tried.chunks_exact(padded))).collect()
    }

    /// The walk among some that leaves the least error.
    fn best<'s>(&self, x: &[f32], norm: f32, tried: impl Iterator<Item = &'s [u8]>) -> Walk {
        let mut best = (None, 0.0, f32::INFINITY);
        for symbols in tried {
            let (along, energy) = self.fit(symbols, x);
            let error = energy * norm * norm / (along * along) - 1.0;
            if along > 0.0 && error < best.2 {
                best = (Some(symbols), norm * norm / along, error);
            }
        }
        match best {
            (Some(symbols), gamma, error) => Walk { symbols: symbols.to_vec(), gamma, error },
            _ => {
                let symbols = vec![0; x.len().next_multiple_of(RING)];
                let error = if norm == 0.0 { 0.0 } else { f32::INFINITY };
                Walk { symbols, gamma: 0.0, error }
            }
        }
    }

    /// `(<levels, x>, |levels|^2)` of a walk.
    fn fit(&self, symbols: &[u8], x: &[f32]) -> (f32, f32) {
        if let Encoder::Ring(t) = &self.trellis {
            let (along, energy) = t.fit(CodeLevel::detect(), symbols, x);
            return (along * self.step, energy * self.step * self.step);
        }
        let levels = self.states(symbols).into_iter().map(|s| self.level(s));
        levels.zip(x).fold((0.0, 0.0), |(along, energy), (level, x)| {
            (along + level * x, energy + level * level)
        })
    }
}
