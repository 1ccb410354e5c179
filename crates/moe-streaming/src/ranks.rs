//! How much an expert in memory is worth: how often it was used, and how long ago.

use crate::ExpertKey;
use std::fmt;
use std::str::FromStr;

/// Tokens after which a use counts half.
pub const HALF_LIFE: f32 = 128.0;
/// Classes of frequency: powers of two of decayed uses.
pub const CLASSES: u32 = 8;

/// Which expert leaves when room is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The one that was used the longest ago.
    Lru,
    /// The one with the fewest uses since the start.
    Lfu,
    /// Of those with the fewest decayed uses, by powers of two, the one that was used the longest ago.
    #[default]
    ClassLru,
    /// The one that is used again the latest, which only a replay can know (Belady 1966).
    Belady,
}

impl Policy {
    /// All, as tables list them.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Lfu, Self::ClassLru, Self::Belady];
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::ClassLru => "class-lru",
            Self::Belady => "belady",
        })
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|p| p.to_string() == name);
        found.ok_or_else(|| format!("{name:?} is no policy"))
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Use {
    /// Decayed uses at the time `at`.
    decayed: f32,
    at: u64,
    all: u64,
    /// Number of the last touch, over all experts.
    last: u64,
}

/// Uses of every expert.
#[derive(Debug, Clone)]
pub(crate) struct Ranks {
    layers: Vec<Vec<Use>>,
    /// Tokens that each layer has seen.
    clocks: Vec<u64>,
    touches: u64,
}

impl Ranks {
    pub(crate) fn new(experts: &[usize]) -> Self {
        let layers: Vec<_> = experts.iter().map(|&n| vec![Use::default(); n]).collect();
        Self { clocks: vec![0; layers.len()], layers, touches: 0 }
    }

    /// Says that a layer has seen so many more tokens.
    pub(crate) fn advance(&mut self, layer: u32, tokens: u64) {
        if let Some(clock) = self.clocks.get_mut(layer as usize) {
            *clock += tokens;
        }
    }

    /// Says that `rows` of the last `tokens` went to an expert.
    pub(crate) fn touch(&mut self, key: ExpertKey, rows: u64, tokens: u64) {
        self.touches += 1;
        let (now, touches) = (self.clock(key.layer), self.touches);
        let layer = self.layers.get_mut(key.layer as usize);
        let Some(own) = layer.and_then(|l| l.get_mut(key.expert as usize)) else { return };
        let each = rows as f32 / tokens.max(1) as f32;
        // A step's tokens are taken to have used it evenly: the sum of a geometric series.
        let (one, all) = (decay(1), decay(tokens));
        let before = own.decayed * decay(now.saturating_sub(own.at));
        own.decayed = before + each * (1.0 - all) / (1.0 - one);
        (own.at, own.last) = (now, touches);
        own.all += rows;
    }

    fn clock(&self, layer: u32) -> u64 {
        self.clocks.get(layer as usize).copied().unwrap_or(0)
    }

    fn get(&self, key: ExpertKey) -> Use {
        let layer = self.layers.get(key.layer as usize);
        layer.and_then(|l| l.get(key.expert as usize)).copied().unwrap_or_default()
    }

    /// Decayed uses as of now.
    pub(crate) fn decayed(&self, key: ExpertKey) -> f32 {
        let own = self.get(key);
        own.decayed * decay(self.clock(key.layer).saturating_sub(own.at))
    }

    /// The class of an expert: the binary logarithm of its decayed uses.
    pub(crate) fn class(&self, key: ExpertKey) -> u32 {
        let decayed = self.decayed(key).max(1.0);
        (decayed.log2().floor() as u32).min(CLASSES - 1)
    }

    /// What an expert is worth; who is worth least goes first. [`Policy::Belady`] is the replay's.
    pub(crate) fn worth(&self, policy: Policy, key: ExpertKey) -> (u64, u64) {
        let own = self.get(key);
        match policy {
            Policy::Lru | Policy::Belady => (0, own.last),
            Policy::Lfu => (own.all, own.last),
            Policy::ClassLru => (u64::from(self.class(key)), own.last),
        }
    }

    /// Uses of all experts as of now, to be kept.
    pub(crate) fn snapshot(&self) -> Vec<Vec<f32>> {
        let key =
            |layer: usize, expert: usize| ExpertKey { layer: layer as u32, expert: expert as u32 };
        let of = |(layer, experts): (usize, &Vec<Use>)| {
            (0..experts.len()).map(|e| self.decayed(key(layer, e))).collect()
        };
        self.layers.iter().enumerate().map(of).collect()
    }

    /// Takes over uses of an earlier run.
    pub(crate) fn restore(&mut self, uses: &[Vec<f32>]) {
        for (own, kept) in self.layers.iter_mut().zip(uses) {
            for (own, &kept) in own.iter_mut().zip(kept) {
                own.decayed = if kept.is_finite() { kept.max(0.0) } else { 0.0 };
            }
        }
    }
}

fn decay(tokens: u64) -> f32 {
    (-(tokens as f32) / HALF_LIFE).exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(expert: u32) -> ExpertKey {
        ExpertKey { layer: 0, expert }
    }

    #[test]
    fn uses_decay_and_classes_are_powers_of_two() {
        let mut ranks = Ranks::new(&[4]);
        for token in 0..4096u32 {
            ranks.advance(0, 1);
            ranks.touch(key(0), 1, 1);
            if token % 16 == 0 {
                ranks.touch(key(1), 1, 1);
            }
        }
        assert_eq!((ranks.class(key(0)), ranks.class(key(2))), (CLASSES - 1, 0));
        let rare = ranks.class(key(1));
        assert!((2..=4).contains(&rare), "{rare}");
        let before = ranks.decayed(key(0));
        ranks.advance(0, 128);
        assert!((ranks.decayed(key(0)) / before - 0.5).abs() < 1e-3);
        assert!(ranks.worth(Policy::ClassLru, key(0)) > ranks.worth(Policy::ClassLru, key(1)));
        assert!(ranks.worth(Policy::Lru, key(1)) < ranks.worth(Policy::Lru, key(0)));
    }

    #[test]
    fn a_chunk_counts_as_its_tokens_one_by_one() {
        let (mut one, mut chunk) = (Ranks::new(&[1]), Ranks::new(&[1]));
        for _ in 0..256 {
            one.advance(0, 1);
            one.touch(key(0), 1, 1);
        }
        chunk.advance(0, 256);
        chunk.touch(key(0), 256, 256);
        assert!((one.decayed(key(0)) / chunk.decayed(key(0)) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn uses_are_kept_and_nonsense_is_not() {
        let mut ranks = Ranks::new(&[2, 1]);
        ranks.advance(0, 1);
        ranks.touch(key(1), 1, 1);
        let kept = ranks.snapshot();
        let mut other = Ranks::new(&[2, 1]);
        other.restore(&kept);
        assert_eq!(other.snapshot(), kept);
        other.restore(&[vec![f32::NAN, -1.0, 5.0], vec![2.0], vec![1.0]]);
        assert_eq!(other.snapshot(), [vec![0.0, 0.0], vec![2.0]]);
        assert_eq!("class-lru".parse(), Ok(Policy::ClassLru));
        assert!("x".parse::<Policy>().is_err());
    }
}
