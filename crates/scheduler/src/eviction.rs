//! When rows leave the KV cache, and how many.

use taper_base::SeqId;

/// When a sequence's rows are evicted.
///
/// It depends on the lengths of the prompt and of the sequence alone: never on other sequences, on how a
/// prompt is chunked, or on whether the sequence was preempted and is computed again. A prompt is computed
/// whole. Once it is there, and the sequence has `keep + every` rows, all but `keep` go, and then `every`
/// rows after every `every` tokens.
///
/// A *token* has its place in the sequence, which its position is; a *row* is what the cache holds of it. Without
/// evictions there are as many rows as tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictionSchedule {
    /// Rows that stay, at most.
    pub keep: u32,
    /// Rows beyond these at which an eviction runs, a multiple of `unit`.
    pub every: u32,
    /// Rows go in multiples of this, at least 1: what stays then lies in blocks as it did.
    pub unit: u32,
    /// All rows of the prompt stay, beside `keep` others.
    pub keep_prompt: bool,
}

/// Rows that are to leave the cache before the next plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueEviction {
    /// Whose.
    pub id: SeqId,
    /// Tokens that are computed: the position of the next one.
    pub tokens: u32,
    /// Rows that are in the cache.
    pub rows: u32,
    /// How many of them go.
    pub evict: u32,
    /// Tokens of the prompt.
    pub prompt: u32,
}

impl EvictionSchedule {
    /// Rows that stay of a sequence, at most.
    #[must_use]
    pub fn keep(self, prompt: u32) -> u32 {
        self.keep.saturating_add(if self.keep_prompt { prompt } else { 0 })
    }

    /// Tokens at which rows go for the first time: as many rows as the sequence ever has.
    #[must_use]
    pub fn first(self, prompt: u32) -> u32 {
        self.keep(prompt).saturating_add(self.every).max(prompt)
    }

    /// Tokens at which rows go next, of a sequence that has `tokens` computed.
    #[must_use]
    pub fn next(self, prompt: u32, tokens: u32) -> u32 {
        let (first, every) = (self.first(prompt), self.every.max(1));
        match tokens.checked_sub(first) {
            None => first,
            Some(after) => first.saturating_add((after / every + 1).saturating_mul(every)),
        }
    }

    /// Rows that have left once `tokens` tokens are computed.
    #[must_use]
    pub fn evicted(self, prompt: u32, tokens: u32) -> u32 {
        let (first, every) = (self.first(prompt), self.every.max(1));
        match tokens.checked_sub(first) {
            None => 0,
            Some(after) => {
                let beyond = first.saturating_sub(self.keep(prompt));
                beyond.next_multiple_of(self.unit.max(1)) + after / every * every
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: EvictionSchedule =
        EvictionSchedule { keep: 100, every: 32, unit: 32, keep_prompt: false };

    #[test]
    fn a_short_prompt_reaches_the_budget_by_its_output() {
        let s = SCHEDULE;
        assert_eq!((s.first(10), s.next(10, 0), s.next(10, 131)), (132, 132, 132));
        assert_eq!((s.evicted(10, 131), s.evicted(10, 132), s.evicted(10, 163)), (0, 32, 32));
        assert_eq!((s.next(10, 132), s.next(10, 163), s.next(10, 164)), (164, 164, 196));
        assert_eq!(s.evicted(10, 164), 64);
    }

    #[test]
    fn a_long_prompt_loses_whole_units_at_its_end() {
        let s = SCHEDULE;
        assert_eq!((s.first(1005), s.next(1005, 512)), (1005, 1005));
        let evicted = s.evicted(1005, 1005);
        assert!(evicted.is_multiple_of(32) && (69..=100).contains(&(1005 - evicted)), "{evicted}");
        assert_eq!(s.evicted(1005, 1037), evicted + 32);
    }

    #[test]
    fn a_prompt_that_stays_is_no_part_of_the_budget() {
        let s = EvictionSchedule { keep_prompt: true, ..SCHEDULE };
        assert_eq!((s.keep(1005), s.first(1005)), (1105, 1137));
        assert_eq!((s.evicted(1005, 1136), s.evicted(1005, 1137)), (0, 32));
    }

    #[test]
    fn no_length_overflows() {
        let s = EvictionSchedule { keep: u32::MAX, every: u32::MAX, unit: 32, keep_prompt: true };
        assert_eq!((s.first(7), s.next(7, 9), s.evicted(7, u32::MAX)), (u32::MAX, u32::MAX, 0));
        let s = EvictionSchedule { every: 0, unit: 0, ..SCHEDULE };
        assert_eq!((s.next(7, 200), s.evicted(7, 200)), (201, 100));
    }
}
